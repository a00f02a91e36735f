//! Numbers of the protocol (`linux/fuse.h`), and the limits that are agreed on at the start.

/// The part of a message that says what it is about: the header (40 bytes) and the longest arguments of
/// a call that is answered with more than a number (40 bytes). What follows is the payload of a write.
pub const HEAD_BYTES: usize = 80;

/// The longest payload of a write, and the longest read: what the kernel is told.
pub const MAX_WRITE_BYTES: u32 = 1 << 20;

/// The kernel's page, as the protocol counts it here.
pub const PAGE_BYTES: usize = 4096;

/// Room for any message: a read of the device with less is refused.
pub const MESSAGE_MAX_BYTES: usize = HEAD_BYTES + MAX_WRITE_BYTES as usize;

/// Asynchronous requests that the kernel has under way at once.
pub const MAX_BACKGROUND: u16 = 256;

/// From so many on it says that it is busy.
pub(super) const CONGESTION: u16 = 192;

/// The version that is spoken, 7.41; an older kernel's own if it is older.
pub const MINOR_SPOKEN: u32 = 41;

/// The oldest version that does: 7.28 (Linux 4.20), for messages of more than 32 pages.
pub const MINOR_MIN: u32 = 28;

pub(super) const MAJOR: u32 = 7;

/// Of the kernel's offer, what is taken: reads at once, writes of more than a page, direct I/O that
/// does not wait, direct requests of one file side by side, `max_pages`, the second word of flags.
pub const INIT_FLAGS: u32 = ASYNC_READ | BIG_WRITES | ASYNC_DIO | PARALLEL_DIROPS | MAX_PAGES_FLAG;

const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const PARALLEL_DIROPS: u32 = 1 << 18;
const MAX_PAGES_FLAG: u32 = 1 << 22;

/// There is a second word of flags.
pub(super) const INIT_EXT: u32 = 1 << 30;

/// In the second word: the kernel can be told to send again what is not answered.
pub(super) const HAS_RESEND: u32 = 1 << 7;

/// In the number of a request: it has been sent before, perhaps to another process.
pub const RESENT: u64 = 1 << 63;

/// Of an open: past the page cache, and writes to one file side by side.
pub(super) const OPEN_FLAGS: u32 = 1 | 1 << 6;

/// How long names and facts hold, in seconds: they never change while it is mounted.
pub(super) const VALID_S: u64 = 365 * 24 * 60 * 60;

/// What the one file is called.
pub const VOLUME_NAME: &str = "volume";

/// A node, by the number that the kernel knows it by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// The root directory: 1, as the protocol has it.
    Root,
    /// The volume: 2.
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

/// What is asked for, by number. Those that are left out are answered "not implemented".
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
