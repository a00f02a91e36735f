//! What the kernel asks.

use super::constants::{HAS_RESEND, HEAD_BYTES, INIT_EXT, Node, RESENT, opcode};

/// Bytes of the header of every message.
const HEADER_BYTES: usize = 40;

/// A request: its number, the node that it is about, and what is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The answer bears the same number, [`RESENT`] included.
    pub unique: u64,
    /// Whose; `None` for a node that there is not.
    pub node: Option<Node>,
    /// What.
    pub call: Call<'a>,
}

/// What is asked of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call<'a> {
    /// The first message.
    Init(Init),
    /// A name in a directory; cut off behind the head of the message.
    Lookup(&'a [u8]),
    /// The facts of a node.
    Getattr,
    /// A file or a directory is opened.
    Open {
        /// Whether it is a directory.
        directory: bool,
    },
    /// Bytes of the volume.
    Read {
        /// First byte.
        offset: u64,
        /// How many.
        size: u32,
    },
    /// Bytes for the volume; they follow the head of the message.
    Write {
        /// First byte.
        offset: u64,
        /// How many.
        size: u32,
    },
    /// What completed before is to be durable.
    Fsync,
    /// A range is to read as zeros.
    Fallocate {
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
        /// How; `None` for what nobody asks of a volume.
        mode: Option<Zeroing>,
    },
    /// Facts of the file system.
    Statfs,
    /// Names in a directory.
    Readdir {
        /// The name after this one; 0 at first.
        offset: u64,
        /// Room for them in bytes.
        size: u32,
    },
    /// A handle is done with, or may somebody do something: nothing depends on it.
    Agreed,
    /// Has no answer: counts of names, and interruptions.
    Unanswered,
    /// The end.
    Destroy,
    /// Something else, by number.
    Unknown(u32),
}

/// The kernel's offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// How far it reads ahead, in bytes.
    pub max_readahead: u32,
    /// What it can do.
    pub flags: u32,
    /// Whether it can send again what is not answered, to another process that has the connection.
    pub has_resend: bool,
}

/// How a range is to become zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zeroing {
    /// Its space is given back.
    Punch,
    /// Its space is kept.
    Keep,
}

/// A message that no kernel sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The request that can be answered with an error, if its number can be told.
    pub unique: Option<u64>,
    /// Bytes that came.
    pub came_bytes: usize,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a message of {} bytes is none of the FUSE protocol", self.came_bytes)
    }
}

impl std::error::Error for Malformed {}

impl<'a> Request<'a> {
    /// Reads the head of a message of `came_bytes` bytes: its first [`HEAD_BYTES`], or all of it if it is
    /// shorter.
    ///
    /// # Errors
    /// [`Malformed`] if the message is not as long as it says, or its arguments are cut off.
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

    /// Whether it was sent before: what it asks for may have been done already.
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

/// The mode of `fallocate(2)`. Only what keeps the size of the file can be asked of a volume.
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
