//! What labels say, read from the disks by nobody who runs: what a start has to make of them.

use std::rc::Rc;

use block::Result;
use kinds::mirror::record::{MemberState, Record};
use meta::{Area, Label};
use sim::SimDisk;

use super::{Trial, VOLUME_BYTES, wrong};
use crate::trial::Failure;

impl Trial {
    /// The labels of the disks of the graph that are plugged in, by the numbers of the disks; the disk beside the mirror
    /// comes last.
    pub(super) fn labels(&self) -> Result<Vec<(usize, Label)>, Failure> {
        let members = self.plugged.iter().flatten().filter(|n| self.shape.members.contains(n));
        let members = members.map(|n| (*n, &self.disks[*n], self.shape.data_bytes()));
        let beside = self.beside.iter().map(|it| (self.disks.len(), &it.disk, VOLUME_BYTES));
        let label = |(n, disk, data_bytes): (usize, &Rc<SimDisk>, u64)| {
            let areas = [Area::Front, Area::Back(data_bytes)].map(|area| disk.peek(area.range()));
            let newest = meta::newest(areas.iter().map(Vec::as_slice));
            let newest =
                newest.map_err(|why| wrong(format!("the label of d{n} is whole: {why}")))?;
            let (_, label) = newest.ok_or_else(|| wrong(format!("d{n} has a label")))?;
            Ok((n, label))
        };
        members.chain(beside).map(label).collect()
    }

    /// Whether a member is there that has every write for certain: the newest state that is left of the
    /// mirror says so, and the member has this state itself.
    pub(super) fn somebody(&self) -> Result<bool, Failure> {
        Ok(!self.whole()?.is_empty())
    }

    /// The members that have every write for certain.
    fn whole(&self) -> Result<Vec<usize>, Failure> {
        let records = self.records()?;
        let newest = records.iter().map(|(_, record)| record.generation.events).max();
        let is_whole = |(n, record): &&(usize, Record)| {
            let own = record.member(&self.shape.member(*n));
            Some(record.generation.events) == newest
                && own.is_some_and(|own| own.standing == MemberState::InSync)
        };
        Ok(records.iter().filter(is_whole).map(|(n, _)| *n).collect())
    }

    /// Whether a member other than `disk` has every write for certain, as [`Trial::somebody`] tells.
    pub(super) fn another_is_whole(&self, disk: usize) -> Result<bool, Failure> {
        Ok(self.whole()?.into_iter().any(|n| n != disk))
    }

    /// Whether the label of a member alone says that no other one has every write.
    pub(super) fn knows_more(&self, disk: usize) -> Result<bool, Failure> {
        let name = self.shape.member(disk);
        let alone = |record: &Record| {
            let others = record.members.iter().filter(|member| member.name != name);
            others.map(|member| member.standing).all(|standing| standing != MemberState::InSync)
        };
        let (own, others): (Vec<_>, Vec<_>) =
            self.records()?.into_iter().partition(|(n, _)| *n == disk);
        Ok(own.iter().all(|(_, record)| alone(record)) && !others.iter().any(|(_, it)| alone(it)))
    }

    /// What the labels say of the mirror, by the numbers of the disks.
    fn records(&self) -> Result<Vec<(usize, Record)>, Failure> {
        let record = |(n, label): (usize, Label)| {
            let cell = label.cells.get("m")?;
            Some((n, Record::decode(&cell.bytes)))
        };
        let mut records = Vec::new();
        for (n, record) in self.labels()?.into_iter().filter_map(record) {
            records.push((n, record.map_err(|why| wrong(format!("the record on d{n}: {why}")))?));
        }
        Ok(records)
    }

    /// The graph was closed, or so it says: then all labels say so. If not, one member at least is out,
    /// and the labels of the others say so all the same.
    pub(super) fn closed_in_order(&self, closed: Result<()>) -> Result<(), Failure> {
        if let Err(error) = &closed
            && self.in_sync.len() == self.shape.members.len()
        {
            return Err(wrong(format!("disks that all work can be closed: {error}")));
        }
        for (n, label) in self.labels()? {
            if label.holder.is_some() && (closed.is_ok() || self.in_sync.contains(&n)) {
                return Err(wrong(format!("what is closed says so: d{n} does not ({closed:?})")));
            }
        }
        Ok(())
    }
}
