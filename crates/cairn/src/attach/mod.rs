//! Exports as block devices of this machine: the part of `cairn attach` in the process that serves the export.
//!
//! | file | holds |
//! | --- | --- |
//! | `attachments.rs` | the attached exports, from attach to detach |
//! | `behind.rs` | the backing of a block device: a FUSE mount, or a server for the kernel's NBD client |
//! | `helper.rs` | the helper process for steps that may wait for a device |
//! | `kept.rs` | the name under which the supervisor holds the mount of a device |
//! | `notes.rs` | notes for users |

mod attachments;
mod behind;
pub mod helper;
mod kept;
mod notes;

pub use attachments::{Attachments, must_be_root};
pub use kept::Kept;
pub use notes::print;
