//! TLS 1.3 and 1.2 over any [`block::env::Socket`]. The result is a `Socket` too, so its users need no change.
//!
//! rustls carries out the handshake and checks certificates. TLS 1.2 has ciphers that authenticate the records (AEAD)
//! only, and no renegotiation. After the handshake rustls returns the keys, as for TLS in the kernel. This crate then
//! seals and opens the records in buffers of the pool: one copy in each direction, and one system call for a batch.
//!
//! | file | holds |
//! | --- | --- |
//! | `identity.rs` | certificates, keys and authorities from PEM, and the names in them |
//! | `handshake.rs` | both sides of the handshake, over a socket |
//! | `record.rs` | one direction of the record layer, without I/O |
//! | `socket.rs` | the socket that seals and opens records |
//!
//! Certificates are checked against the time of [`block::env::World::wall`]. Random numbers come from the crypto
//! library itself, never from a seed, because an attacker must not guess them.

mod handshake;
mod identity;
pub mod record;
mod socket;
#[cfg(test)]
mod tests;

pub use handshake::{CONNECTION_BYTES, Client, Secured, Server};
pub use identity::{Authorities, Identity, Pem, PemKey, Revoked};
