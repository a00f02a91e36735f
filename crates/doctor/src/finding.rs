//! The findings of a check.

use block::findings::{self, Soundness};
use graph::labels::{Case, Opening, Waiver};

/// Result of the check of one graph, with its findings.
pub type Checked = findings::Checked<Finding>;

/// One finding of the check of a graph.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The sort of the finding, by its cause.
    pub sort: Sort,
    /// How severe the finding is for the stored data.
    pub soundness: Soundness,
    /// Name of the disk or device concerned, if there is one.
    pub name: Option<String>,
    /// The message of the finding.
    pub words: String,
    /// The next step for the operator; empty if there is none.
    pub next: String,
    /// Whether a start of the graph is refused because of the finding.
    pub blocks: bool,
    /// The decisions of the operator that waive the finding.
    pub waived_by: &'static [Waiver],
}

impl Finding {
    /// Whether a start of the graph with the decisions `asked` of the operator is refused because of the finding.
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

    /// Adds the next step for the operator to the finding.
    #[must_use]
    pub(crate) fn next(self, next: &str) -> Self {
        Self { next: next.to_owned(), ..self }
    }
}

impl From<Finding> for findings::Finding {
    fn from(found: Finding) -> Self {
        let Finding { soundness, name, words, next, .. } = found;
        Self { soundness, name, words, next }
    }
}

/// The sort of a finding of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sort {
    /// A finding about labels, of the case that a start of the graph reports as well.
    Label(Case),
    /// A damaged copy of a label, of which another copy is intact.
    DamagedCopy,
    /// A disk whose label has an earlier epoch than the newest label; the next start of the graph updates it.
    Behind,
    /// A disk that was removed from the graph, or whose provisioning did not complete.
    Removed,
    /// A spec in labels that this version of Cairn cannot plan.
    Unplannable,
    /// A disk that was not checked, because another process has the disk open.
    Held,
    /// A disk that cannot be read.
    Unreadable,
    /// A state in a label that its device cannot read.
    UnreadableState,
    /// A member without a state of the redundant device above it in its label.
    NoState,
    /// A device that must resync data after the next start of the graph.
    Resync,
    /// An object store that was not checked, with the reason.
    Unchecked,
    /// Damage in the object store of a device.
    DamagedObjects,
}
