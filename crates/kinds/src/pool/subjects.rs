//! A pool has no bytes of its own. The battery runs on `versioned`, which is a pool of one virtual disk.

use testkit::Subject;

pub fn subjects() -> Vec<Subject> {
    Vec::new()
}
