//! The subjects of the battery for concat.

use testkit::Subject;

use crate::tests::subjects::over;

pub fn subjects() -> Vec<Subject> {
    vec![over("concat", 3, |graph, on| graph.add("concat", &[], on))]
}
