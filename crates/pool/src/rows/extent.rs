//! Rows of extents, and of their free blocks.

use zerocopy::big_endian::U64 as BigU64;
use zerocopy::little_endian::{U32, U64};

use super::stored::{ByteIn2, Opaque, row};
use crate::extent::Content;
use crate::unknown::kinds;
use crate::{ALLOCATORS_MAX, Address, EXTENT_BLOCKS_MAX, NUMBER_MAX};

/// Blocks that one row of free blocks describes.
pub const FREE_ROW_BLOCKS: u32 = 512;

kinds! {
    /// State of an extent.
    ExtentState {
        /// Blocks are allocated in it and freed.
        OPEN = 1,
        /// Nothing in it changes.
        SEALED = 2,
    }
}

kinds! {
    /// Location of the bytes of an extent.
    PlaceKind {
        /// On the device of the pool.
        DEVICE = 1,
        /// Elsewhere, as an object with an identity.
        ELSEWHERE = 2,
    }
}

row! {
    /// An extent of the allocator.
    ExtentRow of Extents, zeros 8;
    key {
        /// Number of the extent.
        extent: u64 as BigU64,
    }
    value {
        /// State.
        state: ExtentState as u8,
        /// Content.
        content: Content as u8,
        /// Location of its bytes.
        place_kind: PlaceKind as ByteIn2,
        /// Number of the allocator that owns it.
        owner: u32 as U32,
        /// Number of the claim.
        generation: u64 as U64,
        /// Free blocks below the frontier.
        free_blocks: u32 as U32,
        /// First block that was never used since the claim.
        frontier: u32 as U32,
        /// Position of the grid with its bytes.
        place: u64 as U64,
        /// Identity of its bytes elsewhere; zeros for none.
        object: [u8; 16] as Opaque<16>,
    }
}

impl ExtentRow {
    fn check(&self) -> Result<(), String> {
        let Self { extent, state, content, place_kind, owner, generation, .. } = self;
        if *extent > Address::EXTENT_MAX || self.place > Address::EXTENT_MAX {
            return Err(format!("extent {extent} at {} is impossible", self.place));
        }
        if state.0 == 0 || content.0 == 0 || place_kind.0 == 0 {
            return Err(format!("extent {extent} has no state, content or place"));
        }
        if !(1..=ALLOCATORS_MAX).contains(owner) || !(1..=NUMBER_MAX).contains(generation) {
            return Err(format!(
                "extent {extent} of allocator {owner}, generation {generation}, is impossible"
            ));
        }
        if !(1..=EXTENT_BLOCKS_MAX).contains(&self.frontier) || self.free_blocks >= self.frontier {
            return Err(format!(
                "{} free blocks below {} in extent {extent} are impossible",
                self.free_blocks, self.frontier
            ));
        }
        Ok(())
    }
}

row! {
    /// The free blocks among [`FREE_ROW_BLOCKS`] of an extent.
    FreeRow of Free, zeros 0;
    key {
        /// Number of the extent.
        extent: u64 as BigU64,
        /// First block in the extent, divided by [`FREE_ROW_BLOCKS`].
        part: u64 as BigU64,
    }
    value {
        /// Bit n mod 8 of byte n / 8 is set if block n is free.
        bitmap: [u8; 64] as Opaque<64>,
    }
}

impl FreeRow {
    fn check(&self) -> Result<(), String> {
        let parts = u64::from(EXTENT_BLOCKS_MAX / FREE_ROW_BLOCKS);
        if self.extent > Address::EXTENT_MAX || self.part >= parts {
            return Err(format!("part {} of extent {} is impossible", self.part, self.extent));
        }
        if self.part == 0 && self.bitmap[0] & 1 != 0 {
            return Err(format!("the header of extent {} is free", self.extent));
        }
        match self.bitmap == [0; 64] {
            true => Err(format!("part {} of extent {} has no free block", self.part, self.extent)),
            false => Ok(()),
        }
    }
}
