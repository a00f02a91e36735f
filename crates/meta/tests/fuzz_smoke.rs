//! Runs the fuzz targets of labels, vaults, rings and journals over seeded inputs: damaged valid inputs, and random bytes.

mod bodies;

use std::collections::BTreeMap;

use meta::journal::root::{Root, VERSION};
use meta::journal::{Part, PartKind};
use meta::ring::{self, Head, Item, MustKnow, Owner, Ring};
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
        flushed: 1,
        unknown_read_only: 0,
    };
    // All fields are at the front. Most of the damage must hit them.
    testkit::smoke(&[superblock.encode()[..320].to_vec()], bodies::superblock);
}

#[test]
fn vault_record_decoder_survives_fuzzed_log_records() {
    let mut changes = vec![0; RECORD_HEADER_BYTES];
    for verb in
        [Verb::Write(b"some bytes"), Verb::Fill(100, 7), Verb::Bits(99, true), Verb::Raise(9)]
    {
        Change { object: 3, from: 56, verb }.encode(&mut changes);
    }
    Change { object: 0, from: 50, verb: Verb::Data(4096, 7) }.encode(&mut changes);
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

#[test]
fn ring_record_decoder_survives_fuzzed_records() {
    let of = Ring::new(Uuid([7; 16]), 65536, Owner::PoolLog).unwrap();
    let mut items = Vec::new();
    for must_know in [MustKnow::No, MustKnow::ToOpen] {
        Item { kind: 3, must_know, content: &[5; 24] }.encode(&mut items);
    }
    let at = ring::Position { offset: 0, number: 1, previous: 0, opening: 1 };
    let mut one = Vec::new();
    let head = Head { items: 2, ..Head::empty(at, 1, 0) }.encode(&of, &items, &mut one);
    let length = head.length as usize;
    let mut two = one.clone();
    Head { items: 2, ..Head::empty(head.next(), 1, 1) }.encode(&of, &items, &mut two);
    let mut counted = 0;
    testkit::smoke(&[one[..length].to_vec(), two], |input| {
        counted += u64::from(Head::decode(&of, input).is_ok());
        bodies::ring(input);
    });
    assert!(counted > testkit::INPUTS / 20, "{counted} of {} were records", testkit::INPUTS);
}

#[test]
fn journal_decoders_survive_fuzzed_roots_and_parts() {
    let ring = Ring::new(Uuid([7; 16]), 65536, Owner::Journal).unwrap();
    let tail = ring::Position { offset: 4096, number: 2, previous: 0, opening: 1 };
    let root = Root { ring, sequence: 1, tail, lowers: 3, unknown_read_only: 0 };
    let mut parts = Vec::new();
    for kind in [PartKind::Data, PartKind::Zeroes, PartKind::Discard] {
        let range = block::ByteRange::new(4096, 512).unwrap();
        let inline = vec![1; 8 * kind as usize].into();
        Part { kind, lower: 2, range, checksum: 5, inline }.encode(&mut parts);
    }
    assert_eq!(root.encode()[8], VERSION as u8);
    // All fields of a root are at the front. Most of the damage must hit them.
    testkit::smoke(&[root.encode()[..108].to_vec(), parts], bodies::journal);
}
