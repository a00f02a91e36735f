//! Tests every limit of the NBD codec at its value and one above its value.

use wire::nbd::uri::{MAX_URI_BYTES, NbdUri, UriError};
use wire::nbd::{
    BlockSizes, Body, ClientConfig, ClientHandshake, ClientProgress, Limits,
    MAX_HANDSHAKE_REPLY_BYTES, MAX_PAYLOAD_BYTES, MAX_STATUS_EXTENTS, MAX_STRING_BYTES, OptionCode,
    ProtocolError, ReplyCode, ReplyMessage, ReplyStyle, RequestHeader, ServerHandshake,
    ServerProgress,
};

use crate::pair::{Server, info_data, meta_data, option, reply};

/// Returns the value and the limit of a [`ProtocolError::OverLimit`], with which the codec must have failed.
fn over<T: std::fmt::Debug>(result: Result<T, ProtocolError>) -> (u64, u64) {
    match result {
        Err(ProtocolError::OverLimit { value, limit, .. }) => (value, limit),
        other => panic!("no limit was passed: {other:?}"),
    }
}

#[test]
fn server_handshake_limits_number_of_options() {
    let mut server = Server::new();
    for _ in 0..32 {
        server.ask(OptionCode(999), &[]);
    }
    assert_eq!(over(server.give(&option(OptionCode::ABORT, &[]))), (33, 32));
}

#[test]
fn server_handshake_limits_bytes_of_one_option() {
    let unknown = OptionCode(999);
    assert_eq!(Server::new().kinds(unknown, &[0; 65536]), [ReplyCode::ERR_UNSUP]);

    // One byte more is refused once the header has arrived, then skipped in pieces of any size.
    let mut server = Server::new();
    let input = option(unknown, &[0; 65537]);
    assert_eq!(server.give(&input[..16]), Ok((16, ServerProgress::Advanced)));
    assert_eq!(server.out[12..16], ReplyCode::ERR_TOO_BIG.0.to_be_bytes());
    assert_eq!(server.give(&input[16..65552]), Ok((65536, ServerProgress::NeedMore)));
    assert_eq!(server.give(&[0, b'I']), Ok((1, ServerProgress::Advanced)));
    server.go("first");

    // The limit counts all options of a handshake together.
    let mut server = Server::new();
    server.ask(unknown, &[0; 65535]);
    server.ask(unknown, &[0; 1]);
    let one_more = server.give(&option(unknown, &[0; 1]));
    assert_eq!(one_more, Ok((16, ServerProgress::Advanced)));
    assert_eq!(server.out[12..16], ReplyCode::ERR_TOO_BIG.0.to_be_bytes());
}

#[test]
fn server_handshake_limits_bytes_of_skipped_options() {
    let header = |len: u32| [&option(OptionCode(999), &[])[..12], &len.to_be_bytes()].concat();
    let step = |len| Server::new().give(&header(len));
    assert_eq!(step(256 << 10), Ok((16, ServerProgress::Advanced)));
    assert_eq!(over(step((256 << 10) + 1)), (262_145, 262_144));
    assert_eq!(over(step(u32::MAX)), (u64::from(u32::MAX), 262_144));

    let limits = Limits { option_bytes: 0, skipped_bytes: 3, ..Limits::default() };
    let mut server = Server::with(limits, 3);
    for data in [&[0; 2][..], &[0; 1]] {
        assert_eq!(server.give(&header(data.len() as u32)), Ok((16, ServerProgress::Advanced)));
        assert_eq!(server.give(data), Ok((data.len(), ServerProgress::Advanced)));
    }
    assert_eq!(over(server.give(&header(1))), (4, 3));
}

#[test]
fn server_handshake_limits_number_of_context_queries() {
    for (count, kind) in [(64, ReplyCode::ACK), (65, ReplyCode::ERR_TOO_BIG)] {
        let mut server = Server::new();
        server.ask(OptionCode::STRUCTURED_REPLY, &[]);
        let data = meta_data("first", &vec!["other:x"; count]);
        assert_eq!(server.kinds(OptionCode::SET_META_CONTEXT, &data), [kind]);
    }
}

#[test]
fn server_handshake_limits_length_of_export_names() {
    let longest = "n".repeat(MAX_STRING_BYTES);
    let too_long = "n".repeat(MAX_STRING_BYTES + 1);
    let kinds = |name| Server::new().kinds(OptionCode::INFO, &info_data(name, &[]));
    assert_eq!(kinds(&longest), [ReplyCode::ERR_UNKNOWN]);
    assert_eq!(kinds(&too_long), [ReplyCode::ERR_INVALID]);

    let by_name =
        |name: &str| Server::new().give(&option(OptionCode::EXPORT_NAME, name.as_bytes()));
    assert_eq!(by_name(&longest), Err(ProtocolError::UnknownExport(longest.clone())));
    assert_eq!(over(by_name(&too_long)), (4097, 4096));
    let huge = "n".repeat(65537);
    assert_eq!(over(by_name(&huge)), (65537, 65536));

    assert!(ClientHandshake::new(ClientConfig::connect(longest)).is_ok());
    assert_eq!(over(ClientHandshake::new(ClientConfig::connect(too_long))), (4097, 4096));
}

#[test]
fn client_handshake_limits_number_and_length_of_replies() {
    let client = || {
        let mut client = ClientHandshake::new(ClientConfig::connect("")).unwrap();
        let mut greeting = Vec::new();
        ServerHandshake::greeting(&mut greeting);
        client.advance(&greeting, &mut Vec::new()).unwrap();
        client
    };
    let give = |client: &mut ClientHandshake, code, kind, len: usize| {
        client.advance(&reply(code, kind, &vec![b'x'; len]), &mut Vec::new())
    };
    let (code, unsup) = (OptionCode::STRUCTURED_REPLY, ReplyCode::ERR_UNSUP);
    let longest = give(&mut client(), code, unsup, 16 << 10);
    assert_eq!(longest, Ok((20 + (16 << 10), ClientProgress::Advanced)));
    assert_eq!(over(give(&mut client(), code, unsup, (16 << 10) + 1)), (16_385, 16_384));

    // All replies together: the two refusals, then facts of an unknown kind until the limit.
    let mut client = client();
    let mut spent = 40;
    give(&mut client, code, unsup, 0).unwrap();
    give(&mut client, OptionCode::EXTENDED_HEADERS, unsup, 0).unwrap();
    let full = 20 + (16 << 10);
    let mut info = |len| give(&mut client, OptionCode::GO, ReplyCode::INFO, len);
    while spent + full + 22 <= MAX_HANDSHAKE_REPLY_BYTES {
        info(16 << 10).unwrap();
        spent += full;
    }
    info(MAX_HANDSHAKE_REPLY_BYTES - spent - 22 - 20).unwrap();
    info(2).unwrap();
    let limit = MAX_HANDSHAKE_REPLY_BYTES as u64;
    assert_eq!(over(info(0)), (limit + 20, limit));
}

#[test]
fn request_parser_limits_payload_length() {
    let parse = |hex: [u8; 8], length: u64, style| {
        let mut bytes = hex.to_vec();
        bytes.extend([0; 16]);
        match style {
            ReplyStyle::Extended => bytes.extend(length.to_be_bytes()),
            _ => bytes.extend((length as u32).to_be_bytes()),
        }
        RequestHeader::parse(&bytes, style)
    };
    let most = u64::from(MAX_PAYLOAD_BYTES);
    let compact_write = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1];
    assert!(parse(compact_write, most, ReplyStyle::Simple).is_ok());
    assert_eq!(over(parse(compact_write, most + 1, ReplyStyle::Simple)), (most + 1, most));
    // Every extended command can announce a payload.
    let extended_trim = [0x21, 0xe4, 0x1c, 0x71, 0, 0x20, 0, 4];
    assert!(parse(extended_trim, most, ReplyStyle::Extended).is_ok());
    assert_eq!(over(parse(extended_trim, u64::MAX, ReplyStyle::Extended)), (u64::MAX, most));
    // Without the flag the length is that of the range, and no payload follows.
    let no_payload = [0x21, 0xe4, 0x1c, 0x71, 0, 0, 0, 1];
    assert!(parse(no_payload, u64::MAX, ReplyStyle::Extended).is_ok());
}

fn chunk(kind: u16, payload_len: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef, 0, 1];
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend(payload_len.to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn reply_parser_limits_length_of_data_and_holes() {
    let parse = |bytes: &[u8]| {
        ReplyMessage::parse(bytes, ReplyStyle::Structured, 1000)
            .map(|found| found.map(|(message, _)| format!("{:?}", message.body)))
    };
    assert_eq!(parse(&chunk(1, 1008, &[0; 8])), Ok(Some("Data { offset: 0, len: 1000 }".into())));
    assert_eq!(over(parse(&chunk(1, 1009, &[0; 8]))), (1001, 1000));
    let hole = |len: u32| [&[0; 8][..], &len.to_be_bytes()].concat();
    assert!(parse(&chunk(2, 12, &hole(1000))).is_ok());
    assert_eq!(over(parse(&chunk(2, 12, &hole(1001)))), (1001, 1000));
}

#[test]
fn reply_parser_limits_error_texts_and_extents() {
    let parse = |bytes: &[u8]| {
        ReplyMessage::parse(bytes, ReplyStyle::Structured, 1000).map(|found| found.is_some())
    };
    let most_extents = 4 + 8 * MAX_STATUS_EXTENTS as u32;
    assert_eq!(parse(&chunk(5, most_extents, &[])), Ok(false), "waits for the extents");
    let value = u64::from(most_extents);
    assert_eq!(over(parse(&chunk(5, most_extents + 8, &[]))), (value + 8, value));
    // Extents beyond the limit stay in the stream.
    let heard = 4 + 8 * block::EXTENTS_MAX as u32;
    for (payload, left) in [(heard - 8, 0), (heard, 0), (heard + 8, 8), (most_extents, 1_015_808)] {
        let bytes = chunk(5, payload, &vec![1; payload.min(heard) as usize]);
        let (message, taken) =
            ReplyMessage::parse(&bytes, ReplyStyle::Structured, 0).unwrap().expect("a whole chunk");
        let Body::Status { more, .. } = message.body else { panic!("no status") };
        assert_eq!((more, taken), (left, bytes.len()));
    }
    assert_eq!(parse(&chunk(0x8001, 4096 + 1024, &[])), Ok(false), "waits for the message");
    assert_eq!(over(parse(&chunk(0x8001, 4096 + 1025, &[]))), (5121, 5120));

    // A message may fill its chunk, but not exceed it.
    let error = |len: u16| [&[0, 0, 0, 5][..], &len.to_be_bytes(), b"full"].concat();
    let bytes = chunk(0x8001, 10, &error(4));
    let (message, _) =
        ReplyMessage::parse(&bytes, ReplyStyle::Structured, 0).unwrap().expect("a whole chunk");
    assert!(matches!(message.body, Body::Error { message: "full", .. }));
    assert_eq!(over(parse(&chunk(0x8001, 10, &error(5)))), (5, 4));
}

#[test]
fn block_sizes_must_be_powers_of_two_within_limits() {
    let good = |min, preferred, max| BlockSizes::new(min, preferred, max).is_some();
    assert!(good(1, 512, 1) && !good(1, 256, 1) && !good(0, 512, 512));
    assert!(good(65536, 65536, 65536) && !good(131_072, 131_072, 131_072));
    assert!(good(4096, 4096, u32::MAX) && !good(4096, 2048, 4096));
    assert!(good(512, 4096, 1536) && !good(512, 4096, 1537) && !good(512, 4096, 0));
    assert!(!good(513, 1024, 1026) && !good(512, 1536, 1536));
    let unlimited = BlockSizes::new(1, 512, u32::MAX).unwrap();
    assert_eq!(unlimited.max_payload(), MAX_PAYLOAD_BYTES);
}

#[test]
fn server_without_announced_block_sizes_gets_requests_of_32_mib_at_most() {
    assert_eq!(BlockSizes::default().max_payload(), 32 << 20);
}

#[test]
fn nbd_uri_limits_length_of_text_and_export_name() {
    let parse = |len: usize| format!("nbd://{}", "h".repeat(len - 6)).parse::<NbdUri>();
    assert!(parse(MAX_URI_BYTES).is_ok());
    assert_eq!(parse(MAX_URI_BYTES + 1), Err(UriError::TooLong(MAX_URI_BYTES + 1)));
    let export = |len: usize| format!("nbd://h/{}", "%65".repeat(len)).parse::<NbdUri>();
    assert!(export(MAX_STRING_BYTES).is_ok());
    assert_eq!(export(4097), Err(UriError::Export(4097)));
}
