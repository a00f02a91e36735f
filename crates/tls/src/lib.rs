//! TLS 1.3 over any [`block::env::Socket`]. The result is another `Socket`, so its users need no change.
//!
//! rustls carries out the handshake and checks certificates; TLS 1.3 is the only version that is compiled in.
//! Then it hands over the keys, as it would to a kernel, and this crate seals and opens the records straight
//! in buffers of the pool: one copy each way, one system call for a batch.
//!
//! | file | holds |
//! | --- | --- |
//! | `identity.rs` | certificates, keys and authorities from PEM, and the names in them |
//! | `handshake.rs` | both sides of the handshake, over a socket |
//! | `record.rs` | one direction of the record layer, without I/O |
//! | `socket.rs` | the socket that seals and opens |
//!
//! Certificates are checked against the time of [`block::env::World::wall`]. Random numbers come from the crypto
//! library itself, because an attacker must not guess them: they never come from a seed.

mod handshake;
mod identity;
pub mod record;
mod socket;
#[cfg(test)]
mod tests;

pub use handshake::{CONNECTION_BYTES, Client, Secured, Server};
pub use identity::{Authorities, Identity, Pem, PemKey, Revoked};
