//! The labels of a labelled graph, read directly from the simulated disks between two runs of the server, to predict
//! the result of the next start.

use std::rc::Rc;

use block::{ByteRange, Result};
use kinds::mirror::record::{Content, MemberState, Record};
use meta::{Area, Label};
use sim::SimDisk;

use super::{Trial, VOLUME_BYTES, wrong};
use crate::trial::Failure;

impl Trial {
    /// Reads the labels of the graph's disks that are plugged in. Returns them with the disk numbers; the disk outside
    /// of the mirror is the last.
    pub(super) fn labels(&self) -> Result<Vec<(usize, Label)>, Failure> {
        let members = self.plugged.iter().flatten().filter(|n| self.shape.members.contains(n));
        let members = members.map(|n| (*n, &self.disks[*n], self.shape.data_bytes()));
        let beside = self.beside.iter().map(|it| (self.disks.len(), &it.disk, VOLUME_BYTES));
        let label = |(n, disk, data_bytes): (usize, &Rc<SimDisk>, u64)| {
            let areas = [Area::Front, Area::Back(data_bytes)].map(|area| disk.peek(area.range()));
            let newest = meta::newest(areas.iter().map(Vec::as_slice));
            let newest =
                newest.map_err(|why| wrong(format!("the label of disk d{n} is damaged: {why}")))?;
            let (_, label) = newest.ok_or_else(|| wrong(format!("the disk d{n} has no label")))?;
            Ok((n, label))
        };
        members.chain(beside).map(label).collect()
    }

    /// Whether a member is plugged in that, by the labels, certainly has every acknowledged write: it has the newest
    /// record of the mirror, and the record says it is in sync.
    pub(super) fn somebody(&self) -> Result<bool, Failure> {
        Ok(!self.whole()?.is_empty())
    }

    /// Returns the disk numbers of the plugged-in members that, by the labels, certainly have every acknowledged write.
    fn whole(&self) -> Result<Vec<usize>, Failure> {
        let records = self.records()?;
        let newest = records.iter().map(|(_, record)| record.generation.events).max();
        let is_whole = |(n, record): &&(usize, Record)| {
            let own = record.member(&self.shape.member(*n));
            Some(record.generation.events) == newest
                && own.is_some_and(|own| own.state == MemberState::InSync)
        };
        Ok(records.iter().filter(is_whole).map(|(n, _)| *n).collect())
    }

    /// Whether a member other than `disk` certainly has every acknowledged write, as in [`Trial::somebody`].
    pub(super) fn another_is_whole(&self, disk: usize) -> Result<bool, Failure> {
        Ok(self.whole()?.into_iter().any(|n| n != disk))
    }

    /// Whether only the label of disk `disk` records that no other member is in sync.
    pub(super) fn knows_more(&self, disk: usize) -> Result<bool, Failure> {
        let name = self.shape.member(disk);
        let alone = |record: &Record| {
            let others = record.members.iter().filter(|member| member.name != name);
            others.map(|member| member.state).all(|state| state != MemberState::InSync)
        };
        let (own, others): (Vec<_>, Vec<_>) =
            self.records()?.into_iter().partition(|(n, _)| *n == disk);
        // A start without the disk believes the newest record of the others.
        let newest = others.iter().map(|(_, record)| record).max_by_key(|it| it.generation.events);
        Ok(own.iter().all(|(_, record)| alone(record)) && !newest.is_some_and(alone))
    }

    /// Whether a divided member can take the place of disk `disk`, the only member in sync: `Some(true)` if the newest record
    /// has such a member, `Some(false)` if only an older record on the member itself says so.
    pub(super) fn divided_beside(&self, disk: usize) -> Result<Option<bool>, Failure> {
        let records = self.records()?;
        let newest = records.iter().map(|(_, record)| record.generation.events).max();
        let is_divided = |(n, record): &&(usize, Record)| {
            let own = record.member(&self.shape.member(*n));
            *n != disk && own.is_some_and(|own| own.content == Content::Divided)
        };
        let divided = records.iter().filter(is_divided);
        Ok(divided.map(|(_, record)| Some(record.generation.events) == newest).max())
    }

    /// Reads the mirror's record from each label. Returns the records with the disk numbers.
    fn records(&self) -> Result<Vec<(usize, Record)>, Failure> {
        let record = |(n, label): (usize, Label)| {
            let cell = label.cells.get("m")?;
            Some((n, Record::decode(&cell.bytes)))
        };
        let mut records = Vec::new();
        for (n, record) in self.labels()?.into_iter().filter_map(record) {
            records.push((
                n,
                record.map_err(|why| {
                    wrong(format!("the mirror's record on disk d{n} is damaged: {why}"))
                })?,
            ));
        }
        Ok(records)
    }

    /// Returns the bytes that distinguish disk `disk` from its older images: the mirror's state in the label, whether the label is
    /// in use, and the room behind the data of the mirror. For a member that had failed before the newest state, its last state
    /// alone does (`docs/limits.md`).
    pub(super) fn marks(&self, disk: usize) -> Result<Vec<u8>, Failure> {
        let records = self.records()?;
        let own = records.iter().find(|(n, _)| *n == disk);
        let newest = records.iter().map(|(_, record)| record).max_by_key(|it| it.generation.events);
        let is_behind = |newest: &&Record| {
            let known = newest.member(&self.shape.member(disk));
            known.is_some_and(|known| known.sent != newest.generation)
        };
        if let (Some(_), Some((_, own))) = (newest.filter(is_behind), own) {
            return Ok(own.encode());
        }
        let mut bytes = own.map(|(_, record)| record.encode()).unwrap_or_default();
        let labels = self.labels()?;
        let own_label = labels.iter().find(|(n, _)| *n == disk);
        bytes.extend(own_label.map(|(_, label)| u8::from(label.holder.is_some())));
        if let Some(store) = own.and_then(|(_, record)| record.store()) {
            let data_end = meta::DATA_START + store.regions.size();
            let room = ByteRange::between(data_end, self.data().end());
            bytes.extend(room.map(|room| self.disks[disk].peek(room)).unwrap_or_default());
        }
        Ok(bytes)
    }

    /// Checks the labels after the process has closed the graph with the result `closed`. After a success all labels
    /// must be marked as closed. After an error at least one member must be out of service, and the labels of the
    /// members in sync must be marked as closed.
    pub(super) fn closed_in_order(&self, closed: Result<()>) -> Result<(), Failure> {
        if let Err(error) = &closed
            && self.in_sync.len() == self.shape.members.len()
        {
            return Err(wrong(format!(
                "closing the disks failed although all disks work: {error}"
            )));
        }
        for (n, label) in self.labels()? {
            if label.holder.is_some() && (closed.is_ok() || self.in_sync.contains(&n)) {
                return Err(wrong(format!(
                    "the label of disk d{n} is not marked as closed after a close ({closed:?})"
                )));
            }
        }
        Ok(())
    }
}
