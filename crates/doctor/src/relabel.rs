//! New labels for disks that have lost theirs, made from the labels of the other disks of the graph. Pure: opens no
//! disk.
//!
//! With a lost label, the states of devices in it are lost, and so is their record of missed writes. So a relabelled
//! disk counts as one that missed every write. If devices copy its bytes from other disks, that is enough. If the disk
//! may have the only copy of some bytes, the operator must decide that these bytes count (`trust`).
//!
//! A disk that was truncated and extended again has a label at its front, and may have zeros in its data. A disk that
//! was overwritten from its front on has a label at its back, and may have other bytes in its data. Both count as disks
//! that missed every write, unless the operator trusts them.

use std::collections::BTreeMap;

use block::units::format_exact;
use block::{Error, ErrorKind, Result, bail, error};
use graph::labels::{
    Case, Finding, Remembered, Waiver, forget_copies, label_findings, older, split_brain,
    split_brain_of,
};
use graph::spec::Planned;
use meta::{Area, ForeignContent, Inspection, Label, Machine, Wrong};
use serde::Serialize;

use crate::check::{Named, ProbedDisk, only_copy_reason};

/// A graph in which disks have lost their labels, with the facts from which the labels can be made again.
pub struct Graph<'g> {
    /// The newest label of the graph.
    pub newest: &'g Label,
    /// The labelled disks that the newest label names, by name.
    pub named: &'g Named,
    /// Plan of the graph with all of its disks, present or not.
    pub planned: &'g Planned,
    /// All disks with labels of the graph that the newest label names and that were found.
    pub seen: &'g [ProbedDisk<'g>],
    /// Names of the disks that have lost their labels, according to the operator or the spec. All other disks must be
    /// present.
    pub lost: Vec<&'g str>,
    /// Names of the disks that have lost the label at one end, except the disks that the operator trusts.
    pub cut: Vec<&'g str>,
    /// Whether a label may be written although it names another machine that has the disk open (`--take`).
    pub take: bool,
}

/// The path of a disk that may have lost its label, as the operator or a spec names it.
pub struct NamedPlace<'s> {
    /// Name of the disk.
    pub name: &'s str,
    /// Path of the disk.
    pub place: &'s str,
    /// Whether the operator named the path on the command line; otherwise a spec has it.
    pub by_hand: bool,
    /// Whether the operator declared the bytes of the disk correct as they are (`--trust`).
    pub trusted: bool,
}

/// The content of the disk at a path, as a repair found it.
pub struct PlaceContent {
    /// All copies of the label of the disk.
    pub inspection: Inspection,
    /// Block size of the disk in bytes.
    pub block_size: u32,
}

/// A label that a repair can write to a disk.
#[derive(Serialize)]
pub struct Relabel {
    /// Number of the copies on the disk with its present label, whose successor is written; `None` without a label.
    #[serde(skip)]
    pub(crate) over: Option<usize>,
    /// Name of the graph of the disk.
    pub graph: String,
    /// Name of the disk.
    pub name: String,
    /// Path of the disk.
    pub place: String,
    /// The planned write, in words: `write a label on PATH as DISK`.
    #[serde(skip)]
    would: String,
    /// The effect of the new label on the bytes of the disk, in words.
    pub words: String,
    #[serde(skip)]
    pub(crate) label: Label,
}

impl Relabel {
    /// Whether the label of the disk has changed since the repair was planned. `now` is the present inspection.
    pub(crate) fn is_outdated(&self, now: &Inspection) -> bool {
        let Ok(Some((label, _))) = &now.label else { return false };
        self.over.is_none() || label.sequence != self.label.sequence
    }

    /// Returns a line for the user about the planned write of this label.
    pub fn text(&self) -> String {
        let Self { graph, would, words, label, .. } = self;
        let change = label.epoch;
        format!("would {would} of {graph}, change {change}: {words}\n")
    }
}

impl Graph<'_> {
    /// Returns the label that a repair on the machine `here` can write to the disk `said`, which has the content
    /// `there`.
    ///
    /// # Errors
    /// The reason why the disk gets no label, with a next step.
    pub fn relabel(
        &self,
        said: &NamedPlace<'_>,
        there: &PlaceContent,
        here: &Machine,
    ) -> Result<Relabel> {
        if let Some(label) = self.older(said) {
            return self.let_count(said, there, label, here);
        }
        if let Some((label, number)) = self.without_its_end(said, there) {
            return self.end_anew(said, there, label, number, here);
        }
        let known = self.known(said)?;
        self.may_be_written(here)?;
        is_free(said, there)?;
        is_as_large(said, known, there)?;
        self.keeps_elsewhere(said.name)?;
        let words = self.whose_bytes_count(said)?;
        let newest = self.newest;
        let label = Label {
            sequence: 0,
            disk: known.disk,
            disk_name: said.name.to_owned(),
            data_bytes: known.data_bytes,
            block_size: known.block_size,
            cells: BTreeMap::new(),
            ..newest.clone()
        };
        let would = format!("write a label on {} as {}", said.place, said.name);
        Ok(self.made(said, would, words, label, None))
    }

    fn made(
        &self,
        said: &NamedPlace<'_>,
        would: String,
        words: String,
        label: Label,
        over: Option<usize>,
    ) -> Relabel {
        let (graph, name) = (self.newest.graph_name.clone(), said.name.to_owned());
        Relabel { over, graph, name, place: said.place.to_owned(), would, words, label }
    }

    /// Returns the label of the disk and the number of its copies, if the disk is the named one and has lost the label
    /// at one end.
    fn without_its_end<'t>(
        &self,
        said: &NamedPlace<'_>,
        there: &'t PlaceContent,
    ) -> Option<(&'t Label, usize)> {
        let known = self.named.get(said.name)?;
        let Ok(Some((label, number))) = &there.inspection.label else { return None };
        let is_cut = label.disk == known.disk && there.inspection.lost_end().is_some();
        is_cut.then_some((label, *number))
    }

    /// Returns a label for both ends of a disk that has lost one. Unless the operator trusts the disk, the label lacks
    /// the states of devices that hold copies, so that these devices copy the whole disk.
    fn end_anew(
        &self,
        said: &NamedPlace<'_>,
        there: &PlaceContent,
        label: &Label,
        number: usize,
        here: &Machine,
    ) -> Result<Relabel> {
        let NamedPlace { name, place, trusted, .. } = *said;
        self.may_be_written(here)?;
        is_as_large(said, self.named[name], there)?;
        let would = format!("rewrite the label on {place} as {name}");
        let mut label = label.clone();
        if trusted {
            let words = "its bytes are accepted unchanged".to_owned();
            return Ok(self.made(said, would, words, label, Some(number)));
        }
        let mut cut = self.cut.clone();
        if !cut.contains(&name) {
            cut.push(name);
        }
        if let Some(why) = only_copy_reason(self.planned, self.named, self.seen, &cut, name) {
            let graph = &self.newest.graph_name;
            let end = there.inspection.lost_end().unwrap_or("end");
            let next = format!(
                "restore the disk, or a backup of it; if its bytes are known to be intact: cairn \
                 repair {graph} --trust {name}; if another member of a mirror is known to be \
                 intact: cairn import {graph} --trust MEMBER"
            );
            let error = error!(Degraded, "the label at the {end} of {place} is lost, and {why}");
            return Err(error.next(next));
        }
        forget_copies(&mut label, self.planned);
        let words = "the next start copies all its bytes from the other disks".to_owned();
        Ok(self.made(said, would, words, label, Some(number)))
    }

    /// Returns the label of the disk `said` if the operator trusts the disk and the disk is stale.
    fn older(&self, said: &NamedPlace<'_>) -> Option<&Label> {
        let known = self.named.get(said.name).filter(|_| said.trusted)?;
        let older = older(self.seen.iter().map(|seen| seen.label));
        let seen = self.seen.iter().find(|seen| seen.label.disk == known.disk)?;
        Some(seen.label).filter(|label| older.contains(&label.disk))
    }

    /// Returns a label with which a stale disk counts as if it had missed no broadcast, because the operator trusts it.
    fn let_count(
        &self,
        said: &NamedPlace<'_>,
        there: &PlaceContent,
        label: &Label,
        here: &Machine,
    ) -> Result<Relabel> {
        let NamedPlace { name, place, .. } = *said;
        self.may_be_written(here)?;
        let number = match &there.inspection.label {
            Ok(Some((found, number))) if found.disk == label.disk => *number,
            _ => {
                return Err(error!(
                    Invalid,
                    "{place} is not the disk {name} of {}", label.graph_name
                )
                .next("give the path of that disk"));
            }
        };
        let words = self.whose_bytes_count(said)?;
        let newest = self.newest;
        let label = Label {
            epoch: newest.epoch,
            broadcast: newest.broadcast,
            acked_broadcast: newest.acked_broadcast,
            spec: newest.spec.clone(),
            past: newest.past.clone(),
            holder: newest.holder.clone(),
            ..label.clone()
        };
        let would = format!("accept {place} as {name}");
        Ok(self.made(said, would, words, label, Some(number)))
    }

    fn known(&self, said: &NamedPlace<'_>) -> Result<Remembered> {
        let Self { newest, named, seen, .. } = self;
        let name = said.name;
        let Some(known) = named.get(name) else {
            let names: Vec<_> = named.keys().map(String::as_str).collect();
            let (graph, names) = (&newest.graph_name, names.join(", "));
            bail!(NotFound, "{graph} has no labelled disk {name:?}; its labelled disks: {names}");
        };
        match seen.iter().find(|seen| seen.label.disk == known.disk) {
            None => Ok(*known),
            Some(ProbedDisk { place, .. }) => {
                let graph = &newest.graph_name;
                let why = format!("{name} of {graph} still has its label, on {place}");
                let error = Error::new(ErrorKind::Invalid, why);
                if !said.trusted {
                    return Err(error);
                }
                Err(error.next(format!(
                    "if its bytes are the authoritative ones of a mirror: cairn import {graph} \
                     --trust {name}"
                )))
            }
        }
    }

    /// Checks that the labels of the other disks have no split brain, that no other disk is missing, and that the
    /// machine `here` may write the labels.
    fn may_be_written(&self, here: &Machine) -> Result<()> {
        let Self { newest, seen, .. } = self;
        if let Some(other) = split_brain(newest, seen.iter().map(|seen| seen.label)) {
            return Err(split_brain_of(newest, other).error.next("remove one of the two disks"));
        }
        let is_away = |(name, known): &(&String, &Remembered)| {
            seen.iter().all(|seen| seen.label.disk != known.disk)
                && !self.lost.contains(&name.as_str())
        };
        if let Some((away, _)) = self.named.iter().find(is_away) {
            return Err(error!(
                Degraded,
                "{away} of {} is not found either, and may be newer than the found disks",
                newest.graph_name
            )
            .next(format!(
                "bring that disk back; or, if that disk has lost its label too, --disk {away}=PATH"
            )));
        }
        let mut seen = seen.iter();
        seen.try_for_each(|seen| check_writable(seen.place, seen.label, here, self.take))
    }

    /// Checks that each device with a state in the lost label of `name` has a state on another disk as well.
    fn keeps_elsewhere(&self, name: &str) -> Result<()> {
        let is_elsewhere =
            |device: &str| self.seen.iter().any(|seen| seen.label.cells.contains_key(device));
        let mut keepers = self.planned.nodes.iter().filter(|node| {
            let keeps = node.kind.maker.keeps_state();
            keeps && self.planned.beneath(&node.name).iter().any(|disk| disk == name)
        });
        let Some(node) = keepers.find(|node| !is_elsewhere(&node.name)) else {
            return Ok(());
        };
        let error = error!(
            Corrupt,
            "the state of {0} ({1}) was only in the label of {name}, and {0} does not open without \
             it",
            node.name,
            node.kind.name
        );
        Err(error.next(format!(
            "if other disks have the data of {name}, label it again: cairn serve SPEC --wipe {name}"
        )))
    }

    /// Returns the effect of a new label on the bytes of the disk: they are copied from other disks, or the operator
    /// trusts them.
    fn whose_bytes_count(&self, said: &NamedPlace<'_>) -> Result<String> {
        let NamedPlace { name, place, trusted, .. } = said;
        let only = self.planned.only_on(&[name]).join(", ");
        match (only.is_empty(), trusted) {
            (true, false) => Ok("the next start copies all its bytes from the other disks; bytes \
                                 that only this disk had are lost"
                .to_owned()),
            (true, true) => {
                Err(error!(Invalid, "{name} is copied from the other disks in any case")
                    .next(format!("omit --trust {name}")))
            }
            (false, true) => Ok(format!("{only} shows the bytes of this disk unchanged")),
            (false, false) => {
                let why = format!(
                    "{name} may hold the only copy of some bytes of {only}, and {place} cannot be \
                     matched to it"
                );
                let next = format!("if {place} has those bytes, --trust {name}");
                Err(Error::new(ErrorKind::Degraded, why).next(next))
            }
        }
    }
}

/// Checks that a repair on the machine `here` may write to the disk with this label. With `take`, a label that names
/// another machine as holder is no obstacle.
pub(crate) fn check_writable(place: &str, label: &Label, here: &Machine, take: bool) -> Result<()> {
    let findings = label_findings(&label.disk_name, place, label, here).into_iter();
    let is_waived = |found: &Finding| take && found.waived_by.contains(&Waiver::Take);
    let Some(found) = findings.into_iter().find(|found| !is_waived(found)) else { return Ok(()) };
    Err(match found.case {
        // That machine may be about to write the next label of the disk.
        Case::HeldByOtherHost => found
            .error
            .next("repair on that machine; if that machine never uses the disks again, --take"),
        _ => found.error,
    })
}

/// Checks that the disk at the path has no label and no content of another program.
fn is_free(said: &NamedPlace<'_>, there: &PlaceContent) -> Result<()> {
    let NamedPlace { name, place, by_hand, .. } = said;
    match (&there.inspection.label, &there.inspection.other) {
        (Ok(Some((label, _))), _) => {
            let (disk, graph) = (&label.disk_name, &label.graph_name);
            Err(error!(InUse, "{place} is {disk:?} of {graph:?}").next("use another disk"))
        }
        (Err(wrong @ (Wrong::Version(_) | Wrong::Features(_))), _) => {
            Err(error!(Unsupported, "{place} has {wrong}").next("use a newer version of Cairn"))
        }
        (Err(Wrong::NoMagic | Wrong::Damaged(_)), _) | (Ok(None), ForeignContent::Blank) => Ok(()),
        (Ok(None), ForeignContent::Unknown) if *by_hand => Ok(()),
        (Ok(None), ForeignContent::Unknown) => {
            let why = format!("{place} holds bytes of an unknown format in place of a label");
            let next = format!("if that disk is {name}, --disk {name}={place}");
            Err(Error::new(ErrorKind::InUse, why).next(next))
        }
        (Ok(None), ForeignContent::Holds(what)) => {
            Err(error!(InUse, "{place} HOLDS {what}, so it is no longer the disk {name}")
                .next("use another disk"))
        }
        (Ok(None), ForeignContent::TooSmall(bytes)) => {
            Err(error!(Invalid, "{place}: no room for a label in {bytes} bytes")
                .next("use another disk"))
        }
    }
}

/// Checks that the disk at the path is large enough for the lost disk, and has no larger blocks.
fn is_as_large(said: &NamedPlace<'_>, known: Remembered, there: &PlaceContent) -> Result<()> {
    let NamedPlace { name, place, .. } = said;
    let (has, needs) = (there.inspection.size, Area::Back(known.data_bytes).range().end());
    if has < needs {
        let (has, needs) = (format_exact(has), format_exact(needs));
        return Err(error!(NoSpace, "{place} has {has}, but {name} had {needs}")
            .next("find the disk of that size"));
    }
    if there.block_size > known.block_size {
        let (has, had) = (there.block_size, known.block_size);
        bail!(Unsupported, "{place} has blocks of {has} bytes, and {name} had {had}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use block::Reason;
    use meta::Uuid;

    use super::*;

    fn label() -> Label {
        Label {
            sequence: 1,
            epoch: 1,
            broadcast: 1,
            acked_broadcast: 1,
            disk: Uuid([1; 16]),
            disk_name: "a".to_owned(),
            graph: Uuid([9; 16]),
            graph_name: "g".to_owned(),
            data_bytes: 1 << 20,
            block_size: 512,
            written_unix_s: 0,
            holder: None,
            provisioning: false,
            spec: String::new(),
            cells: BTreeMap::new(),
            past: Default::default(),
            unknown_read_only: 0,
        }
    }

    fn reason(label: &Label, take: bool) -> Option<Reason> {
        let here = Machine::new("here", [1; 16]);
        check_writable("/a", label, &here, take).err().and_then(|error| error.reason())
    }

    #[test]
    fn repair_writes_label_of_another_host_only_with_take() {
        let held = Label { holder: Some(Machine::new("there", [2; 16])), ..label() };
        assert_eq!(reason(&held, false), Some(Reason::LabelHeldByOtherHost));
        assert_eq!(reason(&held, true), None);
        let own = Label { holder: Some(Machine::new("here", [1; 16])), ..label() };
        assert_eq!(reason(&own, false), None);
    }

    #[test]
    fn planned_label_is_outdated_if_disk_has_another_label() {
        let is_outdated = |over, found| {
            let (text, place) = (String::new, "/a".to_owned());
            let (graph, name, would, words) = (text(), text(), text(), text());
            let planned = Relabel { over, graph, name, place, would, words, label: label() };
            let (copies, other) = (Vec::new(), ForeignContent::Unknown);
            planned.is_outdated(&Inspection { size: 1 << 24, copies, label: Ok(found), other })
        };
        let found = |sequence| Some((Label { sequence, ..label() }, 0));
        assert!(!is_outdated(None, None) && !is_outdated(Some(0), found(1)));
        assert!(is_outdated(None, found(1)), "the plan saw no label");
        assert!(is_outdated(Some(0), found(2)), "the plan saw an earlier label");
    }

    #[test]
    fn repair_refuses_label_with_unknown_features() {
        let newer = Label { unknown_read_only: 4, ..label() };
        for take in [false, true] {
            assert_eq!(reason(&newer, take), Some(Reason::LabelNewer));
        }
    }
}
