//! Both ends of a byte stream, as buffers: what has arrived, and what is to be sent. No I/O.

mod inbox;
mod outbox;

pub use inbox::{INBOX_BYTES, Inbox};
pub use outbox::{Batch, HEADS_BYTES, Outbox, drop_front};
