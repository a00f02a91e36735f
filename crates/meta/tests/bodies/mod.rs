//! Bodies of the fuzz targets of labels, vaults, rings and journals. `fuzz/` includes this file, and `fuzz_smoke.rs` runs the bodies
//! over a few thousand inputs in each `cargo test`.

use meta::journal::Part;
use meta::journal::root::{ROOT_BYTES, ROOT_MAGIC, Root as JournalRoot, root_checksum};
use meta::ring::{self, Head, Owner, Position, RECORD_MAGIC, Ring, Root, Survey};
use meta::vault::entry::{ENTRY_BYTES, Slot};
use meta::vault::page::{PAGE_BYTES, Page, Pointer};
use meta::vault::record::{self, RECORD_HEADER_BYTES};
use meta::vault::superblock::{Superblock, superblock_checksum};
use meta::{Label, Uuid};

/// Byte offsets of the checksum in the header of a label.
const CHECKSUM: std::ops::Range<usize> = 12..16;

/// Decodes fuzzed bytes as a label, unchanged and with a correct magic, length and checksum, so that the decoder also
/// reads the later fields. A decoded label must be the same after encoding and decoding.
pub fn label(data: &[u8]) {
    let _ = meta::find(data, data);
    check(data);
    let mut sealed = data.to_vec();
    if sealed.len() < meta::HEADER_BYTES {
        return;
    }
    sealed[..8].copy_from_slice(&meta::MAGIC);
    let length = sealed.len().min(meta::COPY_BYTES_MAX);
    sealed[16..20].copy_from_slice(&(length as u32).to_le_bytes());
    let sum = meta::checksum(&sealed[..length]);
    sealed[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    check(&sealed);
}

fn check(data: &[u8]) {
    let Ok(label) = Label::decode(data) else { return };
    let again = label.encode().expect("what was read is within the limits");
    assert_eq!(Label::decode(&again), Ok(label));
}

/// Decodes fuzzed bytes as a vault's superblock, unchanged and with a correct magic and checksum.
pub fn superblock(data: &[u8]) {
    let check = |data: &[u8]| {
        if let Ok(superblock) = Superblock::decode(data) {
            let again = superblock.encode();
            assert_eq!(Superblock::decode(&again), Ok(superblock));
        }
    };
    check(data);
    let mut sealed = data.to_vec();
    sealed.resize(PAGE_BYTES, 0);
    sealed[..8].copy_from_slice(&meta::vault::superblock::MAGIC);
    let sum = superblock_checksum(&sealed);
    sealed[16..24].copy_from_slice(&sum.to_le_bytes());
    check(&sealed);
}

/// Decodes fuzzed bytes as a record of a vault's log, unchanged and with a correct magic, vault, length and checksum.
pub fn record(data: &[u8]) {
    let vault = Uuid([7; 16]);
    let check = |data: &[u8]| {
        let Some((head, body)) = record::decode(vault, data) else { return };
        let Ok(changes) = record::changes(body) else { return };
        let mut again = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut again));
        assert_eq!(again, body);
        let mut whole = vec![1; record::padded(head.length as usize)];
        let written =
            record::encode(vault, head.at, head.flushed, head.changes, &[&again], &mut whole);
        assert_eq!(written, head);
    };
    check(data);
    let mut sealed = data.to_vec();
    if sealed.len() < RECORD_HEADER_BYTES {
        return;
    }
    sealed[..8].copy_from_slice(&record::RECORD_MAGIC);
    sealed[16..32].copy_from_slice(&vault.0);
    let length = sealed.len() as u32;
    sealed[72..76].copy_from_slice(&length.to_le_bytes());
    let sum = record::record_checksum(&sealed);
    sealed[8..16].copy_from_slice(&sum.to_le_bytes());
    check(&sealed);
}

/// Decodes fuzzed bytes as directory entries of a vault, as a pointer to a page, and as the page of that pointer.
pub fn page(data: &[u8]) {
    for entry in data.chunks_exact(ENTRY_BYTES) {
        if let Ok(slot) = Slot::decode(entry) {
            assert_eq!(Slot::decode(&slot.encode()), Ok(slot));
        }
    }
    if let Some(pointer) = data.get(..Pointer::BYTES).and_then(Pointer::decode) {
        assert_eq!(Pointer::decode(&Pointer::encode(Some(pointer))), Some(pointer));
        assert!(Page::verify(data, 3, &pointer).is_err(), "no fuzzer finds a checksum");
    }
}

/// Decodes fuzzed bytes as a record of a ring, unchanged and with a correct magic, ring, length and checksum. Then recovers
/// a ring with these bytes in front.
pub fn ring(data: &[u8]) {
    let ring = Ring::new(Uuid([7; 16]), ring::RING_BYTES_MIN, Owner::PoolLog).expect("a length");
    let check = |data: &[u8]| {
        let Ok((head, items)) = Head::decode(&ring, data) else { return };
        let mut again = Vec::new();
        assert_eq!(head.encode(&ring, items, &mut again), head);
        assert_eq!(Head::decode(&ring, &again), Ok((head, items)));
        if let Ok(read) = ring::items(items, head.items) {
            let mut again = Vec::new();
            read.iter().for_each(|item| item.encode(&mut again));
            assert_eq!(again, items);
        }
    };
    check(data);
    let mut sealed = data.to_vec();
    if sealed.len() >= ring::RECORD_HEADER_BYTES {
        sealed[..8].copy_from_slice(&RECORD_MAGIC);
        sealed[16..32].copy_from_slice(&ring.uuid().0);
        let length = sealed.len() as u32;
        sealed[80..84].copy_from_slice(&length.to_le_bytes());
        sealed[92..94].copy_from_slice(&(Owner::PoolLog as u16).to_le_bytes());
        let sum = ring::record_checksum(&sealed);
        sealed[8..16].copy_from_slice(&sum.to_le_bytes());
        check(&sealed);
    }
    recover(&ring, &sealed);
}

fn recover(ring: &Ring, front: &[u8]) {
    let mut image = front.to_vec();
    image.resize(ring.bytes() as usize, 0);
    let tail = Position { offset: 0, number: 1, previous: 0, opening: 1 };
    let mut survey = Survey::new(*ring, Root { tail, flushed: 0 });
    while let Some((place, len)) = survey.wanted() {
        let place = place as usize;
        survey.feed(&image[place..place + len as usize], |_, _| {});
    }
    let verdict = survey.judge();
    let next = verdict.records.last().map_or(tail, Head::next);
    assert_eq!(verdict.end, next);
    assert!(verdict.highest + 1 >= verdict.end.number);
}

/// Decodes fuzzed bytes as the root of a journal, unchanged and with a correct magic and checksum, and as the parts of a
/// record. Decoded values must be the same after encoding and decoding.
pub fn journal(data: &[u8]) {
    let check = |data: &[u8]| {
        if let Ok(root) = JournalRoot::decode(data) {
            assert_eq!(JournalRoot::decode(&root.encode()), Ok(root));
        }
    };
    check(data);
    let mut sealed = data.to_vec();
    sealed.resize(ROOT_BYTES, 0);
    sealed[..8].copy_from_slice(&ROOT_MAGIC);
    let sum = root_checksum(&sealed);
    sealed[16..24].copy_from_slice(&sum.to_le_bytes());
    check(&sealed);
    let at = Position { offset: 0, number: 1, previous: 0, opening: 1 };
    for items in 0..4 {
        // The payload of the parts is not known yet: try that of none and of one sector.
        for payload in [0, 4096] {
            let head = Head { items, payload, ..Head::empty(at, 1, 0) };
            let Ok(parts) = Part::decode_all(&head, data, 3) else { continue };
            let mut again = Vec::new();
            parts.iter().for_each(|part| part.encode(&mut again));
            let head = Head { items: parts.len() as u32, ..head };
            assert_eq!(Part::decode_all(&head, &again, 3), Ok(parts));
        }
    }
}
