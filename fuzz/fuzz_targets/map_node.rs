//! A node of a pool's trees, or the descriptor of a tree, or anything. The body is shared with the tests of the crate.
#![no_main]

#[path = "../../crates/pool/tests/map/bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::node(data);
    bodies::descriptor(data);
});
