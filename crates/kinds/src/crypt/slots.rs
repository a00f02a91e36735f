//! The codec of key slots, as `docs/formats/keyslots.md` specifies it. No I/O, no cryptography.

use kind::Summary;
use std::fmt;

/// Bytes of the encoded state of an encrypted device, with its key slots.
pub const STATE_BYTES: usize = HEADER_BYTES + SLOTS * SLOT_BYTES;
/// Number of key slots of one encrypted device.
pub const SLOTS: usize = 8;
/// Maximum length in bytes of the label of a key slot, a text for operators.
pub const LABEL_BYTES_MAX: usize = 64;

/// Least memory of one key derivation, in KiB.
pub const MEMORY_KIB_MIN: u32 = 64;
/// Most memory that one key derivation may need, in KiB: 1 GiB.
pub const MEMORY_KIB_MAX: u32 = 1 << 20;
/// Most passes over the memory in one key derivation.
pub const PASSES_MAX: u32 = 64;
/// Most lanes of one key derivation; one thread computes them all.
pub const LANES_MAX: u32 = 4;
/// Largest product of memory in KiB and passes of one key derivation. A product of 16 GiB takes less than a minute.
pub const WORK_KIB_MAX: u64 = 16 << 20;

const HEADER_BYTES: usize = 192;
const SLOT_BYTES: usize = 256;
const MAGIC: [u8; 8] = *b"CRNKEYS\0";
const VERSION: u16 = 1;
const AES_256_XTS: u16 = 1;
const UNIT_MIN: u32 = 512;
const UNIT_MAX: u32 = 65536;
/// The part of the header that the authentication tag of every key slot covers.
const BOUND: std::ops::Range<usize> = 0..72;
const CHECK_AT: usize = 40;
const LANE_KIB_MIN: u32 = 8;

const EMPTY: u8 = 0;
const IN_USE: u8 = 1;
const ARGON2ID: u8 = 1;
const AES_256_GCM: u8 = 1;
const WRAPPED_AT: usize = 68;
const TAG_AT: usize = 132;
const LABEL_AT: usize = 148;

/// The state of an encrypted device in labels: parameters of the encryption, and the key slots with the wrapped volume
/// key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeySlots {
    /// Length in bytes of a data unit, the piece of data that is encrypted with one tweak.
    pub unit: u32,
    /// Random identity of the encrypted volume, drawn when the volume is created.
    pub volume_id: [u8; 16],
    /// Check value of the volume key: an HMAC of the header.
    pub check: [u8; 32],
    /// The key slots by number; `None` for an empty key slot.
    pub slots: [Option<Slot>; SLOTS],
}

/// Describes the encoded state of an encrypted device for people.
///
/// # Errors
/// The reason why `bytes` are no valid state with key slots.
pub fn describe(bytes: &[u8]) -> Result<Summary, String> {
    let kept = KeySlots::parse(bytes).map_err(|error| error.to_string())?;
    let used = kept.slots.iter().flatten().count();
    Ok(Summary::whole(format!("{used} of {SLOTS} key slots")))
}

/// A key slot: the volume key, wrapped with the key of one passphrase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Cost of the key derivation from the passphrase.
    pub cost: Cost,
    /// Time when the key slot was made, in seconds since 1970.
    pub made_unix_s: u64,
    /// Salt of the key derivation.
    pub salt: [u8; 32],
    /// Nonce with which the volume key is wrapped.
    pub nonce: [u8; 12],
    /// The wrapped volume key.
    pub wrapped: [u8; 64],
    /// Authentication tag, which proves that the key slot is unchanged.
    pub tag: [u8; 16],
    /// A label of the key slot, for operators.
    pub label: String,
}

/// The cost of an Argon2id key derivation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Memory of the key derivation in KiB.
    pub memory_kib: u32,
    /// Passes of the key derivation over its memory.
    pub passes: u32,
    /// Lanes into which the memory of the key derivation is divided.
    pub lanes: u32,
}

impl Cost {
    /// Checks that memory, passes and lanes are within the limits of the format.
    ///
    /// # Errors
    /// The number that exceeds its limit, and the limit.
    pub fn check(self) -> Result<(), FormatError> {
        let Self { memory_kib, passes, lanes } = self;
        let within = |what, value: u32, least: u32, most: u32| match value {
            _ if value < least || value > most => {
                Err(FormatError::Number { what, value: value.into(), least, most: most.into() })
            }
            _ => Ok(()),
        };
        within("lanes", lanes, 1, LANES_MAX)?;
        let least = MEMORY_KIB_MIN.max(LANE_KIB_MIN * lanes);
        within("memory in KiB", memory_kib, least, MEMORY_KIB_MAX)?;
        within("passes", passes, 1, PASSES_MAX)?;
        let value = u64::from(memory_kib) * u64::from(passes);
        if value > WORK_KIB_MAX {
            let what = "memory in KiB times passes";
            return Err(FormatError::Number { what, value, least: 1, most: WORK_KIB_MAX });
        }
        Ok(())
    }
}

/// The reason why bytes are no valid state with key slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FormatError {
    /// The length of the state in bytes, which is not [`STATE_BYTES`].
    Length(usize),
    /// The bytes do not begin with the magic number of key slots.
    Magic,
    /// The version, the cipher or another code in the bytes is unknown.
    Unknown {
        /// Name of the field with the unknown value.
        what: &'static str,
        /// Value of the field in the bytes.
        value: u64,
    },
    /// A number in the encoded key slots is outside its limits.
    Number {
        /// Name of the field with the number.
        what: &'static str,
        /// Value of the field in the encoded key slots.
        value: u64,
        /// Least permitted value of the field.
        least: u32,
        /// Greatest permitted value of the field.
        most: u64,
    },
    /// The size of a data unit in bytes, which is no power of two from 512 to 65536.
    Unit(u32),
    /// The unused byte at this offset is not zero.
    NotZero(usize),
    /// The label of the key slot with this number is no valid text.
    Label(usize),
    /// No key slot is in use: the volume could never be opened.
    NoSlot,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "{bytes} bytes; key slots have {STATE_BYTES}"),
            Self::Magic => f.write_str("not key slots: the first bytes are not the magic number"),
            Self::Unknown { what, value } => {
                write!(f, "{what} {value} is unknown; a newer Cairn may have written the key slots")
            }
            Self::Number { what, value, least, most } => {
                write!(f, "{what}: {value}; {least} to {most} are possible")
            }
            Self::Unit(unit) => {
                write!(f, "a data unit of {unit} bytes; a power of two, 512 to 65536, is needed")
            }
            Self::NotZero(at) => write!(f, "unused byte {at} is not zero"),
            Self::Label(slot) => write!(f, "the label of key slot {slot} is not valid text"),
            Self::NoSlot => f.write_str("no key slot is in use: no passphrase opens the volume"),
        }
    }
}

impl std::error::Error for FormatError {}

/// A reader of the fields of an encoded state, in order.
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let field = self.bytes[self.at..self.at + N].try_into().expect("the field has this length");
        self.at += N;
        field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn known(&mut self, what: &'static str, value: u64, known: u64) -> Result<(), FormatError> {
        if value == known { Ok(()) } else { Err(FormatError::Unknown { what, value }) }
    }

    /// Skips the bytes up to `end`, which must be zero. `base` is the offset of the reader's bytes in the encoded
    /// state.
    fn zeros(&mut self, end: usize, base: usize) -> Result<(), FormatError> {
        let odd = self.bytes[self.at..end].iter().position(|byte| *byte != 0);
        match odd {
            Some(n) => Err(FormatError::NotZero(base + self.at + n)),
            None => {
                self.at = end;
                Ok(())
            }
        }
    }
}

impl KeySlots {
    /// Parses the encoded state of an encrypted device. The bytes are not trusted.
    ///
    /// # Errors
    /// The first violation of the format.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() != STATE_BYTES {
            return Err(FormatError::Length(bytes.len()));
        }
        let mut reader = Reader { bytes, at: 0 };
        if reader.take() != MAGIC {
            return Err(FormatError::Magic);
        }
        let version = u16::from_le_bytes(reader.take());
        reader.known("version", version.into(), VERSION.into())?;
        let cipher = u16::from_le_bytes(reader.take());
        reader.known("cipher", cipher.into(), AES_256_XTS.into())?;
        let unit = reader.u32();
        if !unit.is_power_of_two() || !(UNIT_MIN..=UNIT_MAX).contains(&unit) {
            return Err(FormatError::Unit(unit));
        }
        let features = u64::from_le_bytes(reader.take());
        reader.known("features", features, 0)?;
        let (volume_id, check) = (reader.take(), reader.take());
        reader.zeros(HEADER_BYTES, 0)?;
        let mut slots = [const { None }; SLOTS];
        for (number, slot) in slots.iter_mut().enumerate() {
            let base = HEADER_BYTES + number * SLOT_BYTES;
            *slot = Slot::parse(&bytes[base..base + SLOT_BYTES], number, base)?;
        }
        if slots.iter().all(Option::is_none) {
            return Err(FormatError::NoSlot);
        }
        Ok(Self { unit, volume_id, check, slots })
    }

    /// Encodes the state of the encrypted device.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.head().to_vec();
        bytes.extend_from_slice(&self.check);
        bytes.resize(HEADER_BYTES, 0);
        for slot in &self.slots {
            match slot {
                Some(slot) => bytes.extend_from_slice(&slot.encode()),
                None => bytes.resize(bytes.len() + SLOT_BYTES, 0),
            }
        }
        bytes
    }

    /// Returns the header bytes that the check value of the volume key covers.
    pub fn head(&self) -> [u8; CHECK_AT] {
        let mut head = [0; CHECK_AT];
        head[..8].copy_from_slice(&MAGIC);
        head[8..10].copy_from_slice(&VERSION.to_le_bytes());
        head[10..12].copy_from_slice(&AES_256_XTS.to_le_bytes());
        head[12..16].copy_from_slice(&self.unit.to_le_bytes());
        head[24..40].copy_from_slice(&self.volume_id);
        head
    }

    /// Returns the bytes that the authentication tag of a key slot covers besides the volume key: the header of the
    /// state, and the fields of the key slot.
    pub fn bound(&self, slot: &Slot) -> Vec<u8> {
        let mut bytes = self.head().to_vec();
        bytes.extend_from_slice(&self.check);
        debug_assert_eq!(bytes.len(), BOUND.len());
        let slot = slot.encode();
        bytes.extend_from_slice(&slot[..WRAPPED_AT]);
        bytes.extend_from_slice(&slot[LABEL_AT..]);
        bytes
    }
}

impl Slot {
    fn parse(bytes: &[u8], number: usize, base: usize) -> Result<Option<Self>, FormatError> {
        let mut reader = Reader { bytes, at: 0 };
        let [state] = reader.take();
        if state == EMPTY {
            reader.zeros(SLOT_BYTES, base)?;
            return Ok(None);
        }
        reader.known("key slot state", state.into(), IN_USE.into())?;
        let [derivation, wrapping, label_bytes] = reader.take();
        reader.known("key derivation", derivation.into(), ARGON2ID.into())?;
        reader.known("key wrapping", wrapping.into(), AES_256_GCM.into())?;
        let label_len = usize::from(label_bytes);
        if label_len > LABEL_BYTES_MAX {
            let (what, value) = ("bytes of a key slot label", label_bytes.into());
            let most = LABEL_BYTES_MAX as u64;
            return Err(FormatError::Number { what, value, least: 0, most });
        }
        let cost = Cost { memory_kib: reader.u32(), passes: reader.u32(), lanes: reader.u32() };
        cost.check()?;
        let made_unix_s = u64::from_le_bytes(reader.take());
        let (salt, nonce) = (reader.take(), reader.take());
        let (wrapped, tag) = (reader.take(), reader.take());
        let label = std::str::from_utf8(&bytes[LABEL_AT..LABEL_AT + label_len]).ok();
        let label = label.filter(|text| is_label(text)).ok_or(FormatError::Label(number))?;
        reader.at += label_len;
        reader.zeros(SLOT_BYTES, base)?;
        let label = label.to_owned();
        Ok(Some(Self { cost, made_unix_s, salt, nonce, wrapped, tag, label }))
    }

    fn encode(&self) -> [u8; SLOT_BYTES] {
        let label = self.label.as_bytes();
        let mut bytes = [0; SLOT_BYTES];
        bytes[..4].copy_from_slice(&[IN_USE, ARGON2ID, AES_256_GCM, label.len() as u8]);
        bytes[4..8].copy_from_slice(&self.cost.memory_kib.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.cost.passes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.cost.lanes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.made_unix_s.to_le_bytes());
        bytes[24..56].copy_from_slice(&self.salt);
        bytes[56..68].copy_from_slice(&self.nonce);
        bytes[WRAPPED_AT..TAG_AT].copy_from_slice(&self.wrapped);
        bytes[TAG_AT..LABEL_AT].copy_from_slice(&self.tag);
        bytes[LABEL_AT..LABEL_AT + label.len()].copy_from_slice(label);
        bytes
    }
}

/// Whether `text` is valid as the label of a key slot.
pub fn is_label(text: &str) -> bool {
    text.len() <= LABEL_BYTES_MAX && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::super::testing::slot;
    use super::*;

    fn slots() -> KeySlots {
        let mut slots = [const { None }; SLOTS];
        slots[1] = Some(slot());
        KeySlots { unit: 4096, volume_id: [5; 16], check: [6; 32], slots }
    }

    #[test]
    fn key_slots_encode_to_golden_bytes() {
        let mut golden = Vec::new();
        golden.extend_from_slice(b"CRNKEYS\0");
        golden.extend_from_slice(&[1, 0, 1, 0, 0, 0x10, 0, 0]);
        golden.extend_from_slice(&[0; 8]);
        golden.extend_from_slice(&[5; 16]);
        golden.extend_from_slice(&[6; 32]);
        golden.resize(192 + 256, 0);
        golden.extend_from_slice(&[1, 1, 1, 6, 0, 0, 4, 0, 4, 0, 0, 0, 1, 0, 0, 0]);
        golden.extend_from_slice(&[0x00, 0xf1, 0x53, 0x65, 0, 0, 0, 0]);
        golden.extend_from_slice(&[1; 32]);
        golden.extend_from_slice(&[2; 12]);
        golden.extend_from_slice(&[3; 64]);
        golden.extend_from_slice(&[4; 16]);
        golden.extend_from_slice(b"laptop");
        golden.resize(2240, 0);
        assert_eq!(slots().encode(), golden);
        assert_eq!(KeySlots::parse(&golden).unwrap(), slots());
        assert!(golden.len() <= block::STATE_BYTES_MAX);
    }

    /// Changes the encoded bytes, and returns the error of parsing them.
    fn refused(change: impl Fn(&mut Vec<u8>)) -> String {
        let mut bytes = slots().encode();
        change(&mut bytes);
        KeySlots::parse(&bytes).unwrap_err().to_string()
    }

    fn with(at: usize, value: &[u8]) -> String {
        refused(|bytes| bytes[at..at + value.len()].copy_from_slice(value))
    }

    #[test]
    fn key_slots_parse_rejects_malformed_slots_with_reason() {
        let unknown = "is unknown; a newer Cairn may have written the key slots";
        const AT: usize = 192 + 256;
        let cases = [
            (refused(|bytes| bytes.truncate(5)), "5 bytes; key slots have 2240".to_owned()),
            (refused(|bytes| bytes.push(0)), "2241 bytes; key slots have 2240".to_owned()),
            (
                with(0, b"LUKS"),
                "not key slots: the first bytes are not the magic number".to_owned(),
            ),
            (with(8, &[2]), format!("version 2 {unknown}")),
            (with(10, &[9]), format!("cipher 9 {unknown}")),
            (
                with(12, &[1]),
                "a data unit of 4097 bytes; a power of two, 512 to 65536, is needed".to_owned(),
            ),
            (with(16, &[8]), format!("features 8 {unknown}")),
            (with(100, &[1]), "unused byte 100 is not zero".to_owned()),
            (with(192 + 9, &[1]), "unused byte 201 is not zero".to_owned()),
            (with(AT, &[2]), format!("key slot state 2 {unknown}")),
            (with(AT + 1, &[7]), format!("key derivation 7 {unknown}")),
            (with(AT + 2, &[7]), format!("key wrapping 7 {unknown}")),
            (with(AT + 3, &[65]), "bytes of a key slot label: 65; 0 to 64 are possible".to_owned()),
            (
                with(AT + 4, &[63, 0, 0, 0]),
                "memory in KiB: 63; 64 to 1048576 are possible".to_owned(),
            ),
            (
                with(AT + 4, &[1, 0, 16, 0]),
                "memory in KiB: 1048577; 64 to 1048576 are possible".to_owned(),
            ),
            (with(AT + 8, &[0]), "passes: 0; 1 to 64 are possible".to_owned()),
            (with(AT + 8, &[65]), "passes: 65; 1 to 64 are possible".to_owned()),
            (
                with(AT + 4, &[0, 0, 16, 0, 17]),
                "memory in KiB times passes: 17825792; 1 to 16777216 are possible".to_owned(),
            ),
            (with(AT + 12, &[5]), "lanes: 5; 1 to 4 are possible".to_owned()),
            (with(AT + 148, &[0xff]), "the label of key slot 1 is not valid text".to_owned()),
            (with(AT + 148, b"\n"), "the label of key slot 1 is not valid text".to_owned()),
            (with(AT + 154, b"x"), format!("unused byte {} is not zero", AT + 154)),
            (
                refused(|bytes| bytes[AT..].fill(0)),
                "no key slot is in use: no passphrase opens the volume".to_owned(),
            ),
        ];
        for (said, expected) in cases {
            assert_eq!(said, expected);
        }
    }
}
