//! The machine's side of an attached export: its name, its mount point, its device.
//!
//! | file | holds |
//! | --- | --- |
//! | `name.rs` | names, and where everything of a name lies |
//! | `claim.rs` | who has a name |
//! | `device.rs` | a device, whichever driver it has |
//! | `loops.rs` | loop devices |
//! | `nbd.rs` | devices of the kernel's NBD client |
//! | `netlink.rs` | what that is asked, message by message |
//! | `users.rs` | who uses a block device |
//! | `hands.rs` | connect, release, and clear up what a dead process left |
//! | `sys.rs` | the ioctls |
//!
//! Nearly all of this can wait for the device that it is about, and so for whoever serves it. A thread
//! of the serving process must not do it: killed, the process could not end before that thread, the
//! thread not before the device, and the device not before the process. It is for a process of its own.
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

/// What the file of a mount is called.
pub const FILE: &str = "volume";
