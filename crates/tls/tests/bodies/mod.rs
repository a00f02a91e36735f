//! The body of the fuzz target of TLS records. `fuzz/` includes this file, and `fuzz_smoke.rs` runs the body over a few
//! thousand inputs in each `cargo test`.

use tls::record::{
    AeadKey, Content, HEADER_BYTES, Half, Iv, OVERHEAD_BYTES, PLAIN_MAX_BYTES, SEALED_MAX_BYTES,
    Secrets, record_len,
};

/// Returns the state of one direction of a TLS connection, with fixed keys.
pub fn half() -> Half {
    let (key, iv) = (AeadKey::from([7; 32]), Iv::from([9; 12]));
    Half::new((0, Secrets::Aes256Gcm { key, iv })).expect("a cipher that is known")
}

/// Feeds fuzzed bytes to a TLS receiver: as unauthenticated records, and as the content of a record with valid keys.
pub fn records(data: &[u8]) {
    stream(data);
    let inner = data.len().min(SEALED_MAX_BYTES);
    let mut record = vec![0; inner + OVERHEAD_BYTES];
    record[HEADER_BYTES..][..inner].copy_from_slice(&data[..inner]);
    let len = half().seal_inner(&mut record, inner);
    record.truncate(len);
    inside(&mut record, &data[..inner]);
}

/// Opens one TLS record of the bytes after the other, as a receiver does.
fn stream(mut data: &[u8]) {
    let mut half = half();
    while let Ok(Some(len)) = record_len(data) {
        assert!(len > HEADER_BYTES && len <= HEADER_BYTES + SEALED_MAX_BYTES);
        let Some((record, rest)) = data.split_at_checked(len) else { return };
        let mut record = record.to_vec();
        let Ok((_, plain)) = half.open(&mut record) else { return };
        assert!(plain <= PLAIN_MAX_BYTES.min(len - OVERHEAD_BYTES));
        data = rest;
    }
}

/// Opens a sealed record, and checks that its content is `inner` up to the type byte, the last byte that is not zero.
fn inside(record: &mut [u8], inner: &[u8]) {
    let Ok(Some(len)) = record_len(record) else {
        assert!(inner.is_empty() || inner.len() + 16 > SEALED_MAX_BYTES, "{} bytes", inner.len());
        return;
    };
    assert_eq!(len, record.len());
    let last = inner.iter().rposition(|byte| *byte != 0);
    match half().open(record) {
        Ok((content, plain)) => {
            assert_eq!((Some(plain), content as u8), (last, inner[plain]));
            assert_eq!(&record[HEADER_BYTES..][..plain], &inner[..plain]);
            assert!(plain <= PLAIN_MAX_BYTES);
        }
        Err(_) => {
            let known = [Content::Alert, Content::Handshake, Content::Data].map(|one| one as u8);
            let is_sound = |last: usize| known.contains(&inner[last]) && last <= PLAIN_MAX_BYTES;
            assert!(!last.is_some_and(is_sound), "a sound record is refused");
        }
    }
}
