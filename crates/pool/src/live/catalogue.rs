//! The vdisks and snapshots of a pool by name: searches, and the commands that make them.
//!
//! One command at a time changes the catalogue, so a name is free, and a snapshot exists, until the record of the
//! command has its place in the order.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::units::write_size;
use block::{Error, Result, bail, error};
use meta::Uuid;

use super::commit::{Change, SUM_BYTES, row_bytes};
use super::fold::fold_position;
use super::pool::{ALLOCATOR, Inner, missing};
use super::vdisk::Vdisk;
use super::version::Version;
use crate::BLOCK_BYTES;
use crate::map::{Form, Kept, Number, Root, TreeKind};
use crate::name::{Label, SnapshotRef, VdiskName, VersionName};
use crate::rows::{
    Cipher, DEAD_ENTRIES_INDEX, Fill, HEAD, HoldKind, HoldRow, LabelRow, NameRow, NameState,
    OwnerRow, PassKind, PassRow, SnapshotFlags, SnapshotRow, SumKind, Table, TreeRow,
    VDISK_BYTES_MAX, VdiskFlags, VdiskRow, VdiskState,
};

/// Snapshot numbers that are reserved at once.
const NUMBERS_STEP: u64 = 1 << 12;

/// Vdisks in memory from which a vdisk inherits, above which a checkpoint begins.
const DEPTH_WANTED: usize = 64;

/// Numbers of the allocator that are reserved at once.
const OWN_NUMBERS_STEP: u64 = 1 << 16;

/// Identity of a version in its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VersionId {
    /// Number of the vdisk.
    pub vdisk: u64,
    /// Number of the snapshot; `None` for the head.
    pub snapshot: Option<Number>,
}

/// Returns the key of a snapshot in its tables.
pub fn snapshot_key(vdisk: u64, number: Number) -> Vec<u8> {
    [vdisk, number].map(u64::to_be_bytes).concat()
}

/// Returns the error for the name of a removed vdisk.
fn gone(name: &VdiskName) -> Error {
    error!(Reason::VolumeGone, "the vdisk {name} was removed")
        .next("make it again with cairn vdisk create or cairn vdisk clone")
}

impl Inner {
    /// Returns the row of a name.
    async fn name_row(&self, name: &VdiskName) -> Result<Option<NameRow>> {
        let row = self.tables.get::<NameRow>(&name.key()).await?;
        match row {
            Some(row) if row.name != name.as_str() => Err(error!(
                Invalid,
                "the names {name} and {} have one short key; only one of them can exist", row.name
            )
            .next("choose another name")),
            row => Ok(row),
        }
    }

    /// Returns the version with a name; `None` if there is none.
    ///
    /// # Errors
    /// `VolumeGone` for the name of a removed vdisk; those of reads of tables.
    pub async fn find(&self, name: &VersionName) -> Result<Option<VersionId>> {
        let Some(row) = self.name_row(&name.vdisk).await? else { return Ok(None) };
        if row.state != NameState::LIVE {
            return Err(gone(&name.vdisk));
        }
        let Some(snapshot) = &name.snapshot else {
            return Ok(Some(VersionId { vdisk: row.vdisk, snapshot: None }));
        };
        for vdisk in self.lines(row.vdisk).await? {
            let number = match snapshot {
                SnapshotRef::Number(number) => Some(*number),
                SnapshotRef::Label(label) => {
                    let key = [&vdisk.to_be_bytes()[..], &label.key()].concat();
                    let row = self.tables.get::<LabelRow>(&key).await?;
                    row.filter(|row| row.label == label.as_str()).map(|row| row.number)
                }
            };
            let Some(number) = number else { continue };
            if self.snapshot_row(vdisk, number).await?.is_some_and(|row| is_named(&row)) {
                return Ok(Some(VersionId { vdisk, snapshot: Some(number) }));
            }
        }
        Ok(None)
    }

    /// Whether a version has its name, so that a client may open it.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn is_named(self: &Rc<Self>, id: VersionId) -> Result<bool> {
        match id.snapshot {
            Some(number) => {
                Ok(self.snapshot_row(id.vdisk, number).await?.is_some_and(|row| is_named(&row)))
            }
            None => {
                let row = self.tables.get::<VdiskRow>(&id.vdisk.to_be_bytes()).await?;
                Ok(row.is_some_and(|row| row.state == VdiskState::LIVE))
            }
        }
    }

    pub(super) async fn snapshot_row(
        &self,
        vdisk: u64,
        number: Number,
    ) -> Result<Option<SnapshotRow>> {
        self.tables.get(&snapshot_key(vdisk, number)).await
    }

    /// Returns the size of a version in bytes.
    ///
    /// # Errors
    /// `NotFound` if it does not exist any more; those of reads of tables.
    pub async fn size(&self, id: VersionId) -> Result<u64> {
        let size = match id.snapshot {
            Some(number) => self.snapshot_row(id.vdisk, number).await?.map(|row| row.size),
            None => {
                let row = self.tables.get::<VdiskRow>(&id.vdisk.to_be_bytes()).await?;
                row.map(|row| row.size)
            }
        };
        size.ok_or_else(|| error!(NotFound, "a version was removed meanwhile"))
    }

    /// Returns a handle to a version, and loads its vdisk.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn version(self: &Rc<Self>, id: VersionId) -> Result<Rc<Version>> {
        Ok(Version::new(self.vdisk(id.vdisk).await?, id.snapshot))
    }

    /// Returns a vdisk in memory, and loads it if necessary.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk; those of reads of tables.
    pub async fn vdisk(self: &Rc<Self>, number: u64) -> Result<Rc<Vdisk>> {
        loop {
            let known = self.vdisks.borrow().get(&number).cloned();
            if let Some(known) = known {
                return Ok(known);
            }
            let epoch = self.epoch.get();
            let loaded = self.load(number).await?;
            // A checkpoint meanwhile may have written newer trees, and forgotten the vdisk again.
            if self.epoch.get() == epoch {
                // Another task may have loaded it meanwhile.
                let vdisk = self.vdisks.borrow_mut().entry(number).or_insert(loaded).clone();
                self.follow(&vdisk);
                return Ok(vdisk);
            }
        }
    }

    async fn load(self: &Rc<Self>, number: u64) -> Result<Rc<Vdisk>> {
        let row = self.tables.get::<VdiskRow>(&number.to_be_bytes()).await?;
        let Some(row) = row else { bail!(NotFound, "the pool has no vdisk number {number}") };
        let origin = match row.origin {
            0 => None,
            vdisk => {
                let id = VersionId { vdisk, snapshot: Some(row.origin_number) };
                Some(self.origin(id).await?)
            }
        };
        let mut kept = Kept::new(row.origin_number);
        for snapshot in self.tables.all_of::<SnapshotRow>(&number.to_be_bytes()).await? {
            if snapshot.flags.0 & SnapshotFlags::LEAVING.0 == 0 {
                kept.insert(snapshot.number);
            }
        }
        let prefix = [number, HEAD].map(u64::to_be_bytes).concat();
        let mut own = Vec::new();
        let mut dead = Root::empty(Form::dead(number));
        for tree in self.tables.all_of::<TreeRow>(&prefix).await? {
            match tree.index {
                DEAD_ENTRIES_INDEX => dead = Root::decode(&tree.descriptor)?,
                _ => own.push(Root::decode(&tree.descriptor)?),
            }
        }
        let has_base = own.last().is_some_and(|tree| tree.form.kind == TreeKind::Base);
        if origin.is_none() && !has_base {
            own.push(Root::empty(Form::runs(TreeKind::Base, number, crate::map::SumKind::Crc32c)));
        }
        let vdisk = Vdisk::new(row, origin, kept, own, dead);
        let fold = [PassKind::FOLD.0.into(), number, 1].map(u64::to_be_bytes).concat();
        vdisk.fold.set(self.tables.get::<PassRow>(&fold).await?.map(|row| fold_position(&row)));
        if !self.is_replaying.get() {
            vdisk.skip_numbers();
        }
        if vdisk.row.borrow().quota > 0 {
            self.charge_family(&vdisk).await?;
        }
        if vdisk.depth > DEPTH_WANTED {
            self.wants_checkpoint.set(true);
            self.changed();
        }
        Ok(Rc::new(vdisk))
    }

    /// Returns the next number of the allocator, for a vdisk, a group or a hold.
    async fn own_number(self: &Rc<Self>) -> Result<u64> {
        let numbers = &self.numbers;
        if numbers.next.get() >= numbers.end.get() {
            let end = numbers.end.get() + OWN_NUMBERS_STEP;
            self.commit(Change::Numbers(None, end)).await?;
            // A number is used only when its reservation is flushed.
            self.flush().await?;
        }
        let count = numbers.next.replace(numbers.next.get() + 1);
        Ok(u64::from(ALLOCATOR) << 48 | count)
    }

    /// Makes an empty vdisk. The result is durable after a flush.
    ///
    /// # Errors
    /// `InUse` if the name exists, `Invalid` for an impossible size; those of a commit.
    pub async fn create(self: &Rc<Self>, name: &VdiskName, size: u64) -> Result<VersionId> {
        let _turn = self.names.lock().await;
        let before = self.check_create(name, size).await?;
        let highest = before.map_or(0, |row| row.highest_number);
        let row = self.new_row(name, size, None, highest + 1).await?;
        let rows = self.rows_of_new(&row, highest);
        self.commit(Change::Rows(rows, Vec::new())).await?;
        Ok(VersionId { vdisk: row.vdisk, snapshot: None })
    }

    /// Checks that a vdisk can be made, and returns the row of an earlier one of that name.
    ///
    /// # Errors
    /// As [`Inner::create`].
    pub async fn check_create(&self, name: &VdiskName, size: u64) -> Result<Option<NameRow>> {
        self.check_writable()?;
        check_size(size)?;
        self.free_name(name).await
    }

    /// Checks that a name can be given to a new vdisk, and returns its row from an earlier one.
    pub async fn free_name(&self, name: &VdiskName) -> Result<Option<NameRow>> {
        match self.name_row(name).await? {
            Some(row) if row.state == NameState::LIVE => {
                Err(error!(InUse, "the vdisk {name} exists already")
                    .next("choose another name, or remove it with cairn vdisk rm"))
            }
            row => Ok(row),
        }
    }

    pub async fn new_row(
        self: &Rc<Self>,
        name: &VdiskName,
        size: u64,
        origin: Option<VersionId>,
        next_number: Number,
    ) -> Result<VdiskRow> {
        let vdisk = self.own_number().await?;
        let line = Uuid::draw(&self.env);
        let of = origin.map_or((0, 0), |id| (id.vdisk, id.snapshot.unwrap_or_default()));
        Ok(VdiskRow {
            vdisk,
            line,
            name: name.as_str().to_owned(),
            flags: VdiskFlags::UNCHANGED,
            state: VdiskState::LIVE,
            sum_kind: SumKind::CRC32C,
            sum_bytes: SUM_BYTES,
            fill: Fill::NONE,
            block_bytes: BLOCK_BYTES,
            owner: ALLOCATOR,
            epoch: 1,
            holder: [0; 16],
            key_id: [0; 16],
            size,
            origin: of.0,
            origin_number: of.1,
            origin_device: [0; 16],
            reservation: 0,
            quota: 0,
            next_number,
            numbers_end: next_number,
            newest_kept: 0,
            snapshots: 0,
            own_blocks: 0,
            shared_blocks: 0,
            node_blocks: 0,
            unfound_blocks: 0,
            dead_blocks: 0,
            made_unix_s: self.env.wall().as_secs(),
            removed_unix_s: 0,
            cadence_us: 0,
            keep_last: 0,
            keep_interval_s: 0,
            mark: [0; 32],
            composition: [0; 32],
            family: 0,
            trees: 0,
            cipher: Cipher::NONE,
        })
    }

    /// Returns the rows of a new vdisk in all tables.
    pub fn rows_of_new(&self, row: &VdiskRow, highest_number: Number) -> Vec<(Table, Vec<u8>)> {
        let name = VdiskName::parse(&row.name).expect("a new vdisk has a valid name");
        let named = NameRow {
            key: name.key(),
            name: row.name.clone(),
            vdisk: row.vdisk,
            state: NameState::LIVE,
            highest_number,
            changed_unix_s: row.made_unix_s,
        };
        let owner =
            OwnerRow { vdisk: row.vdisk, owner: ALLOCATOR, epoch: row.epoch, line: row.line };
        vec![row_bytes(row), row_bytes(&named), row_bytes(&owner)]
    }

    /// Takes a snapshot of each vdisk, all at one instant. The snapshots are durable after a flush.
    ///
    /// # Errors
    /// `NotFound` for a missing vdisk, `InUse` if a vdisk has the label already; those of a commit.
    pub async fn snapshot(
        self: &Rc<Self>,
        names: &[VdiskName],
        label: Option<Label>,
    ) -> Result<Vec<Number>> {
        let labelled = match &label {
            Some(_) => Some(self.names.lock().await),
            None => None,
        };
        let vdisks = self.check_snapshot(names, label.as_ref()).await?;
        for vdisk in &vdisks {
            self.reserve_snapshots(vdisk).await?;
        }
        let group = if vdisks.len() > 1 { self.own_number().await? } else { 0 };
        let numbers = self.commit(Change::Snapshot(vdisks, label, group)).await?;
        drop(labelled);
        Ok(numbers)
    }

    /// Reserves further snapshot numbers of a vdisk if few are left.
    pub async fn reserve_snapshots(self: &Rc<Self>, vdisk: &Rc<Vdisk>) -> Result<()> {
        let end = vdisk.row.borrow().numbers_end;
        let next = vdisk.sealed.get();
        if next + NUMBERS_STEP / 2 < end {
            return Ok(());
        }
        let change = Change::Numbers(Some(vdisk.clone()), next + NUMBERS_STEP);
        self.commit(change).await?;
        self.flush().await
    }

    /// Makes a vdisk with the content of a snapshot. It is durable after a flush.
    ///
    /// # Errors
    /// `InUse` if the name exists, `NotFound` without the snapshot; those of a commit.
    pub async fn clone_of(
        self: &Rc<Self>,
        origin: &VersionName,
        name: &VdiskName,
    ) -> Result<VersionId> {
        let _turn = self.names.lock().await;
        let (before, id) = self.check_clone(origin, name).await?;
        let VersionId { vdisk, snapshot: Some(number) } = id else {
            unreachable!("the origin of a clone is a snapshot");
        };
        let Some(snapshot) = self.snapshot_row(vdisk, number).await? else {
            bail!(NotFound, "the snapshot {origin} was removed meanwhile");
        };
        // The numbers of a name are never used twice.
        let highest = before.map_or(0, |row| row.highest_number);
        let above = if seeded::on(Bug::CloneCountsFromOne) { 0 } else { highest.max(number) };
        let row = self.new_row(name, snapshot.size, Some(id), above + 1).await?;
        let mut rows = self.rows_of_hold(HoldKind::CLONE, &row, snapshot);
        if seeded::on(Bug::HoldComesLater) {
            self.commit(Change::Rows(self.rows_of_new(&row, highest), Vec::new())).await?;
        } else {
            rows.extend(self.rows_of_new(&row, highest));
        }
        self.commit(Change::Rows(rows, Vec::new())).await?;
        Ok(VersionId { vdisk: row.vdisk, snapshot: None })
    }

    /// Returns the rows of a hold of a new vdisk on its origin.
    pub fn rows_of_hold(
        &self,
        kind: HoldKind,
        holder: &VdiskRow,
        mut snapshot: SnapshotRow,
    ) -> Vec<(Table, Vec<u8>)> {
        snapshot.holds += 1;
        let hold = HoldRow {
            vdisk: snapshot.vdisk,
            number: snapshot.number,
            hold: holder.vdisk,
            kind,
            holder: holder.vdisk,
            identity: holder.line,
            epoch: holder.epoch,
            expires_unix_s: 0,
            borrowed: 0,
            made_unix_s: holder.made_unix_s,
        };
        vec![row_bytes(&hold), row_bytes(&snapshot)]
    }
}

impl Inner {
    /// Checks that a clone can be made. Returns the row of an earlier vdisk of its name, and the snapshot.
    ///
    /// # Errors
    /// As [`Inner::clone_of`].
    pub async fn check_clone(
        &self,
        origin: &VersionName,
        name: &VdiskName,
    ) -> Result<(Option<NameRow>, VersionId)> {
        self.check_writable()?;
        let before = self.free_name(name).await?;
        match self.find(origin).await? {
            Some(id) if id.snapshot.is_some() => Ok((before, id)),
            _ => Err(error!(NotFound, "the pool has no snapshot {origin}")
                .next("list the snapshots with cairn vdisk ls")),
        }
    }

    /// Checks that snapshots of vdisks can be taken, and returns the vdisks.
    ///
    /// # Errors
    /// As [`Inner::snapshot`].
    pub async fn check_snapshot(
        self: &Rc<Self>,
        names: &[VdiskName],
        label: Option<&Label>,
    ) -> Result<Vec<Rc<Vdisk>>> {
        self.check_writable()?;
        let mut vdisks: Vec<Rc<Vdisk>> = Vec::new();
        for name in names {
            let version = VersionName { vdisk: name.clone(), snapshot: None };
            let Some(id) = self.find(&version).await? else { return Err(missing(&version)) };
            if vdisks.iter().any(|vdisk| vdisk.number == id.vdisk) {
                bail!(Invalid, "{name} is named twice");
            }
            vdisks.push(self.vdisk(id.vdisk).await?);
        }
        for name in names {
            let Some(label) = label else { continue };
            let snapshot = Some(SnapshotRef::Label(label.clone()));
            let labelled = VersionName { vdisk: name.clone(), snapshot };
            if self.find(&labelled).await?.is_some() {
                return Err(error!(InUse, "{labelled} exists already")
                    .next("choose another label, or remove that snapshot"));
            }
        }
        Ok(vdisks)
    }
}

/// Whether a snapshot has its name.
pub(super) fn is_named(row: &SnapshotRow) -> bool {
    row.flags.0 & (SnapshotFlags::NAMELESS.0 | SnapshotFlags::LEAVING.0) == 0
}

/// Checks the size of a new or resized vdisk.
pub fn check_size(size: u64) -> Result<()> {
    let block = u64::from(BLOCK_BYTES);
    if size == 0 || size > VDISK_BYTES_MAX {
        return Err(error!(
            Invalid,
            "a vdisk of {} is impossible; it has {} to {}",
            write_size(size),
            write_size(block),
            write_size(VDISK_BYTES_MAX)
        )
        .next("choose another size"));
    }
    if !size.is_multiple_of(block) {
        return Err(error!(Invalid, "{size} bytes are not a multiple of {block}")
            .next(format!("round up to {}", size.next_multiple_of(block))));
    }
    Ok(())
}
