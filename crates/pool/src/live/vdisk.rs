//! A vdisk in memory: its changes since the last checkpoint, its trees, and its kept snapshots.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use block::seeded::{self, Bug};

use super::account::Charges;
use super::commit::SUM_BYTES;
use super::origin::Origin;
use crate::map::{Changes, DeadEntry, Kept, Number, Root};
use crate::rows::{VdiskFlags, VdiskRow, VdiskState};

/// A vdisk in memory. It stays there while a client has it open, and while it has changes that no checkpoint has
/// merged.
pub struct Vdisk {
    /// Number of the vdisk, which is also the line of its trees.
    pub number: u64,
    /// The row of the vdisk, with its account as of the last checkpoint.
    pub row: RefCell<VdiskRow>,
    /// Changes since the last cut.
    pub fresh: RefCell<Changes>,
    /// Changes that a running checkpoint merges.
    pub taken: RefCell<Option<Rc<Changes>>>,
    /// The trees of the vdisk's own line, the newest first, as of the last checkpoint.
    pub own: RefCell<Rc<[Root]>>,
    /// Where the blocks are that the vdisk inherits.
    pub origin: RefCell<Option<Origin>>,
    /// Number of vdisks in memory from which it inherits, when it was loaded.
    pub depth: usize,
    /// Kept snapshots.
    pub kept: RefCell<Kept>,
    /// The tree of dead entries, as of the last checkpoint.
    pub dead: Cell<Root>,
    /// Dead entries that are not in the tree.
    pub new_dead: RefCell<Vec<DeadEntry>>,
    /// Number of the next snapshot, by the acknowledged records.
    pub next: Cell<Number>,
    /// Number of the next snapshot, by the records in order. Some of them are not acknowledged yet.
    pub sealed: Cell<Number>,
    /// Number of the next snapshot at the last cut.
    pub cut: Cell<Number>,
    /// Number of the next snapshot at the cut before, while a checkpoint runs.
    pub cut_before: Cell<Number>,
    /// State as of the last cut that a checkpoint has merged. Only a live vdisk has a head.
    pub merged_state: Cell<VdiskState>,
    /// The versions that the next checkpoint removes.
    pub removal: RefCell<Removal>,
    /// Whether a record since the last snapshot has changes, by the records in order.
    pub is_changed: Cell<bool>,
    /// The same by the acknowledged records. The row has it as of the last cut.
    pub has_changes: Cell<bool>,
    /// Whether a task takes snapshots of it.
    pub has_timer: Cell<bool>,
    /// Blocks that records have taken and freed since the account in the row.
    pub charges: Charges,
    /// Blocks that the lines before rollbacks held when the vdisk was loaded; they count for its quota.
    pub family_blocks: Cell<u64>,
    /// Whether the next checkpoint folds its trees.
    pub wants_fold: Cell<bool>,
    /// Block at which a fold goes on that has begun.
    pub fold: Cell<Option<u64>>,
}

/// The versions of a line that a checkpoint removes, by the records before its cut.
#[derive(Default)]
pub struct Removal {
    /// State of the vdisk without its head, if that is removed.
    pub head: Option<VdiskState>,
    /// Snapshots that leave.
    pub snapshots: BTreeSet<Number>,
    /// Snapshots that leave with the head, if a record removes it.
    pub with_head: Vec<Number>,
}

impl Vdisk {
    /// Creates a vdisk without changes, from its row, its origin, its kept snapshots and its trees.
    pub fn new(
        row: VdiskRow,
        origin: Option<Origin>,
        kept: Kept,
        own: Vec<Root>,
        dead: Root,
    ) -> Self {
        let next = row.next_number;
        let is_changed = !row.flags.has(VdiskFlags::UNCHANGED);
        Self {
            number: row.vdisk,
            fresh: RefCell::new(Changes::new(SUM_BYTES, next)),
            taken: RefCell::default(),
            own: RefCell::new(own.into()),
            depth: origin.as_ref().map_or(0, Origin::depth),
            origin: RefCell::new(origin),
            kept: RefCell::new(kept),
            dead: Cell::new(dead),
            new_dead: RefCell::default(),
            next: Cell::new(next),
            sealed: Cell::new(next),
            cut: Cell::new(next),
            cut_before: Cell::new(next),
            merged_state: Cell::new(match row.state {
                // A pass has yet to remove the head.
                VdiskState::REMOVING => VdiskState::LIVE,
                state => state,
            }),
            removal: RefCell::default(),
            is_changed: Cell::new(is_changed),
            has_changes: Cell::new(is_changed),
            has_timer: Cell::new(false),
            charges: Charges::default(),
            family_blocks: Cell::new(0),
            wants_fold: Cell::new(false),
            fold: Cell::default(),
            row: RefCell::new(row),
        }
    }

    /// Returns the first number of the snapshots whose changes are in memory.
    pub fn first_in_memory(&self) -> Number {
        match &*self.taken.borrow() {
            Some(_) => self.cut_before.get(),
            None => self.cut.get(),
        }
    }

    /// Skips the snapshot numbers that an earlier opening had in reserve: a client may have seen them.
    pub fn skip_numbers(&self) {
        if self.has_reserve() && !seeded::on(Bug::NumberUsedAgain) {
            let end = self.row.borrow().numbers_end;
            self.next.set(end);
            self.sealed.set(end);
            self.row.borrow_mut().next_number = end;
        }
    }

    /// Notes in the row at a cut whether the head has changed since its newest snapshot.
    pub fn note_changes(&self) {
        let mut row = self.row.borrow_mut();
        row.flags = row.flags.with(VdiskFlags::UNCHANGED, !self.has_changes.get());
    }

    /// Whether it has snapshot numbers in reserve.
    pub fn has_reserve(&self) -> bool {
        self.next.get() < self.row.borrow().numbers_end
    }

    /// Gives back the snapshot numbers in reserve, if no record that takes one is in flight.
    pub fn release_numbers(&self) {
        if self.sealed.get() == self.next.get() {
            self.row.borrow_mut().numbers_end = self.next.get();
        }
    }

    /// Whether a checkpoint has removed the head.
    pub fn is_head_removed(&self) -> bool {
        self.merged_state.get() != VdiskState::LIVE
    }

    /// Whether the vdisk has one of these flags.
    pub fn has(&self, flags: VdiskFlags) -> bool {
        self.row.borrow().flags.0 & flags.0 != 0
    }

    /// Whether the vdisk has no head any more, only snapshots that are held.
    pub fn is_headless(&self) -> bool {
        self.row.borrow().state != VdiskState::LIVE
    }
}
