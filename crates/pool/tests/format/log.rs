//! The encoding of the items in the log of an allocator.

use meta::Uuid;
use meta::ring::{Head, Item, MustKnow, Owner, Position, Ring};
use pool::Address;
use pool::log::{Changes, HOLE, LogItem, Run, log_items};
use pool::rows::SumKind;
use proptest::prelude::*;

use crate::{assert_same, golden, samples};

fn encode(item: &LogItem<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    item.encode(&mut bytes);
    bytes
}

#[test]
fn pool_log_items_encode_to_golden_bytes() {
    let golden_items = [
        golden(
            8 + 24 + 40 + 24 + 32,
            &[
                (0, &[1, 0, 1, 0, 128]),
                (8, &[2, 1, 0, 0, 0, 0, 0, 0, 22]),
                (24, &[1, 4, 0, 0, 3]),
                // Data: kind, block; address; blocks, origin; checksums of 12 bytes and 4 zeros.
                (32, &[0, 5, 3, 0, 0, 0, 0, 0, 6, 0, 0x50]),
                (48, &[3, 0, 0, 0, 1]),
                (56, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
                (72, &[0x21, 9]),
                (88, &[0, 0, 0x10]),
                // Compressed: one checksum.
                (96, &[0, 20, 0, 0, 0, 0, 0, 0, 6, 0, 0x50]),
                (112, &[8, 0, 0, 0, 1, 0, 3]),
                (120, &[0xaa; 4]),
            ],
        ),
        golden(
            64,
            &[
                (0, &[2, 0, 1, 0, 64]),
                (8, &[2, 1, 0, 0, 0, 0, 0, 0, 22]),
                (24, &[5, 0, 0, 0, 0, 0, 6, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10]),
                (48, &[1, 0, 0, 0, 6]),
                (56, b"monday"),
            ],
        ),
        golden(
            48,
            &[
                (0, &[3, 0, 1, 0, 48, 0, 0, 0, 15, 0, 0, 0, 32]),
                (23, &[0x20, 2]),
                (32, &[5]),
                (40, &[6]),
            ],
        ),
        golden(24, &[(0, &[4, 0, 1, 0, 24, 0, 0, 0, 10, 0, 0, 0, 8]), (23, &[3])]),
        golden(24, &[(0, &[5, 0, 1, 0, 24, 0, 0, 0, 2, 1]), (16, &[0xd0, 7])]),
        golden(48, &[(0, &[6, 0, 0, 0, 48, 0, 0, 0, 2, 1]), (16, &[0x5a; 32])]),
        golden(
            40,
            &[(0, &[7, 0, 1, 0, 40, 0, 0, 0, 3]), (16, &[9]), (24, &[6, 0, 0x50]), (32, &[5])],
        ),
        golden(
            40,
            &[(0, &[8, 0, 1, 0, 40, 0, 0, 0, 3]), (16, &[10]), (24, &[6, 0, 0x50]), (32, &[5])],
        ),
    ];
    let rows = samples::rows();
    let items = samples::log_items(&rows);
    assert_eq!(items.len(), golden_items.len());
    for (item, golden) in items.iter().zip(&golden_items) {
        assert_same(&encode(item), golden, &format!("{item:?}"));
    }
    let all = golden_items.concat();
    assert_eq!(log_items(&all, 8), Ok(items));
}

#[test]
fn pool_log_record_of_one_block_has_documented_length() {
    let at = Position { offset: 0, number: 1, previous: 0, opening: 1 };
    let ring = Ring::new(Uuid([1; 16]), 1 << 20, Owner::PoolLog).unwrap();
    let length = |blocks: u64| {
        let address = Address::new(1, 1).unwrap();
        let run =
            |block| Run { block, kind: 0, address, blocks: 1, origin: 0, stored: 0, sums: &[7; 4] };
        let item = LogItem::Changes(Changes {
            vdisk: 1,
            birth: 1,
            sum_kind: SumKind::CRC32C,
            sum_bytes: 4,
            runs: (0..blocks).map(run).collect(),
        });
        let head = Head { items: 1, ..Head::empty(at, 1, 0) };
        head.encode(&ring, &encode(&item), &mut Vec::new()).length
    };
    assert_eq!([length(1), length(2), length(128)], [160, 192, 160 + 127 * 32]);
    let snapshot = encode(&samples::log_items(&samples::rows())[1]);
    assert_eq!(snapshot.len() - 8, 56, "and 8 for its label");
}

#[test]
fn decode_rejects_each_impossible_field_of_pool_log_items() {
    let rows = samples::rows();
    let items = samples::log_items(&rows);
    let wrong: [&[(usize, u8)]; 8] = [
        // Flags; birth; kind and width of checksums; reserved; runs; first run: address, blocks, padding of checksums;
        // hole: kind, block, address, origin.
        &[
            (2, 0),
            (16, 0),
            (22, 1),
            (24, 0),
            (25, 5),
            (26, 1),
            (28, 2),
            (28, 4),
            (40, 0),
            (48, 0),
            (48, 90),
            (71, 1),
            (72, 0),
            (79, 0xff),
            (80, 1),
            (92, 1),
            (94, 1),
            (112, 0),
            (127, 1),
        ],
        // Flags; number; size; length of the label; reserved; label; padding.
        &[
            (2, 2),
            (16, 0),
            (22, 1),
            (40, 1),
            (47, 2),
            (52, 9),
            (52, 0),
            (54, 1),
            (56, b'-'),
            (63, 1),
        ],
        // Flags; table; width; row.
        &[(2, 0), (8, 1), (12, 31), (24, 0)],
        &[(2, 0), (8, 0x0c), (12, 16), (12, 7)],
        &[(2, 0), (22, 1)],
        &[(2, 1)],
        &[(2, 0), (8, 0), (8, 127), (12, 1), (16, 0), (24, 0), (32, 0), (36, 1)],
        &[(2, 0), (8, 0), (8, 127), (12, 1), (16, 0), (24, 0), (32, 0), (36, 1)],
    ];
    for (item, wrong) in items.iter().zip(wrong) {
        let whole = encode(item);
        for (at, value) in wrong {
            let mut bytes = whole.clone();
            bytes[*at] = *value;
            assert!(log_items(&bytes, 1).is_err(), "{value} at {at} of {item:?}");
        }
        for len in 1..whole.len() {
            assert!(log_items(&whole[..len], 1).is_err(), "{len} bytes of {item:?}");
        }
    }
}

#[test]
fn pool_log_item_of_later_version_states_its_rule() {
    let mut bytes = Vec::new();
    for must_know in [MustKnow::No, MustKnow::ToWrite, MustKnow::ToOpen] {
        Item { kind: 99, must_know, content: &[1; 16] }.encode(&mut bytes);
    }
    // A row of an unknown table: its range decides.
    for table in [19, 21, 23] {
        let content = [table, 0, 0, 0, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        Item { kind: 3, must_know: MustKnow::ToOpen, content: &content }.encode(&mut bytes);
    }
    let rules: Vec<_> = log_items(&bytes, 6).unwrap().into_iter().collect();
    let [no, write, open] = [MustKnow::No, MustKnow::ToWrite, MustKnow::ToOpen];
    let expected = [(99, no), (99, write), (99, open), (3, open), (3, write), (3, no)];
    assert_eq!(rules, expected.map(|(kind, rule)| LogItem::Unknown(kind, rule)));
}

prop_compose! {
    fn any_run()(
        block in 0_u64..1 << 37, is_hole: bool, extent in 0_u64..1 << 44, offset in 1_u32..(1 << 18) - 20,
        blocks in 1_u32..20, origin: u16, stored in 0_u16..3, sum: u8,
    ) -> (Run<'static>, u8) {
        let address = if is_hole { Address::from_bits(0) } else { Address::new(extent, offset).unwrap() };
        let (origin, stored) = if is_hole { (0, 0) } else { (origin, stored) };
        let kind = if is_hole { HOLE } else { 0 };
        (Run { block, kind, address, blocks, origin, stored, sums: &[] }, sum)
    }
}

proptest! {
    #[test]
    fn pool_log_changes_decode_to_encoded_changes(
        runs in proptest::collection::vec(any_run(), 1..20),
        width in proptest::sample::select(vec![4_u8, 8, 16]),
        vdisk in 1_u64.., birth in 1_u64..(1 << 48) - 1, kind in 1_u8..,
    ) {
        let sums: Vec<Vec<u8>> = runs.iter().map(|(run, sum)| {
            let count = match (run.kind, run.stored) {
                (HOLE, _) => 0,
                (_, 0) => run.blocks as usize,
                _ => 1,
            };
            vec![*sum; count * usize::from(width)]
        }).collect();
        let runs = runs.into_iter().zip(&sums).map(|((run, _), sums)| Run { sums, ..run }).collect();
        let sum_kind = SumKind(kind);
        let changes = Changes { vdisk, birth, sum_kind, sum_bytes: width, runs };
        let item = LogItem::Changes(changes);
        let bytes = encode(&item);
        prop_assert_eq!(log_items(&bytes, 1), Ok(vec![item]));
    }
}
