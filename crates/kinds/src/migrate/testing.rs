//! How the fuzzer checks records of migrations from disks. Random graphs draw no `migrate` devices.

use block::ByteRange;
use kind::testing::{Records, Testing};

use super::record::{Record, WINDOW_MAX_BYTES, Window};

pub const TESTING: Testing =
    Testing { records: &[Records { name: "migrate", valid, check }], ..Testing::NONE };

fn valid() -> Vec<Vec<u8>> {
    let record = |back: bool, sectors: u64| {
        let start = if back { (8 << 20) - sectors * 512 } else { 8 << 20 };
        let range = ByteRange::new(start, sectors * 512);
        let window = range.map(|range| Window { range, sums: (0..sectors).collect() });
        Record { back, paused: back, size: 64 << 20, boundary: 8 << 20, window }.encode()
    };
    let most = WINDOW_MAX_BYTES / 512;
    vec![record(false, 0), record(true, 0), record(false, 1), record(true, most)]
}

/// Parses an untrusted record of a migration. An accepted record must encode to the same bytes, and its window must
/// begin or end at the boundary. Returns whether the record was accepted.
fn check(data: &[u8]) -> bool {
    let Ok(record) = Record::decode(data) else { return false };
    assert!(record.encode() == data, "accepted bytes are those that would be written");
    assert!(record.boundary <= record.size);
    if let Some(window) = record.window {
        let edge = if record.back { window.range.end() } else { window.range.start() };
        assert!(edge == record.boundary && window.range.end() <= record.size);
        assert!(window.range.len() <= WINDOW_MAX_BYTES);
    }
    true
}
