//! Buffers for both directions of a byte stream: received bytes, and messages to send. No I/O.

mod inbox;
mod outbox;

pub use inbox::{INBOX_BYTES, Inbox};
pub use outbox::{Batch, HEADS_BYTES, Outbox, drop_front};
