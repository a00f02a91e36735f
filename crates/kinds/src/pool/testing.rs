//! How the fuzzer checks states of pools from labels. Random graphs draw no pools.

use ::pool::cell::{CellFlags, PoolCell};
use kind::testing::{Records, Testing};

pub const TESTING: Testing =
    Testing { records: &[Records { name: "pool", valid, check }], ..Testing::NONE };

fn valid() -> Vec<Vec<u8>> {
    let cell = PoolCell {
        pool: Some(meta::Uuid([3; 16])),
        bytes: 64 << 20,
        far: 63 << 20,
        extent_bytes: 1 << 20,
        flags: CellFlags(0),
    };
    vec![cell.encode().to_vec(), PoolCell { pool: None, ..cell }.encode().to_vec()]
}

/// Parses an untrusted state of a pool. An accepted state must encode to the same bytes. Returns whether it was
/// accepted.
fn check(data: &[u8]) -> bool {
    let Ok(cell) = PoolCell::decode(data) else { return false };
    assert!(cell.encode() == data, "accepted bytes are those that would be written");
    true
}
