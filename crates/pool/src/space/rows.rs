//! The rows of a checkpoint: the extents and their free blocks at its cut.

use super::Space;
use super::bits::Bits;
use crate::extent::Content;
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
    pub fn rows_max(&mut self) -> usize {
        self.find_leaving();
        self.changed.values().map(|rows| rows.len() + 1).sum()
    }

    /// Finds the extents without a block in use. Their rows get the frontier 1, and all their rows of free blocks go.
    /// They may be claimed anew, for any content, when the root counts.
    fn find_leaving(&mut self) {
        for (number, extent) in &mut self.extents {
            let is_kind = matches!(extent.content, Content::DATA | Content::NODES);
            let is_open = self.ends.iter().any(|end| end.open == Some(*number));
            // Its blocks are discarded first.
            let is_stale = self.discards.as_ref().is_some_and(|discards| discards.has(*number));
            if !is_kind || is_open || is_stale || extent.is_leaving || !extent.is_empty() {
                continue;
            }
            extent.is_leaving = true;
            let rows = 1 / FREE_ROW_BLOCKS..=(extent.frontier - 1) / FREE_ROW_BLOCKS;
            self.changed.entry(*number).or_default().extend(rows);
            extent.stored = Bits::new(1);
            extent.frontier_at_cut = 1;
        }
    }

    /// Ends the use of the extents that the counting root has without content.
    fn leave(&mut self) {
        for (number, extent) in self.extents.extract_if(.., |_, extent| extent.is_leaving) {
            self.given += u64::from(extent.frontier - 1);
            self.unused.insert(number, extent.generation + 1);
        }
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
        self.leave();
        self.waiting.counted();
        self.give();
    }
}
