//! Settled snapshots: the part of an interval tree that one snapshot sees, as a tree of its own.

use std::collections::VecDeque;

use block::Result;

use super::merge::{MergeOptions, Source};
use super::root::{Form, Root, TreeKind};
use super::run::{Number, RunChange, Sums};
use super::runs::merge_runs;
use super::scan::Scan;
use super::store::{Finds, Store};

/// The newest version of each group of blocks, up to a birth.
struct Seen<'a, S> {
    scan: Scan<'a, S>,
    limit: Number,
    sum_bytes: usize,
    /// The newest version so far of the group at which the scan is.
    candidate: Option<RunChange>,
    ready: VecDeque<RunChange>,
}

impl<S: Store> Source<RunChange> for Seen<'_, S> {
    async fn next(&mut self) -> Result<Option<RunChange>> {
        while self.ready.is_empty() {
            let Some(leaf) = self.scan.next_leaf().await? else { return Ok(self.candidate.take()) };
            for n in 0..leaf.items() {
                let mut run = leaf.run(n);
                if run.birth > self.limit {
                    continue;
                }
                run.first = run.birth;
                let sums = Sums::new(leaf.run_sums(n, &run, self.sum_bytes));
                let before = self.candidate.replace(RunChange { run, sums });
                self.ready.extend(before.filter(|before| before.run.block != run.block));
            }
        }
        Ok(self.ready.pop_front())
    }
}

/// Writes the part of an interval tree that snapshot `number` sees as a change tree. All clones of the snapshot share it.
/// Its nodes are born at `number` and die at the next number, because no other version refers to them.
///
/// # Errors
/// As [`merge_runs`].
pub async fn settle<S: Store>(
    store: &S,
    interval: &Root,
    number: Number,
    finds: &mut impl Finds,
) -> Result<Root> {
    let Form { line, sums, .. } = interval.form;
    let source = Seen {
        scan: Scan::new(store, interval, [0; 4]),
        limit: number,
        sum_bytes: usize::from(sums.bytes()),
        candidate: None,
        ready: VecDeque::new(),
    };
    let tree = Root::empty(Form::runs(TreeKind::Change, line, sums));
    let options = MergeOptions { birth: number, leaves_max: None };
    Ok(merge_runs(store, &tree, source, true, options, finds).await?.root)
}
