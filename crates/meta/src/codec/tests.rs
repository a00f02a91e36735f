//! Tests of the label codec: labels encode to fixed bytes, and the decoder rejects invalid bytes.

use super::*;
use crate::Past;
use block::ErrorKind;

fn sample() -> Label {
    let cell = Cell { sequence: 9, bytes: vec![1, 2, 3] };
    Label {
        sequence: 0x0102,
        epoch: 3,
        broadcast: 5,
        acked_broadcast: 4,
        disk: Uuid([0x11; 16]),
        disk_name: "a".to_owned(),
        graph: Uuid([0x22; 16]),
        graph_name: "home".to_owned(),
        data_bytes: 62 << 20,
        block_size: 4096,
        written_unix_s: 1_700_000_000,
        holder: Some(Machine::new("here", [0x33; 16])),
        provisioning: true,
        spec: "name = \"home\"\n".to_owned(),
        cells: BTreeMap::from([("pair".to_owned(), cell)]),
        past: Default::default(),
        unknown_read_only: 0,
    }
}

/// Overwrites `bytes` from the offset `at` with `part`.
fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

#[test]
fn label_encodes_to_golden_bytes() {
    let mut golden = vec![0; 512 + 14 + 80 + 3];
    put(&mut golden, 0, b"CAIRNLBL");
    put(&mut golden, 8, &[1, 0, 0, 0, 0xb8, 0xad, 0xdc, 0x76, 0x61, 2, 0, 0, 0, 0x10, 0, 0]);
    put(&mut golden, 48, &[2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    put(&mut golden, 64, &[0x11; 16]);
    put(&mut golden, 80, &[0x22; 16]);
    put(&mut golden, 96, &[0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0xe0, 3, 0, 0, 0, 0]);
    put(&mut golden, 112, &[0, 0xf1, 0x53, 0x65, 0, 0, 0, 0, 3, 0, 0, 0, 14, 0, 0, 0, 1]);
    put(&mut golden, 136, &[0x33; 16]);
    put(&mut golden, 152, b"a");
    put(&mut golden, 216, b"home");
    put(&mut golden, 280, b"here");
    put(&mut golden, 344, &[5, 0, 0, 0, 0, 0, 0, 0, 4]);
    put(&mut golden, 512, b"name = \"home\"\n");
    put(&mut golden, 526, &[9, 0, 0, 0, 0, 0, 0, 0, 3]);
    put(&mut golden, 542, b"pair");
    put(&mut golden, 606, &[1, 2, 3]);
    let copy = sample().encode().unwrap();
    for (at, (is, should)) in copy.iter().zip(&golden).enumerate() {
        assert!(CHECKSUM.contains(&at) || is == should, "byte {at}: {is:#x}, not {should:#x}");
    }
    assert_eq!(copy, golden, "the checksum is {:x?}", &copy[CHECKSUM]);
    assert_eq!(Label::decode(&golden), Ok(sample()));
}

fn past(epoch: u64, spec: &str) -> Past {
    Past { epoch, until_unix_s: 0x0304, spec: spec.to_owned() }
}

#[test]
fn label_encode_writes_past_specs_as_golden_bytes() {
    let label = Label { past: [past(2, "two"), past(1, "one")].into(), ..sample() };
    let copy = label.encode().unwrap();
    let without = sample().encode().unwrap().len();
    assert_eq!(copy[24..32], [1, 0, 0, 0, 0, 0, 0, 0]);
    let mut golden = vec![0; 8 + 2 * (24 + 3)];
    put(&mut golden, 0, &[2]);
    put(&mut golden, 8, &[2, 0, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 3]);
    put(&mut golden, 32, b"two");
    put(&mut golden, 35, &[1, 0, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 3]);
    put(&mut golden, 59, b"one");
    assert_eq!(copy[without..], golden);
    assert_eq!(Label::decode(&copy), Ok(label));
}

#[test]
fn label_encode_keeps_newest_past_specs_that_fit() {
    let epochs = |label: &Label| {
        let read = Label::decode(&label.encode().unwrap()).unwrap();
        read.past.iter().map(|past| past.epoch).collect::<Vec<_>>()
    };
    let many = (1..=20).rev().map(|epoch| past(epoch, "spec")).collect();
    let label = Label { past: many, ..sample() };
    assert_eq!(epochs(&label), (5..=20).rev().collect::<Vec<_>>());
    let long = "x".repeat(PAST_BYTES_MAX / 2);
    let label = Label { past: [past(3, "a"), past(2, &long), past(1, &long)].into(), ..sample() };
    assert_eq!(epochs(&label), [3, 2]);
    // Cells have priority over past specs.
    let mut label = Label { past: [past(2, "a"), past(1, &long)].into(), ..sample() };
    for n in 0..62 {
        let cell = Cell { sequence: 1, bytes: vec![0; STATE_BYTES_MAX] };
        label.cells.insert(format!("device{n}"), cell);
    }
    assert_eq!(epochs(&label), [2]);
}

#[test]
fn label_decode_rejects_past_specs_with_invalid_fields() {
    let start = sample().encode().unwrap().len();
    let label = Label { past: [past(2, "two"), past(1, "one")].into(), ..sample() };
    for (at, value) in [
        (0, 0),
        (0, 3),
        (0, 17),
        (4, 1),
        (12, u32::MAX),
        (24, 0),
        (24, 4000),
        (24, u32::MAX),
        (28, 1),
        (32, u32::MAX),
    ] {
        let mut copy = label.encode().unwrap();
        put(&mut copy, start + at, &u32::to_le_bytes(value));
        seal(&mut copy);
        assert!(matches!(Label::decode(&copy), Err(Wrong::Damaged(_))), "{value} at {at}");
    }
}

#[test]
fn label_decode_skips_part_of_unknown_compatible_feature() {
    let label = Label { past: [past(2, "two")].into(), ..sample() };
    for (feature, known) in [(3, true), (1, false)] {
        let mut copy = label.encode().unwrap();
        copy.extend_from_slice(b"something later");
        copy[24] = feature;
        let length = copy.len() as u32;
        put(&mut copy, 16, &length.to_le_bytes());
        seal(&mut copy);
        assert_eq!(Label::decode(&copy).is_ok_and(|read| read == label), known);
    }
}

#[test]
fn label_decode_ignores_bytes_after_end_of_copy() {
    let mut copy = sample().encode().unwrap();
    copy.resize(4096, 0x55);
    assert_eq!(Label::decode(&copy), Ok(sample()));
}

#[test]
fn label_decode_reports_unknown_incompatible_and_read_only_features() {
    let mut copy = sample().encode().unwrap();
    copy[40] = 4;
    seal(&mut copy);
    assert_eq!(Label::decode(&copy), Err(Wrong::Features(4)));
    let mut copy = sample().encode().unwrap();
    (copy[24], copy[32]) = (2, 2);
    seal(&mut copy);
    assert_eq!(Label::decode(&copy).unwrap().unknown_read_only, 2);
}

#[test]
fn label_decode_rejects_copy_with_any_flipped_bit() {
    let copy = sample().encode().unwrap();
    for bit in 0..copy.len() * 8 {
        let mut copy = copy.clone();
        copy[bit / 8] ^= 1 << (bit % 8);
        assert!(Label::decode(&copy).is_err(), "bit {bit}");
    }
}

#[test]
fn label_decode_rejects_invalid_field_despite_valid_checksum() {
    // Position of a number, and an invalid value for it.
    let absurd: &[(usize, u32)] = &[
        (16, 511),
        (16, u32::MAX),
        (20, 0),
        (20, 768),
        (20, 1 << 20),
        (48, 0),
        (52, u32::MAX),
        (60, u32::MAX),
        (96, 0),
        (104, 0),
        (104, 1),
        (108, u32::MAX),
        (120, 4),
        (124, u32::MAX),
        (128, u32::MAX),
        (128, 2),
        (128, 0),
        (132, 1),
        (152, 0),
        (216, 0),
        (280, 0),
        (526, 0),
        (530, u32::MAX),
        (534, 4),
        (534, 5000),
        (542, 0),
    ];
    for (at, value) in absurd {
        let mut copy = sample().encode().unwrap();
        copy.resize(8192, 0);
        put(&mut copy, *at, &value.to_le_bytes());
        if *at == 48 {
            put(&mut copy, 52, &[0; 4]);
        }
        let length = sample().encode().unwrap().len();
        seal(&mut copy[..length]);
        assert!(matches!(Label::decode(&copy), Err(Wrong::Damaged(_))), "{value} at {at}");
    }
}

#[test]
fn label_encode_rejects_oversized_spec_or_cells() {
    let mut label = sample();
    label.spec = "x".repeat(SPEC_BYTES_MAX + 1);
    assert!(label.encode().unwrap_err().to_string().contains("at most 131072 fit"));
    label.spec = "x".repeat(SPEC_BYTES_MAX);
    for n in 0..64 {
        let cell = Cell { sequence: 1, bytes: vec![0; STATE_BYTES_MAX] };
        label.cells.insert(format!("device{n}"), cell);
    }
    assert_eq!(label.encode().unwrap_err().kind(), ErrorKind::Limit);
}
