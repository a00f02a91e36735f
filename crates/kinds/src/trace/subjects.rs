//! The devices and graphs with `trace` that the battery, the conformance tests, runs on.

use std::cell::Cell;

use kind::Value;
use testkit::Subject;

use crate::tests::subjects::{over, size};

pub fn subjects() -> Vec<Subject> {
    let starts = Cell::new(0);
    // Each start has a new file.
    vec![over("trace", 1, move |graph, on| {
        starts.set(starts.get() + 1);
        let file = Value::Text(format!("/trace{}", starts.get()));
        graph.add("trace", &[("file", file), size("size", 1 << 20)], on)
    })]
}
