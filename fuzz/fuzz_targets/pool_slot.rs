//! A header of a pool, a superblock of an allocator, or an extent header. The body is shared with the tests of the crate.
#![no_main]

#[path = "../../crates/pool/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::slot(data));
