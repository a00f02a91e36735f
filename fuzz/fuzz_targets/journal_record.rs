//! The root of a journal, and the parts of its records. The body is shared with the tests of the crate.
#![no_main]

#[path = "../../crates/meta/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::journal(data));
