//! The FUSE protocol, as much of it as one file needs: a root directory with a volume in it.
//!
//! The kernel is the client. What it asks comes as messages, one for each read of its device, and is
//! answered with one write each. Numbers are in the machine's own byte order, as in `linux/fuse.h`.
//! `docs/formats/fuse.md` says what is spoken and why so little.
//!
//! Everything is fixed: two nodes, no handles, facts that hold for a year. So nothing has to be
//! remembered between two requests, and another process can answer what this one was asked.

mod constants;
mod reply;
mod request;

pub use constants::{
    HEAD_BYTES, INIT_FLAGS, MAX_BACKGROUND, MAX_WRITE_BYTES, MESSAGE_MAX_BYTES, MINOR_MIN,
    MINOR_SPOKEN, Node, PAGE_BYTES, RESENT, VOLUME_NAME,
};
pub use reply::{Facts, REPLY_MAX_BYTES, Reply};
pub use request::{Call, Init, Malformed, Request, Zeroing};
