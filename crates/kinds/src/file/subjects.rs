//! The `file` disks that the battery, the conformance tests, runs on.

use kind::Value;
use testkit::{Subject, disk_path};

use crate::REGISTRY;
use crate::tests::subjects::SIZE;

pub fn subjects() -> Vec<Subject> {
    vec![Subject::disk("file", REGISTRY, 1, SIZE, |graph| {
        graph.add("file", &[("file", Value::Text(disk_path(0)))], &[])
    })]
}
