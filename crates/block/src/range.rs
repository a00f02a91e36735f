//! Byte ranges.

use std::fmt;

/// A non-empty run of bytes in one address space.
///
/// Invariant: `len > 0` and `start + len` does not overflow. So the end of a range can always be computed, and no
/// code that receives a range needs to check whether the range is empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    start: u64,
    len: u64,
}

impl ByteRange {
    /// Returns the range of `len` bytes from `start`; `None` if it is empty or its end passes `u64::MAX`.
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        if len == 0 || start.checked_add(len).is_none() {
            return None;
        }
        Some(Self { start, len })
    }

    /// Returns the range from `start` up to, not including, `end`; `None` if it is empty.
    pub const fn between(start: u64, end: u64) -> Option<Self> {
        if start >= end {
            return None;
        }
        Some(Self { start, len: end - start })
    }

    /// Returns the address of the first byte of the range.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the number of bytes in the range, never zero.
    #[allow(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Returns the address of the byte after the last one of the range.
    pub const fn end(self) -> u64 {
        self.start + self.len
    }

    /// Whether the two ranges share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Whether `other` lies wholly inside this range.
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Returns the bytes that both ranges have in common; `None` if there are none.
    pub fn intersect(self, other: Self) -> Option<Self> {
        Self::between(self.start.max(other.start), self.end().min(other.end()))
    }

    /// Returns a range of the same length that begins at `start`.
    ///
    /// # Panics
    /// If the end would pass `u64::MAX`: a mapping that does this has a bug.
    pub fn at(self, start: u64) -> Self {
        Self::new(start, self.len).expect("a mapped range ends within u64")
    }

    /// Whether start and length of the range are multiples of `block` bytes, a power of two.
    pub const fn is_aligned(self, block: u32) -> bool {
        (self.start | self.len) & (block as u64 - 1) == 0
    }

    /// Returns the smallest range of whole `block`s (a power of two) that holds this range; `None` past `u64::MAX`.
    pub fn widen(self, block: u32) -> Option<Self> {
        let mask = block as u64 - 1;
        Self::between(self.start & !mask, self.end().checked_add(mask)? & !mask)
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.start, self.len)
    }
}

impl fmt::Debug for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_range_rejects_empty_and_overflowing_bounds() {
        assert!(ByteRange::new(0, 0).is_none());
        assert!(ByteRange::new(u64::MAX, 1).is_none());
        assert!(ByteRange::between(7, 7).is_none());
        assert_eq!(ByteRange::new(u64::MAX - 1, 1).unwrap().end(), u64::MAX);
    }

    #[test]
    fn byte_range_widens_to_whole_blocks() {
        let range = ByteRange::new(511, 2).unwrap();
        assert_eq!(range.widen(512), ByteRange::new(0, 1024));
        assert_eq!(ByteRange::new(u64::MAX - 1, 1).unwrap().widen(512), None);
    }

    #[test]
    fn byte_range_intersects_only_overlapping_ranges() {
        let a = ByteRange::new(0, 10).unwrap();
        let b = ByteRange::new(5, 10).unwrap();
        assert_eq!(a.intersect(b), ByteRange::new(5, 5));
        assert!(!a.overlaps(ByteRange::new(10, 1).unwrap()));
        assert!(a.intersect(ByteRange::new(10, 1).unwrap()).is_none());
    }
}
