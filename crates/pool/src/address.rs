//! Physical addresses of blocks and nodes.

use std::fmt;

/// Bytes of a block and of a node.
pub const BLOCK_BYTES: u32 = 4096;

/// Bits of the offset within an extent, in blocks.
const OFFSET_BITS: u32 = 20;

/// A physical address: the number of an extent, and an offset within it in blocks of 4 KiB.
///
/// The table of extents resolves the number, so an extent can move without a change of any tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64);

impl Address {
    /// The largest number of an extent.
    pub const EXTENT_MAX: u64 = (1 << (64 - OFFSET_BITS)) - 1;
    /// The largest offset within an extent, in blocks.
    pub const OFFSET_MAX: u32 = (1 << OFFSET_BITS) - 1;

    /// The address of a block of an extent, if both are within their limits.
    pub const fn new(extent: u64, offset: u32) -> Option<Self> {
        if extent > Self::EXTENT_MAX || offset > Self::OFFSET_MAX {
            return None;
        }
        Some(Self(extent << OFFSET_BITS | offset as u64))
    }

    /// The address in the form that disks hold.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The form that disks hold.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The number of the extent.
    pub const fn extent(self) -> u64 {
        self.0 >> OFFSET_BITS
    }

    /// The offset within the extent, in blocks.
    pub const fn offset(self) -> u32 {
        (self.0 & Self::OFFSET_MAX as u64) as u32
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.extent(), self.offset())
    }
}
