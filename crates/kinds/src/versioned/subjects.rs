//! The devices and graphs with `versioned` that the battery, the conformance tests, runs on.

use testkit::{LowerSpec, Subject};

use crate::tests::subjects::{SIZE, labelled, over, size};

/// Bytes of the lower: the least for a pool.
pub const LOWER_BYTES: u64 = 16 << 20;

pub fn subjects() -> Vec<Subject> {
    let subject =
        over("versioned", 1, |graph, on| graph.add("versioned", &[size("size", SIZE)], on));
    let lowers = subject.lowers.iter().map(|lower| LowerSpec { size: LOWER_BYTES, ..*lower });
    vec![labelled(Subject { lowers: lowers.collect(), ..subject })]
}
