//! The fields at the beginning of header and superblock.

use std::fmt;

use block::seeded::{self, Bug};
use crc_fast::{CrcAlgorithm, Digest};
use meta::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 4096;

/// Format version of pools that this code writes, and the only one that it reads.
pub(super) const VERSION: u32 = 1;

/// Position of the checksum in a slot. The checksum does not cover these bytes.
const CHECKSUM: std::ops::Range<usize> = 16..24;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Prelude {
    magic: [u8; 8],
    version: U32,
    pub pair: U32,
    checksum: U64,
    compatible: U64,
    pub read_only_compatible: U64,
    incompatible: U64,
    pub pool: [u8; 16],
    pub sequence: U64,
}

const _: () = assert!(size_of::<Prelude>() == 72);

/// The reason why the bytes of a slot are no valid structure of this pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The bytes do not begin with the magic number of the structure.
    NoMagic,
    /// An intact structure with this format version, which this code does not know.
    Version(u32),
    /// An intact structure with these feature bits, which this code does not know and which a reader must know.
    Features(u64),
    /// An intact structure of this pool, which is another one.
    Foreign(Uuid),
    /// The structure cannot be read, is corrupt, or exceeds a limit; the text describes the fault.
    Damaged(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("no pool"),
            Self::Version(version) => {
                write!(f, "a pool of version {version}; this Cairn reads only version {VERSION}")
            }
            Self::Features(bits) => {
                write!(f, "a pool with features that this Cairn does not know (bits {bits:#x})")
            }
            Self::Foreign(pool) => write!(f, "a structure of the pool {pool}"),
            Self::Damaged(why) => write!(f, "damaged: {why}"),
        }
    }
}

pub(super) fn damaged(why: impl fmt::Display) -> Wrong {
    Wrong::Damaged(why.to_string())
}

/// Computes the checksum that a structure in a slot must have, ignoring its checksum field.
///
/// # Panics
/// If `bytes` are fewer than [`SLOT_BYTES`].
pub fn root_checksum(bytes: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&bytes[..CHECKSUM.start]);
    digest.update(&[0; 8]);
    digest.update(&bytes[CHECKSUM.end..SLOT_BYTES]);
    digest.finalize()
}

impl Prelude {
    pub fn new(magic: [u8; 8], pair: u32, pool: Uuid, sequence: u64, unknown: u64) -> Self {
        Self {
            magic,
            version: VERSION.into(),
            pair: pair.into(),
            checksum: 0.into(),
            compatible: 0.into(),
            read_only_compatible: unknown.into(),
            incompatible: 0.into(),
            pool: pool.0,
            sequence: sequence.into(),
        }
    }

    /// Reads the prelude of the slot with this magic number and pair. `pool` is the expected pool, if it is known.
    pub fn read(
        bytes: &[u8],
        magic: [u8; 8],
        pair: u32,
        pool: Option<Uuid>,
    ) -> Result<&Self, Wrong> {
        if !bytes.starts_with(&magic) {
            return Err(Wrong::NoMagic);
        }
        if bytes.len() < SLOT_BYTES {
            return Err(damaged("the bytes are truncated"));
        }
        let (prelude, _) = Self::ref_from_prefix(bytes).expect("a slot is longer than a prelude");
        if prelude.checksum.get() != root_checksum(bytes) {
            return Err(damaged("the checksum is wrong"));
        }
        if prelude.version.get() != VERSION {
            return Err(Wrong::Version(prelude.version.get()));
        }
        if prelude.incompatible.get() != 0 {
            return Err(Wrong::Features(prelude.incompatible.get()));
        }
        let found = Uuid(prelude.pool);
        if pool.is_some_and(|pool| pool != found) && !seeded::on(Bug::PoolOfOther) {
            return Err(Wrong::Foreign(found));
        }
        if prelude.pair.get() != pair {
            return Err(damaged(format_args!("pair {} in pair {pair}", prelude.pair)));
        }
        let sequence = prelude.sequence.get();
        if !(1..=crate::NUMBER_MAX).contains(&sequence) {
            return Err(damaged(format_args!("the sequence {sequence} is impossible")));
        }
        Ok(prelude)
    }
}

/// Writes the checksum of a structure into its field.
pub(super) fn seal(bytes: &mut [u8; SLOT_BYTES]) {
    let sum = root_checksum(bytes);
    bytes[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}
