//! Simulated disks for real programs: the disks of `sim`, with their volatile caches, served over NBD. On command
//! they lose unflushed writes, fail, hang and corrupt bits. A SIGKILL alone cannot reveal a missing flush, because
//! the kernel keeps the written data; these disks do not.
//!
//! | file | holds |
//! | --- | --- |
//! | `time.rs` | the simulated clock of the disks, which follows the real clock |
//! | `disk.rs` | a simulated disk as a device, and its faults |
//! | `shelf.rs` | all disks of a process, their server, and their common power supply |
//! | `command.rs` | the commands of the control socket, as text |
//! | `control.rs` | the control socket: client and server |
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
