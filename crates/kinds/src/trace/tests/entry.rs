//! Tests of the codec of trace files: against the specification of the file format, and with damaged bytes.

use block::{ByteRange, OpKind};
use proptest::prelude::*;

use crate::trace::{Entry, Header, Reader, Record, SLOT_BYTES};

fn write() -> Record {
    Record {
        begin_ns: 0x0102_0304_0506_0708,
        end_ns: 0x1112_1314_1516_1718,
        id: 0x2122_2324_2526_2728,
        verb: OpKind::WriteZeroes,
        range: ByteRange::new(0x3132_3334_3536_3738, 0x4142_4344_4546_4748),
        fua: true,
        unmap: true,
        errno: 0x5152_5354,
    }
}

fn entry() -> impl Strategy<Value = Entry> {
    let range =
        (0..1_u64 << 62, 1..1_u64 << 62).prop_map(|(start, len)| ByteRange::new(start, len));
    let verb = (0..OpKind::ALL.len()).prop_map(|n| OpKind::ALL[n]);
    let rest = (any::<u64>(), any::<u64>(), any::<bool>(), any::<bool>(), any::<u32>());
    let request = (verb, range, any::<u64>(), rest).prop_map(|(verb, range, id, rest)| {
        let (one, other, fua, unmap, errno) = rest;
        let range = range.filter(|_| verb != OpKind::Flush);
        let (fua, unmap) = (fua && verb.writes(), unmap && verb == OpKind::WriteZeroes);
        let (begin_ns, end_ns) = (one.min(other), one.max(other));
        Entry::Request(Record { begin_ns, end_ns, id, verb, range, fua, unmap, errno })
    });
    let start = any::<u64>().prop_map(|wall_ns| Entry::Start { wall_ns });
    prop_oneof![8 => request, 1 => start, 1 => (1..u64::MAX).prop_map(|count| Entry::Lost { count })]
}

#[test]
fn trace_encoding_matches_specification() {
    let mut header = b"CAIRNTRC\x01\0\0\0\x40\0\0\0".to_vec();
    header.resize(SLOT_BYTES, 0);
    assert_eq!(Header.encode()[..], header);
    let mut request = b"\x02\x03\x03\0\x54\x53\x52\x51".to_vec();
    for first in [0x01_u8, 0x11, 0x21, 0x31, 0x41] {
        request.extend((first..first + 8).rev());
    }
    request.resize(SLOT_BYTES, 0);
    assert_eq!(Entry::Request(write()).encode()[..], request);
    let mut start = b"\x01\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01".to_vec();
    start.resize(SLOT_BYTES, 0);
    assert_eq!(Entry::Start { wall_ns: 0x0102_0304_0506_0708 }.encode()[..], start);
    start[0] = 3;
    assert_eq!(Entry::Lost { count: 0x0102_0304_0506_0708 }.encode()[..], start);
}

#[test]
fn trace_verb_numbers_match_specification() {
    let number = |verb| {
        let range = write().range.filter(|_| verb != OpKind::Flush);
        Entry::Request(Record { verb, range, ..write() }).encode()[1]
    };
    assert_eq!(OpKind::ALL.map(number), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn trace_entry_text_matches_specification() {
    let (fua, unmap) = (true, false);
    let (begin_ns, end_ns) = (1_000_000, 1_085_000);
    let range = ByteRange::new(4096, 8192);
    let verb = OpKind::Write;
    let written = Record { begin_ns, end_ns, id: 17, verb, range, fua, unmap, errno: 0 };
    let (begin_ns, end_ns) = (2_000_000, 2_020_000);
    let (verb, range, fua) = (OpKind::Flush, None, false);
    let flush = Record { begin_ns, end_ns, id: 18, verb, range, fua, unmap, errno: 5 };
    let entries = [
        Entry::Start { wall_ns: 1_700_000_000_000_000_000 },
        Entry::Request(written),
        Entry::Request(flush),
        Entry::Lost { count: 12 },
    ];
    let page = include_str!("../../../../../docs/formats/trace.md");
    let text = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(entries.map(|entry| format!("{entry}\n")).concat(), text);
}

#[test]
fn trace_parse_rejects_bytes_undefined_in_version_1() {
    let flipped = |slot: [u8; SLOT_BYTES], at: usize| {
        let mut slot = slot;
        slot[at] ^= 0x80;
        slot
    };
    let sound = Entry::Request(write()).encode();
    let refused = (0..SLOT_BYTES).filter(|at| Entry::parse(&flipped(sound, *at)).is_err());
    // Sort, verb, flags and a reserved byte; a begin after the end; the reserved rest.
    assert!(refused.eq((0..4).chain([15]).chain(48..64)));
    let header = |at| Header::parse(&flipped(Header.encode(), at));
    assert!((0..SLOT_BYTES).all(|at| header(at).is_err()));
    let blank = [0; SLOT_BYTES];
    assert_eq!(Entry::parse(&blank), Ok(None));
}

proptest! {
    #[test]
    fn trace_entry_parses_to_encoded_entry(entry in entry()) {
        prop_assert_eq!(Entry::parse(&entry.encode()), Ok(Some(entry)));
    }

    /// Bytes that parse as an entry must encode to the same bytes, and the parser must not panic.
    #[test]
    fn trace_parse_rejects_garbage_or_keeps_same_bytes(
        entry in entry(),
        flips in proptest::collection::vec((0..SLOT_BYTES, any::<u8>()), 0..6),
    ) {
        let mut slot = entry.encode();
        for (at, byte) in flips {
            slot[at] = byte;
        }
        if let Ok(Some(parsed)) = Entry::parse(&slot) {
            prop_assert_eq!(parsed.encode(), slot);
            prop_assert!(!parsed.to_string().is_empty());
        }
    }

    #[test]
    fn trace_reader_of_random_bytes_ends(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..1000),
        entries in proptest::collection::vec(entry(), 0..5),
        has_header: bool,
    ) {
        let mut all = if has_header { Header.encode().to_vec() } else { Vec::new() };
        all.extend(entries.iter().flat_map(Entry::encode));
        all.append(&mut bytes);
        let Ok(reader) = Reader::new(&all[..]) else { return Ok(()) };
        let read: Vec<_> = reader.collect();
        prop_assert!(read.len() <= all.len() / SLOT_BYTES);
        if has_header {
            let sound = read.iter().map_while(|entry| entry.as_ref().ok());
            prop_assert!(sound.take(entries.len()).eq(&entries));
        }
    }
}

#[test]
fn trace_reader_reports_number_of_damaged_entry() {
    let mut bytes = Header.encode().to_vec();
    bytes.extend(Entry::Lost { count: 1 }.encode());
    bytes.extend([9; SLOT_BYTES]);
    let mut reader = Reader::new(&bytes[..]).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), Entry::Lost { count: 1 });
    let words = reader.next().unwrap().unwrap_err().to_string();
    assert_eq!(words, "slot 2 of the trace: entry 9 is unknown");
    assert!(reader.next().is_none());
    let words = Reader::new(&b"GIF89a"[..]).err().unwrap().to_string();
    assert_eq!(words, "the file is not a trace: the header does not begin with CAIRNTRC");
}
