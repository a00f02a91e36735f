//! The subjects of the battery for partition.

use kind::Value;
use testkit::Subject;

use crate::tests::subjects::{over, size};

pub fn subjects() -> Vec<Subject> {
    vec![over("partition", 1, |graph, on| {
        graph.add("partition", &[size("size", 8192)], on)?;
        graph.add("partition", &[("size", Value::Rest)], on)
    })]
}
