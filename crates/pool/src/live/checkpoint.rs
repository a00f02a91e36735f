//! Checkpoints: the changes up to one point become trees, and a superblock names them.

use std::collections::BTreeMap;
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{OneShot, Result};
use meta::ring::Position;

use super::account::{Account, Balance};
use super::catalogue::VersionId;
use super::commit::SUM_BYTES;
use super::fold::Folding;
use super::nodes::{Attempt, Passes};
use super::origin::{Origin, settled_list};
use super::pool::{ALLOCATOR, Inner};
use super::vdisk::{Removal, Vdisk};
use super::version::{head_key, own_trees};
use crate::map::{
    Changes, DeadChange, DeadEntry, Form, Found, FromIter, Kept, Key, Layer, MergeOptions, Number,
    Replaced, Root, SumKind, TreeKind, Window, drop_after, merge_dead, merge_runs, nodes_after,
    release, sweep, write_interval,
};
use crate::root::{Superblock, SuperblockFlags, TABLES};
use crate::rows::{
    DEAD_ENTRIES_INDEX, HEAD, PassKind, SettledRow, SnapshotFlags, SnapshotRow, Table, TreeRow,
    VdiskRow, VdiskState,
};
use crate::space::{Claims, Space, SpaceRows};
use crate::{Address, DESCRIPTOR_BYTES, NUMBER_MAX};

/// Most dead entries that one step of a removal frees.
const RELEASED_MAX: usize = 4096;

/// Nodes that each table of space may need, besides those of changed leaves: a path, and some splits.
const SPACE_NODES_MORE: u64 = 16;

/// The point up to which a checkpoint takes changes.
struct Cut {
    /// The lines with changes.
    lines: Vec<Line>,
    /// Position behind the last record that the checkpoint contains.
    log: Position,
    number: u64,
}

/// The part of a line that a cut has taken, besides the changes of its blocks.
struct Line {
    vdisk: Rc<Vdisk>,
    /// First number of the interval.
    first: Number,
    /// Dead entries of blocks that were overwritten before the cut.
    dead: Vec<DeadEntry>,
    /// Removed versions.
    removal: Removal,
}

/// The space that a line has found in a checkpoint.
#[derive(Default)]
struct Finds {
    found: Found,
    dead: Vec<DeadEntry>,
}

/// The trees of a line after a checkpoint.
pub struct Trees {
    pub vdisk: Rc<Vdisk>,
    own: Vec<Root>,
    pub dead: Root,
    /// The snapshots that stay.
    kept: Kept,
    /// Snapshots that no longer count as kept once the checkpoint counts.
    removed: Vec<Number>,
    /// Whether the next checkpoint goes on with a fold.
    goes_on: bool,
    pub account: Account,
}

impl Trees {
    /// The trees of a line that the checkpoint has not changed.
    pub fn unchanged(vdisk: &Rc<Vdisk>) -> Self {
        Self {
            vdisk: vdisk.clone(),
            own: vdisk.own.borrow().to_vec(),
            dead: vdisk.dead.get(),
            kept: vdisk.kept.borrow().clone(),
            removed: Vec::new(),
            goes_on: false,
            account: Account::of(&vdisk.row.borrow()),
        }
    }
}

impl Inner {
    /// Writes a checkpoint: all changes acknowledged before the call are in trees when it returns.
    ///
    /// # Errors
    /// The first error of the device, after which the pool takes no changes.
    pub async fn checkpoint(self: &Rc<Self>, flags: SuperblockFlags) -> Result<()> {
        // Once begun, it runs to its end, even if the caller does not wait for it any more.
        let (pool, done) = (self.clone(), Rc::new(OneShot::default()));
        let (answer, task) = (done.clone(), self.tasks.enter());
        self.env.spawn("a checkpoint of a pool", async move {
            let _task = task;
            answer.set(pool.run_checkpoint(flags).await);
        });
        done.wait().await
    }

    async fn run_checkpoint(self: &Rc<Self>, flags: SuperblockFlags) -> Result<()> {
        let _turn = self.checkpointing.lock().await;
        self.check_writable()?;
        let cut = self.cut(flags);
        // Records may begin again.
        self.changed();
        let written = self.write_checkpoint(cut, flags).await;
        written.inspect_err(|error| {
            self.nodes.drop_writes();
            self.fail(error);
        })
    }

    fn cut(&self, flags: SuperblockFlags) -> Cut {
        let touched = std::mem::take(&mut *self.touched.borrow_mut());
        let take = |vdisk: Rc<Vdisk>| {
            // Without a handle it is forgotten when this checkpoint counts.
            if flags == SuperblockFlags::CLOSED || Rc::strong_count(&vdisk) == 2 {
                vdisk.release_numbers();
            }
            let (first, next) = (vdisk.cut.get(), vdisk.next.get());
            let fresh = vdisk.fresh.replace(Changes::new(SUM_BYTES, next));
            *vdisk.taken.borrow_mut() = Some(Rc::new(fresh));
            vdisk.cut_before.set(first);
            vdisk.cut.set(next);
            vdisk.note_changes();
            vdisk.charges.taken.set(vdisk.charges.fresh.take());
            let (dead, removal) = (vdisk.new_dead.take(), vdisk.removal.take());
            Line { vdisk, first, dead, removal }
        };
        let lines = touched.into_values().map(take).collect();
        self.taken_changes.set(self.fresh_changes.take());
        self.begin_folds();
        self.tables.cut();
        self.room.with(Space::cut);
        self.epoch.set(self.epoch.get() + 1);
        Cut { lines, log: self.applied.get(), number: self.counted.get() + 1 }
    }

    async fn write_checkpoint(self: &Rc<Self>, cut: Cut, flags: SuperblockFlags) -> Result<()> {
        let passes = Passes(self.nodes.clone());
        let mut lines = Vec::new();
        for line in cut.lines {
            lines.push(self.merge_line(&passes, line).await?);
        }
        let origins = self.list_origins(&passes, &mut lines).await?;
        let ended = self.write_rows(&lines);
        let mut trees = BTreeMap::new();
        let mut found = Found::default();
        let last = [Table::Extents, Table::Free];
        for table in Table::ALL.iter().filter(|table| !last.contains(table)) {
            let tree = self.tables.merge(&passes, *table, cut.number, &mut found).await?;
            trees.insert(*table, tree);
        }
        self.free_nodes(found.nodes);
        self.merge_space(&passes, cut.number, &mut trees).await?;
        self.nodes.finish().await?;
        if !seeded::on(Bug::CheckpointUnflushed) {
            self.log.flush_device().await?;
        }
        let superblock = self.superblock(cut.number, cut.log, &trees, flags);
        self.roots.write(&superblock).await?;
        // Until this root counts, an opening may need the snapshots under the removed vdisks.
        self.ended.borrow_mut().extend(ended);
        self.count(superblock, &trees, lines, origins);
        Ok(())
    }

    /// Ends a checkpoint whose superblock counts.
    fn count(
        &self,
        superblock: Superblock,
        trees: &BTreeMap<Table, Root>,
        lines: Vec<Trees>,
        origins: Vec<(u64, Origin)>,
    ) {
        let log_root = superblock.log_root;
        self.counted.set(superblock.checkpoint);
        self.newest.replace(superblock);
        self.tables.counted(trees);
        self.epoch.set(self.epoch.get() + 1);
        self.log.trim(log_root);
        self.room.with(|space| space.proven(log_root.flushed));
        self.room.with(Space::counted);
        for Trees { vdisk, own, dead, removed, goes_on, account, .. } in lines {
            account.put(&mut vdisk.row.borrow_mut());
            vdisk.charges.taken.set(0);
            *vdisk.own.borrow_mut() = own.into();
            vdisk.dead.set(dead);
            vdisk.taken.take();
            self.stop_keeping(&vdisk, &removed);
            if goes_on {
                self.touch(&vdisk);
                self.wants_checkpoint.set(true);
            }
        }
        for (clone, origin) in origins {
            if let Some(vdisk) = self.vdisks.borrow().get(&clone) {
                vdisk.origin.replace(Some(origin));
            }
        }
        self.taken_changes.set(0);
        self.forget_closed();
        self.changed();
    }

    /// Merges the changes of a vdisk that the cut has taken into its trees, and carries out its removals.
    async fn merge_line(self: &Rc<Self>, passes: &Passes, line: Line) -> Result<Trees> {
        let Line { vdisk, first, dead, removal } = line;
        let vdisk = &vdisk;
        let changes = vdisk.taken.borrow().clone().expect("the cut has taken changes");
        let before = self.balance();
        let cut = vdisk.cut.get();
        let mut finds = Finds { dead, ..Finds::default() };
        let mut own: Vec<Root> = vdisk.own.borrow().to_vec();
        self.write_lists(passes, vdisk, (first, cut), &changes, &own, &mut finds).await?;
        let fold_before = vdisk.fold.get();
        if !changes.is_empty() {
            if !vdisk.takes_changes(&own) {
                own.insert(0, Root::empty(runs(TreeKind::Change, vdisk)));
            }
            let birth = if seeded::on(Bug::NodeBornLate) { vdisk.sealed.get() } else { cut };
            let options = MergeOptions { birth, leaves_max: None };
            let top = own[0];
            let merge = async |store: &Attempt<'_>, found: &mut Found| {
                merge_runs(store, &top, FromIter(changes.newest()), false, options, found).await
            };
            match self.attempt(passes, vdisk, &mut finds.found, merge).await? {
                Some(merged) => own[0] = merged.root,
                None => {
                    // Above the damaged tree, a new one takes the changes.
                    let empty = Root::empty(runs(TreeKind::Change, vdisk));
                    let source = FromIter(changes.newest());
                    let found = &mut finds.found;
                    let merged = merge_runs(passes, &empty, source, false, options, found).await?;
                    own.insert(0, merged.root);
                }
            }
        }
        let finds_all = removal.head.is_some() && !seeded::on(Bug::HeadUnmerged);
        let folding = match vdisk.wants_fold.take() {
            _ if finds_all => Folding::ToEnd,
            true => Folding::Wanted,
            false => Folding::IfGrown,
        };
        let found = &mut finds.found;
        let goes_on = self.fold_trees(passes, vdisk, &mut own, found, folding).await?;
        vdisk.wants_fold.set(goes_on && folding == Folding::Wanted);
        self.settle(vdisk, &mut finds, cut);
        let mut dead = vdisk.dead.get();
        dead = self.merge_dead(passes, vdisk, dead, std::mem::take(&mut finds.dead)).await?;
        if let Some(state) = removal.head {
            let after = vdisk.kept.borrow().before(cut);
            self.sweep(passes, vdisk, &own, (NUMBER_MAX, after)).await?;
            own.clear();
            vdisk.fold.set(None);
            vdisk.merged_state.set(state);
            self.remove_pass(PassKind::REMOVE_LAST, vdisk);
        }
        // The snapshots count as kept for other changes until this checkpoint counts: a replay of an older root needs
        // their blocks.
        let mut kept = vdisk.kept.borrow().clone();
        let removed: Vec<Number> = removal.snapshots.into_iter().collect();
        removed.iter().for_each(|number| kept.remove(*number));
        if !removed.is_empty() {
            dead = self.remove_snapshots(passes, vdisk, dead, &removed, &kept).await?;
            self.remove_pass(PassKind::REMOVE, vdisk);
        }
        own.retain(|tree| tree.top.is_some() || tree.form.kind == TreeKind::Base);
        self.write_fold(vdisk, fold_before);
        self.write_head(vdisk, &own, &dead);
        let account = self.account(vdisk, &own, &dead, before);
        Ok(Trees { vdisk: vdisk.clone(), own, dead, kept, removed, goes_on, account })
    }

    /// Returns the account of a line after the merge of its changes and removals. `before` is the balance before that.
    fn account(&self, vdisk: &Vdisk, own: &[Root], dead: &Root, before: Balance) -> Account {
        let old = Account::of(&vdisk.row.borrow());
        let since = self.balance().since(before);
        let data = (old.head + old.dead).saturating_add_signed(vdisk.charges.taken.get());
        let head = data.saturating_sub(since.data_freed + dead.blocks);
        let above = own.len().saturating_sub(1);
        let unfound = own[..above].iter().map(|tree| tree.blocks).sum::<u64>().min(head);
        let nodes = old.nodes.saturating_add_signed(since.nodes);
        Account { head, dead: dead.blocks, nodes, unfound }
    }

    /// Returns how many blocks checkpoints have taken and freed.
    pub fn balance(&self) -> Balance {
        let nodes = self.room.nodes_taken().cast_signed() - self.nodes_freed.get().cast_signed();
        Balance { data_freed: self.data_freed.get(), nodes }
    }

    /// Writes the list of trees of the snapshots of the interval, with the interval tree.
    async fn write_lists(
        &self,
        passes: &Passes,
        vdisk: &Rc<Vdisk>,
        (first, cut): (Number, Number),
        changes: &Changes,
        own: &[Root],
        finds: &mut Finds,
    ) -> Result<()> {
        let last = vdisk.kept.borrow().numbers().rev().find(|number| *number < cut);
        let Some(last) = last.filter(|last| *last >= first) else { return Ok(()) };
        let mut list = Vec::new();
        if !changes.is_empty() {
            let form = runs(TreeKind::Interval, vdisk);
            let root = write_interval(passes, form, changes, first, last, &mut finds.found).await?;
            // Nothing but these snapshots refers to the interval tree.
            nodes_after(passes, &root, 0, &mut finds.found).await?;
            list.push(root);
        }
        list.extend(own);
        list.retain(|tree| tree.top.is_some());
        if list.is_empty() {
            // Otherwise the list of a later snapshot would count, whose nodes leave with that one.
            list.push(Root::empty(runs(TreeKind::Change, vdisk)));
        }
        for (index, tree) in list.iter().enumerate() {
            self.tables.put_taken(&TreeRow {
                vdisk: vdisk.number,
                last,
                index: index as u64,
                newest_birth: last,
                descriptor: tree.encode(),
            });
        }
        Ok(())
    }

    /// Frees what a line has found, or keeps it as dead entries. The nodes died at the cut.
    fn settle(&self, vdisk: &Vdisk, finds: &mut Finds, cut: Number) {
        let kept = vdisk.kept.borrow();
        let Found { blocks, nodes } = std::mem::take(&mut finds.found);
        for run in blocks {
            match kept.entry(&run) {
                Some(entry) => finds.dead.push(entry),
                None => self.free(run.address, run.blocks),
            }
        }
        for Replaced { address, birth } in nodes {
            match kept.holds(birth, cut) {
                true => finds.dead.push(DeadEntry {
                    death: cut,
                    address,
                    blocks: 1,
                    birth,
                    is_node: true,
                }),
                false => self.free_node(address),
            }
        }
    }

    /// Frees blocks in the running checkpoint.
    fn free(&self, address: Address, blocks: u64) {
        self.data_freed.set(self.data_freed.get() + blocks);
        self.room.with(|space| space.free_by_root(address, blocks));
    }

    /// Frees a node in the running checkpoint. It leaves the cache now, so it is read from the device if a lookup that
    /// began before needs it.
    pub fn free_node(&self, address: Address) {
        self.nodes.forget(address);
        self.nodes_freed.set(self.nodes_freed.get() + 1);
        self.room.with(|space| space.free_by_root(address, 1));
    }

    fn free_nodes(&self, nodes: Vec<Replaced>) {
        nodes.into_iter().for_each(|node| self.free_node(node.address));
    }

    /// Adds entries to the dead entries of a line. If nodes of them are damaged, the blocks of the entries stay in use.
    pub async fn merge_dead(
        &self,
        passes: &Passes,
        vdisk: &Vdisk,
        dead: Root,
        mut entries: Vec<DeadEntry>,
    ) -> Result<Root> {
        if entries.is_empty() {
            return Ok(dead);
        }
        entries.sort_unstable();
        let mut found = Found::default();
        let options = MergeOptions { birth: vdisk.cut.get(), leaves_max: None };
        let merge = async |store: &Attempt<'_>, found: &mut Found| {
            let source = FromIter(entries.into_iter().map(DeadChange::Add));
            merge_dead(store, &dead, source, options, found).await
        };
        let merged = self.attempt(passes, vdisk, &mut found, merge).await?;
        self.free_nodes(found.nodes);
        Ok(merged.map_or(dead, |merged| merged.root))
    }

    /// Frees the blocks and nodes of a version without a successor that were born after the number `after`, that of its
    /// predecessor. The version sees births up to `limit`. Blocks behind a damaged node stay in use.
    async fn sweep(
        &self,
        passes: &Passes,
        vdisk: &Vdisk,
        trees: &[Root],
        (limit, after): (Number, Number),
    ) -> Result<()> {
        let layer = |tree: &Root| Layer { tree: *tree, limit };
        let layers: Vec<_> = trees.iter().map(layer).collect();
        let mut found = Found::default();
        let swept = sweep(passes, &layers, after, &mut found).await;
        self.undamaged(vdisk, swept)?;
        found.blocks.iter().for_each(|run| self.free(run.address, run.blocks));
        let mut nodes: Vec<_> = found.nodes.iter().map(|node| node.address).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().for_each(|address| self.free_node(address));
        Ok(())
    }

    /// Removes snapshots of a line: frees the dead entries that only they held, and removes their rows. `kept` are the
    /// snapshots that stay.
    async fn remove_snapshots(
        self: &Rc<Self>,
        passes: &Passes,
        vdisk: &Rc<Vdisk>,
        dead: Root,
        removed: &[Number],
        kept: &Kept,
    ) -> Result<Root> {
        let options = MergeOptions { birth: vdisk.cut.get(), leaves_max: None };
        let mut dead = dead;
        // Without a head, the newest snapshot has no successor. Its trees free what it alone sees.
        let last = removed.iter().copied().max();
        let last = last.filter(|last| vdisk.is_head_removed() && kept.after(*last).is_none());
        if let Some(number) = last {
            let trees = own_trees(&self.tables, vdisk.number, number).await?;
            self.sweep(passes, vdisk, &trees, (number, kept.before(number))).await?;
            dead = self.drop_later_dead(passes, vdisk, dead, number).await?;
        }
        let mut named = Kept::new(vdisk.row.borrow().origin_number);
        if seeded::on(Bug::NextFreesHeld) {
            let rows = self.tables.all_of::<SnapshotRow>(&vdisk.number.to_be_bytes()).await?;
            let has_name = |row: &&SnapshotRow| row.flags.0 & SnapshotFlags::NAMELESS.0 == 0;
            rows.iter().filter(has_name).for_each(|row| named.insert(row.number));
            removed.iter().for_each(|number| named.remove(*number));
        }
        let holders = if seeded::on(Bug::NextFreesHeld) { &named } else { kept };
        let windows = Window::of(removed, holders);
        let mut from: Option<Key> = Some([0; 4]);
        while let Some(position) = from {
            let (mut found, how) = (Found::default(), (options, RELEASED_MAX));
            let (root, windows) = (dead, &windows);
            let step = async |store: &Attempt<'_>, found: &mut Found| {
                release(store, &root, holders, windows, position, how, found).await
            };
            let step = self.attempt(passes, vdisk, &mut found, step).await?;
            let Some(step) = step else { break };
            (dead, from) = (step.root, step.rest);
            self.free_nodes(found.nodes);
            for entry in step.freed {
                match entry.is_node {
                    true => self.free_node(entry.address),
                    false => self.free(entry.address, entry.blocks),
                }
            }
        }
        for number in removed {
            let key = [vdisk.number, *number].map(u64::to_be_bytes).concat();
            self.tables.remove_taken(Table::Snapshots, &key);
            self.tables.remove_taken(Table::Details, &key);
        }
        for row in self.tables.all_of::<SettledRow>(&vdisk.number.to_be_bytes()).await? {
            if removed.binary_search(&row.number).is_ok() {
                let key = [row.vdisk, row.number, row.index].map(u64::to_be_bytes).concat();
                self.tables.remove_taken(Table::Settled, &key);
            }
        }
        self.remove_lists(vdisk, kept).await?;
        Ok(dead)
    }

    /// Drops the dead entries of a line behind its newest snapshot, which is removed and has no successor. Frees the nodes
    /// of that snapshot that only dead entries stand for.
    async fn drop_later_dead(
        &self,
        passes: &Passes,
        vdisk: &Vdisk,
        dead: Root,
        number: Number,
    ) -> Result<Root> {
        let options = MergeOptions { birth: vdisk.cut.get(), leaves_max: None };
        let id = VersionId { vdisk: vdisk.number, snapshot: Some(number) };
        let settled = settled_list(&self.tables, id).await?;
        let is_own = |layer: &&Layer| {
            let is_own = layer.tree.form.line == vdisk.number;
            (is_own || seeded::on(Bug::BirthsAcrossLines)) && !seeded::on(Bug::SettledNodesStay)
        };
        let mut found = Found::default();
        let drop = async |store: &Attempt<'_>, found: &mut Found| {
            for layer in settled.iter().filter(is_own) {
                nodes_after(store, &layer.tree, 0, found).await?;
            }
            drop_after(store, &dead, number, options, found).await
        };
        let dropped = self.attempt(passes, vdisk, &mut found, drop).await?;
        self.free_nodes(found.nodes);
        Ok(dropped.unwrap_or(dead))
    }

    /// Makes snapshots no longer count as kept, after their removal counts. Blocks that only they kept, and that were
    /// overwritten after the cut, are free by the records that have overwritten them.
    fn stop_keeping(&self, vdisk: &Vdisk, removed: &[Number]) {
        if removed.is_empty() {
            return;
        }
        let mut kept = vdisk.kept.borrow_mut();
        removed.iter().for_each(|number| kept.remove(*number));
        let record = self.applied.get().number - 1;
        vdisk.new_dead.borrow_mut().retain(|entry| {
            let is_held = kept.holds(entry.birth, entry.death);
            if !is_held {
                let (address, blocks) = (entry.address, entry.blocks);
                vdisk.charges.free(blocks);
                self.room.with(|space| space.free_by_record(address, blocks, record));
            }
            is_held
        });
        let mut row = vdisk.row.borrow_mut();
        row.snapshots = row.snapshots.saturating_sub(removed.len() as u64);
        row.newest_kept = kept.numbers().next_back().unwrap_or(0);
    }

    pub fn remove_pass(&self, kind: PassKind, vdisk: &Vdisk) {
        let key = [kind.0.into(), vdisk.number, 1].map(u64::to_be_bytes).concat();
        self.tables.remove_taken(Table::Passes, &key);
    }

    /// Removes the lists of trees that no kept snapshot has.
    async fn remove_lists(&self, vdisk: &Vdisk, kept: &Kept) -> Result<()> {
        let rows = self.tables.all_of::<TreeRow>(&vdisk.number.to_be_bytes()).await?;
        let mut before = 0;
        for list in rows.chunk_by(|one, next| one.last == next.last) {
            let last = list[0].last;
            if last != HEAD && !kept.holds(before + 1, last + 1) {
                for row in list {
                    let key = [row.vdisk, row.last, row.index].map(u64::to_be_bytes).concat();
                    self.tables.remove_taken(Table::Trees, &key);
                }
            }
            before = last;
        }
        Ok(())
    }

    /// Writes the rows of the trees of a line's head.
    fn write_head(&self, vdisk: &Vdisk, own: &[Root], dead: &Root) {
        let put = |index: u64, tree: &Root| {
            if tree.top.is_some() {
                self.tables.put_taken(&TreeRow {
                    vdisk: vdisk.number,
                    last: HEAD,
                    index,
                    newest_birth: NUMBER_MAX,
                    descriptor: tree.encode(),
                });
            } else {
                self.tables.remove_taken(Table::Trees, &head_key(vdisk.number, index));
            }
        };
        let full: Vec<&Root> = own.iter().filter(|tree| tree.top.is_some()).collect();
        full.iter().enumerate().for_each(|(index, tree)| put(index as u64, tree));
        for index in full.len()..=vdisk.own.borrow().len() {
            self.tables.remove_taken(Table::Trees, &head_key(vdisk.number, index as u64));
        }
        put(DEAD_ENTRIES_INDEX, dead);
    }

    /// Writes the rows of the lines that a checkpoint has changed, with their accounts, and removes those of lines without
    /// a version. Returns these lines, with the snapshots on which they have holds.
    fn write_rows(&self, lines: &[Trees]) -> Vec<(u64, VersionId)> {
        let mut ended = Vec::new();
        for Trees { vdisk, kept, account, .. } in lines {
            if !vdisk.is_head_removed() || kept.numbers().next().is_some() {
                self.tables.put_taken(&row_at_cut(vdisk, kept, account));
                continue;
            }
            if let Some(origin) = &*vdisk.origin.borrow() {
                ended.push((vdisk.number, origin.id()));
            }
            let line = [vdisk.row.borrow().first_line(), vdisk.number];
            self.tables.remove_taken(Table::Lines, &line.map(u64::to_be_bytes).concat());
            self.tables.remove_taken(Table::Vdisks, &vdisk.number.to_be_bytes());
            self.tables.remove_taken(Table::Owners, &vdisk.number.to_be_bytes());
        }
        ended
    }

    /// Merges the tables of space. Their nodes are in extents of their own, so that writing them changes no row.
    async fn merge_space(
        &self,
        passes: &Passes,
        birth: Number,
        trees: &mut BTreeMap<Table, Root>,
    ) -> Result<()> {
        let rows = self.room.with(|space| space.rows_max());
        let nodes = [Table::Extents, Table::Free].map(|table| self.tables.nodes(table));
        let touched = |nodes: u64| 2 * nodes.min(rows as u64) + rows as u64 / 16 + SPACE_NODES_MORE;
        let needed = nodes.into_iter().map(touched).sum::<u64>();
        let SpaceRows { extents, free } = self.room.begin_rows(needed, self.nodes.doubles())?;
        extents.iter().for_each(|row| self.tables.put_taken(row));
        for row in free {
            match row.bitmap == [0; 64] {
                true => {
                    let key = [row.extent, row.part].map(u64::to_be_bytes).concat();
                    self.tables.remove_taken(Table::Free, &key);
                }
                false => self.tables.put_taken(&row),
            }
        }
        let mut found = Found::default();
        for table in [Table::Extents, Table::Free] {
            let tree = self.tables.merge(passes, table, birth, &mut found).await?;
            trees.insert(table, tree);
        }
        self.room.end_rows();
        self.free_nodes(found.nodes);
        for row in self.room.with(|space| space.take_claimed(Claims::Nodes)) {
            let written = self.start_header(&row)?.await;
            self.patience().settle(written).await.result?;
        }
        Ok(())
    }

    fn superblock(
        &self,
        checkpoint: u64,
        log: Position,
        trees: &BTreeMap<Table, Root>,
        flags: SuperblockFlags,
    ) -> Superblock {
        let mut tables = [[0; DESCRIPTOR_BYTES]; TABLES];
        for (table, tree) in trees {
            tables[*table as usize] = tree.encode();
        }
        let counts = self.room.with(|space| space.counts());
        Superblock {
            allocator: ALLOCATOR,
            checkpoint,
            log_root: self.log.root(log),
            numbers_end: self.numbers.end.get(),
            data_blocks: counts.data,
            node_blocks: counts.nodes,
            free_blocks: counts.free,
            written_unix_s: self.env.wall().as_secs(),
            flags,
            tables,
            sequence: self.newest.borrow().sequence + 1,
            ..self.newest.borrow().clone()
        }
    }
}

/// Returns the row of a vdisk at the cut of the running checkpoint. Records after the cut may have changed it in memory.
fn row_at_cut(vdisk: &Vdisk, kept: &Kept, account: &Account) -> VdiskRow {
    let cut = vdisk.cut.get();
    let before = || kept.numbers().take_while(|number| *number < cut);
    let mut row = vdisk.row.borrow().clone();
    row.next_number = cut;
    row.snapshots = before().count() as u64;
    row.newest_kept = before().last().unwrap_or(0);
    account.put(&mut row);
    row.state = vdisk.merged_state.get();
    if row.state == VdiskState::REMOVED {
        row.name = String::new();
    }
    row
}

fn runs(kind: TreeKind, vdisk: &Vdisk) -> Form {
    Form::runs(kind, vdisk.number, SumKind::Crc32c)
}
