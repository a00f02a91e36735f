//! Merges of runs: into change trees, into base trees, and new interval trees.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Result, bail};

use super::changes::Changes;
use super::leaf::{RUN_COLUMNS, run_key};
use super::merge::{FromIter, Leaves, MergeOptions, Merged, Source, merge};
use super::node::{Head, Key, Node};
use super::pack::{NewNode, Packer};
use super::root::{Form, Root, TreeKind};
use super::run::{Number, Run, RunChange, RunKind};
use super::store::{Finds, Overwritten, Store};

/// Largest number of bytes of checksums of one run. A longer run becomes several.
pub(super) const RUN_SUM_BYTES_MAX: usize = 2048;

/// Smallest number of blocks for which a run is cut to fill a leaf.
const PART_BLOCKS_MIN: usize = 16;

/// Bytes that are left free behind the part of a run that fills a leaf, for its columns.
const PART_FREE_BYTES: usize = 160;

/// A leaf of the old tree, from its next run on.
struct OldLeaf {
    node: Rc<Node>,
    next: usize,
    /// The run that was taken last, without the part that is done, and its position in the checksums.
    run: Option<(Run, usize)>,
}

impl OldLeaf {
    fn peek(&mut self, sum_bytes: usize) -> Option<Run> {
        if self.run.is_none() && self.next < self.node.items() {
            let run = self.node.run(self.next);
            let from = if run.sums() == 0 { 0 } else { self.node.sum_index(self.next) };
            self.run = Some((run, self.node.tail + from * sum_bytes));
            self.next += 1;
        }
        self.run.map(|(run, _)| run)
    }
}

/// Leaves of runs.
pub(super) struct RunLeaves {
    form: Form,
    /// Whether explicit holes are kept.
    keep_holes: bool,
    sum_bytes: usize,
    packer: Packer<Run, RUN_COLUMNS>,
    old: Option<OldLeaf>,
}

impl RunLeaves {
    fn new(form: Form, birth: u64, keep_holes: bool) -> Self {
        let head = Head { form, level: 0, birth };
        let sum_bytes = usize::from(form.sums.bytes());
        Self { form, keep_holes, sum_bytes, packer: Packer::new(head), old: None }
    }

    /// Adds a run to the new leaves: joined to the last one if it continues that one, else in as few parts as possible.
    fn put(&mut self, mut run: Run, mut sums: &[u8]) {
        if self.form.kind != TreeKind::Change {
            run.first = run.birth;
        }
        loop {
            if self.form.kind != TreeKind::Interval && self.try_join(&run, sums) {
                return;
            }
            let is_short = sums.len() <= RUN_SUM_BYTES_MAX;
            if is_short && self.packer.try_push(&run, sums) {
                return;
            }
            let free = self.packer.free_bytes().saturating_sub(PART_FREE_BYTES);
            let part = free.min(RUN_SUM_BYTES_MAX) / self.sum_bytes.max(1);
            let can_cut = run.kind.has_blocks() && self.form.kind != TreeKind::Interval;
            if can_cut && part >= PART_BLOCKS_MIN && (part as u64) < run.blocks {
                let cut = run.block + part as u64;
                let (front, back) = sums.split_at(part * self.sum_bytes);
                if self.packer.try_push(&run.part(run.block..cut), front) {
                    run = run.part(cut..run.end());
                    sums = back;
                    continue;
                }
            }
            self.packer.close();
        }
    }

    fn try_join(&mut self, run: &Run, sums: &[u8]) -> bool {
        let Some(joined) = self.packer.last().and_then(|last| last.joined(run)) else {
            return false;
        };
        let bytes = joined.sums() as usize * self.sum_bytes;
        bytes <= RUN_SUM_BYTES_MAX && self.packer.try_extend(&joined, sums)
    }

    /// Keeps the old run up to `end`, or all of it.
    fn keep_old(&mut self, end: u64) {
        let Some(old) = &mut self.old else { return };
        let Some((run, sums_at)) = old.run.take() else { return };
        let kept = run.part(run.block..end.min(run.end()));
        let bytes = kept.sums() as usize * self.sum_bytes;
        let node = old.node.clone();
        if kept.end() < run.end() {
            old.run = Some((run.part(kept.end()..run.end()), sums_at + bytes));
        }
        self.put(kept, &node.bytes[sums_at..sums_at + bytes]);
    }

    /// Drops the old run up to `end`, because it was overwritten at `death`.
    fn drop_old(&mut self, end: u64, death: u64, finds: &mut impl Finds) {
        let Some(old) = &mut self.old else { return };
        let Some((run, sums_at)) = old.run.take() else { return };
        let gone = run.part(run.block..end.min(run.end()));
        let bytes = gone.sums() as usize * self.sum_bytes;
        if gone.end() < run.end() {
            old.run = Some((run.part(gone.end()..run.end()), sums_at + bytes));
        }
        if gone.kind.has_blocks() {
            let Run { address, blocks, birth, .. } = gone;
            finds.overwritten(Overwritten { address, blocks, birth, death });
        }
    }

    /// Adds the blocks of a change before `end`, and returns the rest.
    fn put_change(&mut self, change: RunChange, end: u64, first: u64) -> Option<RunChange> {
        let end = end.min(change.run.end());
        let run = Run { first, ..change.run.part(change.run.block..end) };
        let keep_holes = self.keep_holes && !seeded::on(Bug::HoleDropped);
        let is_dropped = run.kind == RunKind::HOLE && !keep_holes;
        if !is_dropped {
            self.put(run, change.sums.bytes(run.sums() as usize * self.sum_bytes));
        }
        change.from(end, self.sum_bytes)
    }
}

impl Leaves for RunLeaves {
    type Change = RunChange;

    fn change_key(&self, change: &RunChange) -> Key {
        run_key(self.form.kind, change.run.block, change.run.birth)
    }

    fn open(&mut self, node: Rc<Node>) -> Result<()> {
        if node.forbids_writing() {
            bail!(ReadOnly, "a map has runs of a kind that this Cairn does not know");
        }
        self.old = Some(OldLeaf { node, next: 0, run: None });
        Ok(())
    }

    fn apply(
        &mut self,
        change: RunChange,
        high: Option<Key>,
        finds: &mut impl Finds,
    ) -> Result<Option<RunChange>> {
        let stop = high.map_or(u64::MAX, |high| high[0]);
        if self.form.kind == TreeKind::Interval {
            return Ok(self.put_change(change, u64::MAX, 0));
        }
        let mut change = change;
        let sum_bytes = self.sum_bytes;
        while let Some(old) = self.old.as_mut().and_then(|old| old.peek(sum_bytes)) {
            let (block, first) = (change.run.block, change.run.first);
            let rest = if old.block >= stop {
                break;
            } else if old.block < block {
                self.keep_old(block);
                continue;
            } else if block < old.block {
                self.put_change(change, old.block, first)
            } else {
                let end = change.run.end().min(old.end());
                let death = if seeded::on(Bug::LastOverwrite) { change.run.birth } else { first };
                self.drop_old(end, death, finds);
                self.put_change(change, end, old.first)
            };
            match rest {
                Some(rest) => change = rest,
                None => return Ok(None),
            }
        }
        let first = change.run.first;
        Ok(if change.run.block < stop {
            self.put_change(change, stop, first)
        } else {
            Some(change)
        })
    }

    fn keep_before(&mut self, key: Option<&Key>, most: usize) -> usize {
        let block = key.map_or(u64::MAX, |key| key[0]);
        let mut kept = 0;
        while kept < most
            && let Some(old) = self.old.as_mut().and_then(|old| old.peek(self.sum_bytes))
            && old.end() <= block
        {
            self.keep_old(u64::MAX);
            kept += 1;
        }
        kept
    }

    fn finish_leaf(&mut self) {
        self.old = None;
    }

    fn blocks(&self, node: &Node) -> u64 {
        node.covered()
    }

    fn has_ready(&self) -> bool {
        self.packer.has_ready()
    }

    fn next_ready(&mut self) -> Option<NewNode> {
        self.packer.next_ready()
    }

    fn flush(&mut self) {
        self.packer.flush();
    }

    fn is_small(&self) -> bool {
        self.packer.is_small()
    }
}

/// Merges runs into a change tree or a base tree. A change tree keeps explicit holes. A base tree keeps them only with
/// `keep_holes`, for a vdisk whose holes hide an origin.
///
/// # Errors
/// `Corrupt` or `Unsupported` for a damaged or newer node, `ReadOnly` for a tree that this code must not change,
/// `NoSpace`, and errors of the store. The old tree is unchanged then, and the new nodes are garbage.
///
/// # Panics
/// If `tree` has no runs.
pub async fn merge_runs<S: Store>(
    store: &S,
    tree: &Root,
    source: impl Source<RunChange>,
    keep_holes: bool,
    options: MergeOptions,
    finds: &mut impl Finds,
) -> Result<Merged> {
    assert!(tree.form.kind.has_runs(), "a tree of runs");
    let keep_holes = keep_holes || tree.form.kind != TreeKind::Base;
    let leaves = RunLeaves::new(tree.form, options.birth, keep_holes);
    merge(store, tree, leaves, source, options, finds).await
}

/// Writes the interval tree of changes in memory, for the snapshots since the last cut. `first` is the first number of the
/// interval, and `last` its newest snapshot.
///
/// # Errors
/// As [`merge_runs`].
pub async fn write_interval<S: Store>(
    store: &S,
    form: Form,
    changes: &Changes,
    first: Number,
    last: Number,
    finds: &mut impl Finds,
) -> Result<Root> {
    let birth = if seeded::on(Bug::IntervalBornLate) { last + 1 } else { first };
    let (tree, options) = (Root::empty(form), MergeOptions { birth, leaves_max: None });
    let runs = FromIter(changes.interval(last));
    Ok(merge_runs(store, &tree, runs, true, options, finds).await?.root)
}
