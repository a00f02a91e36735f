//! Labelled disks of a graph: finding them by their labels, marking them as open, recording every change.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the options for opening |
//! | `probe.rs` | looking at the disks that a spec names |
//! | `diagnosis/` | findings about labels, with the decisions that waive them |
//! | `foreseen.rs` | refusals and objections of a start |
//! | `text.rs` | the spec as labels keep it |
//! | `open.rs` | labels of an open graph |
//! | `slot.rs` | writing the label of one disk |
//! | `kept.rs` | states of devices in labels |
//! | `absent.rs` | a disk that is absent |
//! | `overwritten.rs` | copying disks anew because their bytes do not count |
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

/// The options for opening the labelled disks of a graph.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The machine that opens the disks.
    pub machine: Machine,
    /// Whether the graph may be opened without absent disks that its devices can do without.
    pub degraded: bool,
    /// Names of the disks that get a new label whatever they contain.
    pub wipe: Vec<String>,
    /// Names of the disks that the operator has replaced by other disks.
    pub replaced: Vec<String>,
    /// Disks that have grown since they were labelled, and are used in full from now on. The number is a minimum for
    /// the size of the disk, to preview a larger one.
    pub grow: BTreeMap<String, u64>,
    /// Whether disks are opened although their labels name another machine as holder.
    pub take: bool,
    /// Whether the spec may omit disks and devices that labels of the graph name, because the operator has changed the
    /// spec.
    pub changes: bool,
}
