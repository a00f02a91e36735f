//! The FUSE protocol, as much of it as one file needs: a root directory with a volume in it.
//!
//! The kernel is the client. Each read of its device returns one message, and each answer is one write. Numbers are in
//! the machine's byte order, as in `linux/fuse.h`. `docs/formats/fuse.md` describes the part of the protocol that is
//! used, and why it is so small.
//!
//! Everything is fixed: two nodes, no handles, attributes that are valid for a year. So no state is kept between two
//! requests, and another process can answer a request that was sent to this one.

mod constants;
mod reply;
mod request;

pub use constants::{
    HEAD_BYTES, INIT_FLAGS, MAX_BACKGROUND, MAX_WRITE_BYTES, MESSAGE_MAX_BYTES, MINOR_MIN,
    MINOR_SPOKEN, Node, PAGE_BYTES, RESENT, VOLUME_NAME,
};
pub use reply::{Facts, REPLY_MAX_BYTES, Reply};
pub use request::{Call, Init, Malformed, Request, Zeroing};
