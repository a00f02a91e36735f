//! The encoding of a record of the log of a vault, and of the changes in a record.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bitmap::BITMAP_HEADER_BYTES;
use super::page::{PAGE_BYTES, checksum};
use super::superblock::Position;
use crate::Uuid;

/// Magic number at the start of a record in the log of a vault.
pub const RECORD_MAGIC: [u8; 8] = *b"CAIRNREC";

/// Length in bytes of the header of a record, before its changes.
pub const RECORD_HEADER_BYTES: usize = size_of::<Header>();

/// Length in bytes of the header of a change, before the bytes that the change writes.
pub const CHANGE_HEADER_BYTES: usize = size_of::<ChangeHeader>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    checksum: U64,
    vault: [u8; 16],
    number: U64,
    offset: U64,
    previous: U64,
    epoch: U64,
    flushed: U64,
    length: U32,
    changes: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChangeHeader {
    object: U64,
    from: U64,
    length: U32,
    verb: u8,
    value: u8,
    zero: [u8; 2],
}

const _: () = assert!(size_of::<Header>() == 80 && size_of::<ChangeHeader>() == 24);

/// Position of the checksum in a record. The checksum does not cover these bytes.
const CHECKSUM: std::ops::Range<usize> = 8..16;

const WRITE: u8 = 1;
const FILL: u8 = 2;
const BITS: u8 = 3;
const DATA: u8 = 4;
const RAISE: u8 = 5;

/// Length in bytes of a number that a change raises. It begins at a multiple of this.
const RAISED_BYTES: usize = size_of::<U64>();

/// Length in bytes of the checksum of data outside of the vault.
const DATA_CHECKSUM_BYTES: usize = size_of::<U64>();

/// Operation of a change in a record of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb<'a> {
    /// Writes these bytes to the object.
    Write(&'a [u8]),
    /// Fills this number of bytes of the object with this value.
    Fill(u32, u8),
    /// Sets or clears this number of bits of the object.
    Bits(u32, bool),
    /// Names data outside of the vault, by length and checksum: the next change in the record makes them reachable.
    Data(u32, u64),
    /// Raises one number of the object, 8 bytes long, to this value, unless it is higher already.
    Raise(u64),
}

impl Verb<'_> {
    /// Whether this operation changes an object of the vault.
    pub fn is_of_object(&self) -> bool {
        !matches!(self, Verb::Data(..))
    }
}

/// A change in a record of the log. It covers at least one byte or bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    /// Number of the object that changes; 0 for data outside of the vault.
    pub object: u64,
    /// First byte or bit in the object, or first byte of the data outside of the vault.
    pub from: u64,
    /// Operation of the change on the object or the data outside of the vault.
    pub verb: Verb<'a>,
}

impl<'a> Change<'a> {
    /// Returns the number of bytes or bits that the change covers.
    pub fn length(&self) -> u32 {
        match self.verb {
            Verb::Write(bytes) => bytes.len() as u32,
            Verb::Raise(_) => RAISED_BYTES as u32,
            Verb::Fill(length, _) | Verb::Bits(length, _) | Verb::Data(length, _) => length,
        }
    }

    /// Returns the bytes that the change covers: the offset of the first byte, and their number. A change of bits also
    /// changes the header of the bitmap.
    pub fn byte_range(&self) -> (u64, u64) {
        match self.verb {
            Verb::Write(_) | Verb::Fill(..) | Verb::Data(..) | Verb::Raise(_) => {
                (self.from, self.length().into())
            }
            Verb::Bits(count, _) => {
                let last = self.from + u64::from(count) - 1;
                (BITMAP_HEADER_BYTES + self.from / 8, last / 8 - self.from / 8 + 1)
            }
        }
    }

    /// Appends the encoded change to `to`.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let number;
        let (verb, value, bytes): (u8, u8, &[u8]) = match self.verb {
            Verb::Write(bytes) => (WRITE, 0, bytes),
            Verb::Fill(_, value) => (FILL, value, &[]),
            Verb::Bits(_, value) => (BITS, value.into(), &[]),
            Verb::Data(_, checksum) => {
                number = checksum.to_le_bytes();
                (DATA, 0, &number)
            }
            Verb::Raise(least) => {
                number = least.to_le_bytes();
                (RAISE, 0, &number)
            }
        };
        let header = ChangeHeader {
            object: self.object.into(),
            from: self.from.into(),
            length: self.length().into(),
            verb,
            value,
            zero: [0; 2],
        };
        to.extend_from_slice(header.as_bytes());
        to.extend_from_slice(bytes);
    }

    /// Decodes the first change in `bytes`. Returns the change, and the bytes after it.
    ///
    /// # Errors
    /// A description of the fault in the change.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), String> {
        let (header, rest) =
            ChangeHeader::ref_from_prefix(bytes).map_err(|_| "a change is truncated")?;
        let (length, from) = (header.length.get(), header.from.get());
        if length == 0 || header.zero != [0; 2] || from.checked_add(length.into()).is_none() {
            return Err(format!("a change has impossible length {length} or offset {from}"));
        }
        let mut after = rest;
        let of_none = header.object.get() == 0;
        let verb = match (header.verb, header.value) {
            (WRITE, 0) if length as usize <= rest.len() => {
                let (bytes, behind) = rest.split_at(length as usize);
                after = behind;
                Verb::Write(bytes)
            }
            (FILL, value) => Verb::Fill(length, value),
            (BITS, value @ 0..=1) => Verb::Bits(length, value == 1),
            (DATA, 0) if of_none && rest.len() >= DATA_CHECKSUM_BYTES => {
                let (sum, behind) = U64::ref_from_prefix(rest).expect("the length was checked");
                after = behind;
                Verb::Data(length, sum.get())
            }
            (RAISE, 0) if length as usize == RAISED_BYTES && rest.len() >= RAISED_BYTES => {
                if !from.is_multiple_of(RAISED_BYTES as u64) {
                    return Err(format!("a change raises a number at the odd offset {from}"));
                }
                let (least, behind) = U64::ref_from_prefix(rest).expect("the length was checked");
                after = behind;
                Verb::Raise(least.get())
            }
            (verb, value) => {
                return Err(format!("a change has unknown type {verb} or value {value}"));
            }
        };
        Ok((Self { object: header.object.get(), from, verb }, after))
    }
}

/// Decodes all changes in `bytes`, in order.
///
/// # Errors
/// A description of the first faulty change.
pub fn changes(mut bytes: &[u8]) -> Result<Vec<Change<'_>>, String> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (change, rest) = Change::decode(bytes)?;
        all.push(change);
        bytes = rest;
    }
    Ok(all)
}

/// The decoded header of a record in the log of a vault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Position of the record in the log: its offset, its number, the checksum of the previous record, and its epoch.
    pub at: Position,
    /// Highest number of a record that was known to be flushed, with its data, on every current copy when this record
    /// was made.
    pub flushed: u64,
    /// Length of the record in bytes, without padding.
    pub length: u32,
    /// Number of changes in the record.
    pub changes: u32,
    /// Checksum of the record.
    pub checksum: u64,
}

impl Head {
    /// Returns the position in the log of the record that follows this one.
    pub fn next(&self) -> Position {
        Position {
            offset: self.at.offset + padded(self.length as usize) as u64,
            number: self.at.number + 1,
            previous: self.checksum,
            epoch: self.at.epoch,
        }
    }
}

/// Returns the number of bytes that a record of `length` bytes occupies in the log, including padding.
pub const fn padded(length: usize) -> usize {
    length.next_multiple_of(PAGE_BYTES)
}

/// Encodes a record with `changes` changes, whose encoded bytes are in `parts`, into `to`. The length of `to` must be
/// the padded length of the record. `flushed` is the highest number of a record that is known to be flushed.
///
/// # Panics
/// If the length of `to` is not the padded length of the record.
pub fn encode(
    vault: Uuid,
    at: Position,
    flushed: u64,
    changes: u32,
    parts: &[&[u8]],
    to: &mut [u8],
) -> Head {
    let length = RECORD_HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
    assert_eq!(to.len(), padded(length), "the buffer has the length of the record");
    let header = Header {
        magic: RECORD_MAGIC,
        checksum: 0.into(),
        vault: vault.0,
        number: at.number.into(),
        offset: at.offset.into(),
        previous: at.previous.into(),
        epoch: at.epoch.into(),
        flushed: flushed.into(),
        length: (length as u32).into(),
        changes: changes.into(),
    };
    to[..RECORD_HEADER_BYTES].copy_from_slice(header.as_bytes());
    let mut end = RECORD_HEADER_BYTES;
    for part in parts {
        to[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    to[end..].fill(0);
    let sum = checksum(&to[..length]);
    to[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    Head { at, flushed, length: length as u32, changes, checksum: sum }
}

/// Decodes the record at the beginning of `bytes`. Returns its header and the bytes of its changes; `None` if it is
/// incomplete, damaged, or not of this vault.
pub fn decode(vault: Uuid, bytes: &[u8]) -> Option<(Head, &[u8])> {
    let (header, _) = Header::ref_from_prefix(bytes).ok()?;
    let length = header.length.get() as usize;
    let begins = header.magic == RECORD_MAGIC && header.vault == vault.0;
    if !begins || !(RECORD_HEADER_BYTES..=bytes.len()).contains(&length) {
        return None;
    }
    if header.checksum.get() != record_checksum(&bytes[..length]) {
        return None;
    }
    let at = Position {
        offset: header.offset.get(),
        number: header.number.get(),
        previous: header.previous.get(),
        epoch: header.epoch.get(),
    };
    let (flushed, changes) = (header.flushed.get(), header.changes.get());
    // A record is flushed only after it was written.
    if flushed >= at.number {
        return None;
    }
    let head =
        Head { at, flushed, length: length as u32, changes, checksum: header.checksum.get() };
    Some((head, &bytes[RECORD_HEADER_BYTES..length]))
}

/// Computes the checksum that a record must have, ignoring the checksum field in `record`.
///
/// # Panics
/// If `record` is shorter than a header.
pub fn record_checksum(record: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&record[..CHECKSUM.start]);
    digest.update(&[0; 8]);
    digest.update(&record[CHECKSUM.end..]);
    digest.finalize()
}

/// Returns the length in the header of the record at the beginning of `bytes`. The record is not verified.
pub fn claimed_length(bytes: &[u8]) -> Option<usize> {
    let (header, _) = Header::ref_from_prefix(bytes).ok()?;
    (header.magic == RECORD_MAGIC).then(|| header.length.get() as usize)
}
