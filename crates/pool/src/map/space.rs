//! The space of a line: which snapshots keep overwritten blocks, and the passes that free them.

use std::collections::BTreeMap;

use block::Result;
use block::seeded::{self, Bug};

use super::dead::DeadEntry;
use super::keyed::{DeadChange, merge_dead};
use super::lookup::{Content, Layer, Reader};
use super::merge::{FromIter, MergeOptions};
use super::node::Key;
use super::root::Root;
use super::run::{BLOCKS_MAX, Number};
use super::scan::{Scan, nodes_after};
use super::store::{Finds, Found, Overwritten, Reads, Store};
use crate::NUMBER_MAX;

/// The kept snapshots of a line. A snapshot stops counting as kept when the pass that removes it begins.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Kept {
    /// Ranges of adjacent numbers: the first one, and the one behind the last.
    ranges: BTreeMap<Number, Number>,
    /// Number of the snapshot from which the line was cloned; 0 for none. It counts as the first predecessor.
    origin: Number,
}

impl Kept {
    /// No snapshots, on a line that was cloned from snapshot `origin`, or from none if that is 0.
    pub fn new(origin: Number) -> Self {
        Self { ranges: BTreeMap::new(), origin }
    }

    /// Adds a snapshot.
    pub fn insert(&mut self, number: Number) {
        if self.holds(number, number + 1) {
            return;
        }
        let end = self.ranges.remove(&(number + 1)).unwrap_or(number + 1);
        match self.ranges.range_mut(..number).next_back() {
            Some((_, before)) if *before == number => *before = end,
            _ => drop(self.ranges.insert(number, end)),
        }
    }

    /// Removes a snapshot.
    pub fn remove(&mut self, number: Number) {
        let Some((first, end)) = self.ranges.range(..=number).next_back() else { return };
        let (first, end) = (*first, *end);
        if end <= number {
            return;
        }
        self.ranges.remove(&first);
        if first < number {
            self.ranges.insert(first, number);
        }
        if number + 1 < end {
            self.ranges.insert(number + 1, end);
        }
    }

    /// The kept snapshots, the oldest first.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = Number> {
        self.ranges.iter().flat_map(|(first, end)| *first..*end)
    }

    /// Whether a kept snapshot falls within a life.
    pub fn holds(&self, birth: Number, death: Number) -> bool {
        let last = self.ranges.range(..death).next_back();
        birth < death && last.is_some_and(|(_, end)| *end > birth)
    }

    /// Returns the kept snapshot before `number`, or the origin.
    pub fn before(&self, number: Number) -> Number {
        let last = self.ranges.range(..number).next_back();
        last.map_or(self.origin, |(_, end)| (*end).min(number) - 1)
    }

    /// Returns the kept snapshot after `number`.
    pub fn after(&self, number: Number) -> Option<Number> {
        if self.holds(number + 1, number + 2) {
            return Some(number + 1);
        }
        self.ranges.range(number + 1..).next().map(|(first, _)| *first)
    }

    /// Returns the entry that stands for overwritten blocks; `None` if no kept snapshot sees them, so that they are
    /// free.
    pub fn entry(&self, found: &Overwritten) -> Option<DeadEntry> {
        let Overwritten { address, blocks, birth, death } = *found;
        self.holds(birth, death).then_some(DeadEntry {
            death,
            address,
            blocks,
            birth,
            is_node: false,
        })
    }
}

/// The deaths that a pass looks at: after the removed snapshot, up to its successor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Window {
    /// Removed snapshot.
    pub after: Number,
    /// Kept snapshot after it; [`NUMBER_MAX`] if there is none.
    pub up_to: Number,
}

impl Window {
    /// Returns the windows of removed snapshots, sorted and joined. The snapshots are no longer in `kept`.
    pub fn of(removed: &[Number], kept: &Kept) -> Vec<Self> {
        let mut windows: Vec<Self> = removed
            .iter()
            .map(|number| Self { after: *number, up_to: kept.after(*number).unwrap_or(NUMBER_MAX) })
            .collect();
        windows.sort_unstable();
        windows.dedup_by(|next, window| {
            let joins = next.after <= window.up_to;
            if joins {
                window.up_to = window.up_to.max(next.up_to);
            }
            joins
        });
        windows
    }
}

/// The result of one step of a pass over dead entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Released {
    /// The dead entries that are left.
    pub root: Root,
    /// Entries that no kept snapshot holds any more.
    pub freed: Vec<DeadEntry>,
    /// Position from which the pass continues; `None` at its end.
    pub rest: Option<Key>,
}

/// Frees the dead entries in some windows that no kept snapshot holds, at most `entries_max` in one step. `from` is the
/// position of the last step, or zeros. `finds` takes the replaced nodes of the tree of dead entries.
///
/// # Errors
/// As [`merge_dead`].
pub async fn release<S: Store>(
    store: &S,
    dead: &Root,
    kept: &Kept,
    windows: &[Window],
    from: Key,
    options: (MergeOptions, usize),
    finds: &mut impl Finds,
) -> Result<Released> {
    let (options, entries_max) = options;
    let mut freed = Vec::new();
    let mut rest = None;
    for window in windows {
        let start = from.max([window.after + 1, 0, 0, 0]);
        if start[0] > window.up_to {
            continue;
        }
        let holds = |entry: &DeadEntry| kept.holds(entry.birth, entry.death);
        rest = collect(store, dead, start, window.up_to, entries_max, &mut freed, holds).await?;
        if rest.is_some() {
            break;
        }
    }
    let root = remove(store, dead, &freed, options, finds).await?;
    Ok(Released { root, freed, rest })
}

/// Drops all dead entries with a death after `number`, because the version with this number is removed and has no
/// successor: the blocks are freed with it, or belong to its predecessor.
///
/// # Errors
/// As [`merge_dead`].
pub async fn drop_after<S: Store>(
    store: &S,
    dead: &Root,
    number: Number,
    options: MergeOptions,
    finds: &mut impl Finds,
) -> Result<Root> {
    if seeded::on(Bug::LaterDeadStay) {
        return Ok(*dead);
    }
    let mut dropped = Vec::new();
    let start = [number + 1, 0, 0, 0];
    collect(store, dead, start, NUMBER_MAX, usize::MAX, &mut dropped, |_| false).await?;
    remove(store, dead, &dropped, options, finds).await
}

/// Collects the entries from `start` on with a death up to `up_to` that are not held. Returns the position of the next
/// one if there are more than `most`.
async fn collect<S: Reads>(
    store: &S,
    dead: &Root,
    start: Key,
    up_to: Number,
    most: usize,
    into: &mut Vec<DeadEntry>,
    is_held: impl Fn(&DeadEntry) -> bool,
) -> Result<Option<Key>> {
    let mut scan = Scan::new(store, dead, start);
    while let Some(leaf) = scan.next_leaf().await? {
        for n in 0..leaf.items() {
            let entry = leaf.dead(n);
            let key = [entry.death, entry.address.bits(), 0, 0];
            if key < start {
                continue;
            }
            if entry.death > up_to {
                return Ok(None);
            }
            if is_held(&entry) {
                continue;
            }
            if into.len() >= most {
                return Ok(Some(key));
            }
            into.push(entry);
        }
        store.rest().await;
    }
    Ok(None)
}

async fn remove<S: Store>(
    store: &S,
    dead: &Root,
    entries: &[DeadEntry],
    options: MergeOptions,
    finds: &mut impl Finds,
) -> Result<Root> {
    if entries.is_empty() {
        return Ok(*dead);
    }
    let changes = FromIter(entries.iter().map(|entry| DeadChange::Remove(*entry)));
    Ok(merge_dead(store, dead, changes, options, finds).await?.root)
}

/// Finds all that is freed with a version without a successor: the blocks that it sees and its nodes, if they were born
/// after `after`, the version's predecessor. `layers` are the trees of its own line. The deaths in the result have no
/// meaning.
///
/// # Errors
/// As [`Reads::read`].
pub async fn sweep<S: Reads>(
    store: &S,
    layers: &[Layer],
    after: Number,
    found: &mut Found,
) -> Result<()> {
    let mut reader = Reader::new(store, layers)?;
    let mut block = 0;
    while block < BLOCKS_MAX {
        let piece = reader.piece(block, BLOCKS_MAX).await?;
        if let Content::Data { address, birth, .. } = piece.content
            && birth > after
        {
            let blocks = piece.blocks;
            found.overwritten(Overwritten { address, blocks, birth, death: NUMBER_MAX });
        }
        block += piece.blocks;
        store.rest().await;
    }
    for layer in layers {
        nodes_after(store, &layer.tree, after, found).await?;
    }
    Ok(())
}
