//! The `memory` disks that the battery, the conformance tests, runs on.

use testkit::Subject;

use crate::REGISTRY;
use crate::tests::subjects::{SIZE, size};

pub fn subjects() -> Vec<Subject> {
    vec![Subject::disk("memory", REGISTRY, 0, SIZE, |graph| {
        graph.add("memory", &[size("memory", SIZE)], &[])
    })]
}
