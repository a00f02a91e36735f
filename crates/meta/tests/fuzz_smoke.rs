//! Runs the body of the fuzz target over seeded inputs: a label with wounds, and noise.

mod bodies;

use std::collections::BTreeMap;

use meta::{Cell, Label, Machine, Uuid};

fn whole() -> Vec<u8> {
    let cell = |n: u8| (format!("device{n}"), Cell { sequence: u64::from(n), bytes: vec![n; 40] });
    let label = Label {
        sequence: 7,
        epoch: 2,
        disk: Uuid([1; 16]),
        disk_name: "a".to_owned(),
        graph: Uuid([2; 16]),
        graph_name: "home".to_owned(),
        data_bytes: 1 << 20,
        block_size: 4096,
        written_unix_s: 1,
        holder: Some(Machine::new("here", [3; 16])),
        forming: false,
        spec: "name = \"home\"\n".to_owned(),
        cells: BTreeMap::from([cell(1), cell(2)]),
        unknown_read_only: 0,
    };
    label.encode().unwrap()
}

#[test]
fn labels() {
    let mut counted = 0;
    testkit::smoke(&[whole()], |input| {
        counted += u64::from(Label::decode(input).is_ok());
        bodies::label(input);
    });
    assert!(counted > testkit::INPUTS / 10, "{counted} of {} were labels", testkit::INPUTS);
}
