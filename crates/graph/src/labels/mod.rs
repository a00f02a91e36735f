//! Labelled disks of a graph: found by their labels, marked as open, told of every change.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | what is asked, and what is refused |
//! | `probe.rs` | looking at the disks that a spec names |
//! | `diagnosis/` | findings about labels, with the decisions that waive them |
//! | `foreseen.rs` | what a start would be told |
//! | `text.rs` | the spec as labels keep it |
//! | `open.rs` | labels of a graph that is open |
//! | `slot.rs` | how the label of one disk is written |
//! | `kept.rs` | what a device keeps in them |
//! | `absent.rs` | a disk that is not there |
//! | `overwritten.rs` | copying disks anew whose bytes do not count |
//! | `raw.rs` | a raw disk that has a label |

#![forbid(unsafe_code)]

mod absent;
mod diagnosis;
mod foreseen;
mod kept;
mod open;
mod overwritten;
mod probe;
mod raw;
mod slot;
mod text;

use std::collections::BTreeMap;

use meta::Machine;

pub use diagnosis::{
    Case, DiskContent, DiskFacts, Facts, Finding, LostLabel, Waiver, counting, diagnose,
    duplicate_of, label_findings, newest, older, split_brain, split_brain_of,
};
pub use foreseen::objections;
pub use kept::{DiskLabel, LabelStateStore};
pub use open::{Inspected, Labels, Place};
pub use overwritten::{forget_copies, objections_without_bytes};
pub use probe::{DiskPreview, Probe};
pub use raw::refuse_labelled;
pub(crate) use raw::{is_looked_at, refuse};
pub use text::{Remembered, disks};

/// How the labelled disks of a graph are opened.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Who opens them.
    pub machine: Machine,
    /// Whether the graph may come up without disks that its devices can do without.
    pub degraded: bool,
    /// Disks that are labelled whatever is on them.
    pub wipe: Vec<String>,
    /// Disks that are other ones from now on, as somebody says.
    pub replaced: Vec<String>,
    /// Disks of which all is used from now on, where they have grown since they were labelled; and how many bytes such
    /// a disk counts as, should it have fewer: to see what would become of a larger one.
    pub grow: BTreeMap<String, u64>,
    /// Whether disks are taken that another machine has open.
    pub take: bool,
    /// Whether the spec may leave away disks and devices that labels name: somebody has changed it.
    pub changes: bool,
}
