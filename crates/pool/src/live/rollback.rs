//! Rollbacks: a vdisk gets the content of one of its snapshots. A new line takes the name, and the lines before it keep
//! their snapshots, which have names as before.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{ErrorKind, Result, error};

use super::catalogue::{VersionId, is_named};
use super::commit::{Change, row_bytes};
use super::origin::Origin;
use super::pool::{Inner, missing};
use super::removal::{Rows, in_use};
use super::vdisk::Vdisk;
use crate::map::Number;
use crate::name::{SnapshotRef, VdiskName, VersionName};
use crate::rows::{HoldKind, LineRow, NameRow, NameState, Table, VdiskFlags, VdiskRow, VdiskState};

/// Most lines that a name has besides the newest one: rollbacks with snapshots that are left.
pub const LINES_MAX: usize = 256;

impl Inner {
    /// Returns the lines of a name, the newest first, which has the head.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn lines(&self, newest: u64) -> Result<Vec<u64>> {
        let mut lines = vec![newest];
        let row = self.tables.get::<VdiskRow>(&newest.to_be_bytes()).await?;
        if let Some(family) = row.map(|row| row.family).filter(|family| *family != 0) {
            let older = self.tables.all_of::<LineRow>(&family.to_be_bytes()).await?;
            lines.extend(older.iter().rev().map(|row| row.vdisk));
        }
        Ok(lines)
    }

    /// Gives a vdisk the content of one of its snapshots. If its own content is in no snapshot, one is taken first, and
    /// its number is returned. Durable after a flush.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, `InUse` if a client has the vdisk open, `Limit` if snapshots of too many
    /// rollbacks are kept; those of commits.
    pub async fn roll_back(self: &Rc<Self>, to: &VersionName) -> Result<Option<Number>> {
        let _turn = self.names.lock().await;
        let (head, origin) = self.check_rollback(to).await?;
        let old = self.vdisk(head.vdisk).await?;
        let taken = match self.is_in_snapshot(&old).await? {
            true => None,
            false => {
                self.reserve_snapshots(&old).await?;
                Some(self.commit(Change::Snapshot(vec![old.clone()], None, 0)).await?[0])
            }
        };
        let rows = self.rows_of_rollback(&old, &to.vdisk, origin).await?;
        self.commit(Change::Rows(rows.put, rows.removed)).await?;
        self.wants_checkpoint.set(true);
        self.changed();
        // A vdisk in memory takes snapshots at its cadence.
        if let Some(head) = self.find(&VersionName { snapshot: None, ..to.clone() }).await? {
            self.vdisk(head.vdisk).await?;
        }
        Ok(taken)
    }

    /// Checks that a vdisk can be rolled back. Returns its head and the snapshot.
    ///
    /// # Errors
    /// As [`Inner::roll_back`].
    pub async fn check_rollback(&self, to: &VersionName) -> Result<(VersionId, VersionId)> {
        self.check_writable()?;
        let name = VersionName { snapshot: None, ..to.clone() };
        let Some(head) = self.find(&name).await? else { return Err(missing(&name)) };
        let origin = self.find(to).await?.filter(|id| id.snapshot.is_some());
        let Some(origin) = origin else { return Err(missing(to)) };
        if self.opened.borrow().contains_key(&head) {
            return Err(in_use(&name));
        }
        if self.lines(head.vdisk).await?.len() > LINES_MAX {
            return Err(error!(
                Limit,
                "snapshots of {LINES_MAX} rollbacks of {} are kept; no more are possible", to.vdisk
            )
            .next("remove some with cairn vdisk keep or cairn vdisk rm"));
        }
        Ok((head, origin))
    }

    /// Whether the content of a head is also that of a snapshot with a name.
    async fn is_in_snapshot(&self, vdisk: &Vdisk) -> Result<bool> {
        if vdisk.is_changed.get() {
            return Ok(false);
        }
        let newest = vdisk.kept.borrow().numbers().next_back();
        let origin = vdisk.origin.borrow().as_ref().map(Origin::id);
        let same = match (newest, origin) {
            (Some(number), _) if number + 1 == vdisk.sealed.get() => Some((vdisk.number, number)),
            (None, Some(VersionId { vdisk: line, snapshot: Some(number) }))
                if vdisk.own.borrow().iter().all(|tree| tree.top.is_none()) =>
            {
                Some((line, number))
            }
            _ => None,
        };
        let Some((line, number)) = same else { return Ok(false) };
        Ok(self.snapshot_row(line, number).await?.is_some_and(|row| is_named(&row)))
    }

    /// Returns the rows with which a new line takes the name of `old`.
    async fn rows_of_rollback(
        self: &Rc<Self>,
        old: &Rc<Vdisk>,
        name: &VdiskName,
        origin: VersionId,
    ) -> Result<Rows> {
        let number = origin.snapshot.unwrap_or_default();
        let Some(snapshot) = self.snapshot_row(origin.vdisk, number).await? else {
            return Err(missing(&VersionName {
                vdisk: name.clone(),
                snapshot: Some(SnapshotRef::Number(number)),
            }));
        };
        let Some(named) = self.tables.get::<NameRow>(&name.key()).await? else {
            return Err(missing(&VersionName { vdisk: name.clone(), snapshot: None }));
        };
        let mut before = old.row.borrow().clone();
        let highest = named.highest_number.max(old.sealed.get() - 1);
        let above = if seeded::on(Bug::RollbackFromOrigin) { number } else { highest };
        let made = self.new_row(name, snapshot.size, Some(origin), above + 1).await?;
        let new = VdiskRow {
            family: before.first_line(),
            flags: before.flags.with(VdiskFlags::UNCHANGED, true),
            reservation: before.reservation,
            quota: before.quota,
            cadence_us: before.cadence_us,
            keep_last: before.keep_last,
            keep_interval_s: before.keep_interval_s,
            mark: before.mark,
            ..made
        };
        let mut rows = Rows::default();
        if !seeded::on(Bug::RollbackForgetsHold) {
            rows.put = self.rows_of_hold(HoldKind::ROLLBACK, &new, snapshot);
        }
        rows.put.extend(self.rows_of_new(&new, highest));
        let line =
            LineRow { family: new.family, vdisk: old.number, replaced_unix_s: new.made_unix_s };
        (before.state, before.family) = (VdiskState::REPLACED, new.family);
        rows.put.extend([row_bytes(&line), row_bytes(&before)]);
        Ok(rows)
    }

    /// Removes the lines that had the name of a removed vdisk, with their snapshots.
    ///
    /// # Errors
    /// Those of reads of tables and of commits.
    pub async fn remove_replaced(self: &Rc<Self>, lines: &[u64]) -> Result<()> {
        for line in lines {
            // In memory, so that the record finds it.
            let vdisk = match self.vdisk(*line).await {
                // A checkpoint has ended the line meanwhile, with its last snapshot.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                vdisk => vdisk?,
            };
            let mut rows = Rows::default();
            self.plan_removal(&vdisk, &mut rows).await?;
            let family = vdisk.row.borrow().first_line();
            rows.removed.push((Table::Lines, [family, *line].map(u64::to_be_bytes).concat()));
            self.commit(Change::Rows(rows.put, rows.removed)).await?;
        }
        Ok(())
    }

    /// Removes the lines of names that an earlier opening removed without them.
    ///
    /// # Errors
    /// Those of reads of tables and of commits.
    pub async fn remove_nameless_lines(self: &Rc<Self>) -> Result<()> {
        for line in self.tables.all_of::<LineRow>(&[]).await? {
            let Some(row) = self.tables.get::<VdiskRow>(&line.vdisk.to_be_bytes()).await? else {
                continue;
            };
            let newest = match VdiskName::parse(&row.name) {
                Ok(name) => self.tables.get::<NameRow>(&name.key()).await?,
                Err(_) => None,
            };
            let newest = newest.filter(|named| named.state == NameState::LIVE);
            let has_line = match newest {
                Some(named) => self.lines(named.vdisk).await?.contains(&line.vdisk),
                None => false,
            };
            if !has_line {
                self.remove_replaced(&[line.vdisk]).await?;
            }
        }
        Ok(())
    }
}
