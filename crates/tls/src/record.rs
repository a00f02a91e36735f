//! One direction of the record layer of TLS 1.3 (RFC 8446, section 5), without I/O.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce,
    UnboundKey,
};
use block::{Result, bail};
pub use rustls::ConnectionTrafficSecrets as Secrets;
pub use rustls::crypto::cipher::{AeadKey, Iv};

/// Length in bytes of the longest plaintext of one TLS record.
pub const PLAIN_MAX_BYTES: usize = 16 << 10;

/// Length in bytes of the header of every TLS record: type, version, length.
pub const HEADER_BYTES: usize = 5;

const TAG_BYTES: usize = 16;

/// Difference in bytes between the length of a TLS record and that of its plaintext: header, content type, tag.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;

/// Greatest length in the header of a TLS record, in bytes: plaintext, type, tag, and padding up to the limit of the
/// protocol.
pub const SEALED_MAX_BYTES: usize = PLAIN_MAX_BYTES + 256;

/// Type of the content of a TLS record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// An alert: the end of the connection, with its reason.
    Alert = 21,
    /// Handshake messages, such as those that renew keys.
    Handshake = 22,
    /// Application data.
    Data = 23,
}

/// The state of one direction of a TLS connection: its keys, and the number of records sealed or opened with them.
pub struct Half {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Half {
    /// Creates the state of one direction from its secrets, which come from the handshake or a key update, and the
    /// number of its next record.
    ///
    /// # Errors
    /// `Unsupported` for an unknown cipher.
    pub fn new((sequence, secrets): (u64, Secrets)) -> Result<Self> {
        let (algorithm, key, iv): (&'static Algorithm, _, _) = match &secrets {
            Secrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            Secrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            Secrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => {
                bail!(Unsupported, "the TLS handshake chose an unsupported cipher");
            }
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).expect("the key fits the cipher");
        let iv = iv.as_ref().try_into().expect("an IV is as long as a nonce");
        Ok(Self { key: LessSafeKey::new(key), iv, sequence })
    }

    /// Returns the number of records sealed or opened with the present keys.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the nonce of the next record. No two records have the same nonce: the number of the record only grows,
    /// and keys are renewed long before its last value.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence = self
            .sequence
            .checked_add(1)
            .expect("keys are renewed before the record counter overflows");
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals the `plain` bytes in `into` that come after the space for a header, so that `into` begins with a record.
    /// Returns the length of the record.
    ///
    /// # Panics
    /// If `plain` is more than [`PLAIN_MAX_BYTES`], or `into` is shorter than `plain` and [`OVERHEAD_BYTES`]
    /// together.
    pub fn seal(&mut self, into: &mut [u8], plain: usize, content: Content) -> usize {
        assert!(plain <= PLAIN_MAX_BYTES, "a TLS record of {plain} bytes is too long");
        into[HEADER_BYTES + plain] = content as u8;
        self.seal_inner(into, plain + 1)
    }

    /// Seals `inner` bytes in `into` that are plaintext, type and padding already, as a malicious peer may do that
    /// has the keys. Returns the length of the record.
    ///
    /// # Panics
    /// If the length does not fit into the header, or `into` has no space for the header and the tag.
    pub fn seal_inner(&mut self, into: &mut [u8], inner: usize) -> usize {
        let sealed = inner + TAG_BYTES;
        assert!(sealed <= usize::from(u16::MAX), "a TLS record of {inner} bytes is too long");
        let (header, rest) = into.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&head(sealed));
        let (text, tail) = rest.split_at_mut(inner);
        let nonce = self.nonce();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), text);
        let tag = tag.expect("a TLS record is shorter than the cipher's limit");
        tail[..TAG_BYTES].copy_from_slice(tag.as_ref());
        HEADER_BYTES + sealed
    }

    /// Seals the bytes `plain` of another buffer, so that `into` begins with a record. The bytes need not be copied
    /// first. Returns the length of the record.
    ///
    /// # Panics
    /// As [`Half::seal`].
    pub fn seal_from(&mut self, plain: &[u8], into: &mut [u8], content: Content) -> usize {
        assert!(
            plain.len() <= PLAIN_MAX_BYTES,
            "a TLS record of {} bytes is too long",
            plain.len()
        );
        let sealed = plain.len() + 1 + TAG_BYTES;
        let (header, rest) = into[..HEADER_BYTES + sealed].split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&head(sealed));
        let (text, tail) = rest.split_at_mut(plain.len());
        let (nonce, aad) = (self.nonce(), Aad::from(&*header));
        let done =
            self.key.seal_out_of_place_scatter(nonce, aad, plain, text, &[content as u8], tail);
        done.expect("a TLS record is shorter than the cipher's limit");
        HEADER_BYTES + sealed
    }

    /// Opens a record in place: the plaintext is after the header then. Returns the type and the length of the
    /// plaintext.
    ///
    /// # Errors
    /// The fault of the record, with the alert to send to the peer.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(Content, usize), Broken> {
        let (header, sealed) = record.split_at_mut(HEADER_BYTES);
        let nonce = self.nonce();
        let opened = self.key.open_in_place(nonce, Aad::from(&*header), sealed);
        let opened = opened
            .map_err(|_| Broken::new(BAD_RECORD_MAC, "a record that fails authentication"))?;
        let last = opened.iter().rposition(|byte| *byte != 0);
        let last = last.ok_or(Broken::new(UNEXPECTED_MESSAGE, "a record that has only padding"))?;
        let content = match opened[last] {
            21 => Content::Alert,
            22 => Content::Handshake,
            23 => Content::Data,
            _ => return Err(Broken::new(UNEXPECTED_MESSAGE, "a record of an unknown type")),
        };
        if last > PLAIN_MAX_BYTES {
            return Err(Broken::new(RECORD_OVERFLOW, "a record of more than 16384 bytes"));
        }
        Ok((content, last))
    }
}

/// Returns the header of a sealed record. The header of every such record is that of data in TLS 1.2.
fn head(sealed: usize) -> [u8; HEADER_BYTES] {
    [Content::Data as u8, 3, 3, (sealed >> 8) as u8, sealed as u8]
}

/// Returns the length of the TLS record at the start of `bytes`, with its header; `None` if the header is incomplete.
///
/// # Errors
/// An error if `bytes` do not begin with the header of a sealed record.
pub fn record_len(bytes: &[u8]) -> Result<Option<usize>, Broken> {
    let Some(header) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
    let len = usize::from(header[3]) << 8 | usize::from(header[4]);
    if header[0] != Content::Data as u8 || header[1] != 3 {
        return Err(Broken::new(UNEXPECTED_MESSAGE, "bytes that are not an encrypted record"));
    }
    if len > SEALED_MAX_BYTES {
        return Err(Broken::new(RECORD_OVERFLOW, "a record longer than 16640 bytes"));
    }
    if len <= TAG_BYTES {
        return Err(Broken::new(BAD_RECORD_MAC, "an encrypted record that is too short"));
    }
    Ok(Some(HEADER_BYTES + len))
}

// Alerts of TLS, by their numbers (RFC 8446, section 6).

/// Alert: the sender sends no more data.
pub const CLOSE_NOTIFY: u8 = 0;
/// Alert: the peer sent a message that is not allowed in this state.
pub const UNEXPECTED_MESSAGE: u8 = 10;
/// Alert: the peer sent a record that was not sealed with the present keys.
pub const BAD_RECORD_MAC: u8 = 20;
/// Alert: the peer sent a record that is too long.
pub const RECORD_OVERFLOW: u8 = 22;
/// Alert: the peer sent a message that cannot be parsed.
pub const DECODE_ERROR: u8 = 50;
/// Alert: the sender has an internal error.
pub const INTERNAL_ERROR: u8 = 80;
/// Alert: the user of the sender cancelled the connection.
pub const USER_CANCELED: u8 = 90;

/// A fault in a TLS record from the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The alert to send to the peer for the fault.
    pub alert: u8,
    /// The description of the fault for the log of this side.
    pub words: &'static str,
}

impl Broken {
    /// Creates a fault, with the alert to send to the peer and the description for the log of this side.
    pub const fn new(alert: u8, words: &'static str) -> Self {
        Self { alert, words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Half, Half) {
        let half = || {
            let key = rustls::crypto::cipher::AeadKey::from([7; 32]);
            let iv = rustls::crypto::cipher::Iv::from([9; NONCE_LEN]);
            Half::new((0, Secrets::Aes256Gcm { key, iv })).unwrap()
        };
        (half(), half())
    }

    fn sealed(half: &mut Half, plain: &[u8], content: Content) -> Vec<u8> {
        let mut record = vec![0; plain.len() + OVERHEAD_BYTES];
        record[HEADER_BYTES..][..plain.len()].copy_from_slice(plain);
        let len = half.seal(&mut record, plain.len(), content);
        assert_eq!(len, record.len());
        assert_eq!(record_len(&record), Ok(Some(len)));
        record
    }

    #[test]
    fn tls_records_decrypt_only_in_order() {
        let (mut to, mut from) = pair();
        let mut first = sealed(&mut to, b"one", Content::Data);
        let mut second = sealed(&mut to, &[0; PLAIN_MAX_BYTES], Content::Handshake);
        assert_eq!(from.open(&mut first), Ok((Content::Data, 3)));
        assert_eq!(&first[HEADER_BYTES..][..3], b"one");
        assert_eq!(from.open(&mut second), Ok((Content::Handshake, PLAIN_MAX_BYTES)));
        let mut third = sealed(&mut to, b"three", Content::Data);
        let mut fourth = sealed(&mut to, b"four", Content::Data);
        assert_eq!(from.open(&mut fourth).unwrap_err().alert, BAD_RECORD_MAC);
        let _ = &mut third;
    }

    #[test]
    fn tls_encryption_from_other_buffer_equals_encryption_in_place() {
        let plain = [3; 1000];
        let mut record = [0; 1000 + OVERHEAD_BYTES];
        assert_eq!(pair().0.seal_from(&plain, &mut record, Content::Data), record.len());
        assert_eq!(record[..], sealed(&mut pair().0, &plain, Content::Data));
    }

    #[test]
    fn tls_decryption_rejects_record_with_any_flipped_bit() {
        for bit in 0..(4 + OVERHEAD_BYTES) * 8 {
            let (mut to, mut from) = pair();
            let mut record = sealed(&mut to, b"data", Content::Data);
            record[bit / 8] ^= 1 << (bit % 8);
            assert!(from.open(&mut record).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn tls_record_length_rejects_invalid_headers() {
        assert_eq!(record_len(&[23, 3, 3, 0]), Ok(None));
        assert_eq!(record_len(b"GET / HTTP").unwrap_err().alert, UNEXPECTED_MESSAGE);
        assert_eq!(record_len(&[23, 3, 3, 0x41, 1]).unwrap_err().alert, RECORD_OVERFLOW);
        assert_eq!(record_len(&[23, 3, 3, 0, 16]).unwrap_err().alert, BAD_RECORD_MAC);
    }
}
