//! A row of a table of a pool. The body is shared with the tests of the crate.
#![no_main]

#[path = "../../crates/pool/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::row(data));
