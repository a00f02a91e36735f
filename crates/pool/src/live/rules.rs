//! Snapshots without a command, and the rules that remove them again.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use block::{Result, bail, error, first};

use super::catalogue::{VersionId, is_named, snapshot_key};
use super::commit::{Change, row_bytes};
use super::pool::{Inner, missing};
use super::removal::Rows;
use super::tables::PAGE_ROWS_MAX;
use super::vdisk::Vdisk;
use crate::map::Number;
use crate::name::{Label, SnapshotRef, VdiskName, VersionName};
use crate::rows::{DetailRow, LabelRow, SnapshotFlags, SnapshotRow, Table, VdiskFlags, VdiskRow};

/// Snapshots that one record removes by a rule.
const REMOVED_AT_ONCE: usize = 256;

/// When a vdisk takes snapshots of itself. It takes none without changes since the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taking {
    /// Only by command.
    ByCommand,
    /// After each such time, while it is open or has changes in memory.
    Every(Duration),
    /// Before each flush.
    WithFlush,
    /// After each write, write of zeroes and discard.
    WithWrite,
}

/// A rule that says which snapshots of a vdisk are kept. Those with a label, with clones or open clients always are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Keep {
    /// The last ones, so many; 0 for none.
    pub last: u64,
    /// The first of each interval of so many seconds; 0 for none.
    pub interval_s: u64,
}

impl Keep {
    /// The rule that keeps all.
    pub const ALL: Self = Self { last: 0, interval_s: 0 };
}

impl Inner {
    /// Sets when a vdisk takes snapshots. Durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk, `Invalid` for a time that is no microsecond or more; those of a commit.
    pub async fn set_taking(self: &Rc<Self>, name: &VdiskName, taking: Taking) -> Result<()> {
        let _turn = self.names.lock().await;
        let vdisk = self.named(name).await?;
        let mut row = vdisk.row.borrow().clone();
        let modes = VdiskFlags::SNAPSHOT_WITH_FLUSH.0 | VdiskFlags::SNAPSHOT_WITH_WRITE.0;
        (row.flags.0, row.cadence_us) = (row.flags.0 & !modes, 0);
        match taking {
            Taking::ByCommand => {}
            Taking::Every(time) => {
                row.cadence_us = u64::try_from(time.as_micros()).unwrap_or_default();
                if row.cadence_us == 0 {
                    bail!(Invalid, "snapshots every {time:?} are impossible: 1us is the least");
                }
            }
            Taking::WithFlush => row.flags.0 |= VdiskFlags::SNAPSHOT_WITH_FLUSH.0,
            Taking::WithWrite => row.flags.0 |= VdiskFlags::SNAPSHOT_WITH_WRITE.0,
        }
        self.commit(Change::Rows(vec![row_bytes(&row)], Vec::new())).await?;
        self.follow(&vdisk);
        Ok(())
    }

    /// Returns a vdisk by its name.
    ///
    /// # Errors
    /// `NotFound` if there is none; those of reads of tables.
    pub async fn named(self: &Rc<Self>, name: &VdiskName) -> Result<Rc<Vdisk>> {
        self.check_writable()?;
        let version = VersionName { vdisk: name.clone(), snapshot: None };
        match self.find(&version).await? {
            Some(id) => self.vdisk(id.vdisk).await,
            None => Err(missing(&version)),
        }
    }

    /// Starts the task that takes the snapshots of a vdisk in memory at its cadence.
    pub fn follow(self: &Rc<Self>, vdisk: &Rc<Vdisk>) {
        if vdisk.has(VdiskFlags::SNAPSHOT_WITH_FLUSH) {
            self.takes_with_flush.set(true);
        }
        let has_cadence = vdisk.row.borrow().cadence_us > 0;
        if !has_cadence || self.is_read_only || vdisk.has_timer.replace(true) {
            return;
        }
        let (pool, followed) = (self.clone(), Rc::downgrade(vdisk));
        self.tasks.spawn("snapshots of a vdisk", async move {
            let mut due = pool.env.now();
            while let Some(vdisk) = followed.upgrade() {
                let cadence = Duration::from_micros(vdisk.row.borrow().cadence_us);
                if cadence.is_zero() || vdisk.is_headless() {
                    vdisk.has_timer.set(false);
                    return;
                }
                drop(vdisk);
                due = due.after(cadence).max(pool.env.now());
                let closing = pool.tasks.changed().until(|| pool.tasks.is_closing());
                let is_due = first(closing, pool.env.sleep_until(due)).await.is_err();
                let Some(vdisk) = followed.upgrade().filter(|_| is_due) else { return };
                // A command may have ended it meanwhile.
                let takes = vdisk.is_changed.get() && vdisk.row.borrow().cadence_us > 0;
                if takes && pool.take(vec![vdisk]).await.is_err() {
                    return;
                }
            }
        });
    }

    async fn take(self: &Rc<Self>, vdisks: Vec<Rc<Vdisk>>) -> Result<()> {
        for vdisk in &vdisks {
            self.reserve_snapshots(vdisk).await?;
        }
        self.commit(Change::Snapshot(vdisks, None, 0)).await.map(drop)
    }

    /// Takes the snapshots of vdisks that take one before each flush.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn take_with_flush(self: &Rc<Self>) -> Result<()> {
        if !self.takes_with_flush.get() {
            return Ok(());
        }
        let takes = |vdisk: &&Rc<Vdisk>| {
            vdisk.has(VdiskFlags::SNAPSHOT_WITH_FLUSH)
                && vdisk.is_changed.get()
                && !vdisk.is_headless()
        };
        let vdisks: Vec<_> = self.vdisks.borrow().values().filter(takes).cloned().collect();
        if vdisks.is_empty() { Ok(()) } else { self.take(vdisks).await }
    }

    /// Removes the snapshots of a vdisk that a rule does not keep, and returns their number. With `stays`, the rule is
    /// also carried out after each checkpoint.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk; those of commits.
    pub async fn keep(self: &Rc<Self>, name: &VdiskName, keep: Keep, stays: bool) -> Result<u64> {
        let vdisk = self.named(name).await?;
        if stays {
            let _turn = self.names.lock().await;
            let mut row = vdisk.row.borrow().clone();
            (row.keep_last, row.keep_interval_s) = (keep.last, keep.interval_s);
            self.commit(Change::Rows(vec![row_bytes(&row)], Vec::new())).await?;
        }
        self.thin(&vdisk, keep).await
    }

    /// Returns the number of snapshots that [`Inner::keep`] would remove.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk; those of reads of tables.
    pub async fn check_keep(self: &Rc<Self>, name: &VdiskName, keep: Keep) -> Result<u64> {
        let vdisk = self.named(name).await?;
        Ok(self.not_kept(&vdisk, keep).await?.len() as u64)
    }

    /// Carries out the rules of the vdisks in memory.
    ///
    /// # Errors
    /// Those of commits.
    pub async fn thin_all(self: &Rc<Self>) -> Result<()> {
        let rule = |row: &VdiskRow| Keep { last: row.keep_last, interval_s: row.keep_interval_s };
        let all: Vec<_> = self.vdisks.borrow().values().cloned().collect();
        for vdisk in all {
            let keep = rule(&vdisk.row.borrow());
            if keep != Keep::ALL && !vdisk.is_headless() {
                self.thin(&vdisk, keep).await?;
            }
        }
        Ok(())
    }

    async fn thin(self: &Rc<Self>, vdisk: &Rc<Vdisk>, keep: Keep) -> Result<u64> {
        let removed = self.not_kept(vdisk, keep).await?;
        for part in removed.chunks(REMOVED_AT_ONCE) {
            let _turn = self.names.lock().await;
            let mut rows = Rows::default();
            for (line, number) in part {
                let id = VersionId { vdisk: *line, snapshot: Some(*number) };
                let row = self.snapshot_row(*line, *number).await?;
                let is_free = |row: &SnapshotRow| is_named(row) && row.holds == 0;
                // A client may have opened it meanwhile, or a command has removed it.
                let row = row.filter(is_free).filter(|_| !self.opened.borrow().contains_key(&id));
                if let Some(row) = row {
                    self.take_name(&mut rows, row).await?;
                }
            }
            self.commit(Change::Rows(rows.put, rows.removed)).await?;
        }
        if !removed.is_empty() {
            self.wants_checkpoint.set(true);
            self.changed();
        }
        Ok(removed.len() as u64)
    }

    /// Returns the snapshots that a rule does not keep: their lines and numbers.
    async fn not_kept(&self, vdisk: &Vdisk, keep: Keep) -> Result<Vec<(u64, Number)>> {
        if keep == Keep::ALL {
            return Ok(Vec::new());
        }
        let (mut all, mut intervals) = (Vec::new(), BTreeSet::new());
        for line in self.lines(vdisk.number).await?.into_iter().rev() {
            let mut next = Some(1);
            while let Some(from) = next {
                let (rows, rest) = self.named_from(line, from, PAGE_ROWS_MAX).await?;
                next = rest;
                for row in rows {
                    let interval = (row.taken_unix_us / 1_000_000).checked_div(keep.interval_s);
                    let is_first = interval.is_some_and(|interval| intervals.insert(interval));
                    let is_labelled = row.flags.0 & SnapshotFlags::DETAILS.0 != 0;
                    let id = VersionId { vdisk: line, snapshot: Some(row.number) };
                    let is_in_use = row.holds > 0 || self.opened.borrow().contains_key(&id);
                    all.push(((line, row.number), is_first || is_labelled || is_in_use));
                }
            }
        }
        let before = all.len().saturating_sub(usize::try_from(keep.last).unwrap_or(usize::MAX));
        let removed = all[..before].iter().filter(|(_, is_kept)| !is_kept);
        Ok(removed.map(|(id, _)| *id).collect())
    }

    /// Gives a snapshot a label, or takes it away. Durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, `InUse` if another one has the label; those of a commit.
    pub async fn set_label(
        self: &Rc<Self>,
        name: &VersionName,
        label: Option<Label>,
    ) -> Result<()> {
        let _turn = self.names.lock().await;
        let (mut row, mut details) = self.check_label(name, label.as_ref()).await?;
        let mut rows = Rows::default();
        let label_key = |label: &Label| [&row.vdisk.to_be_bytes()[..], &label.key()].concat();
        if let Ok(old) = Label::parse(&details.label) {
            rows.removed.push((Table::Labels, label_key(&old)));
        }
        details.label = label.as_ref().map(|label| label.as_str().to_owned()).unwrap_or_default();
        if let Some(label) = &label {
            let (key, text) = (label.key(), label.as_str().to_owned());
            let (vdisk, number) = (row.vdisk, row.number);
            // Of one key, the removal comes first.
            rows.removed.retain(|(_, old)| *old != label_key(label));
            rows.put.push(row_bytes(&LabelRow { vdisk, key, label: text, number }));
        }
        let is_bare =
            details.label.is_empty() && details.received_number == 0 && details.layer == [0; 32];
        match is_bare {
            true => {
                row.flags.0 &= !SnapshotFlags::DETAILS.0;
                rows.removed.push((Table::Details, snapshot_key(row.vdisk, row.number)));
            }
            false => {
                row.flags.0 |= SnapshotFlags::DETAILS.0;
                rows.put.push(row_bytes(&details));
            }
        }
        rows.put.push(row_bytes(&row));
        self.commit(Change::Rows(rows.put, rows.removed)).await.map(drop)
    }

    /// Checks that a snapshot can get a label. Returns its rows.
    ///
    /// # Errors
    /// As [`Inner::set_label`].
    pub async fn check_label(
        &self,
        name: &VersionName,
        label: Option<&Label>,
    ) -> Result<(SnapshotRow, DetailRow)> {
        self.check_writable()?;
        let Some(VersionId { vdisk, snapshot: Some(number) }) = self.find(name).await? else {
            return Err(missing(name));
        };
        if let Some(label) = label {
            let snapshot = Some(SnapshotRef::Label(label.clone()));
            let other = VersionName { vdisk: name.vdisk.clone(), snapshot };
            let found = self.find(&other).await?;
            if found.is_some_and(|found| found.snapshot != Some(number)) {
                return Err(error!(InUse, "{other} exists already")
                    .next("choose another label, or remove that one"));
            }
        }
        let row = self.snapshot_row(vdisk, number).await?;
        let details = self.tables.get::<DetailRow>(&snapshot_key(vdisk, number)).await?;
        let none = DetailRow {
            vdisk,
            number,
            label: String::new(),
            received_line: meta::Uuid([0; 16]),
            received_number: 0,
            layer: [0; 32],
        };
        Ok((row.ok_or_else(|| missing(name))?, details.unwrap_or(none)))
    }
}
