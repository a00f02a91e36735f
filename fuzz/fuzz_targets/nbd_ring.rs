//! What anybody may have left in the memory of an NBD disk. Its smoke test is beside the codec.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    net::nbd::try_any_ring(data);
});
