//! Results of a check.

use block::findings::{self, Soundness};
use graph::labels::{Case, Opening, Waiver};

/// Result of a check of one graph.
pub type Checked = findings::Checked<Finding>;

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

    /// Adds the next step.
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
}
