//! Exports as devices of this machine: what the serving process does for it.
//!
//! | file | holds |
//! | --- | --- |
//! | `attachments.rs` | what is attached, from the first step to the last |
//! | `hands.rs` | the process of its own that waits for devices |
//! | `notes.rs` | what the user should know |

mod attachments;
pub mod hands;
mod notes;

pub use attachments::{Attachments, must_be_root};
pub use notes::print;
