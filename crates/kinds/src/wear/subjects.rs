//! The devices and graphs with `wear` that the battery, the conformance tests, runs on.

use kind::Value;
use testkit::{LowerSpec, Subject};

use crate::tests::subjects::{labelled, over};

/// Bytes of each lower: the counts and their log, and more than a MiB of data.
const LOWER_BYTES: u64 = 1536 << 10;

pub fn subjects() -> Vec<Subject> {
    let alone = over("wear", 1, |graph, on| graph.add("wear", &[], on));
    let apart = over("a wear with counts elsewhere", 2, |graph, on| {
        let meta = ("meta", Value::Text(graph.name(on[1]).to_owned()));
        graph.add("wear", &[meta], on)
    });
    let sized = |subject: Subject| {
        let lowers = subject.lowers.iter().map(|lower| LowerSpec { size: LOWER_BYTES, ..*lower });
        labelled(Subject { lowers: lowers.collect(), ..subject })
    };
    vec![sized(alone), sized(apart)]
}
