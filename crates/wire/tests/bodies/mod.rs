//! Bodies of the fuzz targets of the NBD and FUSE codecs. `fuzz/` includes this file, and `fuzz_smoke.rs` runs every
//! body over a few thousand inputs in each `cargo test`.
//!
//! Each body checks that a codec does not panic, takes no more bytes than the input has, makes progress in every step
//! unless it waits for input, and returns the same result for every division of the input into pieces.

use wire::fuse;
use wire::nbd::handed;
use wire::nbd::uri::NbdUri;
use wire::nbd::{
    BlockSizes, Body, ClientConfig, ClientHandshake, ClientProgress, Command, CommandFlags,
    Context, ExportEntry, ExportFacts, Exports, Goal, Limits, MAX_PAYLOAD_BYTES, ProtocolError,
    ReplyMessage, ReplyStyle, RequestHeader, ServerHandshake, ServerProgress, Session,
    TransmissionFlags, check,
};

/// The exports of a server under test: one export with every feature.
pub struct OneExport;

impl OneExport {
    pub fn facts() -> ExportFacts {
        ExportFacts {
            name: "disk".to_owned(),
            description: "a disk".to_owned(),
            size_bytes: 1 << 30,
            flags: TransmissionFlags(0xdfe).without(TransmissionFlags::READ_ONLY),
            blocks: BlockSizes::new(512, 4096, 1 << 20).unwrap(),
            contexts: vec!["base:allocation".to_owned(), "x-cairn:dirty".to_owned()],
        }
    }
}

impl Exports for OneExport {
    async fn list(&self) -> Result<Vec<ExportEntry>, String> {
        let ExportFacts { name, description, .. } = Self::facts();
        Ok(vec![ExportEntry { name, description }])
    }

    async fn open(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        self.look(name).await
    }

    async fn look(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        Ok(matches!(name, "" | "disk").then(Self::facts))
    }
}

/// Polls a future of a codec once, which must be ready, and returns its result.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    {
        std::task::Poll::Ready(answer) => answer,
        std::task::Poll::Pending => panic!("it waits for nothing"),
    }
}

/// Gives `data` to a handshake in pieces of `piece` bytes until the handshake or the data ends. `advance` returns the
/// number of bytes that it took, whether it waits for more bytes, and whether the handshake has ended.
fn feed(data: &[u8], piece: usize, mut advance: impl FnMut(&[u8]) -> (usize, bool, bool)) {
    let mut pending = Vec::new();
    for part in data.chunks(piece.max(1)) {
        pending.extend_from_slice(part);
        loop {
            let (taken, waits, ends) = advance(&pending);
            assert!(taken <= pending.len(), "took {taken} of {} bytes", pending.len());
            if ends {
                return;
            }
            pending.drain(..taken);
            if waits {
                break;
            }
            assert!(taken > 0, "a step without progress");
        }
    }
}

type Ended<T> = (Vec<u8>, Option<Result<T, ProtocolError>>);

fn run_server(data: &[u8], piece: usize) -> Ended<ServerProgress> {
    let mut handshake = ServerHandshake::new(Limits::default());
    let (mut out, mut end) = (Vec::new(), None);
    feed(data, piece, |input| match now(handshake.advance(input, &OneExport, &mut out)) {
        Ok((taken, ServerProgress::NeedMore)) => (taken, true, false),
        Ok((taken, ServerProgress::Advanced)) => (taken, false, false),
        Ok((taken, last)) => {
            end = Some(Ok(last));
            (taken, false, true)
        }
        Err(error) => {
            end = Some(Err(error));
            (0, false, true)
        }
    });
    (out, end)
}

fn run_client(data: &[u8], piece: usize, goal: Goal) -> Ended<ClientProgress> {
    let config = ClientConfig { goal, ..ClientConfig::connect("disk") };
    let mut handshake = ClientHandshake::new(config).unwrap();
    let (mut out, mut end) = (Vec::new(), None);
    feed(data, piece, |input| match handshake.advance(input, &mut out) {
        Ok((taken, ClientProgress::NeedMore)) => (taken, true, false),
        Ok((taken, ClientProgress::Advanced)) => (taken, false, false),
        Ok((taken, last)) => {
            end = Some(Ok(last));
            (taken, false, true)
        }
        Err(error) => {
            end = Some(Err(error));
            (0, false, true)
        }
    });
    (out, end)
}

pub fn server_handshake(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let whole = run_server(data, data.len());
    assert_eq!(whole, run_server(data, usize::from(*first)), "the cut of the input matters");
}

pub fn client_handshake(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let goal = [Goal::Connect, Goal::Describe, Goal::List][usize::from(*first) % 3];
    let whole = run_client(data, data.len(), goal);
    let cut = run_client(data, usize::from(*first), goal);
    assert_eq!(whole, cut, "the cut of the input matters");
}

fn style(byte: u8) -> ReplyStyle {
    [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended][usize::from(byte) % 3]
}

pub fn request(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let style = style(*first);
    let Ok(Some((header, taken))) = RequestHeader::parse(data, style) else { return };
    assert!(taken <= data.len());
    assert!(header.payload_bytes(style) <= MAX_PAYLOAD_BYTES);

    let contexts = vec![Context { id: 0, name: "base:allocation".to_owned() }];
    let session = Session { style, contexts, facts: OneExport::facts() };
    if check(&header, &session).is_ok() && header.command != Command::Disconnect {
        assert!(header.offset + header.length <= session.facts.size_bytes);
    }

    let mut bytes = [0; 32];
    let len = header.encode(style, &mut bytes).expect("what was parsed can be encoded");
    if style == ReplyStyle::Extended && header.command == Command::Write {
        // The encoder announces the payload even if the peer did not.
        let flags = (header.flags | CommandFlags::PAYLOAD_LEN).0.to_be_bytes();
        assert_eq!((&bytes[..4], &bytes[4..6]), (&data[..4], &flags[..]));
        assert_eq!(bytes[6..len], data[6..taken]);
    } else {
        assert_eq!(bytes[..len], data[..taken]);
    }
}

pub fn reply(data: &[u8]) {
    let Some((first, mut data)) = data.split_first() else { return };
    let style = style(*first);
    while let Ok(Some((message, taken))) = ReplyMessage::parse(data, style, MAX_PAYLOAD_BYTES) {
        assert!(taken > 0 && taken <= data.len().min(128 << 10), "an inbox has room for it");
        let follows = match message.body {
            Body::Data { len, .. } => {
                assert!((1..=MAX_PAYLOAD_BYTES).contains(&len));
                len as usize
            }
            Body::Status { extents, more, .. } => {
                assert!((1..=block::EXTENTS_MAX).contains(&extents.iter().count()));
                more as usize
            }
            _ => 0,
        };
        data = data[taken..].get(follows..).unwrap_or_default();
    }
}

/// Decodes fuzzed bytes as the state of a handed-over connection, with a corrected checksum. A decoded state must
/// encode to the same bytes.
pub fn handed(data: &[u8]) {
    let mut state = data.to_vec();
    if let Some((header, body)) = state.split_at_mut_checked(24) {
        header[16..20].copy_from_slice(&(body.len() as u32).to_be_bytes());
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&header[..20]);
        digest.update(body);
        header[20..].copy_from_slice(&(digest.finalize() as u32).to_be_bytes());
    }
    for bytes in [data, &state] {
        let Ok(all) = handed::decode(bytes) else { continue };
        assert!(all.iter().all(|one| one.session.facts.size_bytes <= one.shown.size_bytes));
        assert_eq!(handed::encode(&all), bytes);
    }
}

pub fn uri(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(uri) = text.parse::<NbdUri>() else { return };
    assert_eq!(uri.to_string().parse().as_ref(), Ok(&uri), "{text:?} prints as {uri}");
}

pub fn fuse_request(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    // A head that is truncated where the kernel never truncates it.
    let head = &data[..data.len().min(usize::from(*first))];
    if let Ok(request) = fuse::Request::parse(head, data.len()) {
        answer(request.unique, &request.call, data.len());
    }
    let whole = fuse::Request::parse(data, data.len());
    match whole {
        Ok(request) => {
            let head = &data[..data.len().min(fuse::HEAD_BYTES)];
            assert_eq!(fuse::Request::parse(head, data.len()), Ok(request), "the head says it all");
            answer(request.unique, &request.call, data.len());
        }
        Err(malformed) => assert_eq!(malformed.came_bytes, data.len()),
    }
}

/// Encodes a reply to a parsed FUSE request, as a server does.
fn answer(unique: u64, call: &fuse::Call<'_>, came_bytes: usize) {
    let reply = match call {
        fuse::Call::Init(init) => fuse::Reply::init(unique, init, fuse::MAX_WRITE_BYTES),
        fuse::Call::Readdir { offset, size } => {
            let names = fuse::Reply::names(unique, *offset, *size);
            assert!(names.bytes().len() <= 16 + *size as usize);
            Some(names)
        }
        fuse::Call::Write { size, .. } => {
            assert_eq!(fuse::HEAD_BYTES + *size as usize, came_bytes);
            None
        }
        fuse::Call::Lookup(name) => {
            assert!(name.len() <= fuse::HEAD_BYTES && !name.contains(&0));
            None
        }
        _ => None,
    };
    if let Some(reply) = reply {
        let bytes = reply.bytes();
        assert!(bytes.len() <= fuse::REPLY_MAX_BYTES);
        assert_eq!(bytes[..4], (bytes.len() as u32).to_ne_bytes());
        assert_eq!(bytes[8..16], unique.to_ne_bytes());
    }
}
