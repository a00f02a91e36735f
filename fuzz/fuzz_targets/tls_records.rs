//! What a peer may send behind a TLS handshake. The body is shared with the tests of the crate.
#![no_main]

#[path = "../../crates/tls/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::records(data));
