//! Buffers for the two directions of a byte stream: received bytes, and messages to send. They perform no I/O.

mod inbox;
mod outbox;

pub use inbox::{INBOX_BYTES, INBOX_IDLE_BYTES, Inbox};
pub use outbox::{Batch, HEADS_BYTES, Outbox, drop_front};
