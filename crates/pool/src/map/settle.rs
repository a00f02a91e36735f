//! Settled snapshots: several trees of a snapshot as one.

use block::Result;

use super::lookup::{Content, Layer, Reader};
use super::merge::{MergeOptions, Source};
use super::root::{Form, Root, TreeKind};
use super::run::{BLOCKS_MAX, Number, Run, RunChange, RunKind, Sums};
use super::runs::merge_runs;
use super::store::{Finds, Overwritten, Reads, Replaced, Store};
use crate::Address;

/// The content of a list of trees, as changes.
struct Seen<'a, S> {
    store: &'a S,
    reader: Reader<'a, S>,
    block: u64,
}

impl<S: Reads> Source<RunChange> for Seen<'_, S> {
    async fn next(&mut self) -> Result<Option<RunChange>> {
        while self.block < BLOCKS_MAX {
            let piece = self.reader.piece(self.block, BLOCKS_MAX).await?;
            self.block += piece.blocks;
            self.store.rest().await;
            let (kind, address, birth, sums) = match piece.content {
                Content::Data { address, birth, sums, .. } => {
                    (RunKind::DATA, address, birth, Sums::new(sums.bytes()))
                }
                Content::Hole { birth } => {
                    (RunKind::HOLE, Address::from_bits(0), birth, Sums::NONE)
                }
                Content::Absent => continue,
            };
            let (block, blocks) = (piece.block, piece.blocks);
            let run = Run { block, blocks, kind, address, birth, first: birth };
            return Ok(Some(RunChange { run, sums }));
        }
        Ok(None)
    }
}

/// A merge into an empty tree finds nothing.
struct Nothing;

impl Finds for Nothing {
    fn overwritten(&mut self, _: Overwritten) {
        unreachable!("an empty tree has no blocks");
    }

    fn replaced(&mut self, _: Replaced) {
        unreachable!("an empty tree has no nodes");
    }
}

/// Writes the content of the trees `layers` of snapshot `number` as one tree. A base tree has no holes, so the layers must be
/// all trees of the snapshot then. Runs keep their births, also those of other lines. The nodes are born at `number` and
/// die at the next number, because no other version refers to them.
///
/// # Errors
/// As [`merge_runs`], and `Unsupported` for runs of an unknown kind.
pub async fn settle<S: Store>(
    store: &S,
    layers: &[Layer],
    form: Form,
    number: Number,
) -> Result<Root> {
    let source = Seen { store, reader: Reader::new(store, layers)?, block: 0 };
    let options = MergeOptions { birth: number, leaves_max: None };
    let keep_holes = form.kind != TreeKind::Base;
    let tree = Root::empty(form);
    Ok(merge_runs(store, &tree, source, keep_holes, options, &mut Nothing).await?.root)
}
