//! Tests of NBD requests and replies: which requests an export refuses, and which replies the parser rejects.

use proptest::prelude::*;
use wire::nbd::{
    Body, Command, CommandFlags, Context, Errno, MAX_PAYLOAD_BYTES, ProtocolError, Refusal, Reply,
    ReplyMessage, ReplyStyle, RequestHeader, Session, TransmissionFlags, check,
};

use crate::pair::{ALL_FLAGS, facts};

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

/// Every NBD command with an offset and a length.
const RANGED: [Command; 6] = [
    Command::Read,
    Command::Write,
    Command::Trim,
    Command::Cache,
    Command::WriteZeroes,
    Command::BlockStatus,
];

/// Returns a session with an export of 1 MiB, blocks of 512 bytes, payloads up to 64 KiB, and these transmission flags.
fn session(flags: TransmissionFlags) -> Session {
    let contexts = vec![Context { id: 0, name: "base:allocation".to_owned() }];
    let mut facts = facts("first");
    facts.flags = flags;
    Session { style: ReplyStyle::Structured, contexts, facts }
}

fn request(command: Command, offset: u64, length: u64) -> RequestHeader {
    RequestHeader { command, flags: CommandFlags::NONE, cookie: 1, offset, length }
}

fn errno(request: RequestHeader, session: &Session) -> Option<Errno> {
    check(&request, session).err().map(|Refusal { errno, .. }| errno)
}

#[test]
fn request_check_refuses_commands_that_export_does_not_offer() {
    let needs = [
        (Command::Flush, TransmissionFlags::FLUSH),
        (Command::Trim, TransmissionFlags::TRIM),
        (Command::Cache, TransmissionFlags::CACHE),
        (Command::WriteZeroes, TransmissionFlags::WRITE_ZEROES),
    ];
    for (command, flag) in needs {
        let length = if command == Command::Flush { 0 } else { 512 };
        let subject = request(command, 0, length);
        assert_eq!(errno(subject, &session(ALL_FLAGS)), None, "{command:?}");
        let without = session(ALL_FLAGS.without(flag));
        assert_eq!(errno(subject, &without), Some(Errno::EINVAL), "{command:?}");
    }
    let status = request(Command::BlockStatus, 0, 512);
    assert_eq!(errno(status, &session(ALL_FLAGS)), None);
    let no_contexts = Session { contexts: vec![], ..session(ALL_FLAGS) };
    assert_eq!(errno(status, &no_contexts), Some(Errno::EINVAL));
    let unknown = request(Command::Unknown(8), 0, 512);
    assert_eq!(errno(unknown, &session(ALL_FLAGS)), Some(Errno::EINVAL));
}

#[test]
fn request_check_refuses_writes_to_read_only_export() {
    // This holds even for a command that the flags do not offer: EPERM is more informative than EINVAL.
    for more in [ALL_FLAGS, TransmissionFlags::NONE] {
        let session = session(more | TransmissionFlags::READ_ONLY);
        for command in RANGED {
            let expected = if command.modifies() { Some(Errno::EPERM) } else { None };
            let offered = more == ALL_FLAGS || command != Command::Cache;
            if offered {
                assert_eq!(errno(request(command, 0, 512), &session), expected, "{command:?}");
            }
        }
    }
}

#[test]
fn request_check_refuses_flags_of_other_commands() {
    let (fua, no_hole) = (CommandFlags::FUA, CommandFlags::NO_HOLE);
    let (df, one, fast) = (CommandFlags::DF, CommandFlags::REQ_ONE, CommandFlags::FAST_ZERO);
    let own = [
        (Command::Read, df),
        (Command::Write, CommandFlags::NONE),
        (Command::Trim, CommandFlags::NONE),
        (Command::Cache, CommandFlags::NONE),
        (Command::WriteZeroes, no_hole | fast),
        (Command::BlockStatus, one),
        (Command::Flush, CommandFlags::NONE),
    ];
    for (command, own) in own {
        for bit in 0..16 {
            let flags = CommandFlags(1 << bit);
            let length = if command == Command::Flush { 0 } else { 512 };
            let subject = RequestHeader { flags, ..request(command, 0, length) };
            let expected = if (own | fua).has(flags) { None } else { Some(Errno::EINVAL) };
            assert_eq!(errno(subject, &session(ALL_FLAGS)), expected, "{command:?} {flags:?}");
        }
    }
    let unoffered = [
        (Command::Write, fua, TransmissionFlags::FUA),
        (Command::Read, df, TransmissionFlags::DF),
        (Command::WriteZeroes, fast, TransmissionFlags::FAST_ZERO),
    ];
    for (command, flags, offer) in unoffered {
        let subject = RequestHeader { flags, ..request(command, 0, 512) };
        assert_eq!(errno(subject, &session(ALL_FLAGS.without(offer))), Some(Errno::EINVAL));
    }
}

#[test]
fn request_check_allows_payload_flag_only_on_extended_writes() {
    let extended = Session { style: ReplyStyle::Extended, ..session(ALL_FLAGS) };
    for command in RANGED {
        for (flags, announced) in [(CommandFlags::PAYLOAD_LEN, true), (CommandFlags::NONE, false)] {
            let subject = RequestHeader { flags, ..request(command, 0, 512) };
            let good = announced == (command == Command::Write);
            let expected = if good { None } else { Some(Errno::EINVAL) };
            assert_eq!(errno(subject, &extended), expected, "{command:?} {flags:?}");
            // Refused or not, the length of the payload is known.
            let follows = if announced { 512 } else { 0 };
            assert_eq!(subject.payload_bytes(ReplyStyle::Extended), follows);
        }
    }
}

#[test]
fn request_check_refuses_ranges_past_end_of_export() {
    let (session, size) = (session(ALL_FLAGS), 1 << 20);
    for command in RANGED {
        let past_end = match command {
            Command::Write | Command::WriteZeroes => Errno::ENOSPC,
            _ => Errno::EINVAL,
        };
        let cases = [
            (size - 512, 512, None),
            (size - 512, 1024, Some(past_end)),
            (size, 512, Some(past_end)),
            (u64::MAX - 511, 512, Some(Errno::EINVAL)),
            (u64::MAX - 511, 511, Some(past_end)),
            (1, u64::MAX, Some(Errno::EINVAL)),
            (0, 0, Some(Errno::EINVAL)),
            (256, 512, Some(Errno::EINVAL)),
            (512, 256, Some(Errno::EINVAL)),
        ];
        for (offset, length, expected) in cases {
            let subject = request(command, offset, length);
            assert_eq!(errno(subject, &session), expected, "{command:?} {offset}+{length}");
        }
    }
}

#[test]
fn request_check_limits_length_of_reads_and_writes_only() {
    let mut session = session(ALL_FLAGS);
    session.facts.size_bytes = 1 << 30;
    let most = u64::from(MAX_PAYLOAD_BYTES);
    for command in RANGED {
        let limited = matches!(command, Command::Read | Command::Write);
        let expected = if limited { Some(Errno::EINVAL) } else { None };
        assert_eq!(errno(request(command, 0, most), &session), None, "{command:?}");
        assert_eq!(errno(request(command, 0, most + 512), &session), expected, "{command:?}");
    }
}

#[test]
fn request_check_refuses_flush_with_range_and_accepts_disconnect() {
    let session = session(ALL_FLAGS);
    assert_eq!(errno(request(Command::Flush, 0, 0), &session), None);
    assert_eq!(errno(request(Command::Flush, 512, 0), &session), Some(Errno::EINVAL));
    assert_eq!(errno(request(Command::Flush, 0, 512), &session), Some(Errno::EINVAL));
    assert_eq!(errno(request(Command::Disconnect, 7, u64::MAX), &session), None);
}

#[test]
fn compact_request_header_rejects_length_above_32_bits() {
    let encode = |length, style| {
        let mut bytes = [0; 32];
        request(Command::Trim, 0, length).encode(style, &mut bytes)
    };
    let most = u64::from(u32::MAX);
    assert_eq!(encode(most, ReplyStyle::Simple), Ok(28));
    let error = encode(most + 1, ReplyStyle::Structured);
    assert!(matches!(error, Err(ProtocolError::OverLimit { limit, .. }) if limit == most));
    assert_eq!(encode(u64::MAX, ReplyStyle::Extended), Ok(32));
}

#[test]
fn message_parser_rejects_magic_of_other_reply_style() {
    for sent in STYLES {
        let mut bytes = [0; 32];
        let len = request(Command::Read, 0, 512).encode(sent, &mut bytes).unwrap();
        let reply = Reply::new(&request(Command::Read, 0, 512), sent).done();
        for expected in STYLES {
            let extended = |style| style == ReplyStyle::Extended;
            let good = extended(sent) == extended(expected);
            let parsed = RequestHeader::parse(&bytes[..len], expected);
            assert_eq!(parsed.is_ok(), good, "{sent:?} as {expected:?}");
            // A simple reply is allowed in a session with structured replies.
            let simple = (sent, expected) == (ReplyStyle::Simple, ReplyStyle::Structured);
            let parsed = ReplyMessage::parse(&reply, expected, 0);
            assert_eq!(parsed.is_ok(), sent == expected || simple, "{sent:?} as {expected:?}");
        }
    }
}

/// Encodes a chunk of a structured reply with these flags, this chunk type and this payload.
fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef];
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn body(bytes: &[u8]) -> Result<Body<'_>, ProtocolError> {
    let found = ReplyMessage::parse(bytes, ReplyStyle::Structured, 1 << 20)?;
    let (message, _) = found.expect("the chunk is whole");
    Ok(message.body)
}

#[test]
fn reply_parser_rejects_malformed_chunks() {
    let zero = [0; 32];
    let error = |number: u32, len: u16| [&number.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let status = |length: u32| [&[0; 4][..], &length.to_be_bytes(), &[0; 4]].concat();
    let wrong = [
        chunk(0, 0, b""),             // NONE that is not the last
        chunk(1, 0, b"x"),            // NONE with payload
        chunk(1, 1, &zero[..8]),      // data of no bytes
        chunk(1, 2, &zero[..11]),     // hole too short
        chunk(1, 2, &zero[..13]),     // hole too long
        chunk(1, 2, &zero[..12]),     // hole of no bytes
        chunk(1, 3, b""),             // unknown kind
        chunk(1, 5, &zero[..4]),      // status of no extents
        chunk(1, 5, &zero[..13]),     // status of one and a part
        chunk(1, 5, &status(0)),      // extent of no bytes
        chunk(1, 6, &zero[..24]),     // wide status without extended headers
        chunk(1, 0x8001, &zero[..5]), // error too short
        chunk(1, 0x8001, &error(0, 0)),
        chunk(1, 0x8001, &error(5, 1)),
        chunk(1, 0x8002, &[error(5, 1), vec![0; 8]].concat()), // no room for the offset
    ];
    for bytes in wrong {
        assert!(body(&bytes).is_err(), "{bytes:02x?} is {:?}", body(&bytes));
    }
}

#[test]
fn reply_parser_accepts_unknown_flags_and_error_numbers() {
    // Unknown flags, unknown errors, unknown error kinds with more fields, invalid text.
    assert_eq!(body(&chunk(0xffff, 0, b"")), Ok(Body::None));
    let einval = Body::Error { errno: Errno::EINVAL, message: "", offset: None };
    assert_eq!(body(&chunk(1, 0x8001, &[0, 0, 0, 200, 0, 0])), Ok(einval));
    assert_eq!(body(&chunk(1, 0xbeef, &[0, 0, 0, 22, 0, 0, 9, 9, 9])), Ok(einval));
    assert_eq!(body(&chunk(1, 0x8001, &[0, 0, 0, 22, 0, 1, 0xff])), Ok(einval));
}

#[test]
fn reply_parser_rejects_wrong_extent_count_in_extended_status() {
    let status = |count: u8| {
        let mut bytes = vec![0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 6];
        bytes.extend([0; 16]);
        bytes.extend(24u64.to_be_bytes());
        bytes.extend([0, 0, 0, 7, 0, 0, 0, count]);
        bytes.extend(512u64.to_be_bytes());
        bytes.extend([0; 8]);
        bytes
    };
    for (count, good) in [(0, true), (1, true), (2, false)] {
        let bytes = status(count);
        let parsed = ReplyMessage::parse(&bytes, ReplyStyle::Extended, 0);
        assert_eq!(parsed.is_ok(), good, "{count}");
    }
}

#[test]
fn reply_parser_rejects_compact_status_in_extended_session() {
    let mut bytes = vec![0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 5];
    bytes.extend([0; 16]);
    bytes.extend(12u64.to_be_bytes());
    bytes.extend([0, 0, 0, 7, 0, 0, 2, 0, 0, 0, 0, 0]);
    let parsed = ReplyMessage::parse(&bytes, ReplyStyle::Extended, 0);
    assert!(matches!(parsed, Err(ProtocolError::Invalid { value: 5, .. })), "{parsed:?}");
}

#[test]
fn reply_encoder_truncates_long_error_text_between_characters() {
    let reply = Reply::new(&request(Command::Read, 0, 512), ReplyStyle::Structured);
    let mut out = Vec::new();
    reply.error(Errno::EIO, &format!("x{}", "é".repeat(3000)), &mut out);
    let Ok(Body::Error { message, .. }) = body(&out) else { panic!("no error in {out:?}") };
    assert_eq!(message.len(), 4095);
}

proptest! {
    #[test]
    fn request_header_parses_from_encoded_bytes(
        number in 0u16..10, flags in 0u16..32, cookie: u64, offset: u64, length in 0u64..1 << 25,
        style in proptest::sample::select(&STYLES[..]),
    ) {
        let command = Command::from_wire(number);
        let sent = RequestHeader { command, flags: CommandFlags(flags), cookie, offset, length };
        let mut bytes = [0; 32];
        let len = sent.encode(style, &mut bytes).unwrap();
        let mut expected = sent;
        if style == ReplyStyle::Extended && command == Command::Write {
            expected.flags |= CommandFlags::PAYLOAD_LEN;
        }
        for short in 0..len {
            prop_assert_eq!(RequestHeader::parse(&bytes[..short], style), Ok(None));
        }
        prop_assert_eq!(RequestHeader::parse(&bytes[..len], style), Ok(Some((expected, len))));
    }

    #[test]
    fn reply_parser_waits_for_last_byte_of_error(message in "[a-z]{0,40}", style in 0usize..3) {
        let style = STYLES[style];
        let mut out = Vec::new();
        Reply::new(&request(Command::Read, 0, 512), style).error(Errno::EIO, &message, &mut out);
        for short in 0..out.len() {
            prop_assert_eq!(ReplyMessage::parse(&out[..short], style, 0), Ok(None));
        }
        let (parsed, taken) = ReplyMessage::parse(&out, style, 0).unwrap().unwrap();
        let words = if style == ReplyStyle::Simple { "" } else { &message };
        prop_assert_eq!(taken, out.len());
        let expected = Body::Error { errno: Errno::EIO, message: words, offset: None };
        prop_assert_eq!(parsed.body, expected);
    }
}
