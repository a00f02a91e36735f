//! A superblock of a vault. The body is shared with the tests of the crate.
#![no_main]

#[path = "../../crates/meta/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::superblock(data));
