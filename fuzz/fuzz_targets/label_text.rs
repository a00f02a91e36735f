//! The spec in a label that anybody may have written. The body is shared with the tests of the crate.
#![no_main]

#[allow(dead_code, reason = "the other targets run the other bodies")]
#[path = "../../crates/kinds/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::label_text(data));
