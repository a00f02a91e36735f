//! The devices and graphs with `pass` that the battery, the conformance tests, runs on.

use testkit::Subject;

use crate::tests::subjects::over;

pub fn subjects() -> Vec<Subject> {
    vec![over("pass", 1, |graph, on| graph.add("pass", &[], on))]
}
