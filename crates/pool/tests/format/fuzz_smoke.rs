//! Runs the fuzz targets of pools over seeded inputs: damaged valid inputs, and random bytes.

use pool::name::ExportName;
use pool::root::{Header, root_checksum};
use pool::rows::Table;

use crate::{bodies, samples};

#[test]
fn pool_slot_decoders_survive_fuzzed_slots() {
    // All fields are at the front. Most of the damage must hit them.
    let whole = [
        samples::header().encode()[..136].to_vec(),
        samples::superblock(3).encode()[..212].to_vec(),
        samples::extent_header().encode()[..88].to_vec(),
    ];
    let mut counted = 0;
    testkit::smoke(&whole, |input| {
        let mut slot = input.to_vec();
        slot.resize(4096, 0);
        let sum = root_checksum(&slot);
        slot[16..24].copy_from_slice(&sum.to_le_bytes());
        counted += u64::from(Header::decode(&slot, None).is_ok());
        bodies::slot(input);
    });
    assert!(counted > testkit::INPUTS / 50, "{counted} of {} were headers", testkit::INPUTS);
}

#[test]
fn pool_log_item_decoder_survives_fuzzed_items() {
    let rows = samples::rows();
    let mut whole = Vec::new();
    let mut all = Vec::new();
    for item in samples::log_items(&rows) {
        let mut one = Vec::new();
        item.encode(&mut one);
        all.extend_from_slice(&one);
        whole.push(one);
    }
    whole.push(all);
    let mut counted = 0;
    testkit::smoke(&whole, |input| {
        counted += u64::from(pool::log::log_items(input, 1).is_ok());
        bodies::items(input);
    });
    assert!(counted > testkit::INPUTS / 10, "{counted} of {} were items", testkit::INPUTS);
}

#[test]
fn pool_row_decoders_survive_fuzzed_rows() {
    let rows = samples::rows();
    let whole: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let mut counted = 0;
    testkit::smoke(&whole, |input| {
        let is_row = |table: &&Table| table.reencode(input).is_ok();
        counted += u64::from(Table::ALL.iter().any(|table| is_row(&table)));
        bodies::row(input);
    });
    assert!(counted > testkit::INPUTS / 10, "{counted} of {} were rows", testkit::INPUTS);
}

#[test]
fn pool_name_parser_survives_fuzzed_names() {
    let names = ["vms/web", "vms/web@monday", "vms/gold@v1+job17@15", "vms/a@b+c@d+e"];
    let whole: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    let mut counted = 0;
    testkit::smoke(&whole, |input| {
        let text = std::str::from_utf8(input).ok();
        counted += u64::from(text.is_some_and(|text| ExportName::parse(text).is_ok()));
        bodies::name(input);
    });
    assert!(counted > testkit::INPUTS / 10, "{counted} of {} were names", testkit::INPUTS);
}
