//! The devices and graphs with `checksum` that the battery, the conformance tests, runs on.

use kind::Value;
use testkit::{LowerSpec, Subject};

use crate::tests::subjects::{labelled, over};

/// Bytes of each lower: the checksums, their log and the ring of a journal, and some data.
const LOWER_BYTES: u64 = 448 << 10;

fn subject(name: &str, crash: &str) -> Subject {
    let crash = ("crash", Value::Text(crash.to_owned()));
    over(name, 1, move |graph, on| graph.add("checksum", std::slice::from_ref(&crash), on))
}

pub fn subjects() -> Vec<Subject> {
    let apart = over("a checksum with its checksums elsewhere", 2, |graph, on| {
        let meta = ("meta", Value::Text(graph.name(on[1]).to_owned()));
        graph.add("checksum", &[meta], on)
    });
    let all =
        [subject("checksum", "journal"), subject("a checksum with regions", "regions"), apart];
    let sized = |subject: Subject| {
        let lowers = subject.lowers.iter().map(|lower| LowerSpec { size: LOWER_BYTES, ..*lower });
        labelled(Subject { lowers: lowers.collect(), ..subject })
    };
    all.into_iter().map(sized).collect()
}
