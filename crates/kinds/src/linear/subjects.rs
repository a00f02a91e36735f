//! The devices and graphs with `linear` that the battery, the conformance tests, runs on.

use testkit::Subject;

use crate::tests::subjects::{over, size};

pub fn subjects() -> Vec<Subject> {
    vec![over("linear", 1, |graph, on| {
        graph.add("linear", &[size("start", 4096), size("size", 40960)], on)
    })]
}
