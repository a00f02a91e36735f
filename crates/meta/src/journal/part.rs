//! The encoding of the parts of a record.

use std::rc::Rc;

use block::{Buf, ByteRange};
use crc_fast::CrcAlgorithm;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{INLINE_BYTES_MAX, PARTS_MAX};
use crate::ring::{
    Head, ITEM_HEADER_BYTES, Item, MustKnow, RECORD_BYTES_MAX, SECTOR_BYTES, encode_item, items,
};

/// Length in bytes of a part in a record, without its inline bytes.
pub const PART_BYTES: usize = ITEM_HEADER_BYTES + size_of::<Raw>();

/// Divisor of the length of an item.
const ITEM_ALIGN: usize = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    lower: U16,
    inline: U16,
    zero: U32,
    start: U64,
    length: U64,
    checksum: U64,
}

const _: () = assert!(PART_BYTES == 40);

/// The effect of a part on its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum PartKind {
    /// The range gets the bytes of the payload.
    Data = 1,
    /// The range reads as zeros.
    Zeroes = 2,
    /// The range is given up.
    Discard = 3,
}

/// One change of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The effect on the range.
    pub kind: PartKind,
    /// Number of the device that is changed.
    pub lower: u16,
    /// Changed bytes of that device.
    pub range: ByteRange,
    /// Checksum of the data; 0 for a part without data.
    pub checksum: u64,
    /// Bytes that the owner defines, at most [`INLINE_BYTES_MAX`].
    pub inline: Rc<[u8]>,
}

/// A part, with its data if it has any.
#[derive(Clone)]
pub struct NewPart {
    pub(super) part: Part,
    pub(super) data: Option<Buf>,
}

impl NewPart {
    /// Creates a part that writes `data` to byte `start` of device `lower`.
    ///
    /// # Panics
    /// If the range ends past `u64::MAX`, or the inline bytes exceed [`INLINE_BYTES_MAX`].
    pub fn data(lower: u16, start: u64, data: Buf, inline: &[u8]) -> Self {
        let range = ByteRange::new(start, data.len() as u64).expect("a buffer has bytes");
        let mut new = Self::bare(PartKind::Data, lower, range, inline);
        new.part.checksum = data_checksum(&data.read());
        Self { data: Some(data), ..new }
    }

    /// Creates a part that zeroes `range` of device `lower`.
    ///
    /// # Panics
    /// If the inline bytes exceed [`INLINE_BYTES_MAX`].
    pub fn zeroes(lower: u16, range: ByteRange, inline: &[u8]) -> Self {
        Self::bare(PartKind::Zeroes, lower, range, inline)
    }

    /// Creates a part that discards `range` of device `lower`.
    ///
    /// # Panics
    /// If the inline bytes exceed [`INLINE_BYTES_MAX`].
    pub fn discard(lower: u16, range: ByteRange, inline: &[u8]) -> Self {
        Self::bare(PartKind::Discard, lower, range, inline)
    }

    fn bare(kind: PartKind, lower: u16, range: ByteRange, inline: &[u8]) -> Self {
        assert!(inline.len() <= INLINE_BYTES_MAX, "{} inline bytes", inline.len());
        Self { part: Part { kind, lower, range, checksum: 0, inline: inline.into() }, data: None }
    }
}

/// Computes the checksum of the data of a part.
pub fn data_checksum(data: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, data)
}

impl Part {
    /// Returns the bytes of the part in the payload of its record, with the padding.
    pub fn payload_bytes(&self) -> u64 {
        match self.kind {
            PartKind::Data => self.range.len().next_multiple_of(SECTOR_BYTES as u64),
            PartKind::Zeroes | PartKind::Discard => 0,
        }
    }

    /// Returns the bytes of the part among the items of its record.
    pub fn item_bytes(&self) -> usize {
        PART_BYTES + self.inline.len().next_multiple_of(ITEM_ALIGN)
    }

    /// Appends the part to the items of a record.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let raw = Raw {
            lower: self.lower.into(),
            inline: (self.inline.len() as u16).into(),
            zero: 0.into(),
            start: self.range.start().into(),
            length: self.range.len().into(),
            checksum: self.checksum.into(),
        };
        encode_item(to, self.kind as u16, MustKnow::ToOpen, |to| {
            to.extend_from_slice(raw.as_bytes());
            to.extend_from_slice(&self.inline);
            to.resize(to.len().next_multiple_of(ITEM_ALIGN), 0);
        });
    }

    fn decode(item: &Item<'_>, lowers: u32) -> Result<Option<Self>, String> {
        let kind = match item.kind {
            1 => PartKind::Data,
            2 => PartKind::Zeroes,
            3 => PartKind::Discard,
            _ if item.must_know == MustKnow::No => return Ok(None),
            kind => return Err(format!("a part has the unknown type {kind}")),
        };
        let (raw, rest) =
            Raw::ref_from_prefix(item.content).map_err(|_| "a part is truncated".to_owned())?;
        let (lower, inline) = (raw.lower.get(), usize::from(raw.inline.get()));
        if u32::from(lower) >= lowers {
            return Err(format!("a part is for lower {lower} of {lowers}"));
        }
        if inline > INLINE_BYTES_MAX || inline.next_multiple_of(ITEM_ALIGN) != rest.len() {
            return Err(format!("a part has an impossible length, {inline} inline bytes"));
        }
        let (start, length) = (raw.start.get(), raw.length.get());
        let range = ByteRange::new(start, length);
        let range = range.ok_or_else(|| format!("a range of {length} bytes at {start}"))?;
        if kind == PartKind::Data && length > RECORD_BYTES_MAX {
            return Err(format!("a part has {length} bytes of data"));
        }
        let (checksum, inline) = (raw.checksum.get(), rest[..inline].into());
        Ok(Some(Self { kind, lower, range, checksum, inline }))
    }

    /// Decodes the parts of a record. `lowers` is the number of devices of the journal.
    ///
    /// # Errors
    /// A description of the first faulty part, or of a payload with another length than the header has.
    pub fn decode_all(head: &Head, bytes: &[u8], lowers: u32) -> Result<Vec<Self>, String> {
        let mut parts = Vec::new();
        for item in items(bytes, head.items)? {
            parts.extend(Self::decode(&item, lowers)?);
        }
        if parts.len() > PARTS_MAX {
            return Err(format!("{} parts; a record has at most {PARTS_MAX}", parts.len()));
        }
        let payload: u64 = parts.iter().map(Self::payload_bytes).sum();
        match payload == u64::from(head.payload) {
            true => Ok(parts),
            false => Err(format!("the payload of {} bytes is not that of the parts", head.payload)),
        }
    }
}
