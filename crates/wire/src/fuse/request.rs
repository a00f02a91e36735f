//! Requests of the kernel to a FUSE mount.

use super::constants::{HAS_RESEND, HEAD_BYTES, INIT_EXT, Node, RESENT, opcode};

/// Length in bytes of the header of every message.
const HEADER_BYTES: usize = 40;

/// A FUSE request of the kernel: its number, its node, and its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Number of the request. The reply carries the same number, [`RESENT`] included.
    pub unique: u64,
    /// Node that the request concerns; `None` if no node has the number in the request.
    pub node: Option<Node>,
    /// Call of the request, with its arguments.
    pub call: Call<'a>,
}

/// The call of a FUSE request, with its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call<'a> {
    /// The offer of versions and features in the first message of the kernel.
    Init(Init),
    /// A look-up of this name in a directory. A name that passes the parsed part of the message is truncated.
    Lookup(&'a [u8]),
    /// A request for the attributes of the node.
    Getattr,
    /// The opening of a file or a directory.
    Open {
        /// Whether the node is opened as a directory.
        directory: bool,
    },
    /// A read of the volume's file.
    Read {
        /// First byte of the volume to read.
        offset: u64,
        /// Number of bytes of the volume to read.
        size: u32,
    },
    /// A write to the volume's file. Its payload follows the parsed part of the message.
    Write {
        /// First byte of the volume to write.
        offset: u64,
        /// Number of bytes of the volume to write.
        size: u32,
    },
    /// A request to make durable every write to the volume that completed before.
    Fsync,
    /// A request to zero a range of the volume.
    Fallocate {
        /// First byte of the volume to zero.
        offset: u64,
        /// Number of bytes of the volume to zero.
        length: u64,
        /// Whether the space of the range is freed; `None` for a mode of `fallocate` that a volume does not support.
        mode: Option<Zeroing>,
    },
    /// A request for the facts about the mounted file system.
    Statfs,
    /// A listing of the names in a directory.
    Readdir {
        /// Number of the first name to list; 0 for the first one of the directory.
        offset: u64,
        /// Length in bytes that the names in the reply may have together.
        size: u32,
    },
    /// The end of a handle, a flush of a file, or a check of access. The reply is always success.
    Agreed,
    /// A message without a reply: forgotten nodes and interruptions.
    Unanswered,
    /// The end of the FUSE session.
    Destroy,
    /// A call with this opcode, which this crate does not know.
    Unknown(u32),
}

/// The kernel's offer of versions and features in the INIT message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// Major version of the FUSE protocol that the kernel offers.
    pub major: u32,
    /// Minor version of the FUSE protocol that the kernel offers.
    pub minor: u32,
    /// Bytes that the kernel reads ahead in the volume's file.
    pub max_readahead: u32,
    /// Flags of the features that the kernel supports.
    pub flags: u32,
    /// Whether the kernel can send requests without a reply again, to another process that took over the channel.
    pub has_resend: bool,
}

/// The use of space when a range of a volume is zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zeroing {
    /// The space of the range is freed.
    Punch,
    /// The space of the range stays allocated.
    Keep,
}

/// A message that violates the FUSE protocol. No kernel sends such a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// Number of the request for an error reply; `None` if the header of the message could not be read.
    pub unique: Option<u64>,
    /// Length of the received message in bytes.
    pub came_bytes: usize,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the kernel sent {} bytes that are no FUSE request", self.came_bytes)
    }
}

impl std::error::Error for Malformed {}

impl<'a> Request<'a> {
    /// Parses the request in a FUSE message of `came_bytes` bytes. `head` has the first [`HEAD_BYTES`] of the
    /// message, or the whole message if it is shorter.
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

    /// Whether the kernel sent the request before, perhaps to a process that has carried out the request already.
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

/// Returns the use of space for a mode of `fallocate(2)`. A volume supports only modes that do not change the size of
/// the file.
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
