//! Runs the fuzz target of TLS records over seeded inputs: damaged sealed records, contents of records, random bytes.

mod bodies;

use tls::record::{Content, Half, PLAIN_MAX_BYTES, SEALED_MAX_BYTES};

/// Returns a stream of sealed TLS records with contents of these lengths in bytes.
fn sealed(mut half: Half, lengths: &[usize]) -> Vec<u8> {
    let record = |length: &usize| {
        let mut record = vec![1; length + half.overhead()];
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
    let mut whole = vec![
        [&[5; 100][..], &[Content::Handshake as u8], &[0; 50]].concat(),
        vec![Content::Alert as u8],
        vec![0; 40],
        most,
    ];
    whole.extend(bodies::halves().map(|half| sealed(half, &[0, 3, 700])));
    whole.extend(bodies::halves().map(|half| sealed(half, &[5000])));
    let mut opened = [0; 3];
    testkit::smoke(&whole, |input| {
        for (half, opened) in bodies::halves().iter_mut().zip(&mut opened) {
            let len = half.record_len(input).ok().flatten().filter(|len| *len <= input.len());
            let Some(len) = len else { continue };
            *opened += u64::from(half.open(&mut input[..len].to_vec()).is_ok());
        }
        bodies::records(input);
    });
    for opened in opened {
        assert!(opened > testkit::INPUTS / 50, "{opened} of {} were opened", testkit::INPUTS);
    }
}
