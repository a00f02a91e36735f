//! The devices and graphs with `limit` that the battery, the conformance tests, runs on.

use kind::Value;
use testkit::Subject;

use crate::tests::subjects::{over, size};

pub fn subjects() -> Vec<Subject> {
    vec![over("limit", 1, |graph, on| {
        let rates = [("iops", Value::Integer(5000)), size("bytes", 20 << 20)];
        graph.add("limit", &rates, on)
    })]
}
