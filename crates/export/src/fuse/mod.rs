//! An export as a file of this machine: the only file of a FUSE mount, from which a loop device makes a block device.
//!
//! One task takes all available requests of the kernel and begins them. A reply is written where its request ends. Both
//! copy without waiting, so there is no writer task and no outbox: a request costs one read and one write of the
//! device.

mod inbox;
mod volume;

use std::time::Duration;

pub use volume::{Agreed, Volume};

/// Minimum length for handing over the buffer of a write's payload; a shorter payload is copied.
pub const HAND_OVER_BYTES: usize = 64 << 10;

/// Number of messages that are taken before other tasks get their turn.
pub const ROUND: usize = 64;

/// Number of processes that may end with a request in flight. Then it is not begun once more.
pub const RESENT_MAX: u64 = 3;

/// Time limit for the kernel's greeting, which it sends before the mount returns.
pub const GREETING: Duration = Duration::from_secs(10);
