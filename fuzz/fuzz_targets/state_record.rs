//! A file of the state directory. The body is shared with the tests of the crate.
#![no_main]

#[path = "../../crates/supervisor/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::state_record(data));
