//! The body of the fuzz target of TLS records. `fuzz/` includes this file, and `fuzz_smoke.rs` runs the body over a few
//! thousand inputs in each `cargo test`.

use tls::record::{
    AeadKey, Content, HEADER_BYTES, Half, Iv, PLAIN_MAX_BYTES, SEALED_MAX_BYTES, Secrets, Version,
};

/// The content types of sealed records.
const CONTENTS: [Content; 3] = [Content::Alert, Content::Handshake, Content::Data];

/// Returns the state of one direction of a TLS connection for each form of records, with fixed keys.
pub fn halves() -> [Half; 3] {
    let (key, iv) = (|| AeadKey::from([7; 32]), || Iv::from([9; 12]));
    let aes = || Secrets::Aes256Gcm { key: key(), iv: iv() };
    [
        Half::new(Version::Tls13, (0, aes())),
        Half::new(Version::Tls12, (0, aes())),
        Half::new(Version::Tls12, (0, Secrets::Chacha20Poly1305 { key: key(), iv: iv() })),
    ]
    .map(|half| half.expect("a cipher that is known"))
}

/// Feeds fuzzed bytes to a TLS receiver: as unauthenticated records, and as the content of a record with valid keys.
pub fn records(data: &[u8]) {
    for half in halves() {
        stream(half, data);
    }
    let inner = &data[..data.len().min(SEALED_MAX_BYTES)];
    let [modern, others @ ..] = halves();
    modern_content(modern, inner);
    for half in others {
        old_content(half, inner);
    }
}

/// Opens one TLS record of the bytes after the other, as a receiver does.
fn stream(mut half: Half, mut data: &[u8]) {
    while let Ok(Some(len)) = half.record_len(data) {
        assert!(len >= half.overhead() && len <= HEADER_BYTES + SEALED_MAX_BYTES);
        let Some((record, rest)) = data.split_at_checked(len) else { return };
        let mut record = record.to_vec();
        let Ok((_, plain)) = half.open(&mut record) else { return };
        assert!(plain.len() <= PLAIN_MAX_BYTES.min(len - half.overhead()));
        data = rest;
    }
}

/// Returns a sealed record with the content `plain`; for TLS 1.3, type and padding follow in `rest`.
fn sealed(half: &mut Half, plain: &[u8], rest: &[u8], content: Content) -> Vec<u8> {
    let mut record = vec![0; half.front()];
    record.extend_from_slice(plain);
    record.extend_from_slice(rest);
    record.resize(plain.len() + half.overhead(), 0);
    let len = half.seal_any(&mut record, plain.len(), content);
    assert_eq!(len, record.len());
    record
}

/// Opens a record of TLS 1.3, and checks that its content is `inner` up to the type byte, the last byte that is not
/// zero.
fn modern_content(mut half: Half, inner: &[u8]) {
    let Some((kind, plain)) = inner.split_last() else { return };
    let mut record = sealed(&mut half, plain, &[*kind], Content::Data);
    let [mut half, ..] = halves();
    let Ok(Some(len)) = half.record_len(&record) else {
        assert!(inner.len() + 16 > SEALED_MAX_BYTES, "{} bytes", inner.len());
        return;
    };
    assert_eq!(len, record.len());
    let last = inner.iter().rposition(|byte| *byte != 0);
    match half.open(&mut record) {
        Ok((content, plain)) => {
            assert_eq!((Some(plain.len()), content as u8), (last, inner[plain.len()]));
            assert!(plain.len() <= PLAIN_MAX_BYTES);
            assert_eq!(&record[plain.clone()], &inner[..plain.len()]);
        }
        Err(_) => {
            let known = CONTENTS.map(|one| one as u8);
            let is_sound = |last: usize| known.contains(&inner[last]) && last <= PLAIN_MAX_BYTES;
            assert!(!last.is_some_and(is_sound), "a sound record is refused");
        }
    }
}

/// Opens a record of TLS 1.2, and checks that its content is `plain`.
fn old_content(mut half: Half, plain: &[u8]) {
    let front = half.front();
    let content = CONTENTS[plain.len() % 3];
    let mut record = sealed(&mut half, plain, &[], content);
    let [_, aes, chacha] = halves();
    let mut half = if front == aes.front() { aes } else { chacha };
    let Ok(Some(len)) = half.record_len(&record) else {
        assert!(plain.len() > PLAIN_MAX_BYTES, "{} bytes", plain.len());
        return;
    };
    assert_eq!(len, record.len());
    let (opened, range) = half.open(&mut record).expect("a sound record");
    assert_eq!((opened, &record[range]), (content, plain));
}
