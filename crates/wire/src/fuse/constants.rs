//! Numbers of the FUSE protocol (`linux/fuse.h`), and the limits on which kernel and server agree in the INIT
//! exchange.

/// Length in bytes of the part of a FUSE message that is parsed before the payload: the header (40 bytes) and the
/// longest arguments of a call whose reply has more than a number (40 bytes). The payload of a write follows.
pub const HEAD_BYTES: usize = 80;

/// Length in bytes of the longest payload of a FUSE write, and of the longest reply to a read. The server announces
/// it in INIT.
pub const MAX_WRITE_BYTES: u32 = 1 << 20;

/// Size of a page in bytes, as the FUSE protocol counts pages.
pub const PAGE_BYTES: usize = 4096;

/// Length in bytes of a buffer for any FUSE message. The kernel refuses a read of `/dev/fuse` with a shorter buffer.
pub const MESSAGE_MAX_BYTES: usize = HEAD_BYTES + MAX_WRITE_BYTES as usize;

/// Most asynchronous FUSE requests that the kernel may have in flight on one mount.
pub const MAX_BACKGROUND: u16 = 256;

/// Number of asynchronous FUSE requests in flight from which the kernel reports congestion.
pub(super) const CONGESTION: u16 = 192;

/// The newest minor version of FUSE protocol 7 that this crate supports. An older kernel and this crate use the
/// kernel's version.
pub const MINOR_SPOKEN: u32 = 41;

/// The oldest minor version of FUSE protocol 7 that this crate supports: 7.28 (Linux 4.20), for messages of more than
/// 32 pages.
pub const MINOR_MIN: u32 = 28;

pub(super) const MAJOR: u32 = 7;

/// The flags of FUSE features that the server accepts if the kernel offers them: asynchronous reads, writes of more
/// than a page, direct I/O that does not wait, parallel direct requests to one file, and `max_pages`.
pub const INIT_FLAGS: u32 = ASYNC_READ | BIG_WRITES | ASYNC_DIO | PARALLEL_DIROPS | MAX_PAGES_FLAG;

const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const PARALLEL_DIROPS: u32 = 1 << 18;
const MAX_PAGES_FLAG: u32 = 1 << 22;

/// Flag of INIT: the message has a second word of flags.
pub(super) const INIT_EXT: u32 = 1 << 30;

/// Flag in the second word of INIT: the kernel can send requests without a reply again.
pub(super) const HAS_RESEND: u32 = 1 << 7;

/// Bit in the number of a FUSE request: the kernel has sent the request before, perhaps to another process.
pub const RESENT: u64 = 1 << 63;

/// Flags in the reply to a FUSE open: the file bypasses the page cache, and permits parallel direct writes.
pub(super) const OPEN_FLAGS: u32 = 1 | 1 << 6;

/// Seconds for which the kernel may cache names and attributes of a mount. They do not change during the mount.
pub(super) const VALID_S: u64 = 365 * 24 * 60 * 60;

/// Name of the only file in a FUSE mount.
pub const VOLUME_NAME: &str = "volume";

/// A node of the FUSE mount: its root directory, or the volume's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// The root directory of the mount. Its number is 1 by the protocol.
    Root,
    /// The file with the volume; its number is 2.
    Volume,
}

impl Node {
    pub(super) fn of(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Root),
            2 => Some(Self::Volume),
            _ => None,
        }
    }

    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Root => 1,
            Self::Volume => 2,
        }
    }
}

/// Opcodes of FUSE requests. A request with any other opcode is answered with "not implemented".
pub(super) mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
}
