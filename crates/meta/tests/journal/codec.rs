//! The encoding of the root, and of the parts of a record.

use block::ByteRange;
use meta::Uuid;
use meta::journal::part::PART_BYTES;
use meta::journal::root::{ROOT_BYTES, Root, Wrong, root_checksum};
use meta::journal::{PARTS_MAX, Part, PartKind};
use meta::ring::{Head, Item, MustKnow, Owner, Position, Ring};
use proptest::prelude::*;

fn root() -> Root {
    let ring = Ring::new(Uuid([7; 16]), 0x20000, Owner::Journal).unwrap();
    let tail = Position { offset: 0x5000, number: 9, previous: 0, opening: 3 };
    Root { ring, sequence: 4, tail, lowers: 2, unknown_read_only: 0 }
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

const ROOT_SUM: [u8; 8] = [0xf1, 0x64, 0x95, 0x2c, 0xd3, 0xe8, 0x08, 0xea];

#[test]
fn journal_root_encodes_to_golden_bytes() {
    let mut golden = vec![0; ROOT_BYTES];
    put(&mut golden, 0, b"CAIRNJNL\x01");
    put(&mut golden, 48, &[7; 16]);
    put(&mut golden, 64, &[4]);
    put(&mut golden, 72, &[0, 0, 2]);
    put(&mut golden, 80, &[3]);
    put(&mut golden, 88, &[0, 0x50]);
    put(&mut golden, 96, &[9]);
    put(&mut golden, 104, &[2]);
    let sum = root_checksum(&golden).to_le_bytes();
    assert_eq!(sum, ROOT_SUM, "{sum:#x?}");
    put(&mut golden, 16, &sum);
    assert_eq!(root().encode()[..], golden);
    assert_eq!(Root::decode(&golden), Ok(root()));
}

/// Encodes the root, changes bytes, and makes the checksum right again.
fn resealed(at: usize, part: &[u8]) -> Vec<u8> {
    let mut bytes = root().encode().to_vec();
    put(&mut bytes, at, part);
    let sum = root_checksum(&bytes).to_le_bytes();
    put(&mut bytes, 16, &sum);
    bytes
}

#[test]
fn journal_root_decode_rejects_each_impossible_field() {
    let wrong: [(&str, usize, &[u8]); 12] = [
        ("sequence 0", 64, &[0]),
        ("sequence beyond the limit", 71, &[2]),
        ("ring too short", 72, &[0, 0, 0]),
        ("ring of a part of a sector", 72, &[1]),
        ("opening 0", 80, &[0]),
        ("opening beyond the limit", 87, &[2]),
        ("offset inside a sector", 88, &[1]),
        ("offset beyond the limit", 95, &[2]),
        ("number 0", 96, &[0]),
        ("number beyond the limit", 103, &[2]),
        ("no lower", 104, &[0]),
        ("too many lowers", 104, &[1, 0, 1]),
    ];
    for (what, at, part) in wrong {
        let result = Root::decode(&resealed(at, part));
        assert!(matches!(result, Err(Wrong::Damaged(_))), "{what}: {result:?}");
    }
    assert_eq!(Root::decode(&resealed(8, &[2])), Err(Wrong::Version(2)));
    assert_eq!(Root::decode(&resealed(40, &[4])), Err(Wrong::Features(4)));
    let read_only = Root { unknown_read_only: 8, ..root() };
    assert_eq!(Root::decode(&resealed(32, &[8])), Ok(read_only));
    assert_eq!(Root::decode(&resealed(24, &[8])), Ok(root()), "a compatible feature");
    assert_eq!(Root::decode(&[0; ROOT_BYTES]), Err(Wrong::Zeros));
    assert_eq!(Root::decode(&[1; ROOT_BYTES]), Err(Wrong::NoMagic));
    for at in 0..ROOT_BYTES {
        let mut bytes = root().encode();
        bytes[at] ^= 0x10;
        assert!(Root::decode(&bytes).is_err(), "byte {at}");
    }
}

fn parts() -> Vec<Part> {
    let range = |start, len| ByteRange::new(start, len).unwrap();
    vec![
        Part {
            kind: PartKind::Data,
            lower: 1,
            range: range(0x1200, 0x1400),
            checksum: 0x0102_0304_0506_0708,
            inline: [0xaa; 3].into(),
        },
        Part {
            kind: PartKind::Zeroes,
            lower: 0,
            range: range(0x4000, 0x10_0000_0000),
            checksum: 0,
            inline: [].into(),
        },
        Part {
            kind: PartKind::Discard,
            lower: 0,
            range: range(0, 1),
            checksum: 0,
            inline: [].into(),
        },
    ]
}

fn head(items: u32, payload: u32) -> Head {
    let at = Position { offset: 0, number: 1, previous: 0, opening: 1 };
    Head { items, payload, ..Head::empty(at, 1, 0) }
}

fn encoded(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    parts.iter().for_each(|part| part.encode(&mut bytes));
    bytes
}

#[test]
fn journal_parts_encode_to_golden_bytes() {
    let golden: Vec<u8> = [
        &[1, 0, 1, 0, 48, 0, 0, 0][..],
        &[1, 0, 3, 0, 0, 0, 0, 0],
        &[0, 0x12, 0, 0, 0, 0, 0, 0],
        &[0, 0x14, 0, 0, 0, 0, 0, 0],
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[0xaa, 0xaa, 0xaa, 0, 0, 0, 0, 0],
        &[2, 0, 1, 0, 40, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0x40, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0x10, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[3, 0, 1, 0, 40, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(encoded(&parts()), golden);
    assert_eq!(Part::decode_all(&head(3, 0x2000), &golden, 2), Ok(parts()));
    assert_eq!(parts()[0].payload_bytes(), 0x2000);
    assert_eq!(parts()[0].item_bytes(), PART_BYTES + 8);
}

#[test]
fn journal_parts_decode_rejects_each_impossible_field() {
    let whole = encoded(&parts());
    let decode = |bytes: &[u8]| Part::decode_all(&head(3, 0x2000), bytes, 2);
    assert!(decode(&whole).is_ok());
    assert!(Part::decode_all(&head(3, 0x2000), &whole, 1).is_err(), "lower 1 of 1");
    assert!(Part::decode_all(&head(3, 0x1000), &whole, 2).is_err(), "a shorter payload");
    assert!(Part::decode_all(&head(2, 0x2000), &whole, 2).is_err(), "one part more");
    // An unknown type, too many inline bytes, an empty range, a range past the end, data beyond any record.
    for (at, part) in [(0, &[9][..]), (10, &[9]), (24, &[0, 0]), (23, &[0xff]), (30, &[1])] {
        let mut bytes = whole.clone();
        put(&mut bytes, at, part);
        if at == 23 {
            put(&mut bytes, 31, &[0xff]);
        }
        assert!(decode(&bytes).is_err(), "{part:?} at {at}");
    }
    let many = vec![parts()[2].clone(); PARTS_MAX + 1];
    let result = Part::decode_all(&head(PARTS_MAX as u32 + 1, 0), &encoded(&many), 2);
    assert!(result.is_err(), "too many parts");
    let mut bytes = encoded(&parts()[1..]);
    Item { kind: 77, must_know: MustKnow::No, content: &[1; 8] }.encode(&mut bytes);
    let known = Part::decode_all(&head(3, 0), &bytes, 2);
    assert_eq!(known, Ok(parts()[1..].to_vec()), "a type that may be skipped");
}

prop_compose! {
    fn any_part()(
        kind in 0..3, lower in 0_u16..3, start in 0_u64..1 << 50, len in 1_u64..1 << 20, checksum: u64,
        inline in proptest::collection::vec(any::<u8>(), 0..100),
    ) -> Part {
        let kind = [PartKind::Data, PartKind::Zeroes, PartKind::Discard][kind as usize];
        let range = ByteRange::new(start, len).unwrap();
        Part { kind, lower, range, checksum, inline: inline.into() }
    }
}

proptest! {
    #[test]
    fn journal_parts_decode_to_encoded_parts(
        parts in proptest::collection::vec(any_part(), 0..20),
    ) {
        let bytes = encoded(&parts);
        prop_assert_eq!(bytes.len(), parts.iter().map(Part::item_bytes).sum::<usize>());
        let payload: u64 = parts.iter().map(Part::payload_bytes).sum();
        let head = head(parts.len() as u32, payload as u32);
        prop_assert_eq!(Part::decode_all(&head, &bytes, 3), Ok(parts));
    }

    #[test]
    fn journal_root_decodes_to_encoded_root(
        uuid: [u8; 16], sectors in 16_u64..1000, sequence in 1_u64..1 << 50, offset in 0_u64..1 << 40,
        number in 1_u64..1 << 50, opening in 1_u64..1 << 50, lowers in 1_u32..1 << 16, bits: u64,
    ) {
        let ring = Ring::new(Uuid(uuid), sectors * 4096, Owner::Journal).unwrap();
        let tail = Position { offset: offset * 4096, number, previous: 0, opening };
        let root = Root { ring, sequence, tail, lowers, unknown_read_only: bits };
        prop_assert_eq!(Root::decode(&root.encode()), Ok(root));
    }
}
