//! The state in labels of a device on a pool, as in `docs/formats/state.md`.

use ::pool::geometry::Geometry;
use block::ByteRange;
use block::units::write_size;
use kind::Summary;
use kind::home::record::{Place, Record};
use meta::Uuid;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The own state of the kinds with a pool.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Own {
    far: U64,
    extent_bytes: U64,
}

const _: () = assert!(size_of::<Own>() == 16);

/// Returns the state of a device of the kind `kind` with the pool `pool`, on a lower of `lower_bytes` bytes.
pub fn record(kind: &str, pool: Option<Uuid>, geometry: &Geometry, lower_bytes: u64) -> Record {
    let Geometry { bytes, far, extent_bytes, .. } = *geometry;
    Record {
        kind: kind.to_owned(),
        vault: pool,
        lower_bytes,
        place: Place::Before,
        journal_bytes: 0,
        ranges: vec![ByteRange::new(0, bytes).expect("a pool has bytes")],
        fixed: Vec::new(),
        own: Own { far: far.into(), extent_bytes: extent_bytes.into() }.as_bytes().to_vec(),
    }
}

/// Returns the sizes and places of the pool with the state `state`.
///
/// # Errors
/// The reason why it is the state of no pool.
pub fn geometry(state: &Record) -> Result<Geometry, String> {
    let own = Own::ref_from_bytes(&state.own)
        .map_err(|_| format!("{} bytes of own state, not 16", state.own.len()))?;
    let geometry = Geometry::of(state.room_bytes(), own.far.get(), own.extent_bytes.get())?;
    let Record { kind, vault, lower_bytes, .. } = state;
    match *state == record(kind, *vault, &geometry, *lower_bytes) {
        true => Ok(geometry),
        false => Err(format!("{} is not the room of a pool", state.words())),
    }
}

/// Describes the encoded state of a pool for people.
///
/// # Errors
/// The reason why `bytes` are no valid state of a pool.
pub fn describe(bytes: &[u8]) -> Result<Summary, String> {
    let state = Record::decode(bytes)?;
    let size = write_size(geometry(&state)?.bytes);
    let words = match state.vault {
        Some(pool) => format!("{pool}, {size}"),
        None => format!("{size}, being made"),
    };
    Ok(Summary::whole(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a pool of 64 GiB that was made with 1 GiB.
    fn sample() -> Record {
        let geometry = Geometry::of(64 << 30, (1 << 30) - (1 << 20), 1 << 20).unwrap();
        record("pool", Some(Uuid([0x11; 16])), &geometry, (64 << 30) + 512)
    }

    #[test]
    fn pool_state_in_label_encodes_to_golden_bytes() {
        let mut golden = vec![0; 64];
        golden[8..24].fill(0x11);
        for (at, byte) in [(0, 2), (25, 2), (28, 0x10), (32, 1), (34, 1), (38, 16), (60, 0x10)] {
            golden[at] = byte;
        }
        golden.extend(b"\x04pool\0\0\xf0\x3f\0\0\0\0\0\0\x10\0\0\0\0\0");
        assert_eq!(sample().encode(), golden);
        let decoded = Record::decode(&golden).unwrap();
        assert_eq!(decoded, sample());
        assert_eq!(geometry(&decoded).unwrap().bytes, 64 << 30);
        assert_eq!(describe(&golden).unwrap().words, "11111111-1111-1111-1111-111111111111, 64GiB");
        let being_made = Record { vault: None, ..sample() };
        assert_eq!(describe(&being_made.encode()).unwrap().words, "64GiB, being made");
    }

    #[test]
    fn pool_rejects_state_with_other_room_or_sizes() {
        let range = |start, len| ByteRange::new(start, len).unwrap();
        let own =
            |far: u64, extent_bytes: u64| [far.to_le_bytes(), extent_bytes.to_le_bytes()].concat();
        let wrong = [
            Record { place: Place::Behind, ..sample() },
            Record { journal_bytes: 4096, ..sample() },
            Record { ranges: vec![range(1 << 20, 63 << 30)], ..sample() },
            Record { ranges: vec![range(0, 1 << 20), range(1 << 20, 63 << 30)], ..sample() },
            Record { ranges: vec![range(0, (63 << 30) + 4096)], ..sample() },
            Record { fixed: vec![("size".to_owned(), "1GiB".to_owned())], ..sample() },
            Record { own: Vec::new(), ..sample() },
            Record { own: [&sample().own[..], &[0]].concat(), ..sample() },
            Record { own: own(1 << 20, 1 << 20), ..sample() },
            Record { own: own(64 << 30, 1 << 20), ..sample() },
            Record { own: own((1 << 30) - (1 << 20), 3 << 20), ..sample() },
        ];
        for state in wrong {
            let decoded = Record::decode(&state.encode());
            assert_eq!(decoded, Ok(state.clone()), "a state of another kind may be so");
            assert!(geometry(&state).is_err(), "{state:?}");
            assert!(describe(&state.encode()).is_err(), "{state:?}");
        }
    }
}
