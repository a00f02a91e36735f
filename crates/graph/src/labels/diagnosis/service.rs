//! Findings about serving a graph from the disks that were matched to their labels.

use std::collections::BTreeSet;

use block::seeded::{self, Bug};
use block::{Error, ErrorKind, Reason};
use meta::{Area, Label};

use super::identity::is_judged;
use super::{Binding, Bindings, Case, DiskFacts, Finding, LostLabel, Waiver, older};
use crate::labels::{Opening, objections, objections_without_bytes, text};
use crate::spec::{Planned, Spec};

/// The disks that a spec names, matched to their labels.
#[derive(Clone, Copy)]
pub struct BoundDisks<'b> {
    pub disks: &'b [DiskFacts],
    pub binding: &'b Bindings,
}

/// Returns all findings that concern serving `planned` from the matched disks, except the objections of its devices.
pub fn serve(disks: BoundDisks<'_>, planned: &Planned, asked: &Opening) -> Vec<Finding> {
    let mut findings: Vec<Finding> = disks.missing(planned).into_iter().collect();
    findings.extend(disks.overwritten(planned));
    findings.extend(disks.stale(planned));
    if !asked.changes {
        findings.extend(disks.forgotten(planned));
        findings.extend(disks.moved(planned));
    }
    findings.extend(disks.unwritable());
    findings
}

/// Returns a finding for each device that refuses to open without a decision of the operator about its data. Returns
/// none if any disk is going to get a new label.
pub fn objections_of(disks: BoundDisks<'_>, planned: &Planned) -> Vec<Finding> {
    let bound = &disks.binding.disks;
    if bound.values().any(|bound| matches!(bound, Binding::Fresh(_))) {
        return Vec::new();
    }
    let objections = objections(planned, |disk| Some((disks.label(disk)?, true))).into_iter();
    let finding = |(device, error): (&str, Error)| {
        Finding::new(Case::Undecided, error.within(device), &[Waiver::Trust])
    };
    objections.map(finding).collect()
}

/// Returns a finding for each disk of the graph that is too short for its label or has lost the label at its end. Disks
/// that `findings` refuse already and disks of other graphs get no further finding.
pub fn truncated(
    disks: &[DiskFacts],
    binding: &Bindings,
    findings: &[Finding],
    asked: &Opening,
) -> Vec<Finding> {
    let none_is_bound = binding.disks.is_empty();
    let truncated = disks.iter().enumerate().filter_map(|(n, disk)| {
        let finding = cut_short(disk).filter(|_| !is_judged(findings, &disk.name))?;
        let counts = binding.is_bound(n) || none_is_bound && !asked.wipe.contains(&disk.name);
        counts.then_some(finding)
    });
    truncated.collect()
}

/// Returns the finding about a disk that is shorter than its label records, or that has lost the label at its end and
/// may have been extended again with other bytes.
pub fn cut_short(disk: &DiskFacts) -> Option<Finding> {
    let label = disk.label()?;
    let needed = Area::Back(label.data_bytes).range().end();
    let DiskFacts { name, place, size, .. } = disk;
    if needed > *size {
        let words = format!(
            "{place} has {size} bytes, but had {needed} when the disk was labelled: the bytes behind are lost"
        );
        let next = format!(
            "if other disks have its data, make the disk that large again, and label it with \
             --wipe {name}: all its bytes are copied from the other disks; else restore the disk, \
             or a backup of it"
        );
        let error = Error::because(Reason::LabelDamaged, words).next(next).at(name);
        Some(Finding::new(Case::Truncated, error, &[]))
    } else if disk.lost == Some(LostLabel::AtEnd) {
        let words = format!(
            "the label at the end of {place} is lost: the disk was truncated and extended, or \
             another program has overwritten the label"
        );
        let next = format!("cairn repair {} --plan lists the possible repairs", label.graph_name);
        let error = Error::because(Reason::LabelDamaged, words).next(next).at(name);
        Some(Finding::new(Case::LostEnd, error, &[]))
    } else {
        None
    }
}

impl<'b> BoundDisks<'b> {
    /// Returns the facts about the disk that was matched to `name` by its label.
    fn labelled(self, name: &str) -> Option<&'b DiskFacts> {
        match self.binding.disks.get(name)? {
            Binding::Labelled(n) => Some(&self.disks[*n]),
            Binding::Fresh(_) | Binding::Absent(_) => None,
        }
    }

    pub(in crate::labels) fn label(self, name: &str) -> Option<&'b Label> {
        self.labelled(name)?.label()
    }

    /// Returns the names of the disks that `is_it` selects by their binding.
    fn names(self, is_it: impl Fn(&Binding) -> bool) -> Vec<&'b str> {
        let bound = self.binding.disks.iter().filter(|(_, bound)| is_it(bound));
        bound.map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the finding about absent disks, if disks are absent: without these disks, exports cannot be served, or
    /// only with `--degraded`.
    fn missing(self, planned: &Planned) -> Option<Finding> {
        let missing = self.names(|bound| matches!(bound, Binding::Absent(_)));
        if missing.is_empty() {
            return None;
        }
        let lost = planned.lost_without(&missing).join(", ");
        let (missing, graph) = (missing.join(", "), &planned.name);
        if !lost.is_empty() {
            let words = format!(
                "{missing} of {graph:?} not found, and {lost} cannot be served without the missing disk"
            );
            let error = Error::because(Reason::LabelMissing, words).next("bring the disk back");
            return Some(Finding::new(Case::Missing, error, &[]));
        }
        let error = self.degradable(planned, &missing);
        Some(Finding::new(Case::Degraded, error, &[Waiver::Degraded]))
    }

    /// Returns the error about absent disks that the devices of the graph can do without. The objection of a device
    /// comes first: by the states in the other labels, it may not open without the absent disks.
    fn degradable(self, planned: &Planned, missing: &str) -> Error {
        let graph = &planned.name;
        let Some(objection) = objections_of(self, planned).into_iter().next() else {
            let words = format!("{missing} of {graph:?} not found; the other disks have all data");
            return Error::because(Reason::LabelDegraded, words)
                .next("bring the disk back, or use --degraded to start without the disk");
        };
        let objection = objection.error;
        let device = objection.place().unwrap_or_default();
        let words = format!("{missing} of {graph:?} not found: {device}: {}", objection.message());
        let error = Error::because(Reason::LabelMissing, words);
        match objection.next_step() {
            Some(next) => error.next(next),
            None => error,
        }
    }

    /// Returns the names of the matched disks that have lost the label at their front.
    pub fn overwritten_names(self) -> BTreeSet<&'b str> {
        let names = self.binding.disks.keys().map(String::as_str);
        let is_it = |name: &&str| {
            self.labelled(name).is_some_and(|disk| disk.lost == Some(LostLabel::AtFront))
        };
        names.filter(is_it).collect()
    }

    /// Returns the findings about overwritten disks. A finding refuses a start if some bytes of the disk are on no
    /// other disk, or if the other copies miss writes.
    fn overwritten(self, planned: &Planned) -> Vec<Finding> {
        let names = self.overwritten_names();
        if names.is_empty() {
            return Vec::new();
        }
        let objections = objections_without_bytes(planned, |disk| self.label(disk), &names);
        let objecting: BTreeSet<String> =
            objections.into_iter().flat_map(|(device, _)| planned.beneath(device)).collect();
        let is_refused =
            |name: &str| objecting.contains(name) || self.is_only_copy(planned, name, &names);
        let finding = |name: &&str| {
            let error = overwritten(self.labelled(name)?)?;
            Some(match is_refused(name) {
                true => Finding::new(Case::LostFront, error, &[]),
                false => Finding::note(Case::LostFront, error),
            })
        };
        names.iter().filter_map(finding).collect()
    }

    /// Whether some bytes of a disk are on no other disk, apart from those that are new, absent or `overwritten`.
    fn is_only_copy(self, planned: &Planned, name: &str, overwritten: &BTreeSet<&str>) -> bool {
        let mut without = self.names(|bound| !matches!(bound, Binding::Labelled(_)));
        without.extend(overwritten);
        let others: Vec<&str> = without.iter().copied().filter(|other| *other != name).collect();
        let anyway = planned.only_on(&others);
        planned.only_on(&without).iter().any(|shows| !anyway.contains(shows))
    }

    /// Returns the names of the matched disks that are stale: they missed a broadcast that reached every disk which was
    /// present at that time.
    pub fn stale_names(self) -> Vec<&'b str> {
        let labels = self.binding.disks.keys().filter_map(|name| self.label(name));
        let stale = older(labels);
        let names = self.binding.disks.keys().map(String::as_str);
        let is_it = |name: &&str| self.label(name).is_some_and(|label| stale.contains(&label.disk));
        names.filter(is_it).collect()
    }

    /// Returns the findings about stale disks. A finding refuses a start if the data of the stale disks are on no other
    /// disk: exports would show bytes of different times.
    fn stale(self, planned: &Planned) -> Vec<Finding> {
        let names = self.stale_names();
        let (lost, graph) = (planned.lost_without(&names).join(", "), &planned.name);
        let finding = |name: &&str| {
            if lost.is_empty() {
                let words = "is older than the other disks, which were in use without this disk";
                let error = Error::because(Reason::LabelStale, words);
                let error = error.next("the next start copies the missed writes to it").at(name);
                return Finding::note(Case::Stale, error);
            }
            let words = format!(
                "is older than the other disks of {graph:?}, which were in use without this disk, \
                 so {lost} would mix old and new bytes"
            );
            let next = format!(
                "bring back the newest state of the disk; or, to accept its older bytes, as from a \
                 backup: cairn repair {graph} --disk {name}=PATH --trust {name} --plan"
            );
            let error = Error::because(Reason::LabelStale, words).next(next).at(name);
            Finding::new(Case::Stale, error, &[])
        };
        names.iter().map(finding).collect()
    }

    fn spec_before(self) -> Spec {
        Spec::parse(&self.binding.spec, "label", &|_| None)
    }

    /// Returns a finding for each device that has a state in the labels of these disks and that the spec does not have
    /// any more.
    fn forgotten(self, planned: &Planned) -> Vec<Finding> {
        let before = self.spec_before();
        let labels = self.disks.iter().filter_map(DiskFacts::label);
        let kept: BTreeSet<&String> = labels.flat_map(|label| label.cells.keys()).collect();
        let is_there = |name: &&String| {
            planned.nodes.iter().any(|node| node.name == **name && text::keeps(node))
        };
        let gone =
            kept.into_iter().filter(|name| before.has(name) && !is_there(name)).map(|name| {
                let words = format!(
                    "{name:?} keeps its state in the labels of these disks, but the spec has no such device"
                );
                let error = Error::because(Reason::LabelForgotten, words)
                    .next("put the device back into the spec under that name and kind");
                Finding::new(Case::Forgotten, error, &[])
            });
        gone.collect()
    }

    /// Returns a finding for each migration that a start would begin although, by the labels, an export shows the
    /// target of the migration already. A live change compares the bytes of exports instead.
    fn moved(self, planned: &Planned) -> Vec<Finding> {
        if seeded::on(Bug::MigrationRepeated) {
            return Vec::new();
        }
        let before = self.spec_before();
        let name = |index: usize| &planned.nodes[planned.through(index)].name;
        let begun = planned
            .nodes
            .iter()
            .filter(|node| node.kind.capabilities.moves.is_some() && !before.has(&node.name));
        let findings = begun.filter_map(|node| {
            let [from, to] = node.lowers[..] else { return None };
            let (from, to, moves) = (name(from), name(to), &node.name);
            let shown_by = before.shown_by(to, from)?;
            let words = format!(
                "{moves} would move the bytes of {from} to {to}, but by the labels {shown_by} is \
                 on {to} already: the spec is older than the end of a migration"
            );
            let next = format!("remove {moves} from the spec, and put its upper devices on {to}");
            let error = Error::because(Reason::LabelForgotten, words).next(next).at(moves);
            Some(Finding::new(Case::Forgotten, error, &[]))
        });
        findings.collect()
    }

    /// Returns a finding for each disk that needs a label and is read-only.
    fn unwritable(self) -> Vec<Finding> {
        let fresh = self.binding.disks.iter().filter_map(|(name, bound)| match bound {
            Binding::Fresh(n) => Some((name, &self.disks[*n])),
            Binding::Labelled(_) | Binding::Absent(_) => None,
        });
        let read_only = fresh.filter(|(_, disk)| disk.read_only);
        let finding = |(name, disk): (&String, &DiskFacts)| {
            let words = format!("{} has no label yet, and is read-only", disk.place);
            let error = Error::new(ErrorKind::ReadOnly, words).at(name);
            Finding::new(Case::Unwritable, error, &[])
        };
        read_only.map(finding).collect()
    }
}

/// Returns the error about a disk whose front label is overwritten and whose back label is complete.
fn overwritten(disk: &DiskFacts) -> Option<Error> {
    let (label, DiskFacts { name, place, .. }) = (disk.label()?, disk);
    let words = format!(
        "another program has overwritten the label at the front of {place}, and maybe its data"
    );
    let next = format!("cairn repair {} --plan lists the possible repairs", label.graph_name);
    Some(Error::because(Reason::LabelDamaged, words).next(next).at(name))
}
