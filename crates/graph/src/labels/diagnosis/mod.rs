//! Diagnosis of the labels of a graph. Pure: facts go in, findings come out, each with the decision that waives it.
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

pub use identity::Binding;
pub(super) use identity::{Bound, identify};
pub(super) use service::{BoundDisks, objections_of, serve, truncated};

/// The inputs of a diagnosis.
pub struct Facts<'f> {
    /// Name of the graph.
    pub graph: &'f str,
    /// The disks that its spec names.
    pub disks: &'f [DiskFacts],
    /// Plan of the graph over these disks; `None` while the disks are not matched.
    pub planned: Option<&'f Planned>,
}

/// A disk that a spec names, and the facts found there, before any decision.
#[derive(Clone)]
pub struct DiskFacts {
    /// Its name in the spec.
    pub name: String,
    /// Its place, for people: a path.
    pub place: String,
    /// The content of the label areas.
    pub content: DiskContent,
    /// Total bytes; zero if it is missing.
    pub size: u64,
    /// Its block size.
    pub block_size: u32,
    /// Whether it may only be read.
    pub read_only: bool,
    /// The end that has lost its label, if one has.
    pub lost: Option<LostLabel>,
}

/// The content of the label areas of a disk.
#[derive(Clone)]
pub enum DiskContent {
    /// Nothing that answers; with the error of the system.
    Missing(Error),
    /// No file yet, but this start would make it.
    ToBeMade,
    /// Zeros at both ends.
    Blank,
    /// Bytes of another program, in words.
    Holds(String),
    /// A label that cannot be used.
    Wrong(Wrong),
    /// A label, and the number of the copies that it was read from.
    Label(Box<Label>, usize),
}

/// The end of a disk that has lost the label that it had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostLabel {
    /// Another program has written to the front, and maybe to the data behind it.
    AtFront,
    /// The disk was cut short and made long again, or another program has written to its end.
    AtEnd,
}

/// A finding about the disks of a graph.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The sort of finding.
    pub case: Case,
    /// Its reason, the disk or device as its place, its message, and the next step.
    pub error: Error,
    /// Whether it refuses a start.
    pub blocks: bool,
    /// The decisions that waive it. With one of these it does not refuse a start.
    pub waived_by: &'static [Waiver],
}

/// The sort of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Case {
    /// `--wipe` of a disk that the spec does not have.
    UnknownDisk,
    /// A disk without a label that holds bytes of another program.
    NotBlank,
    /// A label of a newer version of Cairn.
    Newer,
    /// A label, or a spec in a label, that cannot be read.
    Damaged,
    /// A disk of another graph, or one that this graph does not have any more.
    Foreign,
    /// Two disks with one label.
    Duplicate,
    /// A disk that another machine has open.
    HeldByOtherHost,
    /// Disks of one graph that were changed independently of each other.
    SplitBrain,
    /// A disk or a device that labels name and that the spec does not have.
    Forgotten,
    /// A blank disk in the place of one that has a label.
    Replaced,
    /// An absent disk with bytes that are on no other disk.
    Missing,
    /// An absent disk that the graph can do without.
    Degraded,
    /// A disk that has fewer bytes than its label says.
    Truncated,
    /// A disk without its label at the end.
    LostEnd,
    /// A disk without its label at the front.
    LostFront,
    /// A disk from an earlier time.
    Stale,
    /// A disk without a label that may only be read.
    Unwritable,
    /// A device that does not open without a decision about its data.
    Undecided,
}

/// A decision of an operator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Waiver {
    /// `--degraded`: the graph goes on without its absent disks.
    Degraded,
    /// `--take`: the machine that has the disks open is gone for good.
    Take,
    /// `--wipe DISK`: the disk is taken in as a new one. It is part of the question, since labels on it do not count
    /// then.
    Wipe,
    /// `--trust MEMBER`: the bytes of a member count. It is part of the plan.
    Trust,
}

/// Returns all findings about the labels in `facts`.
///
/// `asked` contains the question: the machine that asks, the disks that it wipes, and whether the spec may leave disks
/// away. Its waivers, `degraded` and `take`, change no finding: see [`Finding::refuses`].
pub fn diagnose(facts: &Facts<'_>, asked: &Opening) -> Vec<Finding> {
    let (binding, mut findings) = identify(facts.graph, facts.disks, asked);
    // Disks that were not matched cannot be served from.
    if let Some(planned) = facts.planned.filter(|_| !binding.disks.is_empty()) {
        let disks = BoundDisks { disks: facts.disks, binding: &binding };
        findings.extend(serve(disks, planned, asked));
        findings.extend(objections_of(disks, planned));
    }
    findings
}

impl Waiver {
    /// Whether a start with these decisions waives findings by this one.
    pub fn is_given(self, asked: &Opening) -> bool {
        match self {
            Self::Degraded => asked.degraded,
            Self::Take => asked.take,
            // They lead to another finding, or to none.
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

    /// Whether it refuses a start with the waivers of `asked`.
    pub fn refuses(&self, asked: &Opening) -> bool {
        self.blocks && !self.waived_by.iter().any(|waiver| waiver.is_given(asked))
    }

    /// Returns the disk or device that it is about.
    pub fn place(&self) -> Option<&str> {
        self.error.place()
    }

    /// Returns its reason.
    pub fn reason(&self) -> Option<Reason> {
        self.error.reason()
    }
}

/// Returns the label that counts among those of one graph: the highest epoch, then the highest broadcast, then the
/// smallest uuid. `None` if all disks are still being provisioned, or there is none.
///
/// Every part of Cairn uses this order: a start, a check, an import, a repair, an undo. At one epoch all labels have the same
/// spec, or there is a [`split_brain`]. `sequence` counts the updates of one disk, so it does not compare two.
pub fn newest<'l>(labels: impl IntoIterator<Item = &'l Label>) -> Option<&'l Label> {
    let epoch = |label: &Label| match seeded::on(Bug::EpochIgnored) {
        true => label.sequence,
        false => label.epoch,
    };
    let key = |label: &&Label| (epoch(label), label.broadcast, Reverse(label.disk));
    counting(labels).into_iter().max_by_key(key)
}

/// Returns the labels that take part in that order. A provisioning disk takes part once the newest label of the other
/// disks names it. An undone change may have written such a label last.
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

/// Returns a label that has another spec than the label that counts, at the same epoch of the same graph.
pub fn split_brain<'l>(
    newest: &Label,
    labels: impl IntoIterator<Item = &'l Label>,
) -> Option<&'l Label> {
    labels.into_iter().find(|label| {
        let is_same = label.graph == newest.graph && label.epoch == newest.epoch;
        is_same && label.spec != newest.spec
    })
}

/// Returns the findings about one label that keep `here` from writing it: features that this version does not know, and
/// another machine that has the disk open.
pub fn label_findings(name: &str, place: &str, label: &Label, here: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    if label.unknown_read_only != 0 {
        let bits = label.unknown_read_only;
        let words = format!(
            "{place} has a label that this version of Cairn must not write (features {bits:#x})"
        );
        let error = Error::because(Reason::LabelNewer, words).next("use a newer version").at(name);
        findings.push(Finding::new(Case::Newer, error, &[Waiver::Wipe]));
    }
    if let Some(other) = label.holder.as_ref().filter(|holder| holder.id != here.id) {
        let words = format!("{place} is open on the machine {other}");
        let next = "stop it there; if that machine is gone for good, --take";
        let error = Error::because(Reason::LabelHeldByOtherHost, words).next(next).at(name);
        findings.push(Finding::new(Case::HeldByOtherHost, error, &[Waiver::Take]));
    }
    findings
}

/// Returns the finding about two places with one label: one is a copy, and no label shows which.
pub fn duplicate_of(one: &str, two: &str, disk: &str, graph: &str) -> Finding {
    let words =
        format!("{one} and {two} are both disk {disk:?} of {graph:?}: one is a copy of the other");
    let error = Error::because(Reason::LabelDuplicate, words).next("take one away");
    Finding::new(Case::Duplicate, error, &[])
}

/// Returns the finding about two labels of a [`split_brain`].
pub fn split_brain_of(newest: &Label, other: &Label) -> Finding {
    let (one, two) = (&newest.disk_name, &other.disk_name);
    let words = format!(
        "{one:?} and {two:?} were opened apart, and each says something else of the graph since"
    );
    let error = Error::because(Reason::LabelSplitBrain, words);
    let error = error.next("leave one of them away, and --degraded");
    Finding::new(Case::SplitBrain, error, &[])
}

/// Returns the disks that are older than others: their broadcast is below an acknowledged broadcast, which every disk
/// that was present at that time has.
pub fn older<'l>(labels: impl Iterator<Item = &'l Label> + Clone) -> BTreeSet<Uuid> {
    let complete = labels.clone().map(|label| label.acked_broadcast).max().unwrap_or(0);
    let complete = if seeded::on(Bug::OlderServes) { 0 } else { complete };
    let complete = complete.saturating_sub(u64::from(seeded::on(Bug::OlderByOneServes)));
    labels.filter(|label| label.broadcast < complete).map(|label| label.disk).collect()
}

impl DiskFacts {
    /// Returns its label, if it can be read.
    pub fn label(&self) -> Option<&Label> {
        self.content.label()
    }
}

impl DiskContent {
    /// Returns the label, if there is one that can be read.
    pub fn label(&self) -> Option<&Label> {
        match self {
            Self::Label(label, _) => Some(label),
            _ => None,
        }
    }
}

impl LostLabel {
    /// Returns the end of a disk that has lost its label, if one has.
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
                Self::Holds("bytes of something unknown".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests;
