//! Removals of vdisks and snapshots, and changes of size.
//!
//! A record removes the name. The next checkpoint frees the blocks, in one pass for all snapshots of a line that wait.
//! A snapshot that a clone depends on stays, without a name, until its last hold is gone.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Error, Result, bail, error};

use super::catalogue::{VersionId, check_size, snapshot_key};
use super::commit::{Change, row_bytes};
use super::pool::{Inner, missing};
use super::vdisk::Vdisk;
use crate::BLOCK_BYTES;
use crate::map::Number;
use crate::name::{Label, VdiskName, VersionName};
use crate::rows::{
    DetailRow, HoldRow, NameRow, NameState, PassKind, PassRow, SnapshotFlags, SnapshotRow, Table,
    VdiskRow, VdiskState,
};

/// The rows that a record puts, and the keys that it removes.
#[derive(Default)]
pub struct Rows {
    pub put: Vec<(Table, Vec<u8>)>,
    pub removed: Vec<(Table, Vec<u8>)>,
    /// Whether the row of a pass is among them.
    has_pass: bool,
    /// The vdisks of the rows: they stay in memory, so that the record finds them.
    vdisks: Vec<Rc<Vdisk>>,
}

impl Inner {
    /// Removes a vdisk with its snapshots, or one snapshot. Returns the number of clones that keep removed snapshots.
    ///
    /// # Errors
    /// `NotFound` if there is no such version, `InUse` if a client has it open; those of a commit.
    pub async fn remove(self: &Rc<Self>, name: &VersionName) -> Result<u64> {
        let _turn = self.names.lock().await;
        let (id, holds) = self.check_remove(name).await?;
        match id.snapshot {
            Some(number) => {
                let mut rows = Rows::default();
                let Some(row) = self.snapshot_row(id.vdisk, number).await? else {
                    return Err(missing(name));
                };
                self.take_name(&mut rows, row).await?;
                self.commit(Change::Rows(rows.put, rows.removed)).await?;
            }
            None => {
                let lines = self.lines(id.vdisk).await?;
                // In memory, so that the record finds it.
                let vdisk = self.vdisk(id.vdisk).await?;
                self.remove_vdisk(&vdisk, &name.vdisk).await?;
                self.remove_replaced(&lines[1..]).await?;
            }
        }
        self.wants_checkpoint.set(true);
        self.changed();
        Ok(holds)
    }

    /// Checks that a version can be removed. Returns it, and the number of clones that keep its snapshots.
    ///
    /// # Errors
    /// As [`Inner::remove`].
    pub async fn check_remove(&self, name: &VersionName) -> Result<(VersionId, u64)> {
        self.check_writable()?;
        let Some(id) = self.find(name).await? else { return Err(missing(name)) };
        if let Some(number) = id.snapshot {
            if self.opened.borrow().contains_key(&id) {
                return Err(in_use(name));
            }
            let row = self.snapshot_row(id.vdisk, number).await?;
            return Ok((id, row.map_or(0, |row| row.holds.into())));
        }
        let lines = self.lines(id.vdisk).await?;
        if self.opened.borrow().keys().any(|open| lines.contains(&open.vdisk)) {
            return Err(in_use(name));
        }
        let mut holds = 0;
        for line in &lines {
            for hold in self.tables.all_of::<HoldRow>(&line.to_be_bytes()).await? {
                // The hold of a rollback ends with the vdisk, and that of a removed clone ends soon.
                let holder = hold.holder.to_be_bytes();
                let is_leaving = hold.kind.is_of_vdisk()
                    && (lines.contains(&hold.holder)
                        || self.tables.get::<VdiskRow>(&holder).await?.is_none());
                holds += u64::from(!is_leaving);
            }
        }
        Ok((id, holds))
    }

    /// Removes the name of a snapshot. Without a hold, the snapshot leaves.
    pub async fn take_name(self: &Rc<Self>, rows: &mut Rows, mut row: SnapshotRow) -> Result<()> {
        rows.vdisks.push(self.vdisk(row.vdisk).await?);
        let key = snapshot_key(row.vdisk, row.number);
        if row.flags.0 & SnapshotFlags::DETAILS.0 != 0
            && let Some(details) = self.tables.get::<DetailRow>(&key).await?
            && let Ok(label) = Label::parse(&details.label)
        {
            let key = [&row.vdisk.to_be_bytes()[..], &label.key()].concat();
            rows.removed.push((Table::Labels, key));
        }
        row.flags.0 |= SnapshotFlags::NAMELESS.0;
        if row.holds == 0 || seeded::on(Bug::HoldIgnored) {
            leave(rows, &mut row);
        }
        rows.put.push(row_bytes(&row));
        Ok(())
    }

    async fn remove_vdisk(self: &Rc<Self>, vdisk: &Rc<Vdisk>, name: &VdiskName) -> Result<()> {
        let Some(mut named) = self.tables.get::<NameRow>(&name.key()).await? else {
            bail!(Corrupt, "the name {name} has no row");
        };
        named.state = NameState::GONE;
        named.highest_number = named.highest_number.max(vdisk.sealed.get() - 1);
        named.changed_unix_s = self.env.wall().as_secs();
        let mut rows = Rows { put: vec![row_bytes(&named)], ..Rows::default() };
        self.plan_removal(vdisk, &mut rows).await?;
        self.commit(Change::Rows(rows.put, rows.removed)).await.map(drop)
    }

    /// Adds the rows that remove a line with its snapshots.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn plan_removal(&self, vdisk: &Vdisk, rows: &mut Rows) -> Result<()> {
        self.plan_leaving(vdisk).await?;
        let mut row = vdisk.row.borrow().clone();
        row.name = String::new();
        row.state = VdiskState::REMOVING;
        row.removed_unix_s = self.env.wall().as_secs();
        rows.put.push(row_bytes(&row));
        rows.put.push(row_bytes(&pass_row(PassKind::REMOVE_LAST, vdisk.number)));
        Ok(())
    }

    /// Finds the snapshots that leave with their vdisk: those without a hold.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn plan_leaving(&self, vdisk: &Vdisk) -> Result<()> {
        let rows = self.tables.all_of::<SnapshotRow>(&vdisk.number.to_be_bytes()).await?;
        let leaves =
            |row: &SnapshotRow| row.holds == 0 && row.flags.0 & SnapshotFlags::LEAVING.0 == 0;
        let numbers = rows.iter().filter(|row| leaves(row)).map(|row| row.number);
        vdisk.removal.borrow_mut().with_head = numbers.collect();
        Ok(())
    }

    /// Releases the holds of removed vdisks on the snapshots that they were cloned from. A snapshot without a name and
    /// without a hold leaves.
    ///
    /// # Errors
    /// Those of reads of tables and of commits.
    pub async fn release_holds(self: &Rc<Self>, ended: Vec<(u64, VersionId)>) -> Result<()> {
        let _turn = self.names.lock().await;
        let mut has_left = false;
        for (holder, origin) in ended {
            let number = origin.snapshot.unwrap_or_default();
            let key = [origin.vdisk, number, holder].map(u64::to_be_bytes).concat();
            if self.tables.get::<HoldRow>(&key).await?.is_none() {
                continue;
            }
            let mut rows = Rows { removed: vec![(Table::Holds, key)], ..Rows::default() };
            if let Some(mut row) = self.snapshot_row(origin.vdisk, number).await? {
                row.holds = row.holds.saturating_sub(1);
                let vdisk = self.vdisk(origin.vdisk).await?;
                let has_names =
                    matches!(vdisk.row.borrow().state, VdiskState::LIVE | VdiskState::REPLACED);
                let is_nameless = row.flags.0 & SnapshotFlags::NAMELESS.0 != 0 || !has_names;
                if row.holds == 0 && is_nameless {
                    leave(&mut rows, &mut row);
                    has_left = true;
                }
                rows.vdisks.push(vdisk);
                rows.put.push(row_bytes(&row));
            }
            self.commit(Change::Rows(rows.put, rows.removed)).await?;
        }
        // The records come first, so that the next checkpoint has them.
        if has_left {
            self.wants_checkpoint.set(true);
            self.changed();
        }
        Ok(())
    }

    /// Continues the removals and folds that an earlier opening began, and releases holds without a holder.
    ///
    /// # Errors
    /// Those of reads of tables and of commits.
    pub async fn continue_passes(self: &Rc<Self>) -> Result<()> {
        for pass in self.tables.all_of::<PassRow>(&[]).await? {
            let vdisk = self.vdisk(pass.vdisk).await?;
            if pass.kind == u64::from(PassKind::REMOVE_LAST.0)
                && vdisk.removal.borrow().head.is_none()
            {
                self.plan_leaving(&vdisk).await?;
                vdisk.lose_head(VdiskState::REMOVING);
            }
            for row in self.tables.all_of::<SnapshotRow>(&pass.vdisk.to_be_bytes()).await? {
                if row.flags.0 & SnapshotFlags::LEAVING.0 != 0 {
                    vdisk.leaves(row.number);
                }
            }
            self.touch(&vdisk);
            self.wants_checkpoint.set(true);
        }
        let mut ended = Vec::new();
        for hold in self.tables.all_of::<HoldRow>(&[]).await? {
            let holder = self.tables.get::<VdiskRow>(&hold.holder.to_be_bytes()).await?;
            if hold.kind.is_of_vdisk() && holder.is_none() {
                let origin = VersionId { vdisk: hold.vdisk, snapshot: Some(hold.number) };
                ended.push((hold.hold, origin));
            }
        }
        if !ended.is_empty() {
            self.release_holds(ended).await?;
        }
        self.remove_nameless_lines().await
    }

    /// Changes the size of a vdisk.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk, `InUse` if a client has it open, `Invalid` for an impossible size or if
    /// there are data behind it; those of a commit.
    pub async fn resize(self: &Rc<Self>, name: &VdiskName, size: u64) -> Result<()> {
        let _turn = self.names.lock().await;
        let id = self.check_resize(name, size).await?;
        let vdisk = self.vdisk(id.vdisk).await?;
        let mut row = vdisk.row.borrow().clone();
        if size < row.size {
            // Nothing is there but blocks that were written while the data were looked for.
            let (first, end) = (blocks(size), blocks(row.size));
            self.commit(Change::Hole(vdisk.clone(), first, end - first)).await?;
        }
        row.size = size;
        self.commit(Change::Rows(vec![row_bytes(&row)], Vec::new())).await.map(drop)
    }

    /// Checks that a vdisk can get another size, and returns it.
    ///
    /// # Errors
    /// As [`Inner::resize`].
    pub async fn check_resize(self: &Rc<Self>, name: &VdiskName, size: u64) -> Result<VersionId> {
        self.check_writable()?;
        check_size(size)?;
        let version = VersionName { vdisk: name.clone(), snapshot: None };
        let Some(id) = self.find(&version).await? else { return Err(missing(&version)) };
        if self.opened.borrow().contains_key(&id) {
            return Err(in_use(&version));
        }
        let (head, is) = (self.version(id).await?, self.size(id).await?);
        let mut at = blocks(size);
        while at < blocks(is) {
            for (block, address, count) in self.data_places(&head, at, blocks(is), 64).await? {
                if address.is_some() {
                    let byte = block * u64::from(BLOCK_BYTES);
                    return Err(error!(
                        Invalid,
                        "{name} has data at byte {byte}, behind the size {size}"
                    )
                    .next("make its file system smaller, and discard the rest"));
                }
                at = block + count;
            }
        }
        Ok(id)
    }
}

fn blocks(bytes: u64) -> u64 {
    bytes / u64::from(BLOCK_BYTES)
}

pub fn in_use(name: &VersionName) -> Error {
    error!(InUse, "{name} is open")
        .next("disconnect its clients, and remove the devices and exports on it from the spec")
}

/// Marks a snapshot as leaving, and notes that its line has a pass to come.
fn leave(rows: &mut Rows, row: &mut SnapshotRow) {
    row.flags.0 |= SnapshotFlags::LEAVING.0;
    if !std::mem::replace(&mut rows.has_pass, true) {
        rows.put.push(row_bytes(&pass_row(PassKind::REMOVE, row.vdisk)));
    }
}

/// Returns the row of a pass that waits for the next checkpoint.
pub fn pass_row(kind: PassKind, vdisk: u64) -> PassRow {
    PassRow {
        kind: kind.0.into(),
        vdisk,
        pass: 1,
        first: 0,
        last: 0,
        flags: 0,
        position: [0; 32],
        result: [0; crate::DESCRIPTOR_BYTES],
        nodes: 0,
    }
}

impl Vdisk {
    /// Notes that the head is removed. The planned snapshots leave with it, unless they keep their names.
    pub fn lose_head(&self, state: VdiskState) {
        let mut removal = self.removal.borrow_mut();
        if state == VdiskState::REPLACED {
            removal.head = Some(state);
            return;
        }
        removal.head = Some(VdiskState::REMOVED);
        let leaving = std::mem::take(&mut removal.with_head);
        removal.snapshots.extend(leaving);
    }

    /// Notes that a snapshot is removed.
    pub fn leaves(&self, number: Number) {
        self.removal.borrow_mut().snapshots.insert(number);
    }
}
