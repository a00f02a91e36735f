//! Runs the fuzz targets of labels and vaults over seeded inputs: damaged valid inputs, and random bytes.

mod bodies;

use std::collections::BTreeMap;

use meta::vault::entry::{Entry, ObjectKind, Run, Slot};
use meta::vault::geometry::Geometry;
use meta::vault::record::{Change, RECORD_HEADER_BYTES, Verb};
use meta::vault::superblock::{COPIES_MAX, Epoch, Position, Superblock};
use meta::{Cell, Label, Machine, Past, Uuid};

fn whole() -> Vec<u8> {
    let cell = |n: u8| (format!("device{n}"), Cell { sequence: u64::from(n), bytes: vec![n; 40] });
    let label = Label {
        sequence: 7,
        epoch: 2,
        broadcast: 0,
        acked_broadcast: 0,
        disk: Uuid([1; 16]),
        disk_name: "a".to_owned(),
        graph: Uuid([2; 16]),
        graph_name: "home".to_owned(),
        data_bytes: 1 << 20,
        block_size: 4096,
        written_unix_s: 1,
        holder: Some(Machine::new("here", [3; 16])),
        provisioning: false,
        spec: "name = \"home\"\n".to_owned(),
        cells: BTreeMap::from([cell(1), cell(2)]),
        past: [Past { epoch: 3, until_unix_s: 4, spec: "name = \"home\"\n".to_owned() }].into(),
        unknown_read_only: 0,
    };
    label.encode().unwrap()
}

#[test]
fn label_decoder_survives_fuzzed_labels() {
    let mut counted = 0;
    testkit::smoke(&[whole()], |input| {
        counted += u64::from(Label::decode(input).is_ok());
        bodies::label(input);
    });
    assert!(counted > testkit::INPUTS / 10, "{counted} of {} were labels", testkit::INPUTS);
}

#[test]
fn vault_superblock_decoder_survives_fuzzed_superblocks() {
    let geometry = Geometry::fit(1 << 20, 1 << 16, 2).unwrap();
    let superblock = Superblock {
        vault: Uuid([1; 16]),
        sequence: 3,
        epoch: Epoch { number: 2, draw: 9 },
        copy: 0,
        copies: 2,
        current: 3,
        geometry,
        checkpoint: 4,
        root: None,
        tail: Position { offset: 4096, number: 2, previous: 5, epoch: 1 },
        sent: [Epoch::default(); COPIES_MAX],
        unknown_read_only: 0,
    };
    // All fields are at the front. Most of the damage must hit them.
    testkit::smoke(&[superblock.encode()[..320].to_vec()], bodies::superblock);
}

#[test]
fn vault_record_decoder_survives_fuzzed_log_records() {
    let mut changes = vec![0; RECORD_HEADER_BYTES];
    for verb in [Verb::Write(b"some bytes"), Verb::Fill(100, 7), Verb::Bits(99, true)] {
        Change { object: 3, from: 50, verb }.encode(&mut changes);
    }
    for (from, verb) in [(50, Verb::Data(4096, 7)), (0, Verb::LetGo)] {
        Change { object: 0, from, verb }.encode(&mut changes);
    }
    testkit::smoke(&[changes], bodies::record);
}

#[test]
fn vault_page_decoder_survives_fuzzed_pages() {
    let entry = Entry {
        number: 1,
        kind: ObjectKind::Bitmap,
        advisory: false,
        owner: "a".to_owned(),
        role: 0,
        record_bytes: 0,
        length: 100,
        epoch: 1,
        runs: vec![Run { first: 3, pages: 1 }],
    };
    testkit::smoke(&[Slot::Entry(entry).encode().to_vec(), vec![1; 4096]], bodies::page);
}
