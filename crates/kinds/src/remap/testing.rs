//! How the fuzzer checks the states in labels of devices with objects. Random graphs draw no `remap` devices.

use block::ByteRange;
use kind::home::record::{Place, Record};
use kind::testing::{Records, Testing};

pub const TESTING: Testing =
    Testing { records: &[Records { name: "state", valid, check }], ..Testing::NONE };

fn valid() -> Vec<Vec<u8>> {
    let ranges = vec![ByteRange::new(0, 1 << 20).expect("a range with bytes")];
    let fixed =
        vec![("block".to_owned(), "64KiB".to_owned()), ("size".to_owned(), "1GiB".to_owned())];
    let made = Record {
        kind: "remap".to_owned(),
        vault: Some(meta::Uuid([3; 16])),
        lower_bytes: 1 << 30,
        place: Place::Before,
        journal_bytes: 0,
        ranges,
        fixed,
        own: vec![1],
    };
    let unfinished = Record { vault: None, place: Place::Apart, fixed: Vec::new(), ..made.clone() };
    vec![made.encode(), unfinished.encode()]
}

/// Parses an untrusted state. An accepted one must encode to the same bytes. Returns whether it was accepted.
fn check(data: &[u8]) -> bool {
    let Ok(record) = Record::decode(data) else { return false };
    assert!(record.encode() == data, "accepted bytes are those that would be written");
    assert!(record.room_bytes() > 0 && !record.words().is_empty());
    true
}
