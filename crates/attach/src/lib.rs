//! The machine's side of an attached export: its name, its mount point, its loop device.
//!
//! | file | holds |
//! | --- | --- |
//! | `name.rs` | names, and where everything of a name lies |
//! | `claim.rs` | who has a name |
//! | `loops.rs` | loop devices |
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
mod hands;
mod loops;
mod name;
mod sys;
mod users;

pub use claim::Claim;
pub use hands::{Connected, Release, Wanted, clear, connect, is_left, prepare, release, resize};
pub use name::{DEVICES, NAME_MAX_BYTES, Name, RUNTIME};
pub use users::Users;

/// What the file of a mount is called.
pub const FILE: &str = "volume";
