//! The encoding of records and items.

use meta::Uuid;
use meta::ring::{
    Head, Item, MustKnow, Owner, Position, RECORD_HEADER_BYTES, Ring, Wrong, items, record_checksum,
};
use proptest::prelude::*;

use crate::scene::ring;

fn sample() -> (Head, Vec<u8>) {
    let mut items = Vec::new();
    Item { kind: 1, must_know: MustKnow::ToOpen, content: &[0xaa; 8] }.encode(&mut items);
    Item { kind: 0x0203, must_know: MustKnow::ToWrite, content: &[] }.encode(&mut items);
    Item { kind: 6, must_know: MustKnow::No, content: &[0xbb; 8] }.encode(&mut items);
    let at = Position { offset: 0x3000, number: 7, previous: 0x99, opening: 2 };
    (Head { items: 3, payload: 0x1000, ..Head::empty(at, 5, 6) }, items)
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

#[test]
fn log_record_encodes_to_golden_bytes() {
    let ring = ring(Owner::PoolLog);
    let (head, items) = sample();
    let mut bytes = Vec::new();
    let head = head.encode(&ring, &items, &mut bytes);
    let mut golden = vec![0; 4096];
    put(&mut golden, 0, b"CAIRNLOG");
    put(&mut golden, 16, &[7; 16]);
    put(&mut golden, 32, &[2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0x30]);
    put(&mut golden, 56, &[0x99, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6]);
    put(&mut golden, 80, &[136, 0, 0, 0, 0, 0x10, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0]);
    put(
        &mut golden,
        96,
        &[1, 0, 1, 0, 16, 0, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa],
    );
    put(&mut golden, 112, &[3, 2, 2, 0, 8, 0, 0, 0]);
    put(
        &mut golden,
        120,
        &[6, 0, 0, 0, 16, 0, 0, 0, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb],
    );
    let sum = record_checksum(&golden[..136]);
    assert_eq!(sum.to_le_bytes(), GOLDEN_SUM, "{:#x?}", sum.to_le_bytes());
    put(&mut golden, 8, &sum.to_le_bytes());
    assert_eq!(bytes, golden);
    assert_eq!(Head::decode(&ring, &golden), Ok((head, &items[..])));
    assert_eq!((head.bytes(), head.end(), head.next().number), (0x2000, 0x5000, 8));
    let journal = Ring::new(Uuid([7; 16]), 65536, Owner::Journal).unwrap();
    assert_eq!(Head::decode(&journal, &golden), Err(Wrong::Foreign));
    let other = Ring::new(Uuid([8; 16]), 65536, Owner::PoolLog).unwrap();
    assert_eq!(Head::decode(&other, &golden), Err(Wrong::Foreign));
}

const GOLDEN_SUM: [u8; 8] = [0xfb, 0x0e, 0x9b, 0x62, 0x21, 0x2d, 0xa0, 0x44];

/// Encodes the sample, changes bytes, and makes the checksum right again.
fn resealed(change: impl Fn(&mut [u8])) -> Vec<u8> {
    let (head, items) = sample();
    let mut bytes = Vec::new();
    let length = head.encode(&ring(Owner::PoolLog), &items, &mut bytes).length as usize;
    change(&mut bytes);
    let sum = record_checksum(&bytes[..length]);
    put(&mut bytes, 8, &sum.to_le_bytes());
    bytes
}

#[test]
fn decode_rejects_each_impossible_field_of_log_record() {
    let ring = ring(Owner::PoolLog);
    assert!(Head::decode(&ring, &resealed(|_| {})).is_ok());
    let set = |at: usize, part: &'static [u8]| resealed(move |bytes| put(bytes, at, part));
    let wrong = [
        ("opening 0", set(32, &[0])),
        ("opening beyond the limit", set(39, &[2])),
        ("number 0", set(40, &[0])),
        ("number beyond the limit", set(47, &[2])),
        ("offset inside a sector", set(48, &[1])),
        ("offset beyond the limit", set(55, &[2])),
        ("tail 0", set(64, &[0])),
        ("tail behind the record", set(64, &[8])),
        ("flushed number of the record itself", set(72, &[7])),
        ("length below the header", set(80, &[95])),
        ("length beyond the limit", set(82, &[1])),
        ("payload of a part of a sector", set(84, &[1])),
        ("payload beyond the limit", set(86, &[1])),
        ("more items than fit", set(88, &[6])),
    ];
    for (what, bytes) in wrong {
        let result = Head::decode(&ring, &bytes);
        assert!(matches!(result, Err(Wrong::Damaged(_))), "{what}: {result:?}");
    }
    assert_eq!(Head::decode(&ring, &set(92, &[2])), Err(Wrong::Foreign), "another owner");
    assert_eq!(Head::decode(&ring, &set(16, &[6])), Err(Wrong::Foreign), "another ring");
    assert_eq!(Head::decode(&ring, &set(0, b"D")), Err(Wrong::NoMagic));
}

#[test]
fn decode_rejects_log_record_with_any_damaged_or_missing_byte() {
    let ring = ring(Owner::PoolLog);
    let whole = resealed(|_| {});
    for at in 0..136 {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        assert!(Head::decode(&ring, &bytes).is_err(), "byte {at}");
        assert!(Head::decode(&ring, &whole[..at]).is_err(), "{at} bytes");
    }
}

#[test]
fn decode_rejects_each_impossible_item_of_log_record() {
    let (_, whole) = sample();
    assert_eq!(items(&whole, 3).map(|items| items.len()), Ok(3));
    assert!(items(&whole, 2).is_err(), "one item more");
    // Type 0; unknown flag; both flags; length below the header, of no multiple of 8, beyond the end.
    for (at, value) in [(0, 0), (2, 4), (2, 3), (4, 0), (4, 12), (4, 80)] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        assert!(items(&bytes, 3).is_err(), "{value} at {at}");
    }
    for len in 1..whole.len() {
        assert!(items(&whole[..len], 3).is_err(), "{len} bytes");
    }
}

#[test]
fn ring_rejects_length_outside_limits() {
    for bytes in [0, 4096, 65535, 65536 + 512, (1 << 30) + 4096, u64::MAX] {
        assert!(Ring::new(Uuid([1; 16]), bytes, Owner::Journal).is_err(), "{bytes}");
    }
    let largest = Ring::new(Uuid([1; 16]), 1 << 30, Owner::Journal).unwrap();
    assert_eq!((largest.record_bytes_max(), largest.place((1 << 30) + 5)), (1 << 20, 5));
}

prop_compose! {
    fn any_head()(
        offset in 0_u64..1 << 40, number in 1_u64..1 << 50, previous: u64, opening in 1_u64..1 << 50,
        tail in 1_u64..1 << 50, flushed in 0_u64..1 << 50, flags: u16, payload in 0_u32..2,
    ) -> Head {
        let at = Position { offset: offset * 4096, number, previous, opening };
        let (tail, flushed) = (tail.min(number), flushed.min(number - 1));
        Head { flags, payload: payload * 4096, ..Head::empty(at, tail, flushed) }
    }
}

proptest! {
    #[test]
    fn log_record_decodes_to_encoded_record(
        head in any_head(),
        contents in proptest::collection::vec((1_u16.., 0_usize..20, 0_u8..3), 0..20),
    ) {
        let ring = ring(Owner::PoolLog);
        let mut body = Vec::new();
        let rules = [MustKnow::No, MustKnow::ToWrite, MustKnow::ToOpen];
        for (kind, words, rule) in &contents {
            let content = vec![*kind as u8; words * 8];
            let must_know = rules[usize::from(*rule)];
            Item { kind: *kind, must_know, content: &content }.encode(&mut body);
        }
        let mut bytes = vec![1; 3];
        let head = Head { items: contents.len() as u32, ..head };
        let head = head.encode(&ring, &body, &mut bytes);
        prop_assert_eq!((bytes.len() - 3) as u64, head.padded_bytes());
        prop_assert_eq!(head.length as usize, RECORD_HEADER_BYTES + body.len());
        let decoded = Head::decode(&ring, &bytes[3..]);
        prop_assert_eq!(decoded, Ok((head, &body[..])));
        let read = items(&body, head.items).unwrap();
        prop_assert_eq!(read.len(), contents.len());
        for (item, (kind, words, rule)) in read.iter().zip(&contents) {
            let expected = (*kind, words * 8, rules[usize::from(*rule)]);
            prop_assert_eq!((item.kind, item.content.len(), item.must_know), expected);
        }
    }
}
