//! Runs the fuzz target of TLS records over seeded inputs: damaged sealed records, contents of records, random bytes.

mod bodies;

use tls::record::{
    Content, HEADER_BYTES, OVERHEAD_BYTES, PLAIN_MAX_BYTES, SEALED_MAX_BYTES, record_len,
};

/// Returns a stream of sealed TLS records with contents of these lengths in bytes.
fn sealed(lengths: &[usize]) -> Vec<u8> {
    let mut half = bodies::half();
    let record = |length: &usize| {
        let mut record = vec![1; length + OVERHEAD_BYTES];
        half.seal(&mut record, *length, Content::Data);
        record
    };
    lengths.iter().flat_map(record).collect()
}

#[test]
fn tls_record_parser_never_panics_on_mutated_input() {
    let mut most = vec![1; SEALED_MAX_BYTES - 16];
    // As long as a record may be, and one byte more than it may hold.
    most[PLAIN_MAX_BYTES + 1..].fill(0);
    most[PLAIN_MAX_BYTES + 1] = Content::Data as u8;
    let whole = [
        sealed(&[0, 3, 700]),
        sealed(&[5000]),
        [&[5; 100][..], &[Content::Handshake as u8], &[0; 50]].concat(),
        vec![Content::Alert as u8],
        vec![0; 40],
        most,
    ];
    let mut opened = 0;
    testkit::smoke(&whole, |input| {
        let len = record_len(input).ok().flatten().filter(|len| *len <= input.len());
        let mut first = input[..len.unwrap_or(0)].to_vec();
        opened += u64::from(first.len() > HEADER_BYTES && bodies::half().open(&mut first).is_ok());
        bodies::records(input);
    });
    assert!(opened > testkit::INPUTS / 20, "{opened} of {} were opened", testkit::INPUTS);
}
