//! The NBD server on a real core, with clients that write the protocol byte by byte. The tests take the numbers of the
//! protocol from its specification, not from Cairn's codec.
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
