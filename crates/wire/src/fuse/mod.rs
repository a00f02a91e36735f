//! The FUSE protocol, as far as a mount with one file needs it: a root directory, and the volume's file in it.
//!
//! The kernel is the client. Each read of `/dev/fuse` returns one message, and each write sends one reply. Numbers
//! have the byte order of the machine, as in `linux/fuse.h`. `docs/formats/fuse.md` defines the used part of the
//! protocol, and explains why it is so small.
//!
//! A mount has two nodes and no handles, and its attributes are valid for a year. So the server has no state between
//! two requests, and another process can reply to a request that was sent to this process.

mod constants;
mod reply;
mod request;

pub use constants::{
    HEAD_BYTES, INIT_FLAGS, MAX_BACKGROUND, MAX_WRITE_BYTES, MESSAGE_MAX_BYTES, MINOR_MIN,
    MINOR_SPOKEN, Node, PAGE_BYTES, RESENT, VOLUME_NAME,
};
pub use reply::{Facts, REPLY_MAX_BYTES, Reply};
pub use request::{Call, Init, Malformed, Request, Zeroing};
