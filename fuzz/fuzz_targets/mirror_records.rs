//! What anybody may have written into the labels beneath a mirror. The body is shared with the tests of
//! the crate.
#![no_main]

#[allow(dead_code, reason = "the other target runs the other body")]
#[path = "../../crates/kinds/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::mirror_records(data));
