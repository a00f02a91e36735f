//! What a server may answer to requests that are in flight. Its smoke test is beside the client.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    net::nbd::try_any_replies(data);
});
