//! Tables: pure mappings as data.
//!
//! A table maps every byte of an address space to a byte of a lower device. Linear, concat, stripe and partition are
//! constructors of tables, not code that runs for each request. So a stack of such devices is fused into one table
//! with one lookup. A table can also be printed, compared and replaced like any other value.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the type, and the one check of its invariants |
//! | `stripe.rs` | the arithmetic of striping |
//! | `build.rs` | the constructors |
//! | `map.rs` | lookup of lower bytes for the bytes of the table |
//! | `status.rs` | the block status of a range, from that of the lowers |
//! | `fuse.rs` | substitution of a table into another |
//! | `text.rs` | printing |

#![forbid(unsafe_code)]

mod build;
mod error;
mod fuse;
#[cfg(test)]
mod laws;
mod map;
mod status;
mod stripe;
mod text;
#[cfg(test)]
mod text_tests;

use std::fmt;
use std::slice;

use crate::ByteRange;

pub use build::StripeTable;
pub use error::TableError;
pub use fuse::{Fused, PortPath};
pub use map::{Run, Runs};
pub use status::StatusMerge;
pub use stripe::Stripe;

/// The number of a lower device among the lowers of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port(pub u16);

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// The position in a lower device at which mapped bytes begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// Port of the lower device.
    pub port: Port,
    /// Address in the lower device of the first mapped byte.
    pub start: u64,
}

/// Position of a segment's bytes in the lower devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// The bytes are consecutive in one lower device, from this origin on.
    Linear(Origin),
    /// The bytes are distributed in chunks over several columns, in turn. Boxed, because most segments are linear.
    Striped(Box<Stripe>),
}

/// A row of a table, as callers see it: a byte range, and the position of its bytes in the lower devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'t> {
    /// Bytes of the segment in the table's own address space.
    pub range: ByteRange,
    /// Position of the segment's bytes in the lower devices.
    pub place: &'t Place,
}

/// A pure mapping from `[0, size)` to bytes of lower devices.
///
/// Invariants: there is at least one segment; segments cover `[0, size)` exactly; neighbours that continue each other
/// are one segment; no byte of a lower device belongs to two segments; the limits of this type are met, and no
/// address passes `u64::MAX`.
#[derive(Clone, PartialEq, Eq)]
pub struct Table {
    /// Start of each segment, and the size of the table as the last entry: one entry more than there are segments.
    /// They are not stored with the places, so that a search reads no other memory.
    bounds: Vec<u64>,
    places: Vec<Place>,
    port_count: usize,
}

impl Table {
    /// Most segments of one table. A search among them takes a dozen steps in 32 KiB, which fit into the processor's
    /// cache.
    pub const MAX_SEGMENTS: usize = 4096;

    /// Most ports of one table.
    pub const MAX_PORTS: usize = 1024;

    /// Returns the number of bytes that the table maps.
    pub fn size(&self) -> u64 {
        self.bounds[self.places.len()]
    }

    /// Returns the number of ports of the table: one more than the highest port that a segment uses.
    pub fn port_count(&self) -> usize {
        self.port_count
    }

    /// Returns the segments of the table, from the lowest address up.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment<'_>> {
        (0..self.places.len()).map(|index| self.segment(index))
    }

    /// Returns the segment with number `index`, from 0.
    ///
    /// # Panics
    /// If the table has no such segment.
    pub fn segment(&self, index: usize) -> Segment<'_> {
        Segment { range: self.segment_range(index), place: &self.places[index] }
    }

    /// Returns the same mapping with port `p` replaced by `to[p]`. Ports to the same device may get the same number;
    /// the mapping is then rejected if two segments share bytes of that device.
    ///
    /// # Panics
    /// If `to` is shorter than [`Table::port_count`].
    pub fn renumber(&self, to: &[Port]) -> Result<Self, TableError> {
        let rename = |port: Port| to[usize::from(port.0)];
        Self::from_rows(self.segments().map(|segment| Row {
            len: segment.range.len(),
            place: segment.place.with_ports(rename),
        }))
    }

    /// Checks that every segment begins and ends at a multiple of `block` bytes, in the table and in the lower
    /// devices. Then a request in whole blocks maps to whole blocks.
    pub fn check_block_size(&self, block: u32) -> Result<(), TableError> {
        for (index, segment) in self.segments().enumerate() {
            let bounds = [segment.range.start(), segment.range.end()];
            let numbers = bounds.into_iter().chain(segment.place.numbers());
            for bytes in numbers {
                if !bytes.is_multiple_of(u64::from(block)) {
                    return Err(TableError::Misaligned { segment: index, bytes, block });
                }
            }
        }
        Ok(())
    }

    fn segment_range(&self, index: usize) -> ByteRange {
        ByteRange::between(self.bounds[index], self.bounds[index + 1]).expect("it has bytes")
    }

    fn from_rows(rows: impl IntoIterator<Item = Row>) -> Result<Self, TableError> {
        let mut builder = Builder::new();
        for row in rows {
            builder.push(row)?;
        }
        builder.finish()
    }
}

/// A segment of a table that is being built; its start is the end of the segment before it.
struct Row {
    len: u64,
    place: Place,
}

/// The only builder of tables: each table that it returns satisfies the invariants.
struct Builder {
    table: Table,
}

impl Builder {
    fn new() -> Self {
        Self { table: Table { bounds: vec![0], places: vec![], port_count: 0 } }
    }

    /// Returns the number of bytes that the table covers so far.
    fn size(&self) -> u64 {
        self.table.size()
    }

    fn push(&mut self, row: Row) -> Result<(), TableError> {
        if row.len == 0 {
            return Err(TableError::Empty);
        }
        let end = self.size().checked_add(row.len).ok_or(TableError::TooLarge)?;
        row.place.check(row.len)?;
        let table = &mut self.table;
        if let Some(last) = table.places.len().checked_sub(1)
            && table.places[last].continues(table.segment_range(last).len(), &row.place)
        {
            table.bounds[last + 1] = end;
            return Ok(());
        }
        if table.places.len() == Table::MAX_SEGMENTS {
            return Err(TableError::Segments(Table::MAX_SEGMENTS + 1));
        }
        let ports = row.place.origins().iter().map(|origin| usize::from(origin.port.0) + 1);
        table.port_count = ports.fold(table.port_count, usize::max);
        table.bounds.push(end);
        table.places.push(row.place);
        Ok(())
    }

    fn finish(self) -> Result<Table, TableError> {
        if self.table.places.is_empty() {
            return Err(TableError::Empty);
        }
        self.check_reached_once()?;
        Ok(self.table)
    }

    /// Checks that no byte of a lower device belongs to two segments. After sorting, overlapping ranges are adjacent.
    fn check_reached_once(&self) -> Result<(), TableError> {
        let mut reached = Vec::new();
        for segment in self.table.segments() {
            reached.extend(segment.place.extents(segment.range.len()));
        }
        reached.sort_unstable();
        for pair in reached.windows(2) {
            let [(port, first), (next_port, second)] = [pair[0], pair[1]];
            if port == next_port && first.overlaps(second) {
                return Err(TableError::Overlap { port, first, second });
            }
        }
        Ok(())
    }
}

impl Place {
    /// Returns the positions in the lower devices at which the bytes of this place begin: one if linear, one for each
    /// column if striped.
    pub fn origins(&self) -> &[Origin] {
        match self {
            Self::Linear(origin) => slice::from_ref(origin),
            Self::Striped(stripe) => stripe.columns(),
        }
    }

    /// Returns the bytes of the lower device that the first `len` bytes of this place occupy from origin `index` on;
    /// `None` if they occupy none there.
    fn extent(&self, index: usize, len: u64) -> Option<ByteRange> {
        match self {
            Self::Linear(origin) => ByteRange::new(origin.start, len),
            Self::Striped(stripe) => stripe.extent(index, len),
        }
    }

    /// Returns all bytes of lower devices that the first `len` bytes of this place occupy.
    fn extents(&self, len: u64) -> impl Iterator<Item = (Port, ByteRange)> {
        let origins = self.origins().iter().enumerate();
        origins.filter_map(move |(index, origin)| Some((origin.port, self.extent(index, len)?)))
    }

    /// Returns the number of bytes of this place before the byte that origin `index` has at `address`.
    fn offset_of(&self, index: usize, address: u64) -> u64 {
        match self {
            Self::Linear(origin) => address - origin.start,
            Self::Striped(stripe) => stripe.offset_of(index, address),
        }
    }

    /// Returns the number of the origin that has byte `offset` of this place, and the number of bytes that are
    /// contiguous there from this byte on.
    fn column_at(&self, offset: u64) -> (usize, u64) {
        match self {
            Self::Linear(_) => (0, u64::MAX),
            Self::Striped(stripe) => {
                let (column, _, together) = stripe.cell(offset);
                (column, together)
            }
        }
    }

    /// Returns the lengths of a chunk and of a row of a stripe, if a row begins at byte `offset` of this place.
    fn row_at(&self, offset: u64) -> Option<(u64, u64)> {
        match self {
            Self::Linear(_) => None,
            Self::Striped(stripe) => Some((stripe.chunk().into(), stripe.row_at(offset)?)),
        }
    }

    /// Whether `next` begins in the lower devices where the first `len` bytes of this place end.
    fn continues(&self, len: u64, next: &Self) -> bool {
        match (self, next) {
            (Self::Linear(one), Self::Linear(two)) => {
                one.port == two.port && one.start + len == two.start
            }
            (Self::Striped(one), Self::Striped(two)) => one.continues(len, two),
            _ => false,
        }
    }

    /// Returns the same place without its first `bytes` bytes.
    fn advanced(&self, bytes: u64) -> Self {
        match self {
            Self::Linear(origin) => Self::Linear(Origin { start: origin.start + bytes, ..*origin }),
            Self::Striped(stripe) => Self::Striped(Box::new(stripe.advanced(bytes))),
        }
    }

    fn with_ports(&self, mut rename: impl FnMut(Port) -> Port) -> Self {
        self.with_origins(|origin| Origin { port: rename(origin.port), ..origin })
    }

    fn with_origins(&self, mut change: impl FnMut(Origin) -> Origin) -> Self {
        match self {
            Self::Linear(origin) => Self::Linear(change(*origin)),
            Self::Striped(stripe) => Self::Striped(Box::new(stripe.with_columns(change))),
        }
    }

    /// Returns every number of this place that must be a multiple of the block size.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        let striping = match self {
            Self::Linear(_) => None,
            Self::Striped(stripe) => Some([u64::from(stripe.chunk()), stripe.skip()]),
        };
        let starts = self.origins().iter().map(|origin| origin.start);
        striping.into_iter().flatten().chain(starts)
    }

    /// Checks that the ports are allowed, and that the first `len` bytes of this place end below `u64::MAX` in every
    /// address space.
    fn check(&self, len: u64) -> Result<(), TableError> {
        for origin in self.origins() {
            if usize::from(origin.port.0) >= Table::MAX_PORTS {
                return Err(TableError::Ports(origin.port));
            }
        }
        match self {
            Self::Linear(origin) => {
                origin.start.checked_add(len).map(drop).ok_or(TableError::TooLarge)
            }
            Self::Striped(stripe) => stripe.check(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::text_tests::table;

    /// Parses a table and prints it, which merges neighbours.
    fn shortest(text: &str) -> String {
        table(text).to_string()
    }

    #[test]
    fn table_merges_neighbouring_segments_that_are_contiguous() {
        let linear = "0+5 linear p0 0\n5+5 linear p0 5";
        assert_eq!(shortest(linear), "0+10 linear p0 0");
        let striped = "0+700 striped 512 skip 9 p0:0 p1:0\n700+5 striped 512 skip 709 p0:0 p1:0";
        assert_eq!(shortest(striped), "0+705 striped 512 skip 9 p0:0 p1:0");
    }

    #[test]
    fn table_keeps_neighbouring_segments_that_are_not_contiguous() {
        let texts = [
            "0+5 linear p0 0\n5+5 linear p1 5",
            "0+5 linear p0 0\n5+5 linear p0 6",
            "0+512 striped 512 skip 0 p0:0 p1:0\n512+512 striped 512 skip 512 p0:0 p1:512",
            "0+512 striped 512 skip 0 p0:0 p1:0\n512+512 striped 1024 skip 512 p0:0 p1:0",
            "0+512 striped 512 skip 0 p0:0 p1:0\n512+512 striped 512 skip 1536 p0:0 p1:0",
        ];
        for text in texts {
            assert_eq!(shortest(text), text);
        }
    }

    #[test]
    fn table_block_size_check_rejects_misaligned_segments() {
        let unaligned =
            |text: &str, block| table(text).check_block_size(block).unwrap_err().to_string();
        let end = unaligned("0+4096 linear p0 0\n4096+1536 linear p1 0", 4096);
        assert_eq!(end, "segment 1: 5632 is not a multiple of the block size 4096");
        let start = unaligned("0+4096 linear p0 512", 4096);
        assert_eq!(start, "segment 0: 512 is not a multiple of the block size 4096");
        let chunk = unaligned("0+4096 striped 1536 skip 0 p0:0 p1:0", 1024);
        assert_eq!(chunk, "segment 0: 1536 is not a multiple of the block size 1024");
        let skip = unaligned("0+4096 striped 4096 skip 512 p0:0 p1:0", 4096);
        assert_eq!(skip, "segment 0: 512 is not a multiple of the block size 4096");
        let column = unaligned("0+4096 striped 4096 skip 0 p0:0 p1:1024", 4096);
        assert_eq!(column, "segment 0: 1024 is not a multiple of the block size 4096");
    }

    #[test]
    fn table_block_size_check_accepts_aligned_segments() {
        let text = "0+4096 linear p0 512\n4096+1024 striped 1536 skip 512 p1:0 p2:1024";
        assert_eq!(table(text).check_block_size(512), Ok(()));
    }
}
