//! The devices and graphs with `partition` that the battery, the conformance tests, runs on.

use kind::Value;
use testkit::Subject;

use crate::tests::subjects::{over, size};

pub fn subjects() -> Vec<Subject> {
    vec![over("partition", 1, |graph, on| {
        graph.add("partition", &[size("size", 8192)], on)?;
        graph.add("partition", &[("size", Value::Rest)], on)
    })]
}
