//! TLS 1.3 over any [`block::env::Socket`], as another one: whoever reads and writes needs no change.
//!
//! rustls leads the handshake and checks certificates; TLS 1.3 is the only version that is compiled
//! in. Then it hands over the keys, as it would to a kernel, and the records are sealed and opened
//! here, straight in buffers of the pool: one copy each way, one system call for a batch.
//!
//! | file | holds |
//! | --- | --- |
//! | `identity.rs` | certificates, keys and authorities out of PEM; what they say |
//! | `handshake.rs` | both sides of the handshake, over a socket |
//! | `record.rs` | one direction of the record layer, without I/O |
//! | `socket.rs` | the socket that seals and opens |
//!
//! The time that certificates are checked against is [`block::Env::wall`]. Randomness is the crypto
//! library's own: what an attacker must not guess does not come from a seed.

mod handshake;
mod identity;
pub mod record;
mod socket;
#[cfg(test)]
mod tests;

pub use handshake::{CONNECTION_BYTES, Client, Secured, Server};
pub use identity::{Authorities, Identity, Pem, PemKey, Revoked};
