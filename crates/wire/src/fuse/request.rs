//! Requests of the kernel.

use super::constants::{HAS_RESEND, HEAD_BYTES, INIT_EXT, Node, RESENT, opcode};

/// Bytes of the header of every message.
const HEADER_BYTES: usize = 40;

/// A request: its number, its node, and its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Number of the request. The reply carries the same number, [`RESENT`] included.
    pub unique: u64,
    /// The node; `None` if no node has that number.
    pub node: Option<Node>,
    /// The call and its arguments.
    pub call: Call<'a>,
}

/// A call on a node, with its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call<'a> {
    /// The first message.
    Init(Init),
    /// A look-up of a name in a directory. The name is truncated at the end of the message's head.
    Lookup(&'a [u8]),
    /// A request for the attributes of a node.
    Getattr,
    /// The opening of a file or a directory.
    Open {
        /// Whether it is a directory.
        directory: bool,
    },
    /// A read of the volume.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        size: u32,
    },
    /// A write to the volume; its payload follows the head of the message.
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        size: u32,
    },
    /// A request to make durable everything that completed before.
    Fsync,
    /// A request to make a range read as zeros.
    Fallocate {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// The mode; `None` for a mode that a volume does not support.
        mode: Option<Zeroing>,
    },
    /// A request for the facts of the file system.
    Statfs,
    /// A listing of names in a directory.
    Readdir {
        /// Number of the first name to list; 0 at first.
        offset: u64,
        /// Room for the names, in bytes.
        size: u32,
    },
    /// The end of a handle, a flush of a file, or a check of access. The answer is always success, and nothing depends
    /// on it.
    Agreed,
    /// A message without an answer: forgotten nodes and interruptions.
    Unanswered,
    /// The end of the session.
    Destroy,
    /// Any other call, by its opcode.
    Unknown(u32),
}

/// The kernel's offer in the INIT message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Bytes that the kernel reads ahead.
    pub max_readahead: u32,
    /// Flags of the features that the kernel supports.
    pub flags: u32,
    /// Whether the kernel can send unanswered requests again to another process that has the connection.
    pub has_resend: bool,
}

/// The way in which a range becomes zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zeroing {
    /// Free its space.
    Punch,
    /// Keep its space.
    Keep,
}

/// A message that breaks the protocol; no kernel sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The number of the request, for an error reply, if the header could be read.
    pub unique: Option<u64>,
    /// Bytes that were received.
    pub came_bytes: usize,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a message of {} bytes is none of the FUSE protocol", self.came_bytes)
    }
}

impl std::error::Error for Malformed {}

impl<'a> Request<'a> {
    /// Parses the head of a message of `came_bytes` bytes: its first [`HEAD_BYTES`], or the whole message if it is
    /// shorter.
    ///
    /// # Errors
    /// [`Malformed`] if the message does not have the length in its header, or its arguments are truncated.
    pub fn parse(head: &'a [u8], came_bytes: usize) -> Result<Self, Malformed> {
        let head = &head[..head.len().min(HEAD_BYTES).min(came_bytes)];
        let malformed = |unique| Malformed { unique, came_bytes };
        let (header, body) = head.split_at_checked(HEADER_BYTES).ok_or(malformed(None))?;
        let unique = u64_at(header, 8).ok_or(malformed(None))?;
        if u32_at(header, 0) != u32::try_from(came_bytes).ok() {
            return Err(malformed(None));
        }
        let code = u32_at(header, 4).ok_or(malformed(None))?;
        let node = u64_at(header, 16).and_then(Node::of);
        let payload = came_bytes.saturating_sub(HEAD_BYTES);
        let call = call(code, body, payload).ok_or(malformed(Some(unique)))?;
        Ok(Self { unique, node, call })
    }

    /// Whether the request was sent before, so that it may have been carried out already.
    pub fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }
}

fn call(code: u32, body: &[u8], payload: usize) -> Option<Call<'_>> {
    Some(match code {
        opcode::INIT => Call::Init(init(body)?),
        opcode::LOOKUP => Call::Lookup(body.split(|byte| *byte == 0).next().unwrap_or_default()),
        opcode::GETATTR => Call::Getattr,
        opcode::OPEN => Call::Open { directory: false },
        opcode::OPENDIR => Call::Open { directory: true },
        opcode::READ => Call::Read { offset: u64_at(body, 8)?, size: u32_at(body, 16)? },
        opcode::WRITE => {
            let (offset, size) = (u64_at(body, 8)?, u32_at(body, 16)?);
            (payload == size as usize && body.len() == 40)
                .then_some(Call::Write { offset, size })?
        }
        opcode::FSYNC => Call::Fsync,
        opcode::FALLOCATE => Call::Fallocate {
            offset: u64_at(body, 8)?,
            length: u64_at(body, 16)?,
            mode: zeroing(u32_at(body, 24)?),
        },
        opcode::STATFS => Call::Statfs,
        opcode::READDIR => Call::Readdir { offset: u64_at(body, 8)?, size: u32_at(body, 16)? },
        opcode::RELEASE
        | opcode::RELEASEDIR
        | opcode::FLUSH
        | opcode::FSYNCDIR
        | opcode::ACCESS => Call::Agreed,
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Call::Unanswered,
        opcode::DESTROY => Call::Destroy,
        other => Call::Unknown(other),
    })
}

fn init(body: &[u8]) -> Option<Init> {
    let flags = u32_at(body, 12)?;
    // Older kernels send no second word.
    let second = if flags & INIT_EXT != 0 { u32_at(body, 16)? } else { 0 };
    Some(Init {
        major: u32_at(body, 0)?,
        minor: u32_at(body, 4)?,
        max_readahead: u32_at(body, 8)?,
        flags,
        has_resend: second & HAS_RESEND != 0,
    })
}

/// Converts a mode of `fallocate(2)`. A volume supports only modes that keep the size of the file.
fn zeroing(mode: u32) -> Option<Zeroing> {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const ZERO_RANGE: u32 = 16;
    match mode {
        m if m == PUNCH_HOLE | KEEP_SIZE => Some(Zeroing::Punch),
        m if m & !KEEP_SIZE == ZERO_RANGE => Some(Zeroing::Keep),
        _ => None,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
