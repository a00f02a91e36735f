//! The encoding of a journal's root.

use std::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LOWERS_MAX;
use crate::Uuid;
use crate::ring::{COUNT_MAX, Owner, Position, Ring, SECTOR_BYTES};

/// Magic number at the start of a root.
pub const ROOT_MAGIC: [u8; 8] = *b"CAIRNJNL";

/// Format version of journals that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Length in bytes of a slot with a root.
pub const ROOT_BYTES: usize = SECTOR_BYTES;

/// Offset of the checksum in a root.
const CHECKSUM: usize = 16;

/// The root of a journal: the state of its ring at an opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Identity and length of the ring.
    pub ring: Ring,
    /// Number of this root: each later one of the journal has a higher number.
    pub sequence: u64,
    /// Position of the first record that is needed. Its opening is the lowest one of a record that counts.
    pub tail: Position,
    /// Number of devices to which the parts are written.
    pub lowers: u32,
    /// Bits of features that this version of Cairn does not know. It may check the journal, but must not open it.
    pub unknown_read_only: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    zero: U32,
    checksum: U64,
    compatible: U64,
    read_only_compatible: U64,
    incompatible: U64,
    uuid: [u8; 16],
    sequence: U64,
    ring_bytes: U64,
    opening: U64,
    tail_offset: U64,
    tail_number: U64,
    lowers: U32,
    rest: [u8; 3988],
}

const _: () = assert!(size_of::<Raw>() == ROOT_BYTES);

/// The reason why bytes are no valid root of a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// All bytes are zeros.
    Zeros,
    /// The bytes do not begin with the magic number of roots.
    NoMagic,
    /// An intact root with this format version, which this code does not know.
    Version(u32),
    /// An intact root with these feature bits, which this code does not know and which a reader must know.
    Features(u64),
    /// The root is torn or damaged, or exceeds a limit; the text describes the fault.
    Damaged(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeros => f.write_str("no journal: zeros"),
            Self::NoMagic => f.write_str("no journal: other bytes"),
            Self::Version(version) => {
                write!(f, "a journal of version {version}; this Cairn reads only {VERSION}")
            }
            Self::Features(bits) => {
                write!(f, "a journal with features that this Cairn does not know (bits {bits:#x})")
            }
            Self::Damaged(why) => write!(f, "a damaged root of a journal: {why}"),
        }
    }
}

/// Computes the checksum that a root must have, ignoring the checksum field in `bytes`.
///
/// # Panics
/// If `bytes` are fewer than [`ROOT_BYTES`].
pub fn root_checksum(bytes: &[u8]) -> u64 {
    let mut whole: [u8; ROOT_BYTES] =
        bytes[..ROOT_BYTES].try_into().expect("the slice has one root");
    whole[CHECKSUM..CHECKSUM + 8].fill(0);
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &whole)
}

impl Root {
    /// Encodes the root as the bytes of its slot.
    pub fn encode(&self) -> [u8; ROOT_BYTES] {
        let raw = Raw {
            magic: ROOT_MAGIC,
            version: VERSION.into(),
            zero: 0.into(),
            checksum: 0.into(),
            compatible: 0.into(),
            read_only_compatible: self.unknown_read_only.into(),
            incompatible: 0.into(),
            uuid: self.ring.uuid().0,
            sequence: self.sequence.into(),
            ring_bytes: self.ring.bytes().into(),
            opening: self.tail.opening.into(),
            tail_offset: self.tail.offset.into(),
            tail_number: self.tail.number.into(),
            lowers: self.lowers.into(),
            rest: [0; 3988],
        };
        let mut whole: [u8; ROOT_BYTES] = zerocopy::transmute!(raw);
        let sum = root_checksum(&whole);
        whole[CHECKSUM..CHECKSUM + 8].copy_from_slice(&sum.to_le_bytes());
        whole
    }

    /// Decodes the root at the beginning of `bytes`.
    ///
    /// # Errors
    /// The reason why the root cannot be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, Wrong> {
        if block::is_zero(bytes) {
            return Err(Wrong::Zeros);
        }
        if !bytes.starts_with(&ROOT_MAGIC) {
            return Err(Wrong::NoMagic);
        }
        let truncated = |_| Wrong::Damaged("it is truncated".to_owned());
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(truncated)?;
        if raw.checksum.get() != root_checksum(bytes) {
            return Err(Wrong::Damaged("the checksum is wrong".to_owned()));
        }
        if raw.version.get() != VERSION {
            return Err(Wrong::Version(raw.version.get()));
        }
        if raw.incompatible.get() != 0 {
            return Err(Wrong::Features(raw.incompatible.get()));
        }
        raw.read().map_err(Wrong::Damaged)
    }
}

impl Raw {
    fn read(&self) -> Result<Root, String> {
        let ring = Ring::new(Uuid(self.uuid), self.ring_bytes.get(), Owner::Journal)?;
        let tail = Position {
            offset: self.tail_offset.get(),
            number: self.tail_number.get(),
            previous: 0,
            opening: self.opening.get(),
        };
        let counted = [self.sequence.get(), tail.number, tail.opening];
        if let Some(count) = counted.into_iter().find(|count| !(1..=COUNT_MAX).contains(count)) {
            return Err(format!("a sequence, number or opening of {count} is impossible"));
        }
        if tail.offset > COUNT_MAX || !tail.offset.is_multiple_of(SECTOR_BYTES as u64) {
            return Err(format!("the offset {} is impossible", tail.offset));
        }
        let lowers = self.lowers.get();
        if !(1..=LOWERS_MAX).contains(&lowers) {
            return Err(format!("{lowers} lowers are impossible; a journal has 1 to {LOWERS_MAX}"));
        }
        Ok(Root {
            ring,
            sequence: self.sequence.get(),
            tail,
            lowers,
            unknown_read_only: self.read_only_compatible.get(),
        })
    }
}
