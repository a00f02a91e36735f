//! A record of a ring, and recovery of a ring with fuzzed sectors. The body is shared with the tests of the crate.
#![no_main]

#[path = "../../crates/meta/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::ring(data));
