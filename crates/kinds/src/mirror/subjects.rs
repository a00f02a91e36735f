//! The devices and graphs with `mirror` that the battery, the conformance tests, runs on.

use std::time::Duration;

use kind::Value;
use sim::{Assembly, PartId};
use testkit::Subject;

use super::room::MEMBER_BYTES_MIN;
use crate::REGISTRY;
use crate::tests::subjects::{SIZE, labelled, over, size, slots};

pub fn subjects() -> Vec<Subject> {
    let mirror = |options: &[(&'static str, Value)]| {
        let options = options.to_vec();
        move |graph: &mut Assembly, on: &[PartId]| graph.add("mirror", &options, on)
    };
    // Several regions, which leave the bitmap while the mirror works.
    let small = [size("region", 4096), ("clear_delay", Value::Duration(Duration::from_millis(1)))];
    let trusting = over("a mirror that trusts a member", 2, |graph, on| {
        let trust = Value::Text(graph.name(on[0]).to_owned());
        graph.add("mirror", &[("trust", trust)], on)
    });
    let copies = [
        over("mirror", 2, mirror(&[])),
        over("a mirror of three", 3, mirror(&[])),
        over("a mirror of 4 KiB blocks", 2, mirror(&[])).with_blocks_of_4k(),
        over("a mirror of small regions", 2, mirror(&small)),
        over("a mirror of three with small regions", 3, mirror(&small)),
    ];
    let mut subjects = vec![trusting.with_copies(1)];
    subjects.extend(copies.map(|subject| labelled(subject).with_copies(1)));
    // Clients see the last bytes before the store, and few, so that their requests overlap.
    let last = move |graph: &mut Assembly, on: &[PartId]| {
        let mirror = graph.add("mirror", &small, on)?;
        assert!(graph.info(mirror).size < MEMBER_BYTES_MIN, "the store has room");
        let start = graph.info(mirror).size - SIZE;
        graph.add("partition", &[size("start", start), size("size", SIZE)], &[mirror])
    };
    let stored = Subject::new("a mirror with a store", REGISTRY, 2, MEMBER_BYTES_MIN, last);
    subjects.push(labelled(stored).with_redundancy(1));
    subjects.push(
        labelled(over("a mirror of crypts", 2, |graph, on| {
            let safes =
                [&on[..1], &on[1..]].map(|on| graph.add("crypt", &slots("credential:safe"), on));
            let [one, two] = safes;
            graph.add("mirror", &[], &[one?, two?])
        }))
        .with_redundancy(1),
    );
    subjects.push(
        labelled(over("a mirror of stripes", 4, |graph, on| {
            let stripes =
                [&on[..2], &on[2..]].map(|on| graph.add("stripe", &[size("chunk", 1024)], on));
            let [one, two] = stripes;
            graph.add("mirror", &[], &[one?, two?])
        }))
        .with_redundancy(1),
    );
    subjects
}
