//! Results of a check.

use graph::labels::{Case, Opening, Waiver};
use meta::Uuid;

/// Result of a check of one graph.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Name of the graph.
    pub graph: String,
    /// Its uuid.
    pub uuid: Uuid,
    /// Epoch of the label that counts.
    pub change: u64,
    /// The worst finding.
    pub soundness: Soundness,
    /// The disks that were found, by name.
    pub disks: Vec<CheckedDisk>,
    /// States of devices in the labels.
    pub kept: Vec<CheckedDevice>,
    /// Everything that is not in order, and notes.
    pub findings: Vec<Finding>,
}

/// A labelled disk of a checked graph.
#[derive(Clone, Debug)]
pub struct CheckedDisk {
    /// Its name.
    pub name: String,
    /// Its place.
    pub place: String,
    /// Epoch of its label.
    pub change: u64,
    /// Whether a repair writes its label anew.
    pub to_renew: bool,
}

/// The state of a device.
#[derive(Clone, Debug)]
pub struct CheckedDevice {
    /// Name of the device.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Its newest state, in words.
    pub words: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Soundness {
    /// All is in order.
    Sound,
    /// Something is damaged or missing, but there is another copy.
    Repairable,
    /// A process or another machine has a disk open.
    InUse,
    /// Something is lost, or a start needs a decision.
    Damaged,
}

/// A result of a check.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The sort of finding.
    pub sort: Sort,
    /// How bad it is.
    pub soundness: Soundness,
    /// The disk or device concerned, if there is one.
    pub name: Option<String>,
    /// The message.
    pub words: String,
    /// The next step; empty if there is none.
    pub next: String,
    /// Whether a start is refused because of this finding.
    pub blocks: bool,
    /// The decisions that waive it.
    pub waived_by: &'static [Waiver],
}

impl Finding {
    /// Whether a start with the decisions of `asked` is refused because of this finding.
    pub fn refuses(&self, asked: &Opening) -> bool {
        self.blocks && !self.waived_by.iter().any(|waiver| waiver.is_given(asked))
    }

    /// Returns a finding that refuses no start.
    pub(crate) fn note(
        sort: Sort,
        soundness: Soundness,
        name: Option<&str>,
        words: String,
    ) -> Self {
        let (name, next) = (name.map(str::to_owned), String::new());
        Self { sort, soundness, name, words, next, blocks: false, waived_by: &[] }
    }
}

/// The sort of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sort {
    /// A finding about labels that a start reports as well.
    Label(Case),
    /// A copy of a label that is damaged while another one is sound.
    DamagedCopy,
    /// A disk at an earlier epoch, which its next start updates.
    Behind,
    /// A disk that was removed from the graph, or was never completely added to it.
    Removed,
    /// A spec in labels that this version cannot plan.
    Unplannable,
    /// A disk that another process has open.
    Held,
    /// A disk that cannot be read.
    Unreadable,
    /// A state of a device that cannot be read.
    UnreadableState,
    /// A member without a state of its redundant device.
    NoState,
    /// Data that a device copies once it is served.
    Resync,
    /// An object store that was not checked.
    NotLookedAt,
    /// Damage in an object store.
    DamagedObjects,
    /// A disk at another place than in its spec.
    OtherPlace,
}
