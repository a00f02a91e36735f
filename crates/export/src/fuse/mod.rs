//! An export as a file of this machine: the only file of a FUSE mount, from which a loop device makes a block device.
//!
//! One task takes all available requests of the kernel and begins them. A reply is written where its request ends. Both
//! copy without waiting, so there is no writer task and no outbox: a request costs one read and one write of the
//! device.

mod inbox;
mod volume;

use std::time::Duration;

pub use volume::{Agreed, Volume};

/// Length from which on a write's payload is passed on in its receive buffer; a shorter payload is copied.
pub const HAND_OVER_BYTES: usize = 64 << 10;

/// Number of FUSE messages that are taken before other tasks get their turn.
pub const ROUND: usize = 64;

/// Number of processes that may end with a FUSE request in flight. The request is not begun once more afterwards.
pub const RESENT_MAX: u64 = 3;

/// Time limit for the kernel's first FUSE message (INIT), which it sends before the mount returns.
pub const GREETING: Duration = Duration::from_secs(10);
