//! The arithmetic of striping.
//!
//! A stripe has an address space of its own, the stripe space. Chunk `k` of this space lies in column `k % columns`,
//! in row `k / columns`. A segment maps to a window of the stripe space, which begins at byte `skip`. So a partition
//! of a striped device is a stripe again, with a larger skip.

use super::{Origin, TableError};
use crate::ByteRange;

/// A window of a stripe space: consecutive bytes that are distributed in chunks over the columns, in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stripe {
    chunk: u32,
    skip: u64,
    columns: Vec<Origin>,
}

impl Stripe {
    /// Fewest columns of a stripe. A stripe with one column is represented as linear.
    pub const MIN_COLUMNS: usize = 2;

    /// Most columns of a stripe.
    pub const MAX_COLUMNS: usize = 64;

    /// Unit of a chunk's length, in bytes: the smallest block of any device.
    pub const CHUNK_UNIT_BYTES: u32 = 512;

    /// Length of the largest chunk of a stripe, in bytes.
    pub const MAX_CHUNK_BYTES: u32 = 1 << 30;

    pub(super) fn new(chunk: u32, skip: u64, columns: Vec<Origin>) -> Result<Self, TableError> {
        check_chunk(chunk)?;
        if !(Self::MIN_COLUMNS..=Self::MAX_COLUMNS).contains(&columns.len()) {
            return Err(TableError::Columns(columns.len()));
        }
        Ok(Self { chunk, skip, columns })
    }

    /// Returns the length of a chunk in bytes. The bytes of a chunk are contiguous in one column.
    pub fn chunk(&self) -> u32 {
        self.chunk
    }

    /// Returns the byte of the stripe space at which the stripe's window begins.
    pub fn skip(&self) -> u64 {
        self.skip
    }

    /// Returns the start of each column of the stripe in its lower device, in the order in which the columns get
    /// chunks.
    pub fn columns(&self) -> &[Origin] {
        &self.columns
    }

    /// Returns the position of byte `offset` of the window in a lower device, and the number of bytes that are
    /// contiguous there from this byte on.
    #[inline]
    pub(super) fn locate(&self, offset: u64) -> (Origin, u64) {
        let (column, bytes, together) = self.cell(offset);
        let Origin { port, start } = self.columns[column];
        (Origin { port, start: start + bytes }, together)
    }

    /// Returns the number of the column that has byte `offset` of the window, the number of bytes before it in the
    /// column, and the number of bytes that are contiguous there from this byte on.
    #[inline]
    pub(super) fn cell(&self, offset: u64) -> (usize, u64, u64) {
        let chunk = u64::from(self.chunk);
        let (number, within) = div_rem(self.skip + offset, chunk);
        let (row, column) = div_rem(number, self.columns.len() as u64);
        (column as usize, row * chunk + within, chunk - within)
    }

    /// Returns the byte of the window that column `index` has at `address`: the inverse of [`Stripe::locate`].
    pub(super) fn offset_of(&self, index: usize, address: u64) -> u64 {
        let chunk = u64::from(self.chunk);
        let (row, within) = div_rem(address - self.columns[index].start, chunk);
        (row * self.columns.len() as u64 + index as u64) * chunk + within - self.skip
    }

    /// Returns the length of a row, which has one chunk of each column, if a row begins at byte `offset` of the window.
    pub(super) fn row_at(&self, offset: u64) -> Option<u64> {
        let row = u64::from(self.chunk) * self.columns.len() as u64;
        (self.skip + offset).is_multiple_of(row).then_some(row)
    }

    /// Returns the bytes of column `index` that the first `len` bytes of the window occupy. They are one range,
    /// because a column has its bytes in the order of the stripe space.
    pub(super) fn extent(&self, index: usize, len: u64) -> Option<ByteRange> {
        let start = self.columns[index].start;
        let first = start + self.dealt(self.skip, index);
        let end = start + self.dealt(self.skip + len, index);
        ByteRange::between(first, end)
    }

    /// Returns the number of those bytes among the first `bytes` of the stripe space that lie in column `index`.
    fn dealt(&self, bytes: u64, index: usize) -> u64 {
        let chunk = u64::from(self.chunk);
        let (rows, rest) = div_rem(bytes, chunk * self.columns.len() as u64);
        rows * chunk + rest.saturating_sub(index as u64 * chunk).min(chunk)
    }

    pub(super) fn continues(&self, len: u64, next: &Self) -> bool {
        self.skip + len == next.skip && self.chunk == next.chunk && self.columns == next.columns
    }

    pub(super) fn advanced(&self, bytes: u64) -> Self {
        Self { skip: self.skip + bytes, ..self.clone() }
    }

    pub(super) fn with_columns(&self, change: impl FnMut(Origin) -> Origin) -> Self {
        Self { columns: self.columns.iter().copied().map(change).collect(), ..*self }
    }

    /// Checks that the first `len` bytes of the window end below `u64::MAX`, in the stripe space and in every lower
    /// device.
    pub(super) fn check(&self, len: u64) -> Result<(), TableError> {
        let end = self.skip.checked_add(len).ok_or(TableError::TooLarge)?;
        for (index, column) in self.columns.iter().enumerate() {
            column.start.checked_add(self.dealt(end, index)).ok_or(TableError::TooLarge)?;
        }
        Ok(())
    }
}

pub(super) fn check_chunk(bytes: u32) -> Result<(), TableError> {
    let whole = bytes.is_multiple_of(Stripe::CHUNK_UNIT_BYTES);
    if bytes == 0 || bytes > Stripe::MAX_CHUNK_BYTES || !whole {
        return Err(TableError::Chunk(bytes));
    }
    Ok(())
}

/// Returns the quotient and the remainder of `value` and `by`. If `by` is a power of two, which is frequent, a shift
/// takes a tenth of the time of a division.
#[inline]
fn div_rem(value: u64, by: u64) -> (u64, u64) {
    if by.is_power_of_two() {
        return (value >> by.trailing_zeros(), value & (by - 1));
    }
    (value / by, value % by)
}

#[cfg(test)]
mod tests {
    use super::super::Port;
    use super::*;

    /// Returns three columns of 1024-byte chunks, seen from byte 1536: half of chunk 1 is skipped.
    fn window() -> Stripe {
        let column = |port, start| Origin { port: Port(port), start };
        Stripe::new(1024, 1536, vec![column(0, 0), column(1, 4096), column(2, 8192)]).unwrap()
    }

    #[test]
    fn stripe_locates_column_and_address_of_byte() {
        let at = |port, start| Origin { port: Port(port), start };
        assert_eq!(window().locate(0), (at(1, 4096 + 512), 512));
        assert_eq!(window().locate(512), (at(2, 8192), 1024));
        assert_eq!(window().locate(1536), (at(0, 1024), 1024));
        assert_eq!(window().locate(1537), (at(0, 1025), 1023));
    }

    #[test]
    fn stripe_offset_of_address_inverts_location() {
        for offset in [0, 511, 512, 1535, 1536, 1537, 90_000] {
            let (column, bytes, _) = window().cell(offset);
            let address = window().columns()[column].start + bytes;
            assert_eq!(window().offset_of(column, address), offset);
        }
    }

    #[test]
    fn stripe_row_begins_at_first_chunk_of_first_column() {
        assert_eq!(window().row_at(0), None);
        assert_eq!(window().row_at(1536), Some(3072));
        assert_eq!(window().row_at(1536 + 3072), Some(3072));
    }

    #[test]
    fn stripe_column_extent_covers_chunks_of_range() {
        // 600 bytes: the rest of chunk 1 in column 1, 88 bytes of chunk 2 in column 2.
        assert_eq!(window().extent(0, 600), None);
        assert_eq!(window().extent(1, 600), ByteRange::new(4096 + 512, 512));
        assert_eq!(window().extent(2, 600), ByteRange::new(8192, 88));
    }

    #[test]
    fn stripe_rejects_invalid_chunk_size_and_single_column() {
        assert_eq!(check_chunk(0), Err(TableError::Chunk(0)));
        assert_eq!(check_chunk(513), Err(TableError::Chunk(513)));
        assert_eq!(check_chunk((1 << 30) + 512), Err(TableError::Chunk((1 << 30) + 512)));
        assert_eq!(check_chunk(1 << 30), Ok(()));
        let columns = vec![Origin { port: Port(0), start: 0 }];
        assert_eq!(Stripe::new(512, 0, columns), Err(TableError::Columns(1)));
    }
}
