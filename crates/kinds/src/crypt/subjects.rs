//! The devices and graphs with `crypt` that the battery, the conformance tests, runs on.

use block::Result;
use kind::Value;
use sim::{Assembly, PartId};
use testkit::Subject;

use crate::REGISTRY;
use crate::tests::subjects::{labelled, over, plain, size, slots};

/// Returns a function that builds a crypt device with key slots. The device creates the slots at its first start.
fn with_slots() -> impl Fn(&mut Assembly, &[PartId]) -> Result<PartId> + 'static {
    |graph, on| graph.add("crypt", &slots("credential:safe"), on)
}

/// JSON arguments of key-slot commands for the battery. None of these commands removes the last key slot.
const KEY_COMMANDS: [&str; 7] = [
    r#"{"do":"list"}"#,
    r#"{"do":"list","dry_run":true}"#,
    r#"{"do":"explode"}"#,
    r#"{"do":"remove","slot":0}"#,
    r#"{"do":"remove","slot":18446744073709551615}"#,
    r#"{"do":"add","key":"credential:safe","new_key":"no source"}"#,
    r#"{"do":"change","key":"file:/no/such/file","new_key":"credential:safe"}"#,
];

pub fn subjects() -> Vec<Subject> {
    let with = |more: &[(&'static str, Value)]| {
        let options = [&plain()[..], more].concat();
        move |graph: &mut Assembly, on: &[PartId]| graph.add("crypt", &options, on)
    };
    vec![
        over("a crypt with a raw key", 1, with(&[])),
        over("a crypt of 4 KiB blocks with a raw key", 1, with(&[])).with_blocks_of_4k(),
        // Its worker threads are sometimes all busy. Then it splits the next request.
        Subject::new("a crypt of long requests", REGISTRY, 1, 2 << 20, with(&[]))
            .with_transfers_of(1 << 20)
            .with_seeds(1),
        over("a crypt in units of 4 KiB", 1, with(&[size("unit", 4096)])),
        over("a crypt with discards", 1, with(&[("discards", Value::Switch(true))])),
        labelled(over("crypt", 1, with_slots())).with_arguments(&KEY_COMMANDS),
        labelled(over("a crypt of 4 KiB blocks", 1, with_slots())).with_blocks_of_4k(),
        labelled(over("a crypt on a mirror", 2, |graph, on| {
            let mirror = graph.add("mirror", &[], on)?;
            with_slots()(graph, &[mirror])
        }))
        .with_copies(1),
    ]
}
