//! Block devices of this machine for attached exports: their names, mount points, kernel devices and users.
//!
//! | file | holds |
//! | --- | --- |
//! | `name.rs` | names of attached exports, and the paths that belong to a name |
//! | `claim.rs` | the lock by which one process owns a name |
//! | `device.rs` | a block device, whatever its driver |
//! | `loops.rs` | loop devices |
//! | `nbd.rs` | devices of the kernel's NBD client |
//! | `netlink.rs` | messages to the kernel's NBD client |
//! | `users.rs` | the users of a block device |
//! | `steps.rs` | connecting and releasing block devices, and removing the remains of a dead process |
//! | `sys.rs` | ioctls of loop devices |
//!
//! Nearly all functions here may wait for the block device that they work on, and so for the process that serves it.
//! They must not run on a thread of that process: if it is killed, the process cannot end before the thread, the thread
//! cannot end before the device completes its request, and the device cannot complete it without the process. They must
//! run in a separate process.
#![allow(
    clippy::disallowed_methods,
    reason = "it works on names, mounts and devices of the machine, not below an Env"
)]

mod claim;
mod device;
mod loops;
mod name;
mod nbd;
mod netlink;
mod steps;
mod sys;
mod users;

pub use claim::Claim;
pub use name::{DEVICES, NAME_MAX_BYTES, Name, RUNTIME};
pub use nbd::has_nbd;
pub use steps::{
    Connected, Found, Release, Wanted, check_unused, clear, connect, connect_nbd, find, has_fuse,
    is_left, left, prepare, release, resize, still_used,
};
pub use users::Users;

/// Name of the only file in the FUSE mount of an attached export. The loop device is connected to this file.
pub const FILE: &str = "volume";
