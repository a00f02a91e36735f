//! The devices and graphs with `concat` that the battery, the conformance tests, runs on.

use testkit::Subject;

use crate::tests::subjects::over;

pub fn subjects() -> Vec<Subject> {
    vec![over("concat", 3, |graph, on| graph.add("concat", &[], on))]
}
