//! Runs of blocks, and the checksums of their blocks.

use std::ops::Range;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::Address;

/// Number of a snapshot of a line, as it is used for births and deaths. It has 48 bits.
pub type Number = u64;

/// Number of blocks that a map can address: four times the largest vdisk.
pub const BLOCKS_MAX: u64 = 1 << 38;

/// Kind of a run, in the form that disks hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunKind(u8);

impl RunKind {
    /// Blocks with physical addresses and checksums.
    pub const DATA: Self = Self(0);
    /// An explicit hole: its blocks are zeros, and trees below do not count.
    pub const HOLE: Self = Self(0x21);

    const BARE: u8 = 0x20;
    const FORBIDS_WRITING: u8 = 0x40;
    const FORBIDS_OPENING: u8 = 0x80;

    /// The kind with this number and these flags.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The form that disks hold.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether this code knows the kind.
    pub fn is_known(self) -> bool {
        self == Self::DATA || self == Self::HOLE
    }

    /// Whether runs of this kind have physical addresses and checksums.
    pub const fn has_blocks(self) -> bool {
        self.0 & Self::BARE == 0
    }

    /// Whether the kind is unknown, and states that a reader that does not know it must not write.
    pub fn forbids_writing(self) -> bool {
        !self.is_known() && self.0 & Self::FORBIDS_WRITING != 0
    }

    /// Whether the kind is unknown, and states that a reader that does not know it must not open the tree.
    pub fn forbids_opening(self) -> bool {
        !self.is_known() && self.0 & Self::FORBIDS_OPENING != 0
    }
}

/// Adjacent blocks of a vdisk with one kind and one birth, at adjacent physical addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// First block of the vdisk.
    pub block: u64,
    /// Number of blocks, 1 or more.
    pub blocks: u64,
    /// Kind of the run.
    pub kind: RunKind,
    /// Physical address of the first block; meaningless for a kind without blocks.
    pub address: Address,
    /// Number of the first snapshot that can see the run.
    pub birth: Number,
    /// Birth of the first overwrite above the tree below; equal to `birth` outside of change trees.
    pub first: Number,
}

impl Run {
    /// Returns the block behind the run.
    pub fn end(&self) -> u64 {
        self.block + self.blocks
    }

    /// Returns the part of the run in `range`, which lies inside the run.
    pub fn part(&self, range: Range<u64>) -> Self {
        debug_assert!(range.start >= self.block && range.end <= self.end());
        let skipped = range.start - self.block;
        let address = match self.kind.has_blocks() {
            true => Address::from_bits(self.address.bits() + skipped),
            false => self.address,
        };
        Self { block: range.start, blocks: range.end - range.start, address, ..*self }
    }

    /// Returns this run lengthened by `next`, if `next` continues it in the vdisk and in the same extent.
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let alike = self.kind == next.kind
            && self.birth == next.birth
            && self.first == next.first
            && self.end() == next.block;
        let adjacent = !self.kind.has_blocks()
            || self.address.bits() + self.blocks == next.address.bits()
                && self.address.extent() == next.address.extent();
        (alike && adjacent).then(|| Self { blocks: self.blocks + next.blocks, ..*self })
    }

    /// Number of checksums of the run.
    pub fn sums(&self) -> u64 {
        if self.kind.has_blocks() { self.blocks } else { 0 }
    }
}

/// Longest checksums of one run that are kept without an allocation, in bytes.
const INLINE_BYTES: usize = 16;

/// The checksums of the blocks of a run.
#[derive(Clone, Debug)]
pub enum Sums {
    /// At most 16 bytes of checksums; bytes beyond them are zero.
    Inline([u8; INLINE_BYTES]),
    /// Checksums from an offset in shared memory.
    Shared(Rc<[u8]>, u32),
}

impl Sums {
    /// No checksums, for runs without blocks.
    pub const NONE: Self = Self::Inline([0; INLINE_BYTES]);

    /// Copies checksums.
    pub fn new(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE_BYTES];
        match inline.get_mut(..bytes.len()) {
            Some(part) => {
                part.copy_from_slice(bytes);
                Self::Inline(inline)
            }
            None => Self::Shared(bytes.into(), 0),
        }
    }

    /// Collects the checksums of blocks.
    pub fn collect<const N: usize>(sums: impl Iterator<Item = [u8; N]>) -> Self {
        let bytes: SmallVec<[u8; INLINE_BYTES]> = sums.flatten().collect();
        Self::new(&bytes)
    }

    /// Returns the first `length` bytes of the checksums.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn bytes(&self, length: usize) -> &[u8] {
        match self {
            Self::Inline(bytes) => &bytes[..length],
            Self::Shared(bytes, from) => &bytes[*from as usize..][..length],
        }
    }

    /// Returns the checksums without their first `bytes`.
    pub fn skip(&self, bytes: usize) -> Self {
        match self {
            Self::Inline(all) => {
                let mut rest = [0; INLINE_BYTES];
                let from = bytes.min(INLINE_BYTES);
                rest[..INLINE_BYTES - from].copy_from_slice(&all[from..]);
                Self::Inline(rest)
            }
            Self::Shared(all, from) => Self::Shared(all.clone(), *from + bytes as u32),
        }
    }
}

/// A run with its checksums: a change of a map.
#[derive(Clone, Debug)]
pub struct RunChange {
    /// The run.
    pub run: Run,
    /// A checksum for each of its blocks, if its kind has blocks.
    pub sums: Sums,
}

impl RunChange {
    /// Removes the blocks before `block` from the change; `None` if no block is left.
    pub(super) fn from(self, block: u64, sum_bytes: usize) -> Option<Self> {
        if block >= self.run.end() {
            return None;
        }
        let skipped = (block - self.run.block) as usize;
        let sums = if self.run.kind.has_blocks() && skipped > 0 {
            self.sums.skip(skipped * sum_bytes)
        } else {
            self.sums
        };
        Some(Self { run: self.run.part(block..self.run.end()), sums })
    }
}
