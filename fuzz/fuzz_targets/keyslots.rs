//! Key slots from a disk that anybody may have written to. The body is shared with the tests of the
//! crate.
#![no_main]

#[path = "../../crates/kinds/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::keyslots(data));
