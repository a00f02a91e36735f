//! One direction of the record layer of TLS 1.3 (RFC 8446, section 5) and of TLS 1.2 with AEAD ciphers (RFC 5246, section
//! 6.2.3.3), without I/O.

use std::ops::Range;

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

/// Length in bytes of the part of the nonce that a record of TLS 1.2 with AES-GCM carries (RFC 5288, section 3).
const EXPLICIT_BYTES: usize = 8;

/// Greatest difference in bytes between the length of a TLS record and that of its plaintext: header, explicit nonce,
/// tag.
pub const OVERHEAD_MAX_BYTES: usize = HEADER_BYTES + EXPLICIT_BYTES + TAG_BYTES;

/// Greatest length in the header of a TLS record, in bytes: plaintext, type, tag, and padding up to the limit of TLS
/// 1.3. Records of TLS 1.2 with AEAD ciphers are shorter.
pub const SEALED_MAX_BYTES: usize = PLAIN_MAX_BYTES + 256;

/// Length in bytes of the additional data of a TLS 1.2 record: number, type, version and length of the plaintext
/// (RFC 5246, section 6.2.3.3).
const ADDITIONAL_BYTES: usize = 8 + HEADER_BYTES;

/// Most bytes that one side protects with the same keys of AES-GCM: those of 2^24 records of full length. The limit of
/// TLS 1.3 is 2^24.5 such records (RFC 8446, section 5.5), and RFC 9325, section 4.4, recommends it for TLS 1.2 too.
pub const KEYS_MAX_BYTES: u64 = (PLAIN_MAX_BYTES as u64) << 24;

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

impl Content {
    fn new(number: u8) -> Result<Self, Broken> {
        match number {
            21 => Ok(Self::Alert),
            22 => Ok(Self::Handshake),
            23 => Ok(Self::Data),
            _ => Err(Broken::new(UNEXPECTED_MESSAGE, "a record of an unknown type")),
        }
    }
}

/// The version of TLS on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// TLS 1.2 (RFC 5246), with ciphers that authenticate the records (AEAD) only.
    Tls12,
    /// TLS 1.3 (RFC 8446).
    Tls13,
}

/// The form of the sealed records of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// TLS 1.3 with any cipher: the type of the content is sealed with it, and padding may follow (RFC 8446, section
    /// 5.2).
    Tls13,
    /// TLS 1.2 with AES-GCM: a part of the nonce precedes the sealed content (RFC 5288, section 3).
    Tls12Gcm,
    /// TLS 1.2 with ChaCha20-Poly1305: the nonce is made of the number of the record (RFC 7905, section 2).
    Tls12Chacha,
}

/// The additional data of a record: bytes that are authenticated, and not encrypted.
struct Additional {
    bytes: [u8; ADDITIONAL_BYTES],
    len: usize,
}

impl AsRef<[u8]> for Additional {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The state of one direction of a TLS connection: its keys, and the number of records sealed or opened with them.
pub struct Half {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    form: Form,
    sequence: u64,
    /// Number of bytes sealed with the present keys, with two blocks of the cipher for each record.
    sealed_bytes: u64,
}

impl Half {
    /// Creates the state of one direction from its secrets, which come from the handshake or a key update, and the
    /// number of its next record.
    ///
    /// # Errors
    /// `Unsupported` for an unknown cipher.
    pub fn new(version: Version, (sequence, secrets): (u64, Secrets)) -> Result<Self> {
        let (algorithm, key, iv): (&'static Algorithm, _, _) = match &secrets {
            Secrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            Secrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            Secrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => {
                bail!(Unsupported, "the TLS handshake chose an unsupported cipher");
            }
        };
        let form = match (version, &secrets) {
            (Version::Tls13, _) => Form::Tls13,
            (Version::Tls12, Secrets::Chacha20Poly1305 { .. }) => Form::Tls12Chacha,
            (Version::Tls12, _) => Form::Tls12Gcm,
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).expect("the key fits the cipher");
        let iv = iv.as_ref().try_into().expect("an IV is as long as a nonce");
        Ok(Self { key: LessSafeKey::new(key), iv, form, sequence, sealed_bytes: 0 })
    }

    /// Returns the version of TLS of the connection.
    pub fn version(&self) -> Version {
        match self.form {
            Form::Tls13 => Version::Tls13,
            Form::Tls12Gcm | Form::Tls12Chacha => Version::Tls12,
        }
    }

    /// Returns whether this side has protected `limit` bytes with the present keys, so that it must renew them. Keys of
    /// ChaCha20-Poly1305 have no limit: the number of the record would overflow first (RFC 8446, section 5.5). TLS 1.3
    /// renews them all the same, as that costs nothing.
    pub fn is_worn(&self, limit: u64) -> bool {
        self.form != Form::Tls12Chacha && self.sealed_bytes >= limit
    }

    /// Returns the offset of the plaintext in a record: the length of the header, and of the explicit nonce if the
    /// records have one.
    pub fn front(&self) -> usize {
        HEADER_BYTES + if self.form == Form::Tls12Gcm { EXPLICIT_BYTES } else { 0 }
    }

    /// Returns the difference in bytes between the length of a record of this side and that of its plaintext.
    pub fn overhead(&self) -> usize {
        self.front() + TAG_BYTES + usize::from(self.form == Form::Tls13)
    }

    /// Returns the nonce of the next record. No two records have the same nonce: the number of the record only grows,
    /// and cannot reach its last value. TLS 1.2 lets the sender choose the explicit part for AES-GCM; this is the part
    /// that depends on the number.
    fn nonce(&self) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    fn count(&mut self) {
        self.sequence = self
            .sequence
            .checked_add(1)
            .expect("a TLS connection ends before its record counter overflows");
    }

    /// Returns the additional data of the next record, which has this header and this number of bytes of plaintext.
    fn additional(&self, header: &[u8], plain: usize) -> Additional {
        let mut bytes = [0; ADDITIONAL_BYTES];
        if self.form == Form::Tls13 {
            bytes[..HEADER_BYTES].copy_from_slice(header);
            return Additional { bytes, len: HEADER_BYTES };
        }
        bytes[..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..11].copy_from_slice(&header[..3]);
        bytes[11..].copy_from_slice(&(plain as u16).to_be_bytes());
        Additional { bytes, len: ADDITIONAL_BYTES }
    }

    /// Writes the parts of the next record that precede its plaintext. Returns its nonce and its additional data.
    fn begin(&mut self, front: &mut [u8], plain: usize, content: Content) -> (Nonce, Additional) {
        let sealed = plain + self.overhead() - HEADER_BYTES;
        assert!(sealed <= usize::from(u16::MAX), "a TLS record of {plain} bytes is too long");
        // The header of every sealed record of TLS 1.3 is that of data in TLS 1.2.
        let outside = if self.form == Form::Tls13 { Content::Data } else { content };
        front[..HEADER_BYTES].copy_from_slice(&[
            outside as u8,
            3,
            3,
            (sealed >> 8) as u8,
            sealed as u8,
        ]);
        let nonce = self.nonce();
        if self.form == Form::Tls12Gcm {
            front[HEADER_BYTES..].copy_from_slice(&nonce[NONCE_LEN - EXPLICIT_BYTES..]);
        }
        let additional = self.additional(&front[..HEADER_BYTES], plain);
        self.count();
        self.sealed_bytes += plain as u64 + 2 * TAG_BYTES as u64;
        (Nonce::assume_unique_for_key(nonce), additional)
    }

    /// Seals the `plain` bytes in `into` that come after [`Half::front`] bytes of space, so that `into` begins with a
    /// record. Returns the length of the record.
    ///
    /// # Panics
    /// If `plain` is more than [`PLAIN_MAX_BYTES`], or `into` is shorter than `plain` and [`Half::overhead`] together.
    pub fn seal(&mut self, into: &mut [u8], plain: usize, content: Content) -> usize {
        assert!(plain <= PLAIN_MAX_BYTES, "a TLS record of {plain} bytes is too long");
        if self.form == Form::Tls13 {
            into[HEADER_BYTES + plain] = content as u8;
        }
        self.seal_any(into, plain, content)
    }

    /// Seals as [`Half::seal`] does, but with any length, as a malicious peer may do that has the keys. In TLS 1.3 the
    /// byte after the plaintext is the type, and the caller has written it.
    ///
    /// # Panics
    /// If the length does not fit into the header, or `into` is too short.
    pub fn seal_any(&mut self, into: &mut [u8], plain: usize, content: Content) -> usize {
        let (front, rest) = into.split_at_mut(self.front());
        let (nonce, additional) = self.begin(front, plain, content);
        let (text, tail) = rest.split_at_mut(plain + usize::from(self.form == Form::Tls13));
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(additional), text);
        let tag = tag.expect("a TLS record is shorter than the cipher's limit");
        tail[..TAG_BYTES].copy_from_slice(tag.as_ref());
        plain + self.overhead()
    }

    /// Seals the bytes `plain` of another buffer, so that `into` begins with a record. The bytes need not be copied
    /// first. Returns the length of the record.
    ///
    /// # Panics
    /// As [`Half::seal`].
    pub fn seal_from(&mut self, plain: &[u8], into: &mut [u8], content: Content) -> usize {
        let len = plain.len();
        assert!(len <= PLAIN_MAX_BYTES, "a TLS record of {len} bytes is too long");
        let (front, rest) = into[..len + self.overhead()].split_at_mut(self.front());
        let (nonce, additional) = self.begin(front, len, content);
        let (text, tail) = rest.split_at_mut(len);
        let inner: &[u8] = if self.form == Form::Tls13 { &[content as u8] } else { &[] };
        let aad = Aad::from(additional);
        let done = self.key.seal_out_of_place_scatter(nonce, aad, plain, text, inner, tail);
        done.expect("a TLS record is shorter than the cipher's limit");
        len + self.overhead()
    }

    /// Opens a record in place. Returns the type of its content, and the range of the plaintext in `record`.
    ///
    /// # Errors
    /// The fault of the record, with the alert to send to the peer.
    ///
    /// # Panics
    /// If `record` is not as long as [`Half::record_len`] returned for it.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(Content, Range<usize>), Broken> {
        let (at, kind) = (self.front(), record[0]);
        let mut nonce = self.nonce();
        let (front, sealed) = record.split_at_mut(at);
        if self.form == Form::Tls12Gcm {
            nonce[NONCE_LEN - EXPLICIT_BYTES..].copy_from_slice(&front[HEADER_BYTES..]);
        }
        let plain = sealed.len() - TAG_BYTES;
        let aad = Aad::from(self.additional(&front[..HEADER_BYTES], plain));
        self.count();
        let opened = self.key.open_in_place(Nonce::assume_unique_for_key(nonce), aad, sealed);
        let opened = opened
            .map_err(|_| Broken::new(BAD_RECORD_MAC, "a record that fails authentication"))?;
        let (kind, len) = match self.form {
            Form::Tls12Gcm | Form::Tls12Chacha => (kind, opened.len()),
            Form::Tls13 => {
                let last = opened.iter().rposition(|byte| *byte != 0);
                let words = "a record that has only padding";
                let last = last.ok_or(Broken::new(UNEXPECTED_MESSAGE, words))?;
                (opened[last], last)
            }
        };
        let content = Content::new(kind)?;
        if len > PLAIN_MAX_BYTES {
            return Err(Broken::new(RECORD_OVERFLOW, "a record of more than 16384 bytes"));
        }
        Ok((content, at..at + len))
    }

    /// Returns the length of the TLS record at the start of `bytes`, with its header; `None` if the header is
    /// incomplete.
    ///
    /// # Errors
    /// An error if `bytes` do not begin with the header of a sealed record.
    pub fn record_len(&self, bytes: &[u8]) -> Result<Option<usize>, Broken> {
        let Some(header) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
        let len = usize::from(header[3]) << 8 | usize::from(header[4]);
        // TLS 1.3 ignores the second byte of the version.
        let is_sealed = match self.form {
            Form::Tls13 => header[0] == Content::Data as u8 && header[1] == 3,
            _ => Content::new(header[0]).is_ok() && header[1..3] == [3, 3],
        };
        if !is_sealed {
            return Err(Broken::new(UNEXPECTED_MESSAGE, "bytes that are not an encrypted record"));
        }
        let sealed = HEADER_BYTES + len;
        let longest = match self.form {
            Form::Tls13 => HEADER_BYTES + SEALED_MAX_BYTES,
            _ => PLAIN_MAX_BYTES + self.overhead(),
        };
        if sealed > longest {
            return Err(Broken::new(RECORD_OVERFLOW, "a record longer than the protocol allows"));
        }
        if sealed < self.overhead() {
            return Err(Broken::new(BAD_RECORD_MAC, "an encrypted record that is too short"));
        }
        Ok(Some(sealed))
    }
}

// Alerts of TLS, by their numbers (RFC 8446, section 6; RFC 5246, section 7.2).

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
/// Alert: the sender does not renegotiate, as the peer has requested in TLS 1.2. It is always a warning.
pub const NO_RENEGOTIATION: u8 = 100;

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

    /// One pair of sender and receiver for each form of records.
    fn pairs() -> Vec<(Half, Half)> {
        let (key, iv) = (|| AeadKey::from([7; 32]), || Iv::from([9; NONCE_LEN]));
        let aes = || Secrets::Aes256Gcm { key: key(), iv: iv() };
        let chacha = || Secrets::Chacha20Poly1305 { key: key(), iv: iv() };
        let pair = |version, secrets: &dyn Fn() -> Secrets| {
            let half = || Half::new(version, (5, secrets())).unwrap();
            (half(), half())
        };
        [Version::Tls13, Version::Tls12]
            .into_iter()
            .flat_map(|version| [pair(version, &aes), pair(version, &chacha)])
            .collect()
    }

    fn sealed(half: &mut Half, plain: &[u8], content: Content) -> Vec<u8> {
        let mut record = vec![0; plain.len() + half.overhead()];
        record[half.front()..][..plain.len()].copy_from_slice(plain);
        let len = half.seal(&mut record, plain.len(), content);
        assert_eq!(len, record.len());
        assert_eq!(half.record_len(&record), Ok(Some(len)));
        record
    }

    #[test]
    fn tls_records_decrypt_only_in_order() {
        for (mut to, mut from) in pairs() {
            let mut first = sealed(&mut to, b"one", Content::Data);
            let mut second = sealed(&mut to, &[0; PLAIN_MAX_BYTES], Content::Handshake);
            let mut empty = sealed(&mut to, b"", Content::Data);
            let (content, plain) = from.open(&mut first).unwrap();
            assert_eq!((content, &first[plain]), (Content::Data, &b"one"[..]));
            let (content, plain) = from.open(&mut second).unwrap();
            assert_eq!((content, plain.len()), (Content::Handshake, PLAIN_MAX_BYTES));
            assert_eq!(from.open(&mut empty).unwrap().1.len(), 0);
            let _third = sealed(&mut to, b"three", Content::Data);
            let mut fourth = sealed(&mut to, b"four", Content::Data);
            assert_eq!(from.open(&mut fourth).unwrap_err().alert, BAD_RECORD_MAC);
        }
    }

    #[test]
    fn tls_encryption_from_other_buffer_equals_encryption_in_place() {
        let plain = [3; 1000];
        for ((mut one, _), (mut other, _)) in pairs().into_iter().zip(pairs()) {
            let mut record = vec![0; 1000 + one.overhead()];
            assert_eq!(one.seal_from(&plain, &mut record, Content::Data), record.len());
            assert_eq!(record, sealed(&mut other, &plain, Content::Data));
        }
    }

    #[test]
    fn tls_decryption_rejects_record_with_any_flipped_bit() {
        for form in 0..pairs().len() {
            for bit in 0..(4 + pairs()[form].0.overhead()) * 8 {
                let (mut to, mut from) = pairs().remove(form);
                let mut record = sealed(&mut to, b"data", Content::Data);
                record[bit / 8] ^= 1 << (bit % 8);
                // A record of another length is incomplete, or has the wrong tag.
                let is_whole = from.record_len(&record) == Ok(Some(record.len()));
                assert!(!is_whole || from.open(&mut record).is_err(), "form {form}, bit {bit}");
            }
        }
    }

    /// The form of a record of TLS 1.2: its type is outside, and only AES-GCM has an explicit nonce.
    #[test]
    fn tls_1_2_records_have_type_outside_and_explicit_nonce_of_aes_gcm() {
        let [(mut aes, _), (mut chacha, _)] = pairs().split_off(2).try_into().ok().unwrap();
        let record = sealed(&mut aes, b"data", Content::Alert);
        assert_eq!(record.len(), 5 + 8 + 4 + 16);
        assert_eq!(record[..5], [21, 3, 3, 0, 28]);
        let first = &record[5..13].to_vec();
        assert_ne!(first[..], sealed(&mut aes, b"data", Content::Alert)[5..13], "a nonce twice");
        let record = sealed(&mut chacha, b"data", Content::Data);
        assert_eq!((record.len(), &record[..5]), (5 + 4 + 16, &[23, 3, 3, 0, 20][..]));
    }

    /// The receiver takes the explicit nonce from the record: other senders choose it in another way.
    #[test]
    fn tls_1_2_record_of_aes_gcm_decrypts_with_any_explicit_nonce() {
        let (_, mut from) = pairs().remove(2);
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).unwrap());
        let mut nonce = [9; NONCE_LEN];
        nonce[4..].copy_from_slice(b"anything");
        let additional = [0, 0, 0, 0, 0, 0, 0, 5, 23, 3, 3, 0, 4];
        let mut text = b"data".to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(additional), &mut text).unwrap();
        let mut record = [&[23, 3, 3, 0, 28][..], b"anything", &text].concat();
        let (content, plain) = from.open(&mut record).unwrap();
        assert_eq!((content, &record[plain]), (Content::Data, &b"data"[..]));
    }

    #[test]
    fn tls_keys_of_aes_gcm_are_worn_after_their_limit() {
        for (form, (mut to, _)) in pairs().into_iter().enumerate() {
            let _ = sealed(&mut to, &[0; 100], Content::Data);
            assert!(!to.is_worn(133));
            // The keys of ChaCha20-Poly1305 last for a whole connection of TLS 1.2, which cannot renew them.
            assert_eq!(to.is_worn(132), form != 3);
        }
    }

    #[test]
    fn tls_record_length_rejects_invalid_headers() {
        for (half, _) in pairs() {
            let (one_more, short) = match (half.version(), half.overhead()) {
                (Version::Tls13, _) => (0x4101u16, 16u16),
                (Version::Tls12, overhead) => {
                    (0x4001 + overhead as u16 - 5, overhead as u16 - 5 - 1)
                }
            };
            let head = |kind, len: u16| [&[kind, 3, 3][..], &len.to_be_bytes()].concat();
            assert_eq!(half.record_len(&[23, 3, 3, 0]), Ok(None));
            assert_eq!(half.record_len(b"GET / HTTP").unwrap_err().alert, UNEXPECTED_MESSAGE);
            // A ChangeCipherSpec belongs to a handshake.
            assert_eq!(half.record_len(&head(20, 40)).unwrap_err().alert, UNEXPECTED_MESSAGE);
            assert_eq!(half.record_len(&head(23, one_more)).unwrap_err().alert, RECORD_OVERFLOW);
            assert!(half.record_len(&head(23, one_more - 1)).unwrap().is_some());
            assert_eq!(half.record_len(&head(23, short)).unwrap_err().alert, BAD_RECORD_MAC);
            assert!(half.record_len(&head(23, short + 1)).unwrap().is_some());
        }
    }
}
