//! The encoding of header, superblock and extent header.

use meta::Uuid;
use pool::extent::{ExtentHeader, extent_checksum};
use pool::root::{Header, Superblock, Wrong, root_checksum};
use proptest::prelude::*;

use crate::samples::{EXTENT, POOL};
use crate::{assert_same, golden, samples};

const HEADER_SUM: [u8; 8] = [0xd8, 0x39, 0x0c, 0x2c, 0x84, 0xa7, 0x16, 0xce];
const SUPERBLOCK_SUM: [u8; 8] = [0x69, 0xa9, 0x5b, 0xe1, 0xc9, 0x89, 0x18, 0xd7];
const EXTENT_SUM: [u8; 8] = [0xfc, 0x50, 0xe8, 0xd8, 0xa0, 0x4d, 0xec, 0x26];

#[test]
fn pool_header_encodes_to_golden_bytes() {
    let golden = golden(
        4096,
        &[
            (0, b"CAIRNPOL\x01"),
            (16, &HEADER_SUM),
            (48, &[0x11; 16]),
            (64, &[2, 1]),
            // 64 GiB; the far area in its last MiB; extents of 4 MiB, 16383 of them.
            (72, &[0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0xf0, 0xff, 0x0f]),
            (88, &[0, 0, 0x40, 0, 0, 0, 0, 0, 0xff, 0x3f]),
            (104, &[16, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0x10]),
            (120, &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x67]),
        ],
    );
    let header = samples::header();
    assert_same(&header.encode(), &golden, "header");
    assert_eq!(Header::decode(&golden, Some(POOL)), Ok(header));
}

#[test]
fn pool_superblock_encodes_to_golden_bytes() {
    let mut golden = golden(
        4096,
        &[
            (0, b"CAIRNALC\x01\0\0\0\x02"),
            (16, &SUPERBLOCK_SUM),
            (48, &[0x11; 16]),
            (64, &[2, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0x66, 0, 0, 0, 0, 0, 0, 0, 9]),
            (96, &[0x22; 16]),
            (112, &[4, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40]),
            (
                128,
                &[0, 0x30, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 4],
            ),
            (160, &[8, 0, 0, 0, 0, 0, 0, 0, 0xe8, 3]),
            (176, &[0x22, 0x11, 0, 0, 0, 0, 0, 0, 0x33, 0, 0, 0, 0, 0, 0, 0, 0x55, 0x44]),
            (200, &[1, 0, 0, 0x67, 0, 0, 0, 0, 1]),
        ],
    );
    for table in 0..24 {
        golden[1024 + 128 * table..][..128].fill(2 ^ table as u8);
    }
    let superblock = samples::superblock(0x0102);
    assert_same(&superblock.encode(), &golden, "superblock");
    assert_eq!(Superblock::decode(&golden, POOL, 2), Ok(superblock));
}

#[test]
fn pool_extent_header_encodes_to_golden_bytes() {
    let golden = golden(
        4096,
        &[
            (0, b"CAIRNEXT\x01\0\0\0\x02"),
            (16, &EXTENT_SUM),
            (28, &[2]),
            (32, &[0x11; 16]),
            (48, &[1, 2, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4]),
            (80, &[2, 0, 0, 0x67]),
        ],
    );
    let header = samples::extent_header();
    assert_same(&header.encode(), &golden, "extent header");
    assert_eq!(ExtentHeader::decode(&golden, POOL, EXTENT), Ok(header));
}

/// Changes a byte of a structure and makes its checksum right again.
fn resealed(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    assert_eq!(root_checksum(&bytes), extent_checksum(&bytes));
    bytes[at] = value;
    let sum = root_checksum(&bytes);
    bytes[16..24].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn assert_damaged<T: std::fmt::Debug>(result: Result<T, Wrong>, what: &str) {
    assert!(matches!(result, Err(Wrong::Damaged(_))), "{what}: {result:?}");
}

#[test]
fn decode_rejects_each_impossible_field_of_pool_header() {
    let whole = samples::header().encode().to_vec();
    let decode = |at, value| Header::decode(&resealed(whole.clone(), at, value), Some(POOL));
    // Pair; sequence; bytes; far area; extent; extents; slab; allocators; keeper; block; epoch; time; rest.
    let wrong = [
        (12, 1),
        (70, 1),
        (72, 1),
        (76, 0),
        (79, 0x80),
        (80, 1),
        (84, 0x10),
        (90, 0x41),
        (92, 1),
        (96, 0),
        (98, 1),
        (104, 3),
        (106, 1),
        (108, 1),
        (108, 127),
        (112, 0),
        (112, 4),
        (117, 8),
        (126, 1),
        (135, 2),
        (136, 1),
        (4095, 1),
    ];
    for (at, value) in wrong {
        let result = decode(at, value);
        match at {
            96 => assert!(result.is_ok(), "one byte of 16383 less"),
            _ => assert_damaged(result, &format!("{value} at {at}")),
        }
    }
    assert_damaged(decode(120, 0), "epoch 0");
    assert_eq!(decode(8, 2), Err(Wrong::Version(2)));
    assert_eq!(decode(40, 4), Err(Wrong::Features(4)));
    assert_eq!(decode(32, 4).map(|header| header.unknown_read_only), Ok(4));
    assert_eq!(decode(24, 4).map(|header| header.unknown_read_only), Ok(0));
    let other = Uuid([0x12; 16]);
    assert_eq!(Header::decode(&whole, Some(other)), Err(Wrong::Foreign(POOL)));
    assert_eq!(decode(0, b'D'), Err(Wrong::NoMagic));
}

#[test]
fn decode_rejects_each_impossible_field_of_pool_superblock() {
    let whole = samples::superblock(3).encode().to_vec();
    let decode = |at, value| Superblock::decode(&resealed(whole.clone(), at, value), POOL, 2);
    // Pair; sequence; opening; checkpoint; extent and bytes of the log; tail: offset, number, opening; flushed; end of
    // numbers; counts of blocks; time; rest.
    let wrong = [
        (12, 3),
        (64, 0),
        (70, 1),
        (72, 0),
        (78, 1),
        (88, 0),
        (94, 1),
        (118, 1),
        (120, 1),
        (123, 0),
        (124, 1),
        (128, 1),
        (135, 2),
        (136, 0),
        (136, 10),
        (143, 2),
        (152, 0),
        (152, 6),
        (158, 1),
        (160, 5),
        (167, 2),
        (175, 2),
        (183, 2),
        (191, 2),
        (199, 2),
        (207, 2),
        (212, 1),
        (1023, 1),
    ];
    for (at, value) in wrong {
        assert_damaged(decode(at, value), &format!("{value} at {at}"));
    }
    assert_eq!(decode(8, 2), Err(Wrong::Version(2)));
    assert_eq!(decode(47, 1), Err(Wrong::Features(1 << 56)));
    assert_eq!(
        decode(48, 0x12).map(|_| ()),
        Err(Wrong::Foreign(Uuid([
            0x12, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11,
            0x11, 0x11
        ])))
    );
    assert_damaged(Superblock::decode(&whole, POOL, 3), "another pair");
    let rule = |bit: u32| {
        let bytes = resealed(whole.clone(), 208 + bit as usize / 8, 1 << (bit % 8));
        Superblock::decode(&bytes, POOL, 2).unwrap().flags.unknown()
    };
    use meta::ring::MustKnow::{No, ToOpen, ToWrite};
    assert_eq!([rule(0), rule(7), rule(9), rule(16)], [No, No, ToWrite, ToOpen]);
}

#[test]
fn decode_rejects_each_impossible_field_of_extent_header() {
    let whole = samples::extent_header().encode().to_vec();
    let decode =
        |at, value| ExtentHeader::decode(&resealed(whole.clone(), at, value), POOL, EXTENT);
    // Content; reserved; owner; extent; generation; epoch; opening; time; rest.
    let wrong = [
        (12, 0),
        (12, 3),
        (12, 4),
        (13, 1),
        (28, 0),
        (28, 127),
        (48, 2),
        (56, 0),
        (62, 1),
        (64, 0),
        (70, 1),
        (72, 0),
        (78, 1),
        (87, 2),
        (88, 1),
        (4095, 1),
    ];
    for (at, value) in wrong {
        assert_damaged(decode(at, value), &format!("{value} at {at}"));
    }
    assert_eq!(decode(8, 2), Err(Wrong::Version(2)));
    assert_eq!(
        decode(12, 130).map(|header| header.content.unknown()),
        Ok(meta::ring::MustKnow::ToWrite)
    );
    assert!(matches!(decode(32, 0), Err(Wrong::Foreign(_))));
}

proptest! {
    #[test]
    fn pool_slots_with_any_damaged_byte_are_rejected(at in 0_usize..4096, flip in 1_u8..) {
        let mut header = samples::header().encode();
        header[at] ^= flip;
        prop_assert!(Header::decode(&header, Some(POOL)).is_err());
        let mut superblock = samples::superblock(3).encode();
        superblock[at] ^= flip;
        prop_assert!(Superblock::decode(&superblock, POOL, 2).is_err());
        let mut extent = samples::extent_header().encode();
        extent[at] ^= flip;
        prop_assert!(ExtentHeader::decode(&extent, POOL, EXTENT).is_err());
    }

    #[test]
    fn pool_superblock_decodes_to_encoded_superblock(
        sequence in 1_u64..1 << 48, opening in 4_u64..1 << 48, draw: u64, offset in 0_u64..1 << 40,
        previous: u64, number in 1_u64..1 << 50, ahead in 0_u64..1000, flags: u32, free in 0_u64..1 << 56,
        unknown: u64,
    ) {
        let mut superblock = samples::superblock(sequence);
        superblock.opening = opening;
        superblock.draw = draw;
        superblock.log_root.tail.offset = offset * 4096;
        superblock.log_root.tail.previous = previous;
        superblock.log_root.tail.number = number;
        superblock.log_root.flushed = number - 1 + ahead;
        superblock.flags.0 = flags;
        superblock.free_blocks = free;
        superblock.unknown_read_only = unknown;
        prop_assert_eq!(Superblock::decode(&superblock.encode(), POOL, 2), Ok(superblock));
    }

    #[test]
    fn pool_header_decodes_to_encoded_header(
        sequence in 1_u64..1 << 48, device in (16_u64 << 20)..1 << 62, growth in 0_u64..1 << 40,
        slab in 0_u32..13, allocators in 1_u32..127, epoch in 1_u64..1 << 48,
    ) {
        let made = pool::geometry::Geometry::new(device).unwrap();
        let header = Header {
            sequence,
            geometry: made.grown(device.saturating_add(growth)).unwrap_or(made),
            slab_extents: 1 << slab,
            allocators,
            keeper: allocators,
            epoch,
            ..samples::header()
        };
        prop_assert_eq!(Header::decode(&header.encode(), Some(POOL)), Ok(header.clone()));
        prop_assert_eq!(Header::decode(&header.encode(), None), Ok(header));
    }

    #[test]
    fn pool_extent_header_decodes_to_encoded_header(
        content in proptest::sample::select(vec![1_u8, 2, 5, 130, 255]), flags: u32, owner in 1_u32..127,
        generation in 1_u64..1 << 48,
    ) {
        let mut header = samples::extent_header();
        header.content.0 = content;
        header.flags.0 = flags;
        header.owner = owner;
        header.generation = generation;
        prop_assert_eq!(ExtentHeader::decode(&header.encode(), POOL, EXTENT), Ok(header));
    }
}
