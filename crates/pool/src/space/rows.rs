//! The rows of a checkpoint: the extents and their free blocks at its cut.

use super::Space;
use crate::rows::{ExtentRow, FREE_ROW_BLOCKS, FreeRow};

/// Rows that a checkpoint writes again.
#[derive(Default)]
pub struct SpaceRows {
    /// Extents with changes.
    pub extents: Vec<ExtentRow>,
    /// Rows of free blocks with changes. A row without a free block is removed.
    pub free: Vec<FreeRow>,
}

impl Space {
    /// Begins a checkpoint: later changes, except those of the checkpoint itself, are in the rows of the next one.
    ///
    /// # Panics
    /// If a checkpoint runs.
    pub fn cut(&mut self) {
        assert!(!self.is_cut, "one checkpoint runs at a time");
        self.is_cut = true;
    }

    /// Returns the most rows that the running checkpoint writes: of extents and of free blocks. Blocks for nodes that
    /// are taken later may add some.
    pub fn rows_max(&self) -> usize {
        self.changed.values().map(|rows| rows.len() + 1).sum()
    }

    /// Returns the rows of the running checkpoint, with the blocks that it has taken and freed so far.
    pub fn rows(&mut self) -> SpaceRows {
        let changed = std::mem::take(&mut self.changed);
        let mut rows = SpaceRows::default();
        for (number, free) in changed {
            let Some(extent) = self.extents.get(&number) else { continue };
            for row in free {
                let bitmap = extent.stored.bytes(row * FREE_ROW_BLOCKS);
                rows.free.push(FreeRow { extent: number, part: u64::from(row), bitmap });
            }
            let free_blocks = extent.stored.count();
            rows.extents.push(self.row(number, extent, free_blocks));
        }
        rows
    }

    /// Ends a checkpoint whose root counts. The blocks that it has freed are given away after the reads that began
    /// before.
    pub fn counted(&mut self) {
        self.is_cut = false;
        for late in std::mem::take(&mut self.late) {
            self.store(late.address, late.blocks, late.is_free, false);
        }
        self.waiting.counted();
        self.give();
    }
}
