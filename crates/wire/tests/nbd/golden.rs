//! Checks the bytes of every NBD message against bytes written by hand from the specification.

use wire::nbd::{
    Body, Chunks, ClientConfig, ClientHandshake, Command, CommandFlags, Errno, Extent, OptionCode,
    Reply, ReplyCode, ReplyMessage, ReplyStyle, RequestHeader, ServerHandshake,
};

use crate::pair::{Server, info_data, meta_data};

const COOKIE: u64 = 0x0102_0304_0506_0708;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn request(command: Command, flags: CommandFlags) -> RequestHeader {
    RequestHeader { command, flags, cookie: COOKIE, offset: 0x1000, length: 0x200 }
}

fn encoded(header: RequestHeader, style: ReplyStyle) -> Vec<u8> {
    let mut bytes = [0; 32];
    let len = header.encode(style, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

fn chunks(style: ReplyStyle) -> Chunks {
    Reply::new(&request(Command::Read, CommandFlags::NONE), style).chunks().unwrap()
}

/// Parses the reply message at the start of `bytes`. After the message, `follows` bytes of data must be left.
fn parsed(bytes: &[u8], style: ReplyStyle, follows: usize) -> ReplyMessage<'_> {
    let (message, taken) = ReplyMessage::parse(bytes, style, 1 << 20).unwrap().unwrap();
    assert_eq!(taken + follows, bytes.len());
    message
}

#[test]
fn server_greeting_matches_specified_bytes() {
    let mut out = Vec::new();
    ServerHandshake::greeting(&mut out);
    assert_eq!(out, hex("4e42444d41474943 49484156454f5054 0003"));
}

#[test]
fn client_handshake_options_match_specified_bytes() {
    let mut client = ClientHandshake::new(ClientConfig::connect("disk")).unwrap();
    let (mut greeting, mut out) = (Vec::new(), Vec::new());
    ServerHandshake::greeting(&mut greeting);
    client.advance(&greeting, &mut out).unwrap();
    assert_eq!(out, hex("00000003 49484156454f5054 00000008 00000000"));

    // The answer to STRUCTURED_REPLY makes the client send EXTENDED_HEADERS, then SET_META_CONTEXT, then GO.
    let mut next = |option: &str, kind: &str| {
        out.clear();
        let answer = hex(&format!("0003e889045565a9 {option} {kind} 00000000"));
        client.advance(&answer, &mut out).unwrap();
        out.clone()
    };
    assert_eq!(next("00000008", "00000001"), hex("49484156454f5054 0000000b 00000000"));
    let base_allocation = "626173653a616c6c6f636174696f6e";
    assert_eq!(
        next("0000000b", "80000001"),
        hex(&format!(
            "49484156454f5054 0000000a 0000001f 00000004 6469736b 00000001 0000000f
             {base_allocation}"
        ))
    );
    assert_eq!(
        next("0000000a", "00000001"),
        hex("49484156454f5054 00000007 00000010 00000004 6469736b 0003 0001 0002 0003")
    );
}

#[test]
fn server_replies_to_go_option_match_specified_bytes() {
    let mut server = Server::new();
    let input = [hex("49484156454f5054 00000007 00000011"), info_data("first", &[3, 1, 2])];
    server.give(&input.concat()).unwrap();
    // Structured replies were not agreed, so the flags lack DF (bit 7).
    let expected = "0003e889045565a9 00000007 00000003 0000000c 0000 0000000000100000 0d6d
         0003e889045565a9 00000007 00000003 00000007 0001 6669727374
         0003e889045565a9 00000007 00000003 0000000b 0002 746865206669727374
         0003e889045565a9 00000007 00000003 0000000e 0003 00000200 00001000 00010000
         0003e889045565a9 00000007 00000001 00000000";
    assert_eq!(server.out, hex(expected));
}

#[test]
fn server_replies_to_list_option_match_specified_bytes() {
    let replies = Server::new().ask(OptionCode::LIST, &[]);
    let first = hex("00000005 6669727374 746865206669727374");
    assert_eq!(replies[0], (ReplyCode::SERVER, first));
    assert_eq!(replies[2], (ReplyCode::ACK, Vec::new()));
}

#[test]
fn server_replies_to_meta_context_options_match_specified_bytes() {
    let mut server = Server::new();
    server.ask(OptionCode::STRUCTURED_REPLY, &[]);
    let data = meta_data("first", &["x-cairn:dirty"]);
    let dirty = "782d636169726e3a6469727479";
    let selected = hex(&format!("00000001 {dirty}"));
    let replies = server.ask(OptionCode::SET_META_CONTEXT, &data);
    assert_eq!(replies[0], (ReplyCode::META_CONTEXT, selected));
    let listed = hex(&format!("00000000 {dirty}"));
    let replies = server.ask(OptionCode::LIST_META_CONTEXT, &data);
    assert_eq!(replies[0], (ReplyCode::META_CONTEXT, listed));
}

#[test]
fn compact_request_header_matches_specified_bytes() {
    let bytes = hex("25609513 0001 0001 0102030405060708 0000000000001000 00000200");
    let write = request(Command::Write, CommandFlags::FUA);
    assert_eq!(encoded(write, ReplyStyle::Simple), bytes);
    assert_eq!(RequestHeader::parse(&bytes, ReplyStyle::Structured), Ok(Some((write, 28))));
    assert_eq!(write.payload_bytes(ReplyStyle::Structured), 0x200);
}

#[test]
fn extended_request_header_matches_specified_bytes() {
    let bytes = hex("21e41c71 0021 0001 0102030405060708 0000000000001000 0000000000000200");
    let write = request(Command::Write, CommandFlags::FUA);
    assert_eq!(encoded(write, ReplyStyle::Extended), bytes);
    let flags = CommandFlags::FUA | CommandFlags::PAYLOAD_LEN;
    let announced = request(Command::Write, flags);
    assert_eq!(RequestHeader::parse(&bytes, ReplyStyle::Extended), Ok(Some((announced, 32))));
    assert_eq!(announced.payload_bytes(ReplyStyle::Extended), 0x200);
    assert_eq!(write.payload_bytes(ReplyStyle::Extended), 0);
}

#[test]
fn simple_reply_matches_specified_bytes() {
    let reply = Reply::new(&request(Command::Read, CommandFlags::NONE), ReplyStyle::Simple);
    let success = hex("67446698 00000000 0102030405060708");
    assert_eq!(reply.done()[..], success);
    assert_eq!(reply.whole_read(512)[..], success);
    assert_eq!(parsed(&success, ReplyStyle::Simple, 0).body, Body::Simple);

    let mut failure = Vec::new();
    reply.error(Errno::EPERM, "not shown", &mut failure);
    assert_eq!(failure, hex("67446698 00000001 0102030405060708"));
    let body = Body::Error { errno: Errno::EPERM, message: "", offset: None };
    assert_eq!(parsed(&failure, ReplyStyle::Simple, 0).body, body);
}

#[test]
fn structured_reply_chunks_match_specified_bytes() {
    let (style, chunks) = (ReplyStyle::Structured, chunks(ReplyStyle::Structured));
    let none = hex("668e33ef 0001 0000 0102030405060708 00000000");
    assert_eq!(chunks.done()[..], none);
    let message = parsed(&none, style, 0);
    assert_eq!((message.cookie, message.done, message.body), (COOKIE, true, Body::None));

    let data = hex("668e33ef 0000 0001 0102030405060708 0000000b 0000000000001000 616263");
    assert_eq!(chunks.data(0x1000, 3, false)[..], data[..28]);
    let message = parsed(&data, style, 3);
    assert_eq!((message.done, message.body), (false, Body::Data { offset: 0x1000, len: 3 }));

    let hole = hex("668e33ef 0001 0002 0102030405060708 0000000c 0000000000001000 00000200");
    assert_eq!(chunks.hole(0x1000, 0x200, true)[..], hole);
    assert_eq!(parsed(&hole, style, 0).body, Body::Hole { offset: 0x1000, len: 0x200 });

    let bytes =
        "668e33ef 0000 8002 0102030405060708 00000011 00000005 0003 626164 0000000000001100";
    let error = hex(bytes);
    let body = Body::Error { errno: Errno::EIO, message: "bad", offset: Some(0x1100) };
    assert_eq!(parsed(&error, style, 0).body, body);
}

#[test]
fn structured_error_chunk_matches_specified_bytes() {
    let reply = Reply::new(&request(Command::Trim, CommandFlags::NONE), ReplyStyle::Structured);
    let mut error = Vec::new();
    reply.error(Errno::EINVAL, "no", &mut error);
    assert_eq!(error, hex("668e33ef 0001 8001 0102030405060708 00000008 00000016 0002 6e6f"));
    let body = Body::Error { errno: Errno::EINVAL, message: "no", offset: None };
    assert_eq!(parsed(&error, ReplyStyle::Structured, 0).body, body);
}

#[test]
fn structured_block_status_matches_specified_bytes() {
    let extents = [Extent { length: 0x200, status: 3 }, Extent { length: 1 << 33, status: 0 }];
    let mut status = Vec::new();
    // The third extent is not sent, because the second one is shortened.
    let given = [extents[0], extents[1], extents[0]];
    chunks(ReplyStyle::Structured).block_status(7, &given, true, &mut status);
    let bytes = "668e33ef 0001 0005 0102030405060708 00000014 00000007
         00000200 00000003 ffff0000 00000000";
    assert_eq!(status, hex(bytes));
    let Body::Status { context: 7, extents: read, more: 0 } =
        parsed(&status, ReplyStyle::Structured, 0).body
    else {
        panic!("no status of context 7")
    };
    let cut = Extent { length: 0xffff_0000, status: 0 };
    assert_eq!(read.iter().collect::<Vec<_>>(), [extents[0], cut]);
}

#[test]
fn extended_reply_chunks_match_specified_bytes() {
    let (style, chunks) = (ReplyStyle::Extended, chunks(ReplyStyle::Extended));
    let none = hex("6e8a278c 0001 0000 0102030405060708 0000000000001000 0000000000000000");
    assert_eq!(chunks.done()[..], none);
    assert_eq!(parsed(&none, style, 0).offset, Some(0x1000));

    let data = hex("6e8a278c 0001 0001 0102030405060708 0000000000001000 0000000000000009
         0000000000001010 61");
    assert_eq!(chunks.data(0x1010, 1, true)[..], data[..40]);
    assert_eq!(parsed(&data, style, 1).body, Body::Data { offset: 0x1010, len: 1 });

    let hole = hex("6e8a278c 0000 0002 0102030405060708 0000000000001000 000000000000000c
         0000000000001000 00000100");
    assert_eq!(chunks.hole(0x1000, 0x100, false)[..], hole);

    let extents = [Extent { length: 1 << 33, status: 3 }];
    let mut status = Vec::new();
    chunks.block_status(7, &extents, true, &mut status);
    let bytes = "6e8a278c 0001 0006 0102030405060708 0000000000001000 0000000000000018
         00000007 00000001 0000000200000000 0000000000000003";
    assert_eq!(status, hex(bytes));
    let Body::Status { context: 7, extents: read, more: 0 } = parsed(&status, style, 0).body else {
        panic!("no status of context 7")
    };
    assert_eq!(read.iter().collect::<Vec<_>>(), extents);
}
