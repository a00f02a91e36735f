//! The machine's side of an attached export: its name, its mount point, its device.
//!
//! | file | holds |
//! | --- | --- |
//! | `name.rs` | names, and the paths that belong to a name |
//! | `claim.rs` | the lock of a name |
//! | `device.rs` | a device, independent of its driver |
//! | `loops.rs` | loop devices |
//! | `nbd.rs` | devices of the kernel's NBD client |
//! | `netlink.rs` | the messages to that client |
//! | `users.rs` | the users of a block device |
//! | `hands.rs` | connect, release, and clear up after a dead process |
//! | `sys.rs` | the ioctls |
//!
//! Nearly all functions here may wait for the device that they work on, and so for its server. They must not
//! run on a thread of the serving process: if that process is killed, the process cannot end before the
//! thread, the thread not before the device answers, and the device not before the process serves it. They
//! must run in a separate process.
#![allow(
    clippy::disallowed_methods,
    reason = "it works on names, mounts and devices of the machine, not below an Env"
)]

mod claim;
mod device;
mod hands;
mod loops;
mod name;
mod nbd;
mod netlink;
mod sys;
mod users;

pub use claim::Claim;
pub use hands::{
    Connected, Found, Release, Wanted, clear, connect, connect_nbd, find, has_fuse, is_left,
    prepare, release, resize, still_used,
};
pub use name::{DEVICES, NAME_MAX_BYTES, Name, RUNTIME};
pub use nbd::has_nbd;
pub use users::Users;

/// Name of the only file in the FUSE mount of an export, on which the loop device is put.
pub const FILE: &str = "volume";
