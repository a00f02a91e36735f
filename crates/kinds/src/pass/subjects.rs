//! The subjects of the battery for pass.

use testkit::Subject;

use crate::tests::subjects::over;

pub fn subjects() -> Vec<Subject> {
    vec![over("pass", 1, |graph, on| graph.add("pass", &[], on))]
}
