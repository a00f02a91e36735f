//! Accounts: how many blocks a line holds, and its quota.

use std::cell::Cell;
use std::rc::Rc;

use block::units::format_size;
use block::{Result, error};

use super::commit::{Change, row_bytes};
use super::nodes::Lookups;
use super::pool::Inner;
use super::vdisk::Vdisk;
use super::version::own_trees;
use crate::map::{Found, Kept, Layer, Number, Root, Scan, sweep};
use crate::name::VdiskName;
use crate::rows::{SnapshotRow, VdiskRow};
use crate::{BLOCK_BYTES, NUMBER_MAX};

/// The blocks that a line holds, as of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// Blocks of data that are not in dead entries.
    pub head: u64,
    /// Blocks of data in dead entries: only snapshots have them.
    pub dead: u64,
    /// Blocks of nodes.
    pub nodes: u64,
    /// At most so many blocks of the head are overwritten, and folds have yet to find them.
    pub unfound: u64,
}

impl Account {
    /// Returns the account in a row.
    pub fn of(row: &VdiskRow) -> Self {
        let VdiskRow { own_blocks: head, dead_blocks: dead, .. } = *row;
        Self { head, dead, nodes: row.node_blocks, unfound: row.unfound_blocks }
    }

    /// Puts the account into a row.
    pub fn put(&self, row: &mut VdiskRow) {
        let Self { head, dead, nodes, unfound } = *self;
        (row.own_blocks, row.dead_blocks) = (head, dead);
        (row.node_blocks, row.unfound_blocks) = (nodes, unfound);
    }

    /// Returns the number of all blocks.
    pub fn all(&self) -> u64 {
        self.head + self.dead + self.nodes
    }
}

/// How many blocks checkpoints have taken and freed since the opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Balance {
    /// Freed blocks of data.
    pub data_freed: u64,
    /// Taken blocks of nodes, without the freed ones.
    pub nodes: i64,
}

impl Balance {
    /// Returns the difference to an earlier balance.
    pub fn since(self, before: Self) -> Self {
        Self { data_freed: self.data_freed - before.data_freed, nodes: self.nodes - before.nodes }
    }
}

/// Blocks of data that records have taken and freed since the account in the row of a vdisk.
#[derive(Default)]
pub struct Charges {
    /// By records that are not acknowledged yet.
    pub in_flight: Cell<u64>,
    /// Since the last cut.
    pub fresh: Cell<i64>,
    /// Up to the last cut, while a checkpoint runs.
    pub taken: Cell<i64>,
}

impl Charges {
    /// Notes blocks of an acknowledged record.
    pub fn take(&self, blocks: u64) {
        self.fresh.set(self.fresh.get() + blocks as i64);
    }

    /// Notes blocks that a record has freed.
    pub fn free(&self, blocks: u64) {
        self.fresh.set(self.fresh.get() - blocks as i64);
    }
}

impl Vdisk {
    /// Returns the number of blocks that the line holds now, with those of records in flight.
    pub fn held_blocks(&self) -> u64 {
        let charges = &self.charges;
        let since = charges.fresh.get() + charges.taken.get();
        let all = Account::of(&self.row.borrow()).all() + charges.in_flight.get();
        all.saturating_add_signed(since)
    }

    /// Checks that the quota of the vdisk has room for further blocks of data.
    ///
    /// # Errors
    /// `NoSpace` if it has not.
    pub fn check_quota(&self, blocks: u64) -> Result<()> {
        let quota = self.row.borrow().quota;
        if quota == 0 {
            return Ok(());
        }
        let held = (self.held_blocks() + self.family_blocks.get()) * u64::from(BLOCK_BYTES);
        if held + blocks * u64::from(BLOCK_BYTES) <= quota {
            return Ok(());
        }
        let (name, quota) = (self.row.borrow().name.clone(), format_size(quota));
        let held = format_size(held);
        Err(error!(NoSpace, "the virtual disk {name} holds {held}, and its quota is {quota}").next(
            "remove snapshots of it, discard unused bytes, or raise its quota with cairn vdisk resize --quota",
        ))
    }
}

impl Inner {
    /// Returns the number of blocks that each of these snapshots of a line alone holds, as of the last checkpoint.
    ///
    /// # Errors
    /// Those of reads of tables and nodes.
    pub async fn alone(self: &Rc<Self>, line: u64, rows: &[SnapshotRow]) -> Result<Vec<u64>> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(Vec::new()) };
        let _reading = self.room.reading();
        let vdisk = self.vdisk(line).await?;
        let (kept, dead) = (vdisk.kept.borrow().clone(), vdisk.dead.get());
        let up_to = kept.after(last.number).unwrap_or(NUMBER_MAX);
        let mut alone = vec![0; rows.len()];
        let store = Lookups(self.nodes.clone());
        let mut scan = Scan::new(&store, &dead, [first.number + 1, 0, 0, 0]);
        'leaves: while let Some(leaf) = scan.next_leaf().await? {
            for entry in (0..leaf.items()).map(|n| leaf.dead(n)) {
                if entry.death > up_to {
                    break 'leaves;
                }
                if let Some(at) = only_holder(&kept, entry.birth, entry.death, rows) {
                    alone[at] += entry.blocks;
                }
            }
        }
        // Without a head, the newest snapshot holds what its trees show.
        if vdisk.is_head_removed() && up_to == NUMBER_MAX {
            let limit = last.number;
            let trees = own_trees(&self.tables, line, limit).await?;
            let layer = |tree: &Root| Layer { tree: *tree, limit };
            let layers: Vec<_> = trees.iter().map(layer).collect();
            let mut found = Found::default();
            sweep(&store, &layers, kept.before(limit), &mut found).await?;
            let blocks = found.blocks.iter().map(|run| run.blocks).sum::<u64>();
            alone[rows.len() - 1] = blocks + found.nodes.len() as u64;
        }
        Ok(alone)
    }

    /// Sets how many bytes a vdisk may hold with its snapshots; 0 for no limit. Durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk, `Invalid` if it holds more already; those of a commit.
    pub async fn set_quota(self: &Rc<Self>, name: &VdiskName, bytes: u64) -> Result<()> {
        let _turn = self.names.lock().await;
        let vdisk = self.check_set_quota(name, bytes).await?;
        let mut row = vdisk.row.borrow().clone();
        row.quota = bytes;
        self.commit(Change::Rows(vec![row_bytes(&row)], Vec::new())).await.map(drop)
    }

    /// Checks that a vdisk can get a quota, and returns the vdisk.
    ///
    /// # Errors
    /// As [`Inner::set_quota`].
    pub async fn check_set_quota(
        self: &Rc<Self>,
        name: &VdiskName,
        bytes: u64,
    ) -> Result<Rc<Vdisk>> {
        let vdisk = self.named(name).await?;
        self.charge_family(&vdisk).await?;
        let held = (vdisk.held_blocks() + vdisk.family_blocks.get()) * u64::from(BLOCK_BYTES);
        if bytes != 0 && bytes < held {
            let (held, quota) = (format_size(held), format_size(bytes));
            return Err(error!(Invalid, "{name} holds {held}, and the quota would be {quota}")
                .next("choose a larger quota, or remove snapshots first"));
        }
        Ok(vdisk)
    }

    /// Notes in a vdisk the blocks of the lines that had its name before rollbacks.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn charge_family(&self, vdisk: &Vdisk) -> Result<()> {
        let older = self.account_of_older(vdisk.number).await?;
        vdisk.family_blocks.set(older.all());
        Ok(())
    }

    /// Returns the sum of the accounts of the lines that had the name of a vdisk before rollbacks. Without a head, only
    /// snapshots have the blocks.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn account_of_older(&self, newest: u64) -> Result<Account> {
        let mut all = Account::default();
        for line in self.lines(newest).await?.into_iter().skip(1) {
            let row = self.tables.get::<VdiskRow>(&line.to_be_bytes()).await?;
            let of = row.as_ref().map(Account::of).unwrap_or_default();
            all.dead += of.head + of.dead;
            all.nodes += of.nodes;
        }
        Ok(all)
    }
}

/// Returns which of some snapshots alone holds blocks with this birth and death, if one does.
fn only_holder(kept: &Kept, birth: Number, death: Number, of: &[SnapshotRow]) -> Option<usize> {
    let holder = kept.before(death);
    let at = of.binary_search_by_key(&holder, |row| row.number).ok()?;
    (birth <= holder && birth > kept.before(holder)).then_some(at)
}
