//! Exports as devices of this machine: what the serving process does for it.
//!
//! | file | holds |
//! | --- | --- |
//! | `attachments.rs` | what is attached, from the first step to the last |
//! | `behind.rs` | what stands behind a device: a mount, or a server for the kernel |
//! | `hands.rs` | the process of its own that waits for devices |
//! | `kept.rs` | what a device is called while its server is away |
//! | `notes.rs` | what the user should know |

mod attachments;
mod behind;
pub mod hands;
mod kept;
mod notes;

pub use attachments::{Attachments, must_be_root};
pub use notes::print;
