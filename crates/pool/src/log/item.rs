//! The encoding of the items of a record, and the choice by type.

use meta::ring::{Item, MustKnow, encode_item};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::changes::Changes;
use crate::name::Label;
use crate::rows::{KEY_BYTES_MAX, SnapshotFlags, Table};
use crate::{ALLOCATORS_MAX, Address, BLOCK_BYTES, COUNT_MAX, NUMBER_MAX};

const CHANGES: u16 = 1;
const SNAPSHOT: u16 = 2;
const PUT_ROW: u16 = 3;
const REMOVE_ROW: u16 = 4;
const NUMBERS: u16 = 5;
const MARK: u16 = 6;
const FOREIGN_FREE: u16 = 7;
const FOREIGN_APPLIED: u16 = 8;

/// Divisor of the length of the content of an item.
const ALIGN: usize = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSnapshot {
    vdisk: U64,
    number: U64,
    taken_unix_us: U64,
    group: U64,
    size: U64,
    flags: U32,
    label_bytes: U16,
    zero: [u8; 2],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRow {
    table: U32,
    bytes: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNumbers {
    vdisk: U64,
    end: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMark {
    vdisk: U64,
    mark: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawForeign {
    peer: U64,
    number: U64,
    address: U64,
    blocks: U32,
    zero: U32,
}

const _: () = assert!(size_of::<RawSnapshot>() == 48 && size_of::<RawForeign>() == 32);

/// A snapshot in a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotItem {
    /// Number of the vdisk.
    pub vdisk: u64,
    /// Number of the snapshot.
    pub number: u64,
    /// Time when it was taken, in microseconds from 1970.
    pub taken_unix_us: u64,
    /// Number of the group that is taken together; 0 for none.
    pub group: u64,
    /// Size of the vdisk, in bytes.
    pub size: u64,
    /// Flags of its row.
    pub flags: SnapshotFlags,
    /// Label, if it has one.
    pub label: Option<Label>,
}

/// The key of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowKey<'a> {
    /// The table.
    pub table: Table,
    /// The key, in the length that the table has.
    pub key: &'a [u8],
}

/// A free of blocks in an extent of another allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForeignFree {
    /// Number of the other allocator.
    pub peer: u32,
    /// Number of the free; each later one between the two allocators has a higher number.
    pub number: u64,
    /// Address of the first block.
    pub address: Address,
    /// Number of blocks.
    pub blocks: u32,
}

/// An item of a record in the log of an allocator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogItem<'a> {
    /// Changed blocks of a vdisk.
    Changes(Changes<'a>),
    /// A snapshot. The changes before it have its number as birth.
    Snapshot(SnapshotItem),
    /// A row that is added or replaced: key and value.
    PutRow(Table, &'a [u8]),
    /// A row that is removed.
    RemoveRow(RowKey<'a>),
    /// The new end of the numbers in reserve: of snapshots of a vdisk, or of the allocator for vdisk 0.
    Numbers {
        /// Number of the vdisk, or 0.
        vdisk: u64,
        /// No number from here on is used.
        end: u64,
    },
    /// An opaque mark of another part for a vdisk.
    Mark {
        /// Number of the vdisk.
        vdisk: u64,
        /// The mark.
        mark: [u8; 32],
    },
    /// A free in an extent of another allocator.
    ForeignFree(ForeignFree),
    /// A free of another allocator that takes effect here.
    ForeignApplied(ForeignFree),
    /// An item that this version does not know.
    Unknown(u16, MustKnow),
}

/// Decodes the items of a record.
///
/// # Errors
/// A description of the first faulty item, or of a count that differs from `count`.
pub fn log_items(bytes: &[u8], count: u32) -> Result<Vec<LogItem<'_>>, String> {
    meta::ring::items(bytes, count)?.into_iter().map(LogItem::decode).collect()
}

impl<'a> LogItem<'a> {
    /// Appends the encoded item to `to`.
    ///
    /// # Panics
    /// If a value exceeds its limit, or for an unknown item.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let (kind, must_know) = match self {
            Self::Changes(_) => (CHANGES, MustKnow::ToOpen),
            Self::Snapshot(_) => (SNAPSHOT, MustKnow::ToOpen),
            Self::PutRow(..) => (PUT_ROW, MustKnow::ToOpen),
            Self::RemoveRow(_) => (REMOVE_ROW, MustKnow::ToOpen),
            Self::Numbers { .. } => (NUMBERS, MustKnow::ToOpen),
            Self::Mark { .. } => (MARK, MustKnow::No),
            Self::ForeignFree(_) => (FOREIGN_FREE, MustKnow::ToOpen),
            Self::ForeignApplied(_) => (FOREIGN_APPLIED, MustKnow::ToOpen),
            Self::Unknown(kind, _) => panic!("an unknown item of type {kind} is not written"),
        };
        encode_item(to, kind, must_know, |to| match self {
            Self::Changes(changes) => changes.encode(to),
            Self::Snapshot(snapshot) => snapshot.encode(to),
            Self::PutRow(table, row) => encode_row(*table, row, table.row_bytes(), to),
            Self::RemoveRow(RowKey { table, key }) => {
                encode_row(*table, key, table.key_bytes(), to);
            }
            Self::Numbers { vdisk, end } => {
                let raw = RawNumbers { vdisk: (*vdisk).into(), end: (*end).into() };
                to.extend_from_slice(raw.as_bytes());
            }
            Self::Mark { vdisk, mark } => {
                let raw = RawMark { vdisk: (*vdisk).into(), mark: *mark };
                to.extend_from_slice(raw.as_bytes());
            }
            Self::ForeignFree(free) | Self::ForeignApplied(free) => free.encode(to),
            Self::Unknown(..) => {}
        });
    }

    /// Decodes one item of a record.
    ///
    /// # Errors
    /// A description of the fault.
    pub fn decode(item: Item<'a>) -> Result<Self, String> {
        let Item { kind, must_know, content } = item;
        let decoded = match kind {
            CHANGES => Self::Changes(Changes::decode(content)?),
            SNAPSHOT => Self::Snapshot(SnapshotItem::decode(content)?),
            PUT_ROW => match decode_row(content, Table::row_bytes)? {
                Ok((table, row)) => {
                    table.reencode(row)?;
                    Self::PutRow(table, row)
                }
                Err(must_know) => return Ok(Self::Unknown(kind, must_know)),
            },
            REMOVE_ROW => match decode_row(content, Table::key_bytes)? {
                Ok((table, key)) => Self::RemoveRow(RowKey { table, key }),
                Err(must_know) => return Ok(Self::Unknown(kind, must_know)),
            },
            NUMBERS => decode_numbers(content)?,
            MARK => {
                let raw = RawMark::ref_from_bytes(content).map_err(|_| "a mark has no mark")?;
                match raw.vdisk.get() {
                    0 => return Err("a mark of vdisk 0 is impossible".to_owned()),
                    vdisk => Self::Mark { vdisk, mark: raw.mark },
                }
            }
            FOREIGN_FREE => Self::ForeignFree(ForeignFree::decode(content)?),
            FOREIGN_APPLIED => Self::ForeignApplied(ForeignFree::decode(content)?),
            _ => return Ok(Self::Unknown(kind, must_know)),
        };
        let expected = if kind == MARK { MustKnow::No } else { MustKnow::ToOpen };
        match must_know == expected {
            true => Ok(decoded),
            false => Err(format!("an item of type {kind} has the flags of another one")),
        }
    }
}

/// Appends zeros until the bytes from `begin` on have a length that is a multiple of [`ALIGN`].
fn pad(to: &mut Vec<u8>, begin: usize) {
    to.resize(begin + (to.len() - begin).next_multiple_of(ALIGN), 0);
}

fn encode_row(table: Table, bytes: &[u8], width: usize, to: &mut Vec<u8>) {
    assert_eq!(bytes.len(), width, "the width of {table:?}");
    let begin = to.len();
    let raw = RawRow { table: (table as u32).into(), bytes: (width as u32).into() };
    to.extend_from_slice(raw.as_bytes());
    to.extend_from_slice(bytes);
    pad(to, begin);
}

/// Returns the table and the row or key in the content of an item; for an unknown table, the rule for it.
#[allow(clippy::type_complexity, reason = "an outer error is damage, an inner one a later version")]
fn decode_row(
    content: &[u8],
    width: fn(Table) -> usize,
) -> Result<Result<(Table, &[u8]), MustKnow>, String> {
    let (raw, rest) = RawRow::ref_from_prefix(content).map_err(|_| "a row is truncated")?;
    let (number, bytes) = (raw.table.get(), raw.bytes.get() as usize);
    if rest.len() != bytes.next_multiple_of(ALIGN) {
        return Err(format!("{} bytes hold a row of {bytes}", rest.len()));
    }
    let (row, padding) = rest.split_at(bytes);
    if padding.iter().any(|byte| *byte != 0) {
        return Err("the bytes behind a row are not zero".to_owned());
    }
    match Table::of_number(number) {
        Ok(table) if width(table) == bytes => Ok(Ok((table, row))),
        Ok(table) => Err(format!("{bytes} bytes for table {table:?}, not {}", width(table))),
        Err(must_know) => Ok(Err(must_know)),
    }
}

fn decode_numbers<'a>(content: &[u8]) -> Result<LogItem<'a>, String> {
    let raw = RawNumbers::ref_from_bytes(content).map_err(|_| "numbers have a wrong length")?;
    let (vdisk, end) = (raw.vdisk.get(), raw.end.get());
    match (1..=NUMBER_MAX).contains(&end) {
        true => Ok(LogItem::Numbers { vdisk, end }),
        false => Err(format!("an end {end} of the numbers of vdisk {vdisk} is impossible")),
    }
}

impl SnapshotItem {
    fn encode(&self, to: &mut Vec<u8>) {
        self.check().unwrap_or_else(|why| panic!("{why}"));
        let label = self.label.as_ref().map_or("", Label::as_str);
        let begin = to.len();
        let raw = RawSnapshot {
            vdisk: self.vdisk.into(),
            number: self.number.into(),
            taken_unix_us: self.taken_unix_us.into(),
            group: self.group.into(),
            size: self.size.into(),
            flags: self.flags.0.into(),
            label_bytes: (label.len() as u16).into(),
            zero: [0; 2],
        };
        to.extend_from_slice(raw.as_bytes());
        to.extend_from_slice(label.as_bytes());
        pad(to, begin);
    }

    fn decode(content: &[u8]) -> Result<Self, String> {
        let (raw, rest) =
            RawSnapshot::ref_from_prefix(content).map_err(|_| "a snapshot is truncated")?;
        let len = usize::from(raw.label_bytes.get());
        if rest.len() != len.next_multiple_of(ALIGN) || raw.zero != [0; 2] {
            return Err(format!("a snapshot has a label of {len} in {} bytes", rest.len()));
        }
        let (label, padding) = rest.split_at(len);
        if padding.iter().any(|byte| *byte != 0) {
            return Err("the bytes behind a label are not zero".to_owned());
        }
        let text = std::str::from_utf8(label).map_err(|_| "a label is not UTF-8")?;
        let label = match text {
            "" => None,
            text => Some(Label::parse(text).map_err(|error| error.message().to_owned())?),
        };
        let snapshot = Self {
            vdisk: raw.vdisk.get(),
            number: raw.number.get(),
            taken_unix_us: raw.taken_unix_us.get(),
            group: raw.group.get(),
            size: raw.size.get(),
            flags: SnapshotFlags(raw.flags.get()),
            label,
        };
        snapshot.check()?;
        Ok(snapshot)
    }

    fn check(&self) -> Result<(), String> {
        let Self { vdisk, number, taken_unix_us, size, .. } = self;
        let is_size = size.is_multiple_of(BLOCK_BYTES.into()) && *size <= COUNT_MAX;
        let is_number = *vdisk != 0 && (1..NUMBER_MAX).contains(number);
        match is_number && is_size && *taken_unix_us <= COUNT_MAX {
            true => Ok(()),
            false => Err(format!("snapshot {number} of vdisk {vdisk} with size {size}")),
        }
    }
}

impl ForeignFree {
    fn encode(&self, to: &mut Vec<u8>) {
        self.check().unwrap_or_else(|why| panic!("{why}"));
        let raw = RawForeign {
            peer: u64::from(self.peer).into(),
            number: self.number.into(),
            address: self.address.bits().into(),
            blocks: self.blocks.into(),
            zero: 0.into(),
        };
        to.extend_from_slice(raw.as_bytes());
    }

    fn decode(content: &[u8]) -> Result<Self, String> {
        let raw = RawForeign::ref_from_bytes(content).map_err(|_| "a free has a wrong length")?;
        if raw.zero.get() != 0 {
            return Err("unknown fields of a free are not zero".to_owned());
        }
        let free = Self {
            peer: u32::try_from(raw.peer.get()).map_err(|_| "a free has no allocator")?,
            number: raw.number.get(),
            address: Address::from_bits(raw.address.get()),
            blocks: raw.blocks.get(),
        };
        free.check()?;
        Ok(free)
    }

    fn check(&self) -> Result<(), String> {
        let Self { peer, number, address, blocks } = self;
        let is_free = (1..=ALLOCATORS_MAX).contains(peer)
            && (1..=COUNT_MAX).contains(number)
            && crate::rows::is_run(*address, *blocks);
        match is_free {
            true => Ok(()),
            false => Err(format!("free {number} of {blocks} blocks at {address:?} for {peer}")),
        }
    }
}

const _: () = assert!(KEY_BYTES_MAX.is_multiple_of(ALIGN));
