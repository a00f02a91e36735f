//! Devices on other machines, and the clients that reach them.
#![forbid(unsafe_code)]

pub mod nbd;
