//! Protocol codecs without I/O: no socket, no clock, no task.
//!
//! A codec takes bytes and gives values, takes values and gives bytes. Who reads the socket, how
//! long it may take and what a request does are questions for the caller.
#![forbid(unsafe_code)]

pub mod fuse;
pub mod nbd;
pub mod stream;
