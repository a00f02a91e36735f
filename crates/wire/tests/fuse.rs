//! Tests of the FUSE codec: every message byte by byte, as `linux/fuse.h` defines it for a little-endian machine, and
//! malformed messages.
#![cfg(target_endian = "little")]

use wire::fuse::{
    Call, Facts, HEAD_BYTES, INIT_FLAGS, Init, Malformed, Node, RESENT, Reply, Request, Zeroing,
};

const UNIQUE: u64 = 0x10;

const FACTS: Facts = Facts { size_bytes: 1 << 20, block_bytes: 4096, read_only: false };

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Encodes a FUSE request: a header with this opcode and node number, and the arguments `body` in hexadecimal.
fn message(opcode: u8, node: u8, body: &str) -> Vec<u8> {
    let body = hex(body);
    let mut bytes = hex(&format!(
        "{:02x}000000 {opcode:02x}000000 1000000000000000 {node:02x}00000000000000
         00000000 00000000 2a000000 0000 0000",
        40 + body.len()
    ));
    bytes.extend(body);
    bytes
}

fn parsed(bytes: &[u8]) -> Request<'_> {
    Request::parse(&bytes[..bytes.len().min(HEAD_BYTES)], bytes.len()).unwrap()
}

fn call(opcode: u8, node: u8, body: &str) -> String {
    let bytes = message(opcode, node, body);
    let request = parsed(&bytes);
    assert_eq!(request.unique, UNIQUE);
    format!("{:?} {:?}", request.node, request.call)
}

#[test]
fn fuse_request_parser_accepts_every_supported_call() {
    let read =
        "0000000000000000 0010000000000000 00020000 00000000 0000000000000000 00000000 00000000";
    assert_eq!(call(15, 2, read), "Some(Volume) Read { offset: 4096, size: 512 }");
    assert_eq!(call(28, 1, read), "Some(Root) Readdir { offset: 4096, size: 512 }");
    assert_eq!(call(1, 1, "766f6c756d6500"), format!("Some(Root) Lookup({:?})", b"volume"));
    assert_eq!(call(3, 2, "00000000 00000000 0000000000000000"), "Some(Volume) Getattr");
    assert_eq!(call(14, 2, "00800000 00000000"), "Some(Volume) Open { directory: false }");
    assert_eq!(call(27, 1, "00800000 00000000"), "Some(Root) Open { directory: true }");
    assert_eq!(call(20, 2, "0000000000000000 01000000 00000000"), "Some(Volume) Fsync");
    assert_eq!(call(17, 1, ""), "Some(Root) Statfs");
    assert_eq!(call(38, 0, ""), "None Destroy");
    for agreed in [18, 29, 25, 30, 34] {
        assert_eq!(call(agreed, 2, "0000000000000000"), "Some(Volume) Agreed");
    }
    for unanswered in [2, 42, 36] {
        assert_eq!(call(unanswered, 2, "0100000000000000"), "Some(Volume) Unanswered");
    }
    assert_eq!(call(5, 3, ""), "None Unknown(5)");
}

#[test]
fn fuse_write_parser_checks_payload_length() {
    let head =
        "0000000000000000 0010000000000000 04000000 00000000 0000000000000000 00000000 00000000";
    let bytes = message(16, 2, &format!("{head} 01020304"));
    assert_eq!(parsed(&bytes).call, Call::Write { offset: 4096, size: 4 });
    assert_eq!(bytes[HEAD_BYTES..], [1, 2, 3, 4]);
    let short = message(16, 2, &format!("{head} 010203"));
    let malformed = Malformed { unique: Some(UNIQUE), came_bytes: short.len() };
    assert_eq!(Request::parse(&short[..HEAD_BYTES], short.len()), Err(malformed));
}

#[test]
fn fuse_fallocate_parser_accepts_only_modes_that_keep_size() {
    let of = |mode: &str| {
        let body = format!("0000000000000000 0010000000000000 0000010000000000 {mode} 00000000");
        let bytes = message(43, 2, &body);
        match parsed(&bytes).call {
            Call::Fallocate { offset: 4096, length: 65536, mode } => mode,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of("03000000"), Some(Zeroing::Punch));
    assert_eq!(of("10000000"), Some(Zeroing::Keep));
    assert_eq!(of("11000000"), Some(Zeroing::Keep));
    for other in ["00000000", "01000000", "02000000", "13000000", "08000000"] {
        assert_eq!(of(other), None, "{other}");
    }
}

#[test]
fn fuse_init_negotiates_version_flags_and_sizes() {
    // 7.45, 128 KiB of read-ahead, all flags; the second word says that the kernel can send requests again.
    let offer = "07000000 2d000000 00000200 ffffffff 80000000";
    let bytes = message(26, 0, &format!("{offer} {}", "00000000".repeat(11)));
    let Call::Init(init) = parsed(&bytes).call else { panic!("no greeting") };
    assert_eq!((init.major, init.minor, init.has_resend), (7, 45, true));
    let reply = Reply::init(UNIQUE, &init, 1 << 20).unwrap();
    let agreed = "50000000 00000000 1000000000000000
                  07000000 29000000 00000200 21804440 0001 c000 00001000 01000000
                  0001 0000 00000000 00000000000000000000000000000000000000000000000000000000";
    assert_eq!(reply.bytes(), hex(agreed));

    // Smaller transfers, and an older kernel that sends no second word.
    let old = Init { minor: 31, flags: INIT_FLAGS, has_resend: false, ..init };
    let reply = Reply::init(UNIQUE, &old, 100_000).unwrap();
    assert_eq!(reply.bytes()[20..24], 31u32.to_le_bytes());
    assert_eq!(reply.bytes()[28..32], INIT_FLAGS.to_le_bytes());
    assert_eq!(reply.bytes()[36..40], (24 * 4096u32).to_le_bytes());
    assert_eq!(reply.bytes()[44..46], 24u16.to_le_bytes());
    let bytes = message(26, 0, &format!("07000000 1f000000 00000200 {}", "00000000".repeat(2)));
    assert_eq!(parsed(&bytes).call, Call::Init(Init { minor: 31, flags: 0, ..old }));

    assert!(Reply::init(UNIQUE, &Init { minor: 27, ..init }, 4096).is_none());
    assert!(Reply::init(UNIQUE, &Init { major: 8, ..init }, 4096).is_none());
}

#[test]
fn fuse_reply_encodes_every_answer() {
    let bytes = |reply: Reply| reply.bytes().to_vec();
    assert_eq!(bytes(Reply::done(UNIQUE)), hex("10000000 00000000 1000000000000000"));
    assert_eq!(bytes(Reply::error(UNIQUE, 5)), hex("10000000 fbffffff 1000000000000000"));
    assert_eq!(bytes(Reply::read(UNIQUE, 512)), hex("10020000 00000000 1000000000000000"));
    let written = "18000000 00000000 1000000000000000 00020000 00000000";
    assert_eq!(bytes(Reply::written(UNIQUE, 512)), hex(written));
    let opened = "20000000 00000000 1000000000000000 0000000000000000 41000000 00000000";
    assert_eq!(bytes(Reply::opened(UNIQUE, false)), hex(opened));
    // One year of validity; node 2, 1 MiB, 2048 blocks of 512, a file of mode 0600.
    let times = "000000000000000000000000000000000000000000000000 000000000000000000000000";
    let attr = format!(
        "0200000000000000 0000100000000000 0008000000000000 {times}
         80810000 01000000 00000000 00000000 00000000 00100000 00000000"
    );
    let got =
        format!("68000000 00000000 1000000000000000 8033e10100000000 0000000000000000 {attr}");
    let mut got = hex(&got);
    got[0] = got.len() as u8;
    assert_eq!(bytes(Reply::attributes(UNIQUE, Node::Volume, &FACTS)), got);
    let entry = format!(
        "90000000 00000000 1000000000000000 0200000000000000 0000000000000000
         8033e10100000000 8033e10100000000 0000000000000000 {attr}"
    );
    assert_eq!(bytes(Reply::entry(UNIQUE, &FACTS)), hex(&entry));
    let statfs = "60000000 00000000 1000000000000000 0001000000000000 0000000000000000
                  0000000000000000 0100000000000000 0000000000000000 00100000 ff000000 00100000
                  00000000 000000000000000000000000000000000000000000000000";
    assert_eq!(bytes(Reply::statfs(UNIQUE, &FACTS)), hex(statfs));
}

#[test]
fn fuse_readdir_reply_fills_buffer_from_offset() {
    let all = Reply::names(UNIQUE, 0, 4096);
    let expected = "70000000 00000000 1000000000000000
                    0100000000000000 0100000000000000 01000000 04000000 2e00000000000000
                    0100000000000000 0200000000000000 02000000 04000000 2e2e000000000000
                    0200000000000000 0300000000000000 06000000 08000000 766f6c756d650000";
    assert_eq!(all.bytes(), hex(expected));
    // The last name alone, in room for one.
    let last = Reply::names(UNIQUE, 2, 40);
    assert_eq!(last.bytes()[16..], all.bytes()[80..]);
    for (offset, room) in [(3, 4096), (u64::MAX, 4096), (0, 31), (0, 0)] {
        assert_eq!(Reply::names(UNIQUE, offset, room).bytes().len(), 16, "{offset} {room}");
    }
}

#[test]
fn fuse_request_parser_reports_resent_bit() {
    let mut bytes = message(17, 1, "");
    assert!(!parsed(&bytes).is_resent());
    bytes[15] |= 0x80;
    let request = parsed(&bytes);
    assert!(request.is_resent());
    assert_eq!(request.unique, UNIQUE | RESENT);
    // The answer carries exactly the same number.
    assert_eq!(Reply::done(request.unique).bytes()[8..], bytes[8..16]);
}

#[test]
fn fuse_request_parser_rejects_malformed_messages() {
    let good = message(17, 1, "");
    let unique = |bytes: &[u8]| Request::parse(bytes, bytes.len()).unwrap_err().unique;
    assert_eq!(unique(&good[..39]), None);
    assert_eq!(unique(&[]), None);
    let mut longer = good.clone();
    longer.push(0);
    assert_eq!(unique(&longer), None, "it is longer than it says");
    assert_eq!(unique(&message(15, 2, "00000000")), Some(UNIQUE));
    assert_eq!(unique(&message(26, 0, "07000000 2d000000 00000000 00000040")), Some(UNIQUE));
}
