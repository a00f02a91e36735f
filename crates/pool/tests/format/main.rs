//! Tests of the on-disk format of pools: golden bytes, refusal of damaged fields, crashes between superblock writes.

mod allocators;
#[path = "../bodies/mod.rs"]
mod bodies;
mod fuzz_smoke;
mod log;
mod names;
mod roots;
mod rows;
mod samples;
mod slots;

/// Puts parts into zeros, by their offset.
fn golden(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, part) in parts {
        bytes[*at..at + part.len()].copy_from_slice(part);
    }
    bytes
}

fn assert_same(is: &[u8], should: &[u8], what: &str) {
    assert_eq!(is.len(), should.len(), "{what}");
    if let Some(at) = is.iter().zip(should).position(|(is, should)| is != should) {
        let end = is.len().min(at + 8);
        panic!("{what}, from byte {at}: {:x?}, not {:x?}", &is[at..end], &should[at..end]);
    }
}
