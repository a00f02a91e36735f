//! Folds: the changes of a change tree move into the base tree below it, a part in each checkpoint.
//!
//! From its first part to its last one, a fold takes its changes from one change tree, and checkpoints put new changes into a
//! tree above that. Both the change tree and the new base tree have the changes in front of the fold's position, with
//! the same addresses, so every version reads the same. The position is in the checkpoint that has the base tree.

use block::Result;
use block::seeded::{self, Bug};

use super::nodes::{Attempt, Passes};
use super::pool::Inner;
use super::removal::pass_row;
use super::vdisk::Vdisk;
use crate::map::{FoldSource, Found, MergeOptions, Root, TreeKind, merge_runs, nodes_after};
use crate::rows::{PassKind, PassRow};

/// Most leaves that the folds of one checkpoint write: 64 MiB. So a large fold does not keep the next checkpoint waiting.
pub const FOLD_LEAVES: u64 = 16384;

/// The change tree of a line is folded into its base tree when it covers more than this part of the base's blocks.
const FOLD_PART: u64 = 8;

/// The folds of a checkpoint write one leaf for so many blocks that are free for nodes: a leaf may cost a second block for
/// inner nodes, and half of the blocks stay for the rest of the checkpoint.
const ROOM_PART: u64 = 4;

/// Which changes a checkpoint folds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Folding {
    /// Those of a fold that has begun, and of change trees that have grown.
    IfGrown,
    /// All changes, as many as one checkpoint may.
    Wanted,
    /// All changes, because the head leaves.
    ToEnd,
}

impl Inner {
    /// Folds change trees of a line, the lowest one first, until enough is folded, nodes are damaged, or too few blocks are
    /// free. The parts count as done at the cut of this checkpoint. Returns whether the next checkpoint goes on.
    pub async fn fold_trees(
        &self,
        passes: &Passes,
        vdisk: &Vdisk,
        own: &mut Vec<Root>,
        found: &mut Found,
        folding: Folding,
    ) -> Result<bool> {
        let mut has_moved = false;
        while has_changes(own) {
            let is_wanted = folding != Folding::IfGrown || is_grown(own);
            if vdisk.fold.get().is_none() && !is_wanted {
                return Ok(false);
            }
            let leaves_max = match folding {
                Folding::ToEnd => None,
                _ => Some(self.fold_leaves.get()),
            };
            if leaves_max == Some(0) {
                // Each further checkpoint folds something, so this comes to an end.
                return Ok(self.has_folded.get());
            }
            if !self.fold_part(passes, vdisk, own, found, leaves_max).await? {
                return Ok(has_moved);
            }
            has_moved = true;
        }
        Ok(false)
    }

    /// Bounds the folds of a checkpoint that begins.
    pub fn begin_folds(&self) {
        let room = self.room.with(|space| space.free_for_nodes()) / ROOM_PART;
        self.fold_leaves.set(self.fold_leaves_max.min(room));
        self.has_folded.set(false);
    }

    /// Folds a part of the lowest change tree of a line, of at most so many leaves. Returns false if nodes are damaged, or if
    /// too few blocks are free.
    async fn fold_part(
        &self,
        passes: &Passes,
        vdisk: &Vdisk,
        own: &mut Vec<Root>,
        found: &mut Found,
        leaves_max: Option<u64>,
    ) -> Result<bool> {
        let (change, base) = (own[own.len() - 2], own[own.len() - 1]);
        let from = vdisk.fold.get().filter(|_| !seeded::on(Bug::FoldFromStart)).unwrap_or(0);
        let options = MergeOptions { birth: vdisk.cut.get(), leaves_max };
        let fold = async |store: &Attempt<'_>, found: &mut Found| {
            let changes = FoldSource::new(store, &change, from);
            let merged = merge_runs(store, &base, changes, false, options, found).await?;
            if merged.rest.is_none() {
                nodes_after(store, &change, 0, found).await?;
            }
            Ok(merged)
        };
        let Some(folded) = self.attempt_if_room(passes, vdisk, found, fold).await? else {
            return Ok(false);
        };
        self.fold_leaves.set(self.fold_leaves.get().saturating_sub(folded.written));
        self.has_folded.set(true);
        own.pop();
        if folded.rest.is_none() {
            own.pop();
        }
        own.push(folded.root);
        vdisk.fold.set(folded.rest.map(|key| key[0]));
        Ok(true)
    }

    /// Writes the position of the fold of a line, if that has changed. `before` is the one of the last checkpoint.
    pub fn write_fold(&self, vdisk: &Vdisk, before: Option<u64>) {
        match vdisk.fold.get() {
            Some(block) => {
                let mut row = pass_row(PassKind::FOLD, vdisk.number);
                row.position[..8].copy_from_slice(&block.to_be_bytes());
                self.tables.put_taken(&row);
            }
            None if before.is_some() => self.remove_pass(PassKind::FOLD, vdisk),
            None => {}
        }
    }
}

impl Vdisk {
    /// Whether the newest tree takes the changes of a checkpoint: a change tree that no fold reads.
    pub fn takes_changes(&self, own: &[Root]) -> bool {
        let is_folded = self.fold.get().is_some() && own.len() == 2;
        let is_folded = is_folded && !seeded::on(Bug::FoldedTreeChanges);
        own.first().is_some_and(|tree| tree.form.kind == TreeKind::Change) && !is_folded
    }
}

/// Returns the block at which a fold goes on, from the row of its pass.
pub fn fold_position(row: &PassRow) -> u64 {
    let block = row.position.first_chunk().expect("a position has 32 bytes");
    u64::from_be_bytes(*block)
}

/// Whether change trees are above a base tree.
fn has_changes(own: &[Root]) -> bool {
    own.len() > 1 && own.last().is_some_and(|tree| tree.form.kind == TreeKind::Base)
}

/// Whether the change tree of a line is so large that it is folded.
fn is_grown(own: &[Root]) -> bool {
    let [change, .., base] = own else { return false };
    change.blocks.saturating_mul(FOLD_PART) > base.blocks
}
