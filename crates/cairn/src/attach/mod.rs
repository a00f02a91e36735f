//! Exports as block devices of this machine: the part of the serving process.
//!
//! | file | holds |
//! | --- | --- |
//! | `attachments.rs` | the attached exports, from attach to detach |
//! | `behind.rs` | the backing of a device: a mount, or a server for the kernel |
//! | `hands.rs` | the helper process that waits for devices |
//! | `kept.rs` | the name of a device's mount while its server is away |
//! | `notes.rs` | notes for users |

mod attachments;
mod behind;
pub mod hands;
mod kept;
mod notes;

pub use attachments::{Attachments, must_be_root};
pub use kept::Kept;
pub use notes::print;
