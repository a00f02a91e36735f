//! The open pool: its parts, the state that they share, and its public operations.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use block::control::Resolved;
use block::seeded::{self, Bug};
use block::{
    Below, Buf, ByteRange, EXTENTS_MAX, Env, Error, Extent, Lower, Mutex, Notify, Patience,
    Reservation, Result, TaskGroup, bail, error,
};
use meta::ring::{Log, Position};

use super::catalogue::VersionId;
use super::check::Checked;
use super::commit::{Change, Commits};
use super::listing::{Listed, ListedSnapshot, ListedVdisk};
use super::nodes::Nodes;
use super::read::DataBlocks;
use super::room::Room;
use super::rules::{Keep, Taking};
use super::tables::Tables;
use super::vdisk::Vdisk;
use super::version::Version;
use crate::BLOCK_BYTES;
use crate::map::Number;
use crate::name::{Label, VdiskName, VersionName};
use crate::root::{RootStore, Superblock, SuperblockFlags};

/// Number of the allocator that serves a pool.
pub const ALLOCATOR: u32 = 1;

/// Most changes in memory: those since the last cut, and those that a checkpoint merges.
pub const CHANGES_MAX: usize = 1 << 20;

/// Changes in memory at which a checkpoint begins, and above which no record begins.
pub(super) const CHANGES_HALF: usize = CHANGES_MAX / 2;

/// Most bytes of data that no flush covers. The next record waits for a flush.
pub const UNFLUSHED_BYTES_MAX: u64 = 256 << 20;

/// A function that gets the first damage of the map of a vdisk: the name of the vdisk, empty if it was removed, and the
/// error.
pub type OnDamage = Box<dyn Fn(&str, &Error)>;

/// An open pool. A clone is another handle to the same pool.
#[derive(Clone)]
pub struct Pool(pub(super) Rc<Inner>);

/// The state of an open pool.
pub struct Inner {
    pub env: Env,
    pub lower: Lower,
    pub room: Rc<Room>,
    pub nodes: Rc<Nodes>,
    pub tables: Tables,
    /// The reserve in the buffer pool for the writes of the log and of nodes.
    pub _buffers: Reservation,
    pub log: Log,
    pub roots: RootStore,
    /// The superblock that counts.
    pub newest: RefCell<Superblock>,
    pub commits: Commits,
    pub numbers: Numbers,
    /// Position behind the last record whose changes are in memory.
    pub applied: Cell<Position>,
    /// Number of the checkpoint that counts.
    pub counted: Cell<u64>,
    /// Lock of the checkpoint that runs.
    pub checkpointing: Mutex,
    /// Lock of the command that changes the catalogue.
    pub names: Mutex,
    /// Vdisks in memory, by number.
    pub vdisks: RefCell<BTreeMap<u64, Rc<Vdisk>>>,
    /// The vdisks with changes since the last cut.
    pub touched: RefCell<BTreeMap<u64, Rc<Vdisk>>>,
    /// Number of changes in memory since the last cut.
    pub fresh_changes: Cell<usize>,
    /// Number of changes that a running checkpoint merges.
    pub taken_changes: Cell<usize>,
    /// Bytes of data since the last flush.
    pub unflushed_bytes: Cell<u64>,
    /// Removed vdisks, with the snapshots on which they have holds that the keeper releases.
    pub ended: RefCell<Vec<(u64, VersionId)>>,
    /// Damage of maps that checkpoints have met, by vdisk.
    pub damage: RefCell<BTreeMap<u64, String>>,
    /// Gets the first damage of each vdisk.
    pub on_damage: OnceCell<OnDamage>,
    /// Blocks of data and nodes that checkpoints have freed.
    pub data_freed: Cell<u64>,
    pub nodes_freed: Cell<u64>,
    /// How often discards below have failed.
    pub undiscarded: Cell<u64>,
    /// How often each version is open, by identity.
    pub opened: RefCell<BTreeMap<VersionId, u32>>,
    /// Raised when changes in memory move: at each cut, and at the end of each checkpoint.
    pub epoch: Cell<u64>,
    /// Whether the log is replayed now.
    pub is_replaying: Cell<bool>,
    /// The error after which the pool takes no changes.
    pub failure: RefCell<Option<Error>>,
    pub is_read_only: bool,
    pub tasks: TaskGroup,
    pub changes: Notify,
    /// Whether the keeper is to write a checkpoint soon, because something was removed.
    pub wants_checkpoint: Cell<bool>,
    /// Whether the keeper asks for an empty record.
    pub wants_proof: Cell<bool>,
    /// Most leaves that the folds of one checkpoint write.
    pub fold_leaves_max: u64,
    /// Leaves that the folds of the running checkpoint may still write.
    pub fold_leaves: Cell<u64>,
    /// Whether the running checkpoint has folded anything.
    pub has_folded: Cell<bool>,
    /// Whether a vdisk that was loaded takes snapshots before flushes.
    pub takes_with_flush: Cell<bool>,
}

/// The allocator's numbers of vdisks, groups, holds and passes.
pub struct Numbers {
    /// The next number.
    pub next: Cell<u64>,
    /// End of the numbers in reserve, by the acknowledged records.
    pub end: Cell<u64>,
}

/// The space of a pool, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of maps and tables.
    pub node_bytes: u64,
    /// Free bytes that data can take now.
    pub free_bytes: u64,
    /// Other free bytes: kept for maps, or freed and not given away yet.
    pub kept_bytes: u64,
}

impl Inner {
    /// Returns an error if the pool takes no changes.
    ///
    /// # Errors
    /// `ReadOnly`, or the error of the write that failed.
    pub fn check_writable(&self) -> Result<()> {
        if let Some(error) = &*self.failure.borrow() {
            return Err(error.clone());
        }
        if self.is_read_only {
            bail!(ReadOnly, "the pool is open for reading");
        }
        Ok(())
    }

    /// Returns the patience of all writes for space on the device below.
    pub fn patience(&self) -> &Patience {
        self.roots.patience()
    }

    /// Makes the pool refuse all further changes, after a write has failed.
    pub fn fail(&self, error: &Error) {
        self.failure.borrow_mut().get_or_insert_with(|| error.clone());
        self.changed();
    }

    /// Wakes all tasks that wait for a change of the pool's state.
    pub fn changed(&self) {
        self.changes.wake();
    }

    /// Notes that a vdisk has changes that the next checkpoint merges.
    pub fn touch(&self, vdisk: &Rc<Vdisk>) {
        let mut touched = self.touched.borrow_mut();
        touched.entry(vdisk.number).or_insert_with(|| vdisk.clone());
    }

    /// Notes that the next checkpoint writes the rows of all vdisks in memory with snapshot numbers in reserve, so that
    /// it gives the numbers back.
    pub fn touch_all(&self) {
        for vdisk in self.vdisks.borrow().values() {
            if vdisk.has_reserve() {
                self.touch(vdisk);
            }
        }
    }

    /// Makes all acknowledged changes durable.
    ///
    /// # Errors
    /// The error of the device, after which the pool takes no changes.
    pub async fn flush(&self) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        if let Some(error) = &*self.failure.borrow() {
            return Err(error.clone());
        }
        let covered = self.unflushed_bytes.get();
        let flushed = self.log.flush().await;
        flushed.inspect_err(|error| self.fail(error))?;
        let rest = self.unflushed_bytes.get().saturating_sub(covered);
        if self.unflushed_bytes.replace(rest) >= UNFLUSHED_BYTES_MAX {
            self.changed();
        }
        let proven = self.log.numbers().proven;
        self.room.with(|space| space.proven(proven));
        Ok(())
    }

    /// Drops the vdisks in memory without a handle and without changes.
    pub fn forget_closed(&self) {
        let mut touched = self.touched.borrow_mut();
        let mut is_used = |number: &u64, vdisk: &Rc<Vdisk>| {
            if touched.contains_key(number) || Rc::strong_count(vdisk) > 1 {
                return true;
            }
            // The next checkpoint gives its numbers back.
            let has_reserve = vdisk.has_reserve();
            if has_reserve {
                touched.insert(*number, vdisk.clone());
            }
            has_reserve
        };
        // A clone holds the vdisk of its origin, so one pass may not find all.
        self.vdisks.borrow_mut().retain(|number, vdisk| is_used(number, vdisk));
    }
}

impl Pool {
    /// Returns the bytes of the pool on its device.
    pub fn bytes(&self) -> u64 {
        self.0.room.with(|space| space.pool_bytes())
    }

    /// Returns the version with a name; `None` if there is none.
    ///
    /// # Errors
    /// `VolumeGone` for the name of a removed vdisk; those of the device.
    pub async fn find(&self, name: &VersionName) -> Result<Option<VersionId>> {
        self.0.find(name).await
    }

    /// Returns the size of a version in bytes.
    ///
    /// # Errors
    /// `NotFound` if it was removed; those of the device.
    pub async fn size(&self, id: VersionId) -> Result<u64> {
        self.0.size(id).await
    }

    /// Lists up to `most` versions with names after `after`, in the order of their names: vdisks, and snapshots with a
    /// label.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn list(&self, after: &str, most: usize) -> Result<Vec<Listed>> {
        self.0.list(after, most).await
    }

    /// Lists up to `most` vdisks with names after `after`, in the order of their names.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn vdisks(&self, after: &str, most: usize) -> Result<Vec<ListedVdisk>> {
        self.0.vdisks(after, most).await
    }

    /// Lists up to `most` snapshots of a vdisk with numbers from `from` on, in the order of their numbers.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk; those of the device.
    pub async fn snapshots(
        &self,
        name: &VdiskName,
        from: Number,
        most: usize,
    ) -> Result<Vec<ListedSnapshot>> {
        self.0.snapshots(name, from, most).await
    }

    /// Counts the blocks with data of a version from `block` on. The count ends after a limited time, at the block
    /// [`DataBlocks::next`], so a caller goes on there.
    ///
    /// # Errors
    /// `NotFound` if there is no such version; those of the device.
    pub async fn count_data(&self, name: &VersionName, block: u64) -> Result<DataBlocks> {
        let Some(id) = self.0.find(name).await? else { return Err(missing(name)) };
        self.0.count_data(&*self.0.version(id).await?, block).await
    }

    /// Opens a version: it is not removed until [`Pool::close_version`].
    ///
    /// # Errors
    /// `NotFound` if it was removed; those of the device.
    pub async fn open_version(&self, id: VersionId) -> Result<Rc<Version>> {
        let _turn = self.0.names.lock().await;
        if !self.0.is_named(id).await? {
            bail!(NotFound, "the version was removed meanwhile");
        }
        let version = self.0.version(id).await?;
        *self.0.opened.borrow_mut().entry(id).or_default() += 1;
        Ok(version)
    }

    /// Closes a version.
    ///
    /// # Panics
    /// If it is not open.
    pub fn close_version(&self, id: VersionId) {
        let mut opened = self.0.opened.borrow_mut();
        let count = opened.get_mut(&id).expect("an open version is closed");
        *count -= 1;
        if *count == 0 {
            opened.remove(&id);
        }
    }

    /// Makes an empty vdisk of `size` bytes. It is durable after a flush.
    ///
    /// # Errors
    /// `InUse` if the name exists, `Invalid` for an impossible size; those of the device.
    pub async fn create(&self, name: &VdiskName, size: u64) -> Result<VersionId> {
        self.0.create(name, size).await
    }

    /// Takes a snapshot of each named vdisk, all at one instant, and returns their numbers. They are durable after a
    /// flush.
    ///
    /// # Errors
    /// `NotFound` for a missing vdisk, `InUse` if a vdisk has the label already; those of the device.
    pub async fn snapshot(&self, names: &[VdiskName], label: Option<Label>) -> Result<Vec<Number>> {
        self.0.snapshot(names, label).await
    }

    /// Makes a vdisk with the content of a snapshot. It is durable after a flush.
    ///
    /// # Errors
    /// `InUse` if the name exists, `NotFound` without the snapshot; those of the device.
    pub async fn clone_of(&self, origin: &VersionName, name: &VdiskName) -> Result<VersionId> {
        self.0.clone_of(origin, name).await
    }

    /// Removes a vdisk with its snapshots, or one snapshot. The name goes at once. Snapshots that a clone depends on
    /// stay until the clone is removed. Returns the number of such clones. The removal is durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such version, `InUse` if a client has it open; those of the device.
    pub async fn remove(&self, name: &VersionName) -> Result<u64> {
        self.0.remove(name).await
    }

    /// Changes the size of a vdisk. It is durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk, `InUse` if a client has it open, `Invalid` for an impossible size or if
    /// there are data behind it; those of the device.
    pub async fn resize(&self, name: &VdiskName, size: u64) -> Result<()> {
        self.0.resize(name, size).await
    }

    /// Sets how many bytes a vdisk may hold with its snapshots; 0 for no limit. It is durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk, `Invalid` if it holds more already; those of the device.
    pub async fn set_quota(&self, name: &VdiskName, bytes: u64) -> Result<()> {
        self.0.set_quota(name, bytes).await
    }

    /// Checks that [`Pool::set_quota`] would succeed.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_set_quota(&self, name: &VdiskName, bytes: u64) -> Result<()> {
        self.0.check_set_quota(name, bytes).await.map(drop)
    }

    /// Gives a vdisk the content of one of its snapshots. If its own content is in no snapshot, one is taken first, and
    /// its number is returned. All snapshots keep their names. Durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, `InUse` if a client has the vdisk open, `Limit` if snapshots of too many
    /// rollbacks are kept; those of the device.
    pub async fn roll_back(&self, to: &VersionName) -> Result<Option<Number>> {
        self.0.roll_back(to).await
    }

    /// Checks that [`Pool::roll_back`] would succeed.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_rollback(&self, to: &VersionName) -> Result<()> {
        self.0.check_rollback(to).await.map(drop)
    }

    /// Checks that [`Pool::create`] would make a vdisk.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_create(&self, name: &VdiskName, size: u64) -> Result<()> {
        self.0.check_create(name, size).await.map(drop)
    }

    /// Checks that [`Pool::snapshot`] would take snapshots.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_snapshot(&self, names: &[VdiskName], label: Option<&Label>) -> Result<()> {
        self.0.check_snapshot(names, label).await.map(drop)
    }

    /// Checks that [`Pool::clone_of`] would make a vdisk.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_clone(&self, origin: &VersionName, name: &VdiskName) -> Result<()> {
        self.0.check_clone(origin, name).await.map(drop)
    }

    /// Checks that a vdisk can get a name.
    ///
    /// # Errors
    /// `InUse` if a vdisk has the name.
    pub async fn check_free(&self, name: &VdiskName) -> Result<()> {
        self.0.free_name(name).await.map(drop)
    }

    /// Checks that [`Pool::remove`] would remove a version, and returns the same number.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_remove(&self, name: &VersionName) -> Result<u64> {
        self.0.check_remove(name).await.map(|(_, clones)| clones)
    }

    /// Checks that [`Pool::resize`] would change the size of a vdisk.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_resize(&self, name: &VdiskName, size: u64) -> Result<()> {
        self.0.check_resize(name, size).await.map(drop)
    }

    /// Reads whole blocks of a version from `block` on.
    ///
    /// # Errors
    /// Those of the device; `Corrupt` if a block does not have its checksum.
    pub async fn read(&self, version: &Version, block: u64, into: &Buf) -> Result<()> {
        self.0.read(version, block, into).await
    }

    /// Writes whole blocks of a head from `block` on. They are durable after a flush.
    ///
    /// # Errors
    /// `NoSpace` in a full pool; `ReadOnly` for a snapshot; those of the device.
    pub async fn write(&self, version: &Version, block: u64, data: Buf) -> Result<()> {
        head(version)?;
        self.0.commit(Change::Write(version.vdisk.clone(), block, data)).await.map(drop)
    }

    /// Makes blocks of a head zeros, and gives their space back.
    ///
    /// # Errors
    /// As [`Pool::write`].
    pub async fn zero(&self, version: &Version, block: u64, blocks: u64) -> Result<()> {
        head(version)?;
        self.0.commit(Change::Hole(version.vdisk.clone(), block, blocks)).await.map(drop)
    }

    /// Makes all acknowledged changes of all vdisks durable. Takes the snapshots before it that vdisks take with each
    /// flush.
    ///
    /// # Errors
    /// The error of the device, after which the pool takes no changes.
    pub async fn flush(&self) -> Result<()> {
        self.0.take_with_flush().await?;
        self.0.flush().await
    }

    /// Sets when a vdisk takes snapshots of itself. Durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk, `Invalid` for an impossible time; those of the device.
    pub async fn set_taking(&self, name: &VdiskName, taking: Taking) -> Result<()> {
        self.0.set_taking(name, taking).await
    }

    /// Removes the snapshots of a vdisk that a rule does not keep, and returns their number. With `stays`, the rule is
    /// also carried out after each checkpoint, as long as the vdisk is in memory. Durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk; those of the device.
    pub async fn keep(&self, name: &VdiskName, keep: Keep, stays: bool) -> Result<u64> {
        self.0.keep(name, keep, stays).await
    }

    /// Returns the number of snapshots that [`Pool::keep`] would remove.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_keep(&self, name: &VdiskName, keep: Keep) -> Result<u64> {
        self.0.check_keep(name, keep).await
    }

    /// Gives a snapshot a label, or takes it away. Durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, `InUse` if another one has the label; those of the device.
    pub async fn set_label(&self, name: &VersionName, label: Option<Label>) -> Result<()> {
        self.0.set_label(name, label).await
    }

    /// Checks that [`Pool::set_label`] would succeed.
    ///
    /// # Errors
    /// Those that it would have.
    pub async fn check_label(&self, name: &VersionName, label: Option<&Label>) -> Result<()> {
        self.0.check_label(name, label).await.map(drop)
    }

    /// Returns which blocks of a version have data, from the start of `range` on.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn status(&self, version: &Version, range: ByteRange) -> Result<Vec<Extent>> {
        self.0.status(version, range).await
    }

    /// Returns the places of the bytes of a version on the device below.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn resolve(&self, version: &Version, range: ByteRange) -> Result<Resolved> {
        let block = u64::from(BLOCK_BYTES);
        let (first, end) = (range.start() / block, range.end().div_ceil(block));
        let (mut all, mut upto) = (Vec::new(), range.start());
        for (at, address, blocks) in self.0.data_places(version, first, end, EXTENTS_MAX).await? {
            upto = ((at + blocks) * block).min(range.end());
            let Some(address) = address else { continue };
            let part = ByteRange::between(at * block, (at + blocks) * block);
            let Some(part) = part.and_then(|part| part.intersect(range)) else { continue };
            let below = self.0.room.range(address, blocks)?.start() + part.start() - at * block;
            let below = ByteRange::new(below, part.len()).expect("a part has bytes");
            all.push(Below { lower: 0, above: part.start(), range: below, how: "placed".into() });
        }
        Ok(Resolved::Places { all, upto, moves: true })
    }

    /// Writes a checkpoint: all acknowledged changes are in trees when it returns.
    ///
    /// # Errors
    /// The error of the device, after which the pool takes no changes.
    pub async fn checkpoint(&self) -> Result<()> {
        self.0.checkpoint(SuperblockFlags(0)).await
    }

    /// Compares the blocks that trees refer to with the blocks in use, after a checkpoint if the pool can be written.
    /// Reads all nodes, and no data.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn check(&self) -> Result<Checked> {
        let _turn = self.0.names.lock().await;
        if !self.0.is_read_only {
            self.checkpoint().await?;
        }
        let _still = self.0.checkpointing.lock().await;
        self.0.check().await
    }

    /// Ends the background work of the pool, and writes a last checkpoint, so that the next opening has nothing to
    /// replay.
    ///
    /// # Errors
    /// The error of the device, also of a write that waited for space below. The next opening replays the log then.
    pub async fn close(&self) -> Result<()> {
        self.0.patience().set(false);
        let closing = self.0.tasks.close(|| self.0.begin_keeping()).await;
        let written = match self.0.check_writable() {
            Ok(()) => {
                self.0.touch_all();
                self.0.checkpoint(SuperblockFlags::CLOSED).await
            }
            Err(_) => Ok(()),
        };
        closing.done();
        written
    }

    /// Returns the error after which the pool takes no changes, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.0.failure.borrow().clone()
    }

    /// Sets the function that gets the first damage of each vdisk from now on.
    ///
    /// # Panics
    /// If it is set twice.
    pub fn set_on_damage(&self, call: OnDamage) {
        assert!(self.0.on_damage.set(call).is_ok(), "one function gets the damage of a pool");
    }

    /// Returns the damage of maps that checkpoints have met: of each vdisk that it concerns, the newest.
    pub fn damage(&self) -> Vec<String> {
        self.0.damage()
    }

    /// Returns the space in use and free.
    pub fn usage(&self) -> Usage {
        let (counts, free) = self.0.room.with(|space| (space.counts(), space.free_for_data()));
        let bytes = |blocks: u64| blocks * u64::from(BLOCK_BYTES);
        Usage {
            data_bytes: bytes(counts.data),
            node_bytes: bytes(counts.nodes),
            free_bytes: bytes(free),
            kept_bytes: bytes(counts.free.saturating_sub(free)),
        }
    }

    /// Returns the number of writes that wait for space on the device below. Reads go on meanwhile.
    pub fn waiting_below(&self) -> u32 {
        self.0.patience().waiting()
    }

    /// Returns how often discards below have failed since the opening.
    pub fn undiscarded(&self) -> u64 {
        self.0.undiscarded.get()
    }

    /// Returns the number of nodes that were read from the device and written to it since the opening.
    pub fn node_counts(&self) -> (u64, u64) {
        self.0.nodes.counts()
    }
}

/// Returns the error for a missing version.
pub fn missing(name: &VersionName) -> Error {
    error!(NotFound, "the pool has no {name}")
        .next("list its vdisks and snapshots with cairn vdisk ls")
}

fn head(version: &Version) -> Result<()> {
    match version.number {
        None => Ok(()),
        Some(_) if seeded::on(Bug::SnapshotWritable) => Ok(()),
        Some(number) => bail!(ReadOnly, "snapshot {number} cannot be written"),
    }
}
