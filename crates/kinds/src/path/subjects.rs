//! The `path` disks that the battery, the conformance tests, runs on.

use kind::Value;
use testkit::{Subject, disk_path};

use crate::REGISTRY;
use crate::tests::subjects::SIZE;

pub fn subjects() -> Vec<Subject> {
    let disk = Subject::disk("path", REGISTRY, 1, SIZE, |graph| {
        graph.add("path", &[("path", Value::Text(disk_path(0)))], &[])
    });
    vec![disk.with_blocks_of_4k()]
}
