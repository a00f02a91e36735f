//! The encoding of a superblock of a vault. Each copy has one, which records the state of all copies.

use std::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::geometry::Geometry;
use super::page::{PAGE_BYTES, Pointer, checksum};
use crate::Uuid;

/// Magic number at the start of a superblock of a vault.
pub const MAGIC: [u8; 8] = *b"CAIRNVLT";

/// Format version of vaults that this code writes, and the only one that it reads.
pub const VERSION: u32 = 2;

/// Maximum number of copies of one vault.
pub const COPIES_MAX: usize = 8;

/// Highest valid value of the counters and log offsets of a vault: beyond any use, and far from overflow.
pub const COUNT_MAX: u64 = 1 << 56;

/// The epoch of a vault. It rises when a copy is left behind, when a vault is opened for writing, and when a resync
/// ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Epoch {
    /// Number of the epoch; a higher one is later.
    pub number: u64,
    /// Random number that distinguishes two epochs of the same number that were started independently of each other.
    pub draw: u64,
}

/// Position of a record in the log of a vault: of an existing one, or of the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// Offset of the record in the log. It only increases; in the ring it wraps around.
    pub offset: u64,
    /// Number of the record: one more than the previous record has.
    pub number: u64,
    /// Checksum of the previous record.
    pub previous: u64,
    /// Epoch of the record; for the next record, the lowest epoch that it may have.
    pub epoch: u64,
}

/// The content of a superblock of a vault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// UUID of the vault.
    pub vault: Uuid,
    /// Number of this superblock: each later one of the vault has a higher number.
    pub sequence: u64,
    /// Epoch of the vault when the superblock was written.
    pub epoch: Epoch,
    /// Index of the copy of the vault to which the superblock was written.
    pub copy: u32,
    /// Number of copies of the vault.
    pub copies: u32,
    /// Bitmap of the copies of the vault that have every committed record of the log.
    pub current: u32,
    /// Sizes of the parts of the vault.
    pub geometry: Geometry,
    /// Number of the newest checkpoint.
    pub checkpoint: u64,
    /// Pointer to the root of the map of pages; `None` if no page was ever written.
    pub root: Option<Pointer>,
    /// Position of the first record of the log that the checkpoint does not contain.
    pub tail: Position,
    /// Highest number of a record of the log that is known to be flushed, with its data, on every current copy.
    pub flushed: u64,
    /// For each copy, the last epoch of the vault in which a superblock was written to the copy.
    pub sent: [Epoch; COPIES_MAX],
    /// Bits of features that this version of Cairn does not know. This version may read the vault, but must not write
    /// it.
    pub unknown_read_only: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawEpoch {
    number: U64,
    draw: U64,
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
    vault: [u8; 16],
    sequence: U64,
    epoch: RawEpoch,
    copy: U32,
    copies: U32,
    current: U32,
    directory_pages: U32,
    bytes: U64,
    log_bytes: U64,
    pages: U64,
    checkpoint: U64,
    root: [u8; Pointer::BYTES],
    tail_offset: U64,
    tail_number: U64,
    tail_previous: U64,
    tail_epoch: U64,
    sent: [RawEpoch; COPIES_MAX],
    flushed: U64,
    rest: [u8; 3776],
}

const _: () = assert!(size_of::<Raw>() == PAGE_BYTES);

/// Position of the checksum in a superblock. The checksum does not cover these bytes.
const CHECKSUM: std::ops::Range<usize> = 16..24;

/// The reason why bytes are no valid superblock of a vault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The bytes do not begin with the magic number of superblocks: they hold no superblock.
    NoMagic,
    /// An intact superblock with this format version, which this code does not know.
    Version(u32),
    /// An intact superblock with these feature bits, which this code does not know and which a reader must know.
    Features(u64),
    /// The superblock is corrupt, or exceeds a limit; the text describes the fault.
    Damaged(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("the disk has no vault"),
            Self::Version(version) => {
                write!(f, "the vault has version {version}; this Cairn reads only {VERSION}")
            }
            Self::Features(bits) => {
                write!(f, "the vault has features that this Cairn does not know (bits {bits:#x})")
            }
            Self::Damaged(why) => write!(f, "the superblock of the vault is damaged: {why}"),
        }
    }
}

fn damaged(why: impl fmt::Display) -> Wrong {
    Wrong::Damaged(why.to_string())
}

/// Computes the checksum that a superblock must have, ignoring the checksum field in `bytes`.
///
/// # Panics
/// If `bytes` are fewer than [`PAGE_BYTES`].
pub fn superblock_checksum(bytes: &[u8]) -> u64 {
    let mut whole: [u8; PAGE_BYTES] =
        bytes[..PAGE_BYTES].try_into().expect("the slice has one page");
    whole[CHECKSUM].fill(0);
    checksum(&whole)
}

impl Superblock {
    /// Returns the age by which the newest superblock counts: the highest epoch, and within it the highest sequence.
    pub fn age(&self) -> (u64, u64) {
        (self.epoch.number, self.sequence)
    }

    /// Encodes the superblock as the bytes of its slot.
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        let epoch =
            |epoch: Epoch| RawEpoch { number: epoch.number.into(), draw: epoch.draw.into() };
        let Geometry { bytes, log_bytes, pages, directory_pages } = self.geometry;
        let raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            zero: 0.into(),
            checksum: 0.into(),
            compatible: 0.into(),
            read_only_compatible: self.unknown_read_only.into(),
            incompatible: 0.into(),
            vault: self.vault.0,
            sequence: self.sequence.into(),
            epoch: epoch(self.epoch),
            copy: self.copy.into(),
            copies: self.copies.into(),
            current: self.current.into(),
            directory_pages: directory_pages.into(),
            bytes: bytes.into(),
            log_bytes: log_bytes.into(),
            pages: pages.into(),
            checkpoint: self.checkpoint.into(),
            root: Pointer::encode(self.root),
            tail_offset: self.tail.offset.into(),
            tail_number: self.tail.number.into(),
            tail_previous: self.tail.previous.into(),
            tail_epoch: self.tail.epoch.into(),
            sent: self.sent.map(epoch),
            flushed: self.flushed.into(),
            rest: [0; 3776],
        };
        let mut whole: [u8; PAGE_BYTES] = zerocopy::transmute!(raw);
        let sum = superblock_checksum(&whole);
        whole[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
        whole
    }

    /// Decodes the superblock at the beginning of `bytes`.
    ///
    /// # Errors
    /// The reason why the superblock cannot be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, Wrong> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Wrong::NoMagic);
        }
        let (raw, _) =
            Raw::ref_from_prefix(bytes).map_err(|_| damaged("the bytes are truncated"))?;
        if raw.checksum.get() != superblock_checksum(bytes) {
            return Err(damaged("the checksum is wrong"));
        }
        if raw.version.get() != VERSION {
            return Err(Wrong::Version(raw.version.get()));
        }
        if raw.incompatible.get() != 0 {
            return Err(Wrong::Features(raw.incompatible.get()));
        }
        let all = raw.read();
        all.check().map_err(damaged)?;
        Ok(all)
    }

    fn check(&self) -> Result<(), String> {
        self.geometry.check()?;
        let Self {
            copy, copies, current, sequence, epoch, tail, root, checkpoint, flushed, ..
        } = self;
        if !(1..=COPIES_MAX as u32).contains(copies) || copy >= copies {
            return Err(format!("copy number {copy} of {copies} is impossible"));
        }
        if *current == 0 || current >> copies != 0 {
            return Err(format!("current copies {current:#b} of {copies} are impossible"));
        }
        if *sequence == 0 || epoch.number == 0 || tail.number == 0 {
            return Err("the sequence, epoch or tail is 0".to_owned());
        }
        let counted =
            [*sequence, epoch.number, tail.number, tail.offset, tail.epoch, *checkpoint, *flushed];
        if let Some(past) = counted.into_iter().find(|count| *count > COUNT_MAX) {
            return Err(format!("a counter has the impossible value {past}"));
        }
        if !tail.offset.is_multiple_of(PAGE_BYTES as u64) {
            return Err(format!("the tail of the log is at {}, no page boundary", tail.offset));
        }
        if flushed + 1 < tail.number {
            return Err("the checkpoint contains a record that is not flushed".to_owned());
        }
        if root.is_some_and(|root| root.checkpoint > *checkpoint) {
            return Err("the root is newer than the checkpoint".to_owned());
        }
        Ok(())
    }
}

impl Raw {
    fn read(&self) -> Superblock {
        let epoch = |raw: RawEpoch| Epoch { number: raw.number.get(), draw: raw.draw.get() };
        Superblock {
            vault: Uuid(self.vault),
            sequence: self.sequence.get(),
            epoch: epoch(self.epoch),
            copy: self.copy.get(),
            copies: self.copies.get(),
            current: self.current.get(),
            geometry: Geometry {
                bytes: self.bytes.get(),
                log_bytes: self.log_bytes.get(),
                pages: self.pages.get(),
                directory_pages: self.directory_pages.get(),
            },
            checkpoint: self.checkpoint.get(),
            root: Pointer::decode(&self.root),
            tail: Position {
                offset: self.tail_offset.get(),
                number: self.tail_number.get(),
                previous: self.tail_previous.get(),
                epoch: self.tail_epoch.get(),
            },
            sent: self.sent.map(epoch),
            flushed: self.flushed.get(),
            unknown_read_only: self.read_only_compatible.get(),
        }
    }
}
