//! The NBD server on a real core, against clients that are written byte by byte. The numbers here are those of the
//! specification, not those of Cairn's codec.
#![allow(clippy::disallowed_methods, reason = "the tests play the world that the doors lead to")]

mod client;
mod docs;
mod ends;
mod handshake;
mod limits;
mod orphans;
mod pause;
mod requests;
mod world;
