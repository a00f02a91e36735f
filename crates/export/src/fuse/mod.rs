//! An export as a file of this machine: the one file of a FUSE mount, which a loop device makes a block
//! device of.
//!
//! One task takes what the kernel asks, as much as there is, and begins it; answers are written where
//! a request ends. Both are copies that never wait, so there is no writer and no outbox: a request
//! costs one read and one write of the device.

mod inbox;
mod volume;

use std::time::Duration;

pub use volume::{Agreed, Volume};

/// From so many bytes on the payload of a write is not copied: the buffer that it came in goes down.
pub const HAND_OVER_BYTES: usize = 64 << 10;

/// So many messages are taken before others get their turn.
pub const ROUND: usize = 64;

/// A request that has been on its way at the ends of so many processes is not begun once more.
pub const RESENT_MAX: u64 = 3;

/// How long the kernel may take to say what it can do; it has said so when the mount returns.
pub const GREETING: Duration = Duration::from_secs(10);
