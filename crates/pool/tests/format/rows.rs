//! The encoding of the rows of all tables.

use meta::ring::MustKnow;
use pool::name::VdiskName;
use pool::rows::*;
use proptest::prelude::*;

use crate::{assert_same, golden, samples};

/// Returns the row of each table as bytes at the offsets of the format document.
fn golden_rows() -> Vec<(Table, Vec<u8>)> {
    use Table::*;
    let row = |table: Table, len: usize, parts: &[(usize, &[u8])]| (table, golden(len, parts));
    let monday = [&b"monday"[..], &[0; 10], &MONDAY_SUM].concat();
    let job = [&b"gold@v1+job17"[..], &[0; 11], &JOB_SUM].concat();
    vec![
        row(
            Extents,
            64,
            &[
                (6, &[2, 1, 2, 1, 1]),
                (12, &[2, 0, 0, 0, 6]),
                (24, &[2, 1, 0, 0, 4, 3]),
                (32, &[1, 2]),
                (40, &[0x99; 16]),
            ],
        ),
        row(Free, 80, &[(6, &[2, 1]), (16, &[0xfe])]),
        row(
            Vdisks,
            512,
            &[
                (6, &[1, 2]),
                (8, &[0x33; 16]),
                (24, b"gold@v1+job17"),
                (88, &[0, 1, 2, 0]),
                (92, &[1, 1, 4, 1]),
                (96, &[0, 0x10, 0, 0, 2]),
                (104, &[3]),
                (112, &[0x44; 16]),
                (128, &[0x55; 16]),
                (148, &[10]),
                (152, &[1, 1]),
                (160, &[20]),
                (168, &[0x66; 16]),
                (185, &[10]),
                (193, &[11]),
                (200, &[22]),
                (208, &[0xfe, 3]),
                (216, &[21]),
                (224, &[9]),
                (233, &[12]),
                (241, &[13]),
                (249, &[14]),
                (257, &[15]),
                (265, &[16]),
                (272, &[3, 0, 0, 0x67]),
                (280, &[4, 0, 0, 0x67]),
                (288, &[0x10, 0x27]),
                (296, &[7]),
                (304, &[0x10, 0x0e]),
                (312, &[0x77; 32]),
                (344, &[0x88; 32]),
                (376, &[1, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2]),
            ],
        ),
        row(Trees, 160, &[(6, &[1, 2]), (15, &[21]), (23, &[1]), (24, &[20]), (32, &[0xaa; 128])]),
        row(
            Snapshots,
            64,
            &[
                (6, &[1, 2]),
                (15, &[21]),
                (16, &[1, 0, 0, 0, 2]),
                (28, &[10]),
                (32, &[5, 0, 0, 0, 0, 0, 6]),
                (40, &[8]),
                (48, &[10]),
                (56, &[11]),
            ],
        ),
        row(
            Details,
            144,
            &[
                (6, &[1, 2]),
                (15, &[21]),
                (16, b"monday"),
                (80, &[0xbb; 16]),
                (96, &[19]),
                (104, &[0xcc; 32]),
            ],
        ),
        row(Labels, 112, &[(6, &[1, 2]), (8, &monday), (32, b"monday"), (96, &[21])]),
        row(
            Holds,
            88,
            &[
                (6, &[1, 2]),
                (15, &[21]),
                (23, &[4]),
                (24, &[5]),
                (32, &[3, 1]),
                (40, &[0xdd; 16]),
                (56, &[3]),
                (64, &[6, 0, 0, 0x67]),
                (72, &[12]),
                (80, &[7, 0, 0, 0x67]),
            ],
        ),
        row(
            Origins,
            64,
            &[(6, &[1, 3]), (15, &[1]), (16, &[2, 1]), (24, &[21]), (32, &[4]), (40, &[0x33; 16])],
        ),
        row(
            Passes,
            216,
            &[
                (7, &[3]),
                (14, &[1, 2]),
                (23, &[13]),
                (24, &[3]),
                (32, &[17]),
                (48, &[0xee; 32]),
                (80, &[0xef; 128]),
                (208, &[0x20]),
            ],
        ),
        row(Peers, 32, &[(7, &[3]), (8, &[9]), (16, &[8]), (24, &[7])]),
        row(ForeignFrees, 32, &[(7, &[3]), (15, &[9]), (16, &[6, 0, 0x50]), (24, &[5])]),
        row(
            Removed,
            104,
            &[
                (4, &[0x67, 0, 0, 9]),
                (14, &[1, 2]),
                (24, b"web"),
                (88, &[8, 0, 0, 0x67]),
                (96, &[4]),
            ],
        ),
        row(
            Names,
            128,
            &[
                (0, &job),
                (32, b"gold@v1+job17"),
                (96, &[2, 1]),
                (104, &[2]),
                (112, &[21]),
                (120, &[10, 0, 0, 0x67]),
            ],
        ),
        row(Owners, 40, &[(6, &[1, 2]), (8, &[2]), (16, &[3]), (24, &[0x33; 16])]),
        row(Slabs, 32, &[(7, &[0x20]), (8, &[2]), (16, &[5]), (24, &[6])]),
        row(
            Allocators,
            48,
            &[(7, &[2]), (8, &[1]), (16, &[0x12; 16]), (32, &[14]), (40, &[11, 0, 0, 0x67])],
        ),
        row(Lines, 24, &[(6, &[1, 1]), (14, &[1, 2]), (16, &[12, 0, 0, 0x67])]),
        row(
            Settled,
            160,
            &[(6, &[1, 2]), (15, &[21]), (23, &[1]), (24, &[20]), (32, &[0xaa; 128])],
        ),
    ]
}

/// CRC-64/NVME of the texts, big-endian.
const MONDAY_SUM: [u8; 8] = [0xa4, 0x04, 0xb8, 0x3d, 0x3a, 0x35, 0xbe, 0x57];
const JOB_SUM: [u8; 8] = [0x50, 0x59, 0x9e, 0x12, 0x41, 0x8a, 0x0b, 0x14];

#[test]
fn pool_rows_encode_to_golden_bytes() {
    for ((table, row), (of, golden)) in samples::rows().iter().zip(golden_rows()) {
        assert_eq!(*table, of);
        assert_same(row, &golden, &format!("{table:?}"));
    }
}

#[test]
fn pool_row_widths_equal_table_of_format_document() {
    let document = std::include_str!("../../../../docs/formats/pool.md");
    let mut count = 0;
    for table in Table::ALL {
        let number = *table as usize;
        let begin = format!("| {number} | ");
        let (key, value) = (table.key_bytes(), table.row_bytes() - table.key_bytes());
        let widths = format!(" | {key} | {value} | ");
        let is_row = |line: &&str| line.starts_with(&begin) && line.contains(&widths);
        assert!(document.lines().any(|line| is_row(&line)), "{table:?}: {begin}…{widths}");
        assert!(key <= KEY_BYTES_MAX, "{table:?}");
        count += 1;
    }
    assert_eq!(count, 19);
}

#[test]
fn pool_table_of_later_version_states_its_rule() {
    let rule = |number| Table::of_number(number).unwrap_err();
    assert_eq!([19, 20, 24, u32::MAX].map(rule), [MustKnow::ToOpen; 4]);
    assert_eq!([21, 22].map(rule), [MustKnow::ToWrite; 2]);
    assert_eq!(rule(23), MustKnow::No);
    assert_eq!(Table::of_number(13), Ok(Table::Names));
    let catalogue = Table::ALL.iter().filter(|table| table.is_catalogue()).count();
    assert_eq!(catalogue, 4);
}

/// Bytes that are out of a row's limits: offset and value.
fn wrong_bytes(table: Table) -> &'static [(usize, u8)] {
    match table {
        // Extent; state; content; kind of place; reserved; owner; generation; free blocks; frontier; place; rest.
        Table::Extents => &[
            (0, 1),
            (8, 0),
            (9, 0),
            (10, 0),
            (11, 1),
            (12, 0),
            (12, 127),
            (16, 0),
            (22, 1),
            (25, 4),
            (27, 1),
            (31, 1),
            (38, 0x10),
            (56, 1),
            (63, 1),
        ],
        // Extent; part; header is free; no free block.
        Table::Free => &[(0, 1), (14, 2), (8, 1), (16, 0xff), (16, 0)],
        // Name; state; checksum; block; owner; epoch; size; origin; numbers; counts; trees; rest.
        Table::Vdisks => &[
            (24, b'@'),
            (24, 0),
            (30, b'/'),
            (87, 1),
            (92, 0),
            (94, 5),
            (96, 1),
            (100, 0),
            (100, 127),
            (104, 0),
            (110, 1),
            (144, 1),
            (151, 1),
            (166, 1),
            (191, 2),
            (199, 2),
            (200, 0),
            (200, 21),
            (206, 1),
            (214, 1),
            (216, 22),
            (231, 2),
            (239, 2),
            (247, 2),
            (255, 2),
            (263, 2),
            (271, 2),
            (279, 2),
            (287, 2),
            (295, 2),
            (303, 2),
            (311, 2),
            (384, 17),
            (389, 1),
            (511, 1),
        ],
        // Last; index; birth.
        Table::Trees => &[(15, 0), (8, 1), (23, 16), (16, 1), (30, 1)],
        // Number; size; time; accounts.
        Table::Snapshots => &[(15, 0), (8, 1), (24, 1), (31, 2), (39, 2), (55, 2), (63, 2)],
        // Number; label; received number; rest.
        Table::Details => &[(15, 0), (8, 1), (16, 0), (16, b'-'), (22, 0xff), (102, 1), (136, 1)],
        // Key; label; number; rest.
        Table::Labels => {
            &[(8, b'n'), (31, MONDAY_SUM[7] ^ 1), (32, b'n'), (32, 0), (96, 0), (103, 1), (104, 1)]
        }
        // Number; hold; kind; reserved; holder; epoch; times and count.
        Table::Holds => &[
            (15, 0),
            (8, 1),
            (23, 0),
            (24, 0),
            (24, 3),
            (25, 1),
            (62, 1),
            (71, 2),
            (79, 2),
            (87, 2),
        ],
        // Index; number; hold; rest.
        Table::Origins => &[(15, 0), (13, 1), (24, 0), (30, 1), (32, 0), (56, 1)],
        // Kind; number; range; flags; nodes.
        Table::Passes => &[(7, 0), (6, 1), (23, 0), (24, 18), (38, 1), (40, 1), (215, 2)],
        // Allocator; order of numbers; limits.
        Table::Peers => &[(7, 0), (7, 127), (16, 10), (15, 2), (31, 2)],
        // Allocator; number; address; blocks; reserved.
        Table::ForeignFrees => &[(7, 0), (15, 0), (8, 2), (16, 0), (24, 0), (27, 1), (28, 1)],
        // Times; number; name.
        Table::Removed => &[(0, 2), (16, 1), (95, 2), (30, 0xff)],
        // Key; name; state; reserved; number; time.
        Table::Names => {
            &[(0, b'h'), (31, JOB_SUM[7] ^ 1), (32, b'h'), (104, 0), (105, 1), (118, 1), (127, 2)]
        }
        // Owner; reserved; epoch.
        Table::Owners => &[(8, 0), (8, 127), (12, 1), (16, 0), (22, 1)],
        // Slab; owner; reserved; epoch; generation.
        Table::Slabs => &[(0, 1), (8, 0), (12, 1), (16, 0), (22, 1), (24, 0), (30, 1)],
        // Number; state; reserved; incarnation; time.
        Table::Allocators => &[(7, 0), (7, 127), (8, 0), (9, 1), (39, 2), (47, 2)],
        // Family; vdisk; time.
        Table::Lines => &[(6, 2), (14, 0), (23, 2)],
        // Number; index; birth.
        Table::Settled => &[(15, 0), (23, 16), (31, 2)],
    }
}

#[test]
fn decode_rejects_each_impossible_field_of_pool_rows() {
    for (table, whole) in samples::rows() {
        for (at, value) in wrong_bytes(table) {
            let mut row = whole.clone();
            row[*at] = *value;
            assert!(table.reencode(&row).is_err(), "{table:?}: {value} at {at}");
        }
        for len in [0, 1, whole.len() - 1, whole.len() + 1] {
            let mut row = whole.clone();
            row.resize(len, 0);
            assert!(table.reencode(&row).is_err(), "{table:?}: {len} bytes");
        }
    }
}

#[test]
fn pool_rows_with_unknown_kinds_or_flags_keep_them_and_state_rule() {
    let mut row = samples::row(Table::Vdisks);
    row[90] |= 0x80;
    row[91] |= 0x01;
    row[93] = 200;
    row[388] = 150;
    let vdisk = VdiskRow::decode(&row).unwrap();
    assert_eq!(vdisk.flags.unknown(), MustKnow::ToOpen);
    assert!(vdisk.flags.has(VdiskFlags::HOLES_HIDE_ORIGIN));
    let rules = (vdisk.sum_kind.unknown(), vdisk.cipher.unknown(), vdisk.state.unknown());
    assert_eq!(rules, (MustKnow::No, MustKnow::ToWrite, MustKnow::No));
    assert_eq!(Table::Vdisks.reencode(&row), Ok(row));
    let mut hold = samples::row(Table::Holds);
    hold[24] = 99;
    assert_eq!(HoldRow::decode(&hold).unwrap().kind.unknown(), MustKnow::ToOpen);
}

#[test]
fn pool_keys_sort_like_their_numbers_and_names() {
    let tree = |last, index| {
        let mut bytes = Vec::new();
        let row = TreeRow::decode(&samples::row(Table::Trees)).unwrap();
        TreeRow { last, index, ..row }.encode(&mut bytes);
        bytes[..Table::Trees.key_bytes()].to_vec()
    };
    let keys = [tree(255, 0), tree(255, 15), tree(256, 0), tree(HEAD, 0), tree(HEAD, 16)];
    assert!(keys.is_sorted());
    let names = ["a", "a-b", "a.b", "a@1+b", "ab", "b"].map(|name| VdiskName::parse(name).unwrap());
    let mut by_key = names.clone();
    by_key.sort_by_key(VdiskName::key);
    let mut by_text = names;
    by_text.sort();
    assert_eq!(by_key, by_text);
    let long = |end: char| VdiskName::parse(&format!("{}{end}", "x".repeat(40))).unwrap().key();
    assert_eq!(long('1')[..24], long('2')[..24]);
    assert_ne!(long('1'), long('2'));
}

proptest! {
    #[test]
    fn pool_rows_have_one_encoding(
        changes in proptest::collection::vec((0_usize..512, any::<u8>()), 0..6),
        pick in 0_usize..19,
    ) {
        let (table, mut row) = samples::rows().swap_remove(pick);
        for (at, value) in changes {
            let at = at % row.len();
            row[at] = value;
        }
        if let Ok(again) = table.reencode(&row) {
            prop_assert_eq!(again, row);
        }
    }

    #[test]
    fn vdisk_row_decodes_to_encoded_row(
        numbers: [u32; 8], flags: u32, bytes: [u8; 32], size in 0_u64..1 << 36, next in 1_u64..1 << 40,
        kind in 1_u8.., name in "[a-z0-9][a-z0-9._-]{0,63}",
    ) {
        let mut row = samples::vdisk_row();
        [row.quota, row.reservation, row.own_blocks, row.shared_blocks] =
            [numbers[0], numbers[1], numbers[2], numbers[3]].map(u64::from);
        [row.node_blocks, row.unfound_blocks, row.dead_blocks, row.keep_last] =
            [numbers[4], numbers[5], numbers[6], numbers[7]].map(u64::from);
        row.flags.0 = flags;
        (row.mark, row.composition) = (bytes, bytes);
        (row.size, row.next_number, row.numbers_end) = (size * 4096, next, next + 1000);
        row.newest_kept = next - 1;
        (row.sum_kind.0, row.fill.0, row.cipher.0) = (kind, kind, kind);
        row.name = name;
        let mut encoded = Vec::new();
        row.encode(&mut encoded);
        prop_assert_eq!(VdiskRow::decode(&encoded), Ok(row));
    }
}
