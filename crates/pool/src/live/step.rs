//! The steps of a record: how each changes the vdisks and tables in memory. Acknowledgement and replay use the same code.

use std::rc::Rc;

use block::seeded::{self, Bug};

use super::pool::Inner;
use super::vdisk::Vdisk;
use crate::log::SnapshotItem;
use crate::map::{Finds, Overwritten, Replaced, Run, RunChange};
use crate::rows::{
    DetailRow, LabelRow, Row as _, SnapshotFlags, SnapshotRow, Table, VdiskFlags, VdiskRow,
    VdiskState,
};

/// A change that a record contains, in memory.
pub enum Step {
    /// Blocks of a vdisk.
    Changed(Rc<Vdisk>, RunChange),
    /// A snapshot of a vdisk.
    Snapshot(Rc<Vdisk>, SnapshotItem),
    /// A row that is added or replaced.
    Put(Table, Vec<u8>),
    /// A row that is removed.
    Remove(Table, Vec<u8>),
    /// The end of the snapshot numbers in reserve of a vdisk.
    Numbers(Rc<Vdisk>, u64),
    /// The end of the allocator's own numbers in reserve.
    OwnNumbers(u64),
}

impl Step {
    /// Notes that the record of the step is no longer in flight.
    pub fn landed(&self) {
        if let Self::Changed(vdisk, RunChange { run, .. }) = self
            && run.kind.has_blocks()
        {
            let in_flight = &vdisk.charges.in_flight;
            in_flight.set(in_flight.get() - run.blocks);
        }
    }
}

/// Takes the blocks that a change in memory overwrites.
struct Overwrites<'p> {
    pool: &'p Inner,
    vdisk: &'p Vdisk,
    record: u64,
}

impl Finds for Overwrites<'_> {
    fn overwritten(&mut self, found: Overwritten) {
        let entry = self.vdisk.kept.borrow().entry(&found);
        match entry {
            Some(entry) => self.vdisk.new_dead.borrow_mut().push(entry),
            None => {
                let Overwritten { address, blocks, .. } = found;
                self.vdisk.charges.free(blocks);
                self.pool.room.with(|space| space.free_by_record(address, blocks, self.record));
            }
        }
    }

    fn replaced(&mut self, _: Replaced) {
        unreachable!("changes in memory have no nodes");
    }
}

impl Inner {
    /// Makes the changes of an acknowledged record, or of one that an opening replays.
    pub fn apply(&self, record: u64, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Changed(vdisk, mut change) => {
                    if seeded::on(Bug::BornAfterRecord) && !self.is_replaying.get() {
                        change.run.birth = vdisk.sealed.get();
                        change.run.first = change.run.birth;
                    }
                    let Run { kind, address, blocks, .. } = change.run;
                    if kind.has_blocks() {
                        self.room.with(|space| space.acknowledged(address, blocks));
                        vdisk.charges.take(blocks);
                    }
                    let mut finds = Overwrites { pool: self, vdisk: &vdisk, record };
                    let mut fresh = vdisk.fresh.borrow_mut();
                    let before = fresh.count();
                    fresh.write(change, &mut finds);
                    let all = self.fresh_changes.get() + fresh.count() - before;
                    self.fresh_changes.set(all);
                    drop(fresh);
                    vdisk.has_changes.set(true);
                    self.touch(&vdisk);
                }
                Step::Snapshot(vdisk, item) => self.apply_snapshot(&vdisk, item),
                Step::Put(table, row) => self.apply_put(table, row),
                Step::Remove(table, key) => self.tables.remove(table, &key),
                Step::Numbers(vdisk, end) => vdisk.row.borrow_mut().numbers_end = end,
                Step::OwnNumbers(end) => self.numbers.end.set(end),
            }
        }
    }

    /// Puts a row into its table, and changes the vdisk in memory that the row describes.
    fn apply_put(&self, table: Table, row: Vec<u8>) {
        match table {
            Table::Vdisks => {
                let new = VdiskRow::decode(&row).expect("the row was encoded or checked here");
                if let Some(vdisk) = self.vdisks.borrow().get(&new.vdisk) {
                    let mut old = vdisk.row.borrow_mut();
                    old.size = new.size;
                    old.removed_unix_s = new.removed_unix_s;
                    // A cut alone notes whether the head has changed.
                    let is_unchanged = old.flags.has(VdiskFlags::UNCHANGED);
                    old.flags = new.flags.with(VdiskFlags::UNCHANGED, is_unchanged);
                    old.family = new.family;
                    old.cadence_us = new.cadence_us;
                    old.keep_last = new.keep_last;
                    old.keep_interval_s = new.keep_interval_s;
                    old.quota = new.quota;
                    if new.state != old.state && new.state != VdiskState::LIVE {
                        old.state = new.state;
                        vdisk.lose_head(new.state);
                    }
                    // The row has an older account. The next checkpoint writes the newest one.
                    self.touch(vdisk);
                }
            }
            Table::Snapshots => {
                let new = SnapshotRow::decode(&row).expect("the row was encoded or checked here");
                if new.flags.0 & SnapshotFlags::LEAVING.0 != 0
                    && let Some(vdisk) = self.vdisks.borrow().get(&new.vdisk)
                {
                    vdisk.leaves(new.number);
                    self.touch(vdisk);
                }
            }
            _ => {}
        }
        self.tables.put_bytes(table, row);
    }

    fn apply_snapshot(&self, vdisk: &Rc<Vdisk>, item: SnapshotItem) {
        let mut row = SnapshotRow {
            vdisk: item.vdisk,
            number: item.number,
            flags: item.flags,
            holds: 0,
            size: item.size,
            taken_unix_us: item.taken_unix_us,
            group: item.group,
            own_blocks: 0,
            shared_blocks: 0,
        };
        if let Some(label) = item.label {
            let (id, number) = (row.vdisk, row.number);
            row.flags.0 |= SnapshotFlags::DETAILS.0;
            self.tables.put(&DetailRow {
                vdisk: id,
                number,
                label: label.as_str().to_owned(),
                received_line: meta::Uuid([0; 16]),
                received_number: 0,
                layer: [0; 32],
            });
            let key = label.key();
            let label = label.as_str().to_owned();
            self.tables.put(&LabelRow { vdisk: id, key, label, number });
        }
        vdisk.kept.borrow_mut().insert(row.number);
        vdisk.next.set(row.number + 1);
        vdisk.has_changes.set(false);
        let mut head = vdisk.row.borrow_mut();
        head.next_number = row.number + 1;
        head.newest_kept = row.number;
        head.snapshots += 1;
        drop(head);
        self.tables.put(&row);
        self.touch(vdisk);
    }
}
