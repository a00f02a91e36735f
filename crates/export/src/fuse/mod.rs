//! An export as a file of this machine: the only file of a FUSE mount, from which a loop device makes a block device.
//!
//! One task receives all available requests of the kernel and begins them. The reply to a request is sent where the
//! request ends. Both copy bytes without waiting, so there is no writer task and no outbox. A request costs one read
//! and one write of the file `/dev/fuse`.

mod inbox;
mod volume;

use std::time::Duration;

pub use volume::{Agreed, Volume};

/// Length in bytes from which on the payload of a write stays in its receive buffer; a shorter payload is copied.
pub const HAND_OVER_BYTES: usize = 64 << 10;

/// Number of FUSE messages that the receiving task takes before other tasks get their turn.
pub const ROUND: usize = 64;

/// Number of server processes that may end while the same FUSE request is in flight. After that the request fails,
/// because it may be the cause.
pub const RESENT_MAX: u64 = 3;

/// Time limit for the kernel's first FUSE message (INIT). The kernel sends it before the mount call returns.
pub const GREETING: Duration = Duration::from_secs(10);
