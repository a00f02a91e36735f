//! How the fuzzer checks states of pools from labels. Random graphs draw no pools.

use ::pool::geometry::Geometry;
use kind::home::record::Record;
use kind::testing::{Records, Testing};
use meta::Uuid;

use super::record::{geometry, record};

pub const TESTING: Testing =
    Testing { records: &[Records { name: "pool", valid, check }], ..Testing::NONE };

fn valid() -> Vec<Vec<u8>> {
    let geometry = Geometry::of(64 << 20, 31 << 20, 1 << 20).expect("a pool that has grown");
    let made = [Some(Uuid([3; 16])), None];
    made.map(|pool| record("pool", pool, &geometry, 65 << 20).encode()).to_vec()
}

/// Parses an untrusted state of a pool. An accepted one must encode to the same bytes. Returns whether it was accepted.
fn check(data: &[u8]) -> bool {
    let Ok(state) = Record::decode(data) else { return false };
    let Ok(geometry) = geometry(&state) else { return false };
    assert!(state.encode() == data && geometry.bytes == state.room_bytes());
    assert!(super::describe(data).is_ok());
    true
}
