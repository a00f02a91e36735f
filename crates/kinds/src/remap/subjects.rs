//! The devices and graphs with `remap` that the battery, the conformance tests, runs on.

use kind::Value;
use testkit::{LowerSpec, Subject};

use crate::tests::subjects::{SIZE, labelled, over, size};

/// Returns a subject with a `remap` device of blocks of 4096 bytes: over one lower, or with a second lower for the map.
fn remapped(name: &str, lowers: usize, more: &[(&'static str, Value)]) -> Subject {
    let options = [&[size("size", SIZE), size("block", 4096)], more].concat();
    let subject = over(name, lowers, move |graph, on| match on {
        [_] => graph.add("remap", &options, on),
        _ => {
            let meta = ("meta", Value::Text(graph.name(on[1]).to_owned()));
            graph.add("remap", &[&options[..], &[meta]].concat(), on)
        }
    });
    // Its map needs a part of the lowers.
    let lowers = subject.lowers.iter().map(|lower| LowerSpec { size: 320 << 10, ..*lower });
    labelled(Subject { lowers: lowers.collect(), ..subject })
}

pub fn subjects() -> Vec<Subject> {
    vec![
        remapped("remap", 1, &[]),
        remapped("a remap of 4 KiB blocks", 1, &[("pack", Value::Switch(true))])
            .with_blocks_of_4k(),
        remapped("a remap with a map elsewhere", 2, &[("policy", Value::Text("log".into()))]),
    ]
}
