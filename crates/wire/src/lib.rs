//! Protocol codecs without I/O: no socket, no clock, no task.
//!
//! A codec turns bytes into values and values into bytes. The caller reads the socket, sets the time limits, and
//! carries out requests.
#![forbid(unsafe_code)]

pub mod fuse;
pub mod nbd;
pub mod stream;
