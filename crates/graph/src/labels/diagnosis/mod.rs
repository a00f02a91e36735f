//! Diagnosis of the labels of a graph: a pure function from facts about disks to findings, each with the decisions of
//! the operator that waive the finding.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | facts, findings, and the order of labels |
//! | `identity.rs` | the disk that each place holds, and findings that keep places from being matched to disks |
//! | `service.rs` | findings about serving a graph from the disks that were matched |

mod identity;
mod service;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use block::seeded::{self, Bug};
use block::{Error, Reason};
use meta::{AreaContent, ForeignContent, Inspection, Label, Machine, Uuid, Wrong};

use super::{Opening, text};
use crate::spec::Planned;

pub use identity::Bindings;
pub(super) use identity::{Binding, identify};
pub(super) use service::{BoundDisks, objections_of, serve, truncated};

/// The inputs of a diagnosis of the labels of a graph.
pub struct Facts<'f> {
    /// Name of the graph.
    pub graph: &'f str,
    /// The facts about the disks that the spec of the graph names.
    pub disks: &'f [DiskFacts],
    /// Plan of the graph over the disks of the spec; `None` while the disks are not matched to their labels.
    pub planned: Option<&'f Planned>,
}

/// A disk that a spec names, and the facts that probing found, before any decision about its label.
#[derive(Clone)]
pub struct DiskFacts {
    /// Name of the disk in the spec.
    pub name: String,
    /// Path or address of the disk, for messages.
    pub place: String,
    /// The content of the label areas of the disk.
    pub content: DiskContent,
    /// Size of the disk in bytes, including its label areas; 0 if the disk is missing.
    pub size: u64,
    /// Block size of the disk in bytes.
    pub block_size: u32,
    /// Whether the disk refuses writes.
    pub read_only: bool,
    /// The end of the disk that has lost its label, if one has.
    pub lost: Option<LostLabel>,
}

/// The content of the label areas of a disk.
#[derive(Clone)]
pub enum DiskContent {
    /// The disk cannot be found or read, with the error of the system.
    Missing(Error),
    /// The file of the disk does not exist, and a start would create the file.
    ToBeMade,
    /// Both label areas of the disk are zeros.
    Blank,
    /// The disk holds data of another program; the text describes them.
    Holds(String),
    /// The disk has a label that this version of Cairn cannot use, with the reason.
    Wrong(Wrong),
    /// A usable label of the disk, and the number of the copy in the label areas from which the label was read.
    Label(Box<Label>, usize),
}

/// The end of a disk that has lost its label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostLabel {
    /// Another program has written to the front of the disk, and maybe to the data behind the label.
    AtFront,
    /// The disk was truncated and extended again, or another program has written to the end of the disk.
    AtEnd,
}

/// One result of a diagnosis of the labels of a graph.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The sort of the finding, by its cause.
    pub case: Case,
    /// The error of the finding: its reason, the disk or device, the message, and the next step.
    pub error: Error,
    /// Whether the finding refuses a start of the graph.
    pub blocks: bool,
    /// The decisions of the operator that waive the finding: with one of them, the finding does not refuse a start.
    pub waived_by: &'static [Waiver],
}

/// The sort of a finding about labels, by its cause.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Case {
    /// `--wipe` names a disk that the spec does not have.
    UnknownDisk,
    /// A disk without a label that holds data of another program.
    NotBlank,
    /// A label that a newer version of Cairn has written.
    Newer,
    /// A label, or a spec in a label, that cannot be read.
    Damaged,
    /// A disk whose label belongs to another graph, or a disk that was removed from this graph.
    Foreign,
    /// Two disks with the same label.
    Duplicate,
    /// A disk whose label names another machine as holder, which may have the disk open.
    HeldByOtherHost,
    /// Disks of one graph that were changed independently of each other.
    SplitBrain,
    /// A disk or a device that labels of the graph name and that the spec does not have.
    Forgotten,
    /// A blank disk at the path of a disk of the graph that must have a label.
    Replaced,
    /// An absent disk that holds bytes which no other disk has.
    Missing,
    /// An absent disk without which the graph can still serve all bytes.
    Degraded,
    /// A disk that has fewer bytes than its label records.
    Truncated,
    /// A disk that has lost the label at its end.
    LostEnd,
    /// A disk that has lost the label at its front.
    LostFront,
    /// A stale disk: it missed a broadcast that reached every disk which was present at that time.
    Stale,
    /// A disk without a label that is read-only, so that no label can be written.
    Unwritable,
    /// A device that does not open without a decision of the operator about its data.
    Undecided,
}

/// A decision of an operator that waives findings about labels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Waiver {
    /// `--degraded`: the graph opens without its absent disks.
    Degraded,
    /// `--take`: disks are opened although their labels name another machine as holder, because that machine is gone
    /// for good.
    Take,
    /// `--wipe DISK`: the disk gets a new label. The diagnosis applies this decision from the beginning: it ignores the
    /// old labels on the disk.
    Wipe,
    /// `--trust MEMBER`: the bytes of this member count. The decision is a part of the plan.
    Trust,
}

/// Returns all findings of a diagnosis of `facts`.
///
/// Of the options `asked`, the diagnosis uses `machine`, `wipe` and `changes`. The options `degraded` and `take` change
/// no finding; [`Finding::refuses`] applies them.
pub fn diagnose(facts: &Facts<'_>, asked: &Opening) -> Vec<Finding> {
    let (binding, mut findings) = identify(facts.graph, facts.disks, asked);
    // A graph cannot be served from disks that were not matched.
    if let Some(planned) = facts.planned.filter(|_| !binding.disks.is_empty()) {
        let disks = BoundDisks { disks: facts.disks, binding: &binding };
        findings.extend(serve(disks, planned, asked));
        findings.extend(objections_of(disks, planned));
    }
    findings
}

impl Waiver {
    /// Whether the operator has given this waiver in the options `asked`.
    pub fn is_given(self, asked: &Opening) -> bool {
        match self {
            Self::Degraded => asked.degraded,
            Self::Take => asked.take,
            // With these decisions, the diagnosis returns other findings or none.
            Self::Wipe | Self::Trust => false,
        }
    }
}

impl Finding {
    fn new(case: Case, error: Error, waived_by: &'static [Waiver]) -> Self {
        Self { case, error, blocks: true, waived_by }
    }

    /// Returns a finding that refuses no start.
    fn note(case: Case, error: Error) -> Self {
        Self { case, error, blocks: false, waived_by: &[] }
    }

    /// Whether this finding refuses a start with the waivers that `asked` contains.
    pub fn refuses(&self, asked: &Opening) -> bool {
        self.blocks && !self.waived_by.iter().any(|waiver| waiver.is_given(asked))
    }

    /// Returns the name of the disk or device of this finding.
    pub fn place(&self) -> Option<&str> {
        self.error.place()
    }

    /// Returns the reason of the error of this finding.
    pub fn reason(&self) -> Option<Reason> {
        self.error.reason()
    }
}

/// Returns the newest label of one graph: the highest epoch, then the highest broadcast, then the smallest uuid. `None`
/// if all disks are still being provisioned, or `labels` is empty.
///
/// Every part of Cairn compares labels in this order: a start, a check, an import, a repair, an undo. At one epoch, all
/// labels have the same spec, or there is a [`split_brain`]. `sequence` counts the updates of one label, so it cannot
/// order the labels of two disks.
pub fn newest<'l>(labels: impl IntoIterator<Item = &'l Label>) -> Option<&'l Label> {
    let epoch = |label: &Label| match seeded::on(Bug::EpochIgnored) {
        true => label.sequence,
        false => label.epoch,
    };
    let key = |label: &&Label| (epoch(label), label.broadcast, Reverse(label.disk));
    counting(labels).into_iter().max_by_key(key)
}

/// Returns the labels that [`newest`] compares: those of disks with ended provisioning. The label of a provisioning
/// disk is included if the newest of the others names that disk: an undone change may have written the label last.
pub fn counting<'l>(labels: impl IntoIterator<Item = &'l Label>) -> Vec<&'l Label> {
    let labels: Vec<&Label> = labels.into_iter().collect();
    let made = labels.iter().filter(|label| !label.provisioning);
    let newest = made.max_by_key(|label| (label.epoch, label.broadcast, Reverse(label.disk)));
    let named = newest.map(|newest| text::disks(&newest.spec).unwrap_or_default());
    let is_named = |label: &Label| {
        let is_it = |known: &text::Remembered| known.disk == label.disk;
        newest.is_some_and(|newest| newest.graph == label.graph)
            && named.as_ref().is_some_and(|disks| disks.values().any(is_it))
    };
    labels.iter().copied().filter(|label| !label.provisioning || is_named(label)).collect()
}

/// Returns a label of the same graph and epoch as `newest` that has another spec, if there is one: a split brain.
pub fn split_brain<'l>(
    newest: &Label,
    labels: impl IntoIterator<Item = &'l Label>,
) -> Option<&'l Label> {
    labels.into_iter().find(|label| {
        let is_same = label.graph == newest.graph && label.epoch == newest.epoch;
        is_same && label.spec != newest.spec
    })
}

/// Returns the findings about one label that keep the machine `here` from writing it: features that this version of
/// Cairn does not know, or another machine that has the disk open.
pub fn label_findings(name: &str, place: &str, label: &Label, here: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    if label.unknown_read_only != 0 {
        let bits = label.unknown_read_only;
        let words = format!(
            "{place} has a label that this version of Cairn must not write (features {bits:#x})"
        );
        let error =
            Error::because(Reason::LabelNewer, words).next("use a newer version of Cairn").at(name);
        findings.push(Finding::new(Case::Newer, error, &[Waiver::Wipe]));
    }
    if let Some(other) = label.holder.as_ref().filter(|holder| holder.id != here.id) {
        let words = format!("{place} is marked as open on the machine {other}");
        let next = "stop the graph on that machine; if it never uses the disks again, --take";
        let error = Error::because(Reason::LabelHeldByOtherHost, words).next(next).at(name);
        findings.push(Finding::new(Case::HeldByOtherHost, error, &[Waiver::Take]));
    }
    findings
}

/// Returns the finding that the disks at the paths `one` and `two` have the same label: one is a copy of the other, and
/// the label does not show which.
pub fn duplicate_of(one: &str, two: &str, disk: &str, graph: &str) -> Finding {
    let words = format!("{one} and {two} are both disk {disk:?} of {graph:?}: one is a copy");
    let error = Error::because(Reason::LabelDuplicate, words).next("remove one of the two disks");
    Finding::new(Case::Duplicate, error, &[])
}

/// Returns the finding about two labels of a [`split_brain`].
pub fn split_brain_of(newest: &Label, other: &Label) -> Finding {
    let (one, two) = (&newest.disk_name, &other.disk_name);
    let words = format!(
        "split brain: {one:?} and {two:?} were opened independently of each other, and their \
         labels have differed since"
    );
    let error = Error::because(Reason::LabelSplitBrain, words);
    let error = error.next("leave one of the two disks out, and use --degraded");
    Finding::new(Case::SplitBrain, error, &[])
}

/// Returns the uuids of the stale disks: their broadcast is below the highest acknowledged broadcast among `labels`.
pub fn older<'l>(labels: impl Iterator<Item = &'l Label> + Clone) -> BTreeSet<Uuid> {
    let complete = labels.clone().map(|label| label.acked_broadcast).max().unwrap_or(0);
    let complete = if seeded::on(Bug::OlderServes) { 0 } else { complete };
    let complete = complete.saturating_sub(u64::from(seeded::on(Bug::OlderByOneServes)));
    labels.filter(|label| label.broadcast < complete).map(|label| label.disk).collect()
}

impl DiskFacts {
    /// Returns the label of this disk, if the label can be read.
    pub fn label(&self) -> Option<&Label> {
        self.content.label()
    }
}

impl DiskContent {
    /// Returns the label in the label areas, if the label can be read.
    pub fn label(&self) -> Option<&Label> {
        match self {
            Self::Label(label, _) => Some(label),
            _ => None,
        }
    }
}

impl LostLabel {
    /// Returns the end of the inspected disk that has lost its label, if one has.
    pub fn of(found: &Inspection) -> Option<Self> {
        if found.has_lost_its_front() && !seeded::on(Bug::OverwrittenBelieved) {
            Some(Self::AtFront)
        } else {
            found.has_lost_its_end().then_some(Self::AtEnd)
        }
    }
}

impl From<AreaContent> for DiskContent {
    fn from(seen: AreaContent) -> Self {
        match seen {
            AreaContent::Label(label, number) => Self::Label(label, number),
            AreaContent::Wrong(wrong) => Self::Wrong(wrong),
            AreaContent::Other(ForeignContent::Blank | ForeignContent::TooSmall(_)) => Self::Blank,
            AreaContent::Other(ForeignContent::Holds(what)) => Self::Holds(what.to_string()),
            AreaContent::Other(ForeignContent::Unknown) => {
                Self::Holds("bytes of an unknown format".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests;
