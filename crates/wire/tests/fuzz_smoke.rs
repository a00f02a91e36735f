//! Runs every fuzz target of the codecs over seeded inputs: valid streams, damaged streams, and random bytes.

mod bodies;

use wire::nbd::handed::{self, Handed, Shown};
use wire::nbd::{
    ChunkKind, ClientConfig, ClientHandshake, Command, CommandFlags, Context, Errno, Extent,
    Limits, Reply, ReplyStyle, RequestHeader, ServerHandshake, Session,
};

/// Runs a fuzz body over inputs made from `whole`, each behind a counting first byte. The first byte selects the pieces
/// into which a body cuts its input, or the reply style.
fn run(whole: &[Vec<u8>], body: fn(&[u8])) {
    let mut first = 0_u8;
    testkit::smoke(whole, |input| {
        first = first.wrapping_add(1);
        body(&[&[first], input].concat());
    });
}

/// Runs a complete NBD handshake. Returns the bytes that the client sent, and the bytes that the server sent.
fn transcripts() -> (Vec<u8>, Vec<u8>) {
    let mut client = ClientHandshake::new(ClientConfig::connect("disk")).unwrap();
    let mut server = ServerHandshake::new(Limits::default());
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    ServerHandshake::greeting(&mut received);
    let (mut seen_by_client, mut seen_by_server) = (0, 0);
    for _ in 0..40 {
        if let Ok((taken, _)) = client.advance(&received[seen_by_client..], &mut sent) {
            seen_by_client += taken;
        }
        let input = &sent[seen_by_server..];
        if let Ok((taken, _)) =
            bodies::now(server.advance(input, &bodies::OneExport, &mut received))
        {
            seen_by_server += taken;
        }
    }
    assert_eq!((seen_by_client, seen_by_server), (received.len(), sent.len()));
    (sent, received)
}

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

fn read() -> RequestHeader {
    let (command, flags) = (Command::Read, CommandFlags::NONE);
    RequestHeader { command, flags, cookie: 7, offset: 4096, length: 512 }
}

#[test]
fn server_handshake_never_panics_on_mutated_input() {
    run(&[transcripts().0], bodies::server_handshake);
}

#[test]
fn client_handshake_never_panics_on_mutated_input() {
    run(&[transcripts().1], bodies::client_handshake);
}

#[test]
fn request_parser_never_panics_on_mutated_input() {
    let commands = (0..9).map(Command::from_wire);
    let seeds: Vec<Vec<u8>> = commands
        .flat_map(|command| STYLES.map(|style| (command, style)))
        .map(|(command, style)| {
            let mut bytes = [0; 32];
            let len = RequestHeader { command, ..read() }.encode(style, &mut bytes).unwrap();
            bytes[..len].to_vec()
        })
        .collect();
    run(&seeds, bodies::request);
}

/// Encodes an error chunk with an offset, which Cairn's server never sends. `hole`: an encoded chunk of the same style.
fn error_at(hole: &[u8]) -> Vec<u8> {
    let payload = [&5_u32.to_be_bytes()[..], &[0, 3], b"bad", &4352_u64.to_be_bytes()].concat();
    let mut chunk = hole[..hole.len() - 12].to_vec();
    chunk[6..8].copy_from_slice(&ChunkKind::ERROR_OFFSET.0.to_be_bytes());
    *chunk.last_mut().unwrap() = payload.len() as u8;
    chunk.extend(payload);
    chunk
}

#[test]
fn reply_parser_never_panics_on_mutated_input() {
    let seeds = STYLES.map(|style| {
        let reply = Reply::new(&read(), style);
        let mut out = Vec::new();
        if let Some(chunks) = reply.chunks() {
            out.extend_from_slice(&chunks.hole(4096, 256, false));
            out.extend_from_slice(&chunks.data(4352, 4, false));
            out.extend_from_slice(b"data");
            let extent = Extent { length: 512, status: 3 };
            chunks.block_status(0, &[extent, extent], false, &mut out);
            out.extend(error_at(&chunks.hole(4352, 1, false)));
        }
        reply.error(Errno::ENOSPC, "full", &mut out);
        out.extend_from_slice(&reply.done());
        out
    });
    run(&seeds, bodies::reply);
}

#[test]
fn connection_handover_parser_never_panics_on_mutated_input() {
    let facts = bodies::OneExport::facts();
    let shown = Shown::of(&facts);
    let all = STYLES.map(|style| {
        let contexts = match style {
            ReplyStyle::Simple => Vec::new(),
            _ => vec![Context { id: 3, name: "base:allocation".to_owned() }],
        };
        let session = Session { style, contexts, facts: facts.clone() };
        Handed { identity: 9, session, shown, unread: b"half a request".to_vec() }
    });
    testkit::smoke(&[handed::encode(&all), handed::encode(&[])], bodies::handed);
}

#[test]
fn nbd_uri_parser_never_panics_on_mutated_input() {
    let seeds = [
        "nbd://[::1]:10810/a%2Fb",
        "nbds://host/",
        "nbd+unix:///disk?socket=/run/a%20b",
        "nbd://host:10809//x",
    ];
    testkit::smoke(&seeds.map(|seed| seed.as_bytes().to_vec()), bodies::uri);
}

#[test]
fn fuse_request_parser_never_panics_on_mutated_input() {
    let seeds: Vec<Vec<u8>> = (0..50)
        .map(|opcode: u32| {
            let len: u32 = if opcode == 16 { 96 } else { 80 };
            let mut bytes = vec![0; len as usize];
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
            bytes[16] = 2;
            // The size of a read or a write; the flags of an INIT.
            bytes[56..60].copy_from_slice(&16u32.to_ne_bytes());
            bytes
        })
        .collect();
    run(&seeds, bodies::fuse_request);
}
