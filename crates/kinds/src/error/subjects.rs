//! The devices and graphs with `error` that the battery, the conformance tests, runs on.

use kind::Value;
use testkit::Subject;

use crate::tests::subjects::over;

pub fn subjects() -> Vec<Subject> {
    vec![over("error", 1, |graph, on| graph.add("error", &[("count", Value::Integer(0))], on))]
}
