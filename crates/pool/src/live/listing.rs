//! Lists of vdisks and snapshots.

use std::rc::Rc;
use std::time::Duration;

use block::Result;

use super::account::Account;
use super::catalogue::{is_named, snapshot_key};
use super::pool::{Inner, missing};
use super::rules::{Keep, Taking};
use super::tables::PAGE_ROWS_MAX;
use crate::map::Number;
use crate::name::{VdiskName, VersionName};
use crate::rows::{
    DetailRow, LabelRow, NameRow, NameState, SnapshotFlags, SnapshotRow, VdiskFlags, VdiskRow,
};

/// A version in a list: a vdisk, or a snapshot with a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Name of the version.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
}

/// A vdisk in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedVdisk {
    /// Name of the vdisk.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Name of the snapshot that it was cloned from; the name of a removed vdisk is empty.
    pub origin: Option<String>,
    /// Time when it was made, in seconds from 1970.
    pub made_unix_s: u64,
    /// When it takes snapshots of itself.
    pub taking: Taking,
    /// Which of its snapshots are kept.
    pub keep: Keep,
    /// Blocks that it holds with its snapshots, as of the last checkpoint.
    pub account: Account,
    /// Bytes that it may hold with its snapshots; 0 for no limit.
    pub quota_bytes: u64,
}

/// A snapshot in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedSnapshot {
    /// Number of the snapshot.
    pub number: Number,
    /// Label of the snapshot.
    pub label: Option<String>,
    /// Size of the vdisk at that time, in bytes.
    pub size_bytes: u64,
    /// Time when it was taken, in microseconds from 1970.
    pub taken_unix_us: u64,
    /// Number of clones and rollbacks that depend on it.
    pub holds: u32,
    /// Blocks that it alone holds, as of the last checkpoint: removing it frees them.
    pub alone_blocks: u64,
}

impl Inner {
    /// Lists up to `most` versions with names after `after`, in the order of their names. Snapshots without a label are
    /// left out: a vdisk may have hundreds of thousands.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn list(&self, after: &str, most: usize) -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        for (name, vdisk) in self.live().await? {
            for line in self.lines(vdisk.vdisk).await? {
                for label in self.tables.all_of::<LabelRow>(&line.to_be_bytes()).await? {
                    let listed = format!("{name}@{}", label.label);
                    let Some(row) = self.snapshot_row(line, label.number).await? else {
                        continue;
                    };
                    if listed.as_str() > after && is_named(&row) {
                        all.push(Listed { name: listed, size_bytes: row.size, is_snapshot: true });
                    }
                }
            }
            if name.as_str() > after {
                all.push(Listed { name, size_bytes: vdisk.size, is_snapshot: false });
            }
        }
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.truncate(most);
        Ok(all)
    }

    /// Lists up to `most` vdisks with names after `after`, in the order of their names.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn vdisks(&self, after: &str, most: usize) -> Result<Vec<ListedVdisk>> {
        let mut live = self.live().await?;
        live.retain(|(name, _)| name.as_str() > after);
        live.sort_by(|(one, _), (other, _)| one.cmp(other));
        live.truncate(most);
        let mut all = Vec::new();
        for (name, row) in live {
            let origin = match row.origin {
                0 => None,
                vdisk => {
                    let origin = self.tables.get::<VdiskRow>(&vdisk.to_be_bytes()).await?;
                    let name = origin.map(|origin| origin.name).unwrap_or_default();
                    let label = self.label(vdisk, row.origin_number).await?;
                    let snapshot = label.unwrap_or_else(|| row.origin_number.to_string());
                    Some(format!("{name}@{snapshot}"))
                }
            };
            let (taking, keep) = rules_of(&row);
            let account = self.account_of_name(&row).await?;
            let VdiskRow { size: size_bytes, made_unix_s, quota: quota_bytes, .. } = row;
            all.push(ListedVdisk {
                name,
                size_bytes,
                origin,
                made_unix_s,
                taking,
                keep,
                account,
                quota_bytes,
            });
        }
        Ok(all)
    }

    /// Returns the account of a vdisk with those of the lines that had its name before rollbacks.
    async fn account_of_name(&self, newest: &VdiskRow) -> Result<Account> {
        // The row in the table may be that of a checkpoint that still runs, which the trees in memory do not show.
        let loaded = self.vdisks.borrow().get(&newest.vdisk).cloned();
        let mut all = match loaded {
            Some(vdisk) => Account::of(&vdisk.row.borrow()),
            None => Account::of(newest),
        };
        if newest.family == 0 {
            return Ok(all);
        }
        let older = self.account_of_older(newest.vdisk).await?;
        all.dead += older.dead;
        all.nodes += older.nodes;
        Ok(all)
    }

    /// Lists up to `most` snapshots of a vdisk with numbers from `from` on.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdisk; those of reads of tables.
    pub async fn snapshots(
        self: &Rc<Self>,
        name: &VdiskName,
        from: Number,
        most: usize,
    ) -> Result<Vec<ListedSnapshot>> {
        let version = VersionName { vdisk: name.clone(), snapshot: None };
        let Some(id) = self.find(&version).await? else { return Err(missing(&version)) };
        let mut all = Vec::new();
        for line in self.lines(id.vdisk).await?.into_iter().rev() {
            let mut next = Some(from);
            while let Some(from) = next.filter(|_| all.len() < most) {
                let (rows, rest) = self.named_from(line, from, most - all.len()).await?;
                next = rest;
                let alone = self.alone(line, &rows).await?;
                for (row, alone_blocks) in rows.into_iter().zip(alone) {
                    let label = match row.flags.0 & SnapshotFlags::DETAILS.0 {
                        0 => None,
                        _ => self.label(line, row.number).await?,
                    };
                    let SnapshotRow { number, size: size_bytes, taken_unix_us, holds, .. } = row;
                    all.push(ListedSnapshot {
                        number,
                        label,
                        size_bytes,
                        taken_unix_us,
                        holds,
                        alone_blocks,
                    });
                }
            }
        }
        Ok(all)
    }

    /// Returns up to `most` snapshots of a line that have names, with numbers from `from` on, and the number from which
    /// the next page begins; `None` behind the last one.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn named_from(
        &self,
        line: u64,
        from: Number,
        most: usize,
    ) -> Result<(Vec<SnapshotRow>, Option<Number>)> {
        let key = snapshot_key(line, from);
        let most = most.min(PAGE_ROWS_MAX);
        let (mut rows, rest) =
            self.tables.page::<SnapshotRow>(&line.to_be_bytes(), &key, most).await?;
        let next = rows.last().filter(|_| rest.is_some()).map(|row| row.number + 1);
        rows.retain(is_named);
        Ok((rows, next))
    }

    /// Returns the names and rows of all vdisks.
    async fn live(&self) -> Result<Vec<(String, VdiskRow)>> {
        let mut all = Vec::new();
        for named in self.tables.all_of::<NameRow>(&[]).await? {
            if named.state != NameState::LIVE {
                continue;
            }
            if let Some(row) = self.tables.get::<VdiskRow>(&named.vdisk.to_be_bytes()).await? {
                all.push((named.name, row));
            }
        }
        Ok(all)
    }

    /// Returns the label of a snapshot, if it has one.
    async fn label(&self, vdisk: u64, number: Number) -> Result<Option<String>> {
        let details = self.tables.get::<DetailRow>(&snapshot_key(vdisk, number)).await?;
        Ok(details.map(|details| details.label).filter(|label| !label.is_empty()))
    }
}

/// Returns the rules in the row of a vdisk.
fn rules_of(row: &VdiskRow) -> (Taking, Keep) {
    let has = |flag: VdiskFlags| row.flags.0 & flag.0 != 0;
    let taking = match row.cadence_us {
        0 if has(VdiskFlags::SNAPSHOT_WITH_FLUSH) => Taking::WithFlush,
        0 if has(VdiskFlags::SNAPSHOT_WITH_WRITE) => Taking::WithWrite,
        0 => Taking::ByCommand,
        cadence_us => Taking::Every(Duration::from_micros(cadence_us)),
    };
    (taking, Keep { last: row.keep_last, interval_s: row.keep_interval_s })
}
