//! The state of connections that one process hands over to the next: all of it but the sockets.
//! `docs/formats/keeper.md` defines the format.

use std::fmt;

use crc_fast::CrcAlgorithm;

use super::bytes::{Reader, text};
use super::constants::{MAX_PAYLOAD_BYTES, MAX_STRING_BYTES, TransmissionFlags};
use super::export::{BlockSizes, Context, ExportFacts, ReplyStyle, Session};

const MAGIC: &[u8; 8] = b"CairnNBD";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 24;

/// Most connections that one process hands over. The next process inherits up to 512 descriptors, with listeners and
/// mounts among them.
pub const HANDED_MAX: usize = 384;

/// Length in bytes of the longest state that one process hands over. The largest part is unread input: requests of
/// clients that have not begun.
pub const HANDED_MAX_BYTES: usize = 128 << 20;

/// Most bytes of unread input of one connection: a whole request, and one receive.
pub const UNREAD_MAX_BYTES: usize = MAX_PAYLOAD_BYTES as usize + (512 << 10);

/// Most metadata contexts that one connection may have selected.
const CONTEXTS_MAX: usize = 64;

/// The facts about an export that are the same for every client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Features of the export.
    pub flags: TransmissionFlags,
    /// Block sizes of the export.
    pub blocks: BlockSizes,
}

impl Shown {
    /// Returns the facts among `facts` that are the same for every client.
    pub fn of(facts: &ExportFacts) -> Self {
        Self { size_bytes: facts.size_bytes, flags: facts.flags, blocks: facts.blocks }
    }
}

/// The state of a connection that is handed over between two requests, without its socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handed {
    /// Number that identifies the devices of the connection's graph: see [`identity`].
    pub identity: u64,
    /// The result of the connection's handshake. Its facts are the name, size, flags and block sizes that the client
    /// has received.
    pub session: Session,
    /// The present facts about the connection's export.
    pub shown: Shown,
    /// Input of the connection from requests that have not begun; the last one may be incomplete.
    pub unread: Vec<u8>,
}

/// The reason why state from an earlier process cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadState(&'static str);

impl fmt::Display for BadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection state of the previous server process is unusable: {}", self.0)
    }
}

/// Returns a number that identifies the devices of a graph, from the name and the spec of the graph.
pub fn identity(graph: &str, spec: &str) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, format!("{graph}\n{spec}").as_bytes())
}

/// Returns a number that identifies a volume: from the number of the graph's devices, and from the identity of the
/// volume. A volume that was made again under the same name has another number.
pub fn identity_of_volume(graph: u64, volume: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &[&graph.to_be_bytes(), volume].concat())
}

/// Encodes the state of the connections `all`.
///
/// # Panics
/// If there are more than [`HANDED_MAX`] connections, or their state is longer than [`HANDED_MAX_BYTES`]. The caller
/// must check this with [`encoded_bytes`].
pub fn encode(all: &[Handed]) -> Vec<u8> {
    assert!(all.len() <= HANDED_MAX, "{} connections are more than the limit", all.len());
    let mut body = Vec::new();
    all.iter().for_each(|one| put(one, &mut body));
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&(all.len() as u32).to_be_bytes());
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(&checksum(&out, &body).to_be_bytes());
    out.extend_from_slice(&body);
    assert!(out.len() <= HANDED_MAX_BYTES, "{} bytes are more than the limit", out.len());
    out
}

/// Returns the number of bytes of the connection `one` in the encoded state.
pub fn encoded_bytes(one: &Handed) -> usize {
    let mut out = Vec::new();
    let unread = one.unread.len();
    put(&Handed { unread: Vec::new(), ..one.clone() }, &mut out);
    out.len() + unread
}

/// Decodes the connections in the encoded state of an earlier process.
///
/// # Errors
/// The fault of the encoded state. No connection is returned then.
pub fn decode(bytes: &[u8]) -> Result<Vec<Handed>, BadState> {
    const CUT: BadState = BadState("the state is truncated");
    if bytes.len() > HANDED_MAX_BYTES {
        return Err(BadState("the state is longer than the limit"));
    }
    let mut reader = Reader::new(bytes);
    if reader.bytes(MAGIC.len()).ok_or(CUT)? != MAGIC {
        return Err(BadState("the state has a wrong magic"));
    }
    if reader.u16().ok_or(CUT)? != VERSION || reader.u16().ok_or(CUT)? != 0 {
        return Err(BadState("the state has another version"));
    }
    let (count, len) = (reader.u32().ok_or(CUT)?, reader.u32().ok_or(CUT)?);
    let sum = reader.u32().ok_or(CUT)?;
    if reader.rest().len() != len as usize || count as usize > HANDED_MAX {
        return Err(BadState("the lengths in the state are wrong"));
    }
    if sum != checksum(&bytes[..HEADER_BYTES - 4], reader.rest()) {
        return Err(BadState("the checksum of the state is wrong"));
    }
    let all: Option<Vec<_>> = (0..count).map(|_| take(&mut reader)).collect();
    match all {
        Some(all) if reader.is_empty() => Ok(all),
        _ => Err(BadState("the state of one connection is invalid")),
    }
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(header);
    digest.update(body);
    digest.finalize() as u32
}

fn put(one: &Handed, out: &mut Vec<u8>) {
    let Handed { identity, session, shown, unread } = one;
    out.extend_from_slice(&identity.to_be_bytes());
    let style = match session.style {
        ReplyStyle::Simple => 0_u16,
        ReplyStyle::Structured => 1,
        ReplyStyle::Extended => 2,
    };
    out.extend_from_slice(&style.to_be_bytes());
    out.extend_from_slice(&(session.contexts.len() as u16).to_be_bytes());
    for shown in [&Shown::of(&session.facts), shown] {
        out.extend_from_slice(&shown.size_bytes.to_be_bytes());
        out.extend_from_slice(&shown.flags.0.to_be_bytes());
        for size in [shown.blocks.min(), shown.blocks.preferred(), shown.blocks.max()] {
            out.extend_from_slice(&size.to_be_bytes());
        }
    }
    put_text(&session.facts.name, out);
    for Context { id, name } in &session.contexts {
        out.extend_from_slice(&id.to_be_bytes());
        put_text(name, out);
    }
    out.extend_from_slice(&(unread.len() as u32).to_be_bytes());
    out.extend_from_slice(unread);
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    assert!(text.len() <= MAX_STRING_BYTES, "the name of an agreed export is within the limit");
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn take(reader: &mut Reader<'_>) -> Option<Handed> {
    let identity = reader.u64()?;
    let style = match reader.u16()? {
        0 => ReplyStyle::Simple,
        1 => ReplyStyle::Structured,
        2 => ReplyStyle::Extended,
        _ => return None,
    };
    let contexts = usize::from(reader.u16()?);
    let (told, shown) = (take_shown(reader)?, take_shown(reader)?);
    let name = take_text(reader)?;
    if contexts > CONTEXTS_MAX || contexts > 0 && style == ReplyStyle::Simple {
        return None;
    }
    let context = |reader: &mut Reader<'_>| {
        let id = reader.u32()?;
        Some(Context { id, name: take_text(reader)? })
    };
    let contexts = (0..contexts).map(|_| context(reader)).collect::<Option<Vec<_>>>()?;
    let unread = reader.u32()? as usize;
    // An export never becomes smaller than its clients know it.
    if unread > UNREAD_MAX_BYTES || told.size_bytes > shown.size_bytes {
        return None;
    }
    let unread = reader.bytes(unread)?.to_vec();
    let Shown { size_bytes, flags, blocks } = told;
    let facts = ExportFacts { name, size_bytes, flags, blocks, ..ExportFacts::default() };
    Some(Handed { identity, session: Session { style, contexts, facts }, shown, unread })
}

fn take_shown(reader: &mut Reader<'_>) -> Option<Shown> {
    let (size_bytes, flags) = (reader.u64()?, TransmissionFlags(reader.u16()?));
    let blocks = BlockSizes::new(reader.u32()?, reader.u32()?, reader.u32()?)?;
    Some(Shown { size_bytes, flags, blocks })
}

fn take_text(reader: &mut Reader<'_>) -> Option<String> {
    let len = reader.u16()?;
    text(reader.bytes(usize::from(len))?).map(str::to_owned)
}
