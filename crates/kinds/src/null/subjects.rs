//! The subjects of the battery for null.

use testkit::Subject;

/// There are none, because it does not keep bytes.
pub fn subjects() -> Vec<Subject> {
    Vec::new()
}
