//! Disks on other machines, and the clients that reach their servers.
#![forbid(unsafe_code)]

pub mod nbd;
