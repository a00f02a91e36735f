//! The subjects of the battery for null.

use testkit::Subject;

/// Returns no subjects, because a `null` disk does not keep bytes.
pub fn subjects() -> Vec<Subject> {
    Vec::new()
}
