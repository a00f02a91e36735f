//! Checks the encoded state of handed-over NBD connections against the bytes in `docs/formats/keeper.md`.

use wire::nbd::handed::{
    HANDED_MAX_BYTES, Handed, Shown, UNREAD_MAX_BYTES, decode, encode, encoded_bytes, identity,
};
use wire::nbd::{BlockSizes, Context, ExportFacts, ReplyStyle, Session, TransmissionFlags};

const GOLDEN: &str = "436169726e4e4244 0001 0000 00000001 0000005a a782e099
    0102030405060708 0001 0001
    0000000000100000 0d25 00000200 00001000 00100000
    0000000000200000 0d25 00000200 00001000 00100000
    0003 766f6c
    00000000 000f 626173653a616c6c6f636174696f6e
    00000004 25609513";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn handed() -> Handed {
    let blocks = BlockSizes::new(512, 4096, 1 << 20).unwrap();
    let flags = TransmissionFlags(0x0d25);
    let facts = ExportFacts {
        name: "vol".to_owned(),
        size_bytes: 1 << 20,
        flags,
        blocks,
        ..ExportFacts::default()
    };
    let contexts = vec![Context { id: 0, name: "base:allocation".to_owned() }];
    Handed {
        identity: 0x0102_0304_0506_0708,
        session: Session { style: ReplyStyle::Structured, contexts, facts },
        shown: Shown { size_bytes: 2 << 20, flags, blocks },
        unread: hex("25609513"),
    }
}

#[test]
fn connection_handover_state_matches_documented_bytes() {
    assert_eq!(encode(&[handed()]), hex(GOLDEN));
    assert_eq!(decode(&hex(GOLDEN)), Ok(vec![handed()]));
    assert_eq!(24 + encoded_bytes(&handed()), hex(GOLDEN).len());
    assert_eq!(decode(&encode(&[])), Ok(Vec::new()));
    // CRC-64/NVME of the name, a newline, and the spec.
    assert_eq!(identity("home", "[disk]\n"), 0xc266_de1e_2c67_06bb);
}

#[test]
fn connection_handover_rejects_damaged_or_invalid_state() {
    let golden = hex(GOLDEN);
    for at in 0..golden.len() {
        let mut damaged = golden.clone();
        damaged[at] ^= 1;
        assert!(decode(&damaged).is_err(), "byte {at}");
        assert!(decode(&golden[..at]).is_err(), "cut at {at}");
    }
    assert!(decode(&[&golden[..], &[0]].concat()).is_err());
    assert!(decode(&vec![0; HANDED_MAX_BYTES + 1]).is_err());
    let told_more = {
        let mut one = handed();
        one.session.facts.size_bytes = one.shown.size_bytes + 1;
        one
    };
    let contexts_without_chunks = {
        let mut one = handed();
        one.session.style = ReplyStyle::Simple;
        one
    };
    let unread = vec![0; UNREAD_MAX_BYTES + 1];
    for wrong in [told_more, contexts_without_chunks, Handed { unread, ..handed() }] {
        let why = decode(&encode(&[handed(), wrong])).unwrap_err().to_string();
        assert!(why.contains("one connection is invalid"), "{why}");
    }
}
