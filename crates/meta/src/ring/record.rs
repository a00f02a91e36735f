//! The encoding of a record of a ring.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{COUNT_MAX, ITEM_HEADER_BYTES, MustKnow, Position, Ring, SECTOR_BYTES};

/// Magic number at the start of a record.
pub const RECORD_MAGIC: [u8; 8] = *b"CAIRNLOG";

/// Length in bytes of the header of a record, before its items.
pub const RECORD_HEADER_BYTES: usize = size_of::<Raw>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    checksum: U64,
    ring: [u8; 16],
    opening: U64,
    number: U64,
    offset: U64,
    previous: U64,
    tail: U64,
    flushed: U64,
    length: U32,
    payload: U32,
    items: U32,
    owner: U16,
    flags: U16,
}

const _: () = assert!(RECORD_HEADER_BYTES == 96);

/// Position of the checksum in a record. The checksum does not cover these bytes.
const CHECKSUM: std::ops::Range<usize> = 8..16;

/// Flags of a record that forbid writing to a reader that does not know them.
const FORBID_WRITING: u16 = 0x00f0;

/// Flags of a record that forbid opening to a reader that does not know them.
const FORBID_OPENING: u16 = 0xff00;

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Position of the record.
    pub at: Position,
    /// Number of the first record that was still needed when the record was written.
    pub tail: u64,
    /// The highest number of a record that was known to be flushed when the record was written.
    pub flushed: u64,
    /// Length in bytes of header and items, without padding. [`Head::encode`] computes it.
    pub length: u32,
    /// Bytes of payload behind the padding.
    pub payload: u32,
    /// Number of items.
    pub items: u32,
    /// Flags, none of which is known yet.
    pub flags: u16,
    /// Checksum of header and items. [`Head::encode`] computes it.
    pub checksum: u64,
}

/// The reason why bytes are no valid record of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The bytes do not begin with the magic number of records.
    NoMagic,
    /// A record of another ring or another owner.
    Foreign,
    /// The record is torn or damaged, or exceeds a limit; the text describes the fault.
    Damaged(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("no record"),
            Self::Foreign => f.write_str("a record of another log"),
            Self::Damaged(why) => write!(f, "a damaged record: {why}"),
        }
    }
}

fn damaged(why: impl fmt::Display) -> Wrong {
    Wrong::Damaged(why.to_string())
}

/// Returns the number of bytes that header and items of `length` bytes occupy with their padding.
const fn padded(length: u32) -> u64 {
    (length as u64).next_multiple_of(SECTOR_BYTES as u64)
}

/// Computes the checksum that a record must have, ignoring the checksum field in `record`.
///
/// # Panics
/// If `record` is shorter than the checksum field and the bytes before it.
pub fn record_checksum(record: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&record[..CHECKSUM.start]);
    digest.update(&[0; 8]);
    digest.update(&record[CHECKSUM.end..]);
    digest.finalize()
}

impl Head {
    /// Returns the header of an empty record at this position.
    pub fn empty(at: Position, tail: u64, flushed: u64) -> Self {
        let length = RECORD_HEADER_BYTES as u32;
        Self { at, tail, flushed, length, payload: 0, items: 0, flags: 0, checksum: 0 }
    }

    /// Returns the bytes that the record occupies in the ring.
    pub fn bytes(&self) -> u64 {
        padded(self.length) + u64::from(self.payload)
    }

    /// Returns the bytes that header and items occupy with their padding: the offset of the payload in the record.
    pub fn padded_bytes(&self) -> u64 {
        padded(self.length)
    }

    /// Returns the offset behind the record.
    pub fn end(&self) -> u64 {
        self.at.offset + self.bytes()
    }

    /// Returns the position of the record that follows this one in the same opening.
    pub fn next(&self) -> Position {
        Position {
            offset: self.end(),
            number: self.at.number + 1,
            previous: self.checksum,
            opening: self.at.opening,
        }
    }

    /// Returns the rule for a reader that does not know one of the flags.
    pub fn unknown_flags(&self) -> MustKnow {
        match self.flags {
            flags if flags & FORBID_OPENING != 0 => MustKnow::ToOpen,
            flags if flags & FORBID_WRITING != 0 => MustKnow::ToWrite,
            _ => MustKnow::No,
        }
    }

    /// Appends header, items and padding of the record to `to`. Returns the header with length and checksum.
    ///
    /// # Panics
    /// If the record exceeds a limit of the ring. Code that gathers items checks the length before.
    pub fn encode(mut self, ring: &Ring, items: &[u8], to: &mut Vec<u8>) -> Self {
        let length = RECORD_HEADER_BYTES + items.len();
        self.length = u32::try_from(length).expect("a record is shorter than 4 GiB");
        self.check(ring).unwrap_or_else(|why| panic!("record {}: {why}", self.at.number));
        let raw = Raw {
            magic: RECORD_MAGIC,
            checksum: 0.into(),
            ring: ring.uuid.0,
            opening: self.at.opening.into(),
            number: self.at.number.into(),
            offset: self.at.offset.into(),
            previous: self.at.previous.into(),
            tail: self.tail.into(),
            flushed: self.flushed.into(),
            length: self.length.into(),
            payload: self.payload.into(),
            items: self.items.into(),
            owner: (ring.owner as u16).into(),
            flags: self.flags.into(),
        };
        let begin = to.len();
        to.extend_from_slice(raw.as_bytes());
        to.extend_from_slice(items);
        self.checksum = record_checksum(&to[begin..]);
        to[begin..][CHECKSUM].copy_from_slice(&self.checksum.to_le_bytes());
        to.resize(begin + padded(self.length) as usize, 0);
        self
    }

    /// Decodes the record at the beginning of `bytes`. Returns its header and its items.
    ///
    /// # Errors
    /// The reason why the bytes are no record of this ring.
    pub fn decode<'a>(ring: &Ring, bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Wrong> {
        let length = Self::claimed_length(ring, bytes)?;
        let record = bytes.get(..length).ok_or_else(|| damaged("it is truncated"))?;
        let (raw, items) = Raw::ref_from_prefix(record).map_err(|_| damaged("it is truncated"))?;
        if raw.checksum.get() != record_checksum(record) {
            return Err(damaged("the checksum is wrong"));
        }
        let head = raw.read();
        head.check(ring).map_err(damaged)?;
        Ok((head, items))
    }

    /// Returns the length without padding that the header at the beginning of `bytes` claims. The checksum is not
    /// verified.
    ///
    /// # Errors
    /// The reason why no record of this ring can begin here.
    pub fn claimed_length(ring: &Ring, bytes: &[u8]) -> Result<usize, Wrong> {
        if !bytes.starts_with(&RECORD_MAGIC) {
            return Err(Wrong::NoMagic);
        }
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| damaged("it is truncated"))?;
        if raw.ring != ring.uuid.0 || raw.owner.get() != ring.owner as u16 {
            return Err(Wrong::Foreign);
        }
        let length = raw.length.get();
        let is_possible =
            length as usize >= RECORD_HEADER_BYTES && u64::from(length) <= ring.record_bytes_max();
        match is_possible {
            true => Ok(length as usize),
            false => Err(damaged(format_args!("a length of {length} bytes is impossible"))),
        }
    }

    fn check(&self, ring: &Ring) -> Result<(), String> {
        let Self { at, tail, flushed, length, payload, items, .. } = self;
        let sector = SECTOR_BYTES as u64;
        if at.number == 0 || at.number > COUNT_MAX || at.opening == 0 || at.opening > COUNT_MAX {
            return Err(format!("number {} of opening {} is impossible", at.number, at.opening));
        }
        if at.offset > COUNT_MAX || !at.offset.is_multiple_of(sector) {
            return Err(format!("the offset {} is impossible", at.offset));
        }
        if *tail == 0 || *tail > at.number || *flushed >= at.number {
            return Err(format!("tail {tail} or flushed number {flushed} is impossible"));
        }
        if !u64::from(*payload).is_multiple_of(sector) || self.bytes() > ring.record_bytes_max() {
            return Err(format!(
                "{length} bytes with a payload of {payload} are impossible; a record of this log \
                 has at most {}",
                ring.record_bytes_max()
            ));
        }
        let room = (*length as usize).saturating_sub(RECORD_HEADER_BYTES) / ITEM_HEADER_BYTES;
        if *items as usize > room {
            return Err(format!("{items} items do not fit in {length} bytes"));
        }
        Ok(())
    }
}

impl Raw {
    fn read(&self) -> Head {
        Head {
            at: Position {
                offset: self.offset.get(),
                number: self.number.get(),
                previous: self.previous.get(),
                opening: self.opening.get(),
            },
            tail: self.tail.get(),
            flushed: self.flushed.get(),
            length: self.length.get(),
            payload: self.payload.get(),
            items: self.items.get(),
            flags: self.flags.get(),
            checksum: self.checksum.get(),
        }
    }
}
