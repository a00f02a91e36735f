//! The bodies of the supervisor's fuzz targets. `fuzz/` includes this file, and `fuzz_smoke.rs` runs the bodies over a
//! few thousand inputs in each `cargo test`.

use supervisor::{NotifyMessage, Record};

/// Decodes fuzzed bytes as the daemon's record of a graph. A valid record must be the same after encoding and decoding.
pub fn state_record(data: &[u8]) {
    check(data);
    // With a valid first line, so that the body after it is reached, too.
    let body = data.splitn(2, |byte| *byte == b'\n').nth(1).unwrap_or(data);
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, body) as u32;
    let head = format!("cairn-state {} {sum:08x} {}\n", supervisor::VERSION, body.len());
    check(&[head.as_bytes(), body].concat());
}

fn check(data: &[u8]) {
    if let Ok(record) = Record::decode(data) {
        let again = record.encode().expect("it was not too long");
        assert_eq!(Record::decode(&again).expect("it was just written"), record);
    }
}

/// Parses fuzzed bytes as an `sd_notify` message of a worker to the daemon.
pub fn keeper_words(data: &[u8]) {
    let words = NotifyMessage::parse(data);
    assert!(words.name.len() <= data.len() * 3, "nothing is made up");
}
