//! Simulated disks for real programs: the disks of `sim`, with their volatile caches, served over NBD. On
//! command they lose unflushed writes, fail, hang and rot. A SIGKILL alone cannot reveal a missing flush,
//! because the kernel keeps the written data. These disks do not keep it.
//!
//! | file | holds |
//! | --- | --- |
//! | `time.rs` | the clock of the simulated world, tied to the real one |
//! | `disk.rs` | a simulated disk as a block device, and its faults |
//! | `shelf.rs` | all disks of a process, their server, and the power of all |
//! | `command.rs` | the commands, and their text form |
//! | `control.rs` | the control socket, both sides |
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "clients of the control socket are plain programs, not below an Env"
)]

mod command;
mod control;
mod disk;
mod shelf;
mod time;

pub use command::{Command, DiskSpec};
pub use control::{ask, serve};
pub use shelf::Shelf;
