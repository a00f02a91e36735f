//! The battery, the conformance tests, runs on no `null` disks.

use testkit::Subject;

/// Returns no graphs for the battery of tests, because the battery reads its bytes back, and a `null` disk keeps none.
pub fn subjects() -> Vec<Subject> {
    Vec::new()
}
