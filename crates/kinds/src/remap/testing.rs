//! How the fuzzer checks records of `remap` devices from disks. Random graphs draw no `remap` devices.

use kind::testing::{Records, Testing};

use super::layout::Layout;
use super::record::Record;

pub const TESTING: Testing =
    Testing { records: &[Records { name: "remap", valid, check }], ..Testing::NONE };

fn valid() -> Vec<Vec<u8>> {
    let layout = Layout { block_bytes: 65536, blocks: 100, places: 50, start: 1 << 20 };
    let record = |vault, paused| Record { vault, paused, layout }.encode();
    vec![record(Some(meta::Uuid([3; 16])), false), record(None, true)]
}

/// Parses an untrusted record of a `remap` device. An accepted record must encode to the same bytes, and its data
/// blocks must have valid addresses. Returns whether the record was accepted.
fn check(data: &[u8]) -> bool {
    let Ok(record) = Record::decode(data) else { return false };
    assert!(record.encode() == data, "accepted bytes are those that would be written");
    let layout = record.layout;
    assert!(layout.size() > 0 && layout.range(layout.blocks - 1, 1).end() == layout.size());
    assert!(layout.places(layout.places - 1, 1).end() <= 1 << 62);
    true
}
