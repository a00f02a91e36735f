//! The labelled disks of a graph: matches disks to their labels, marks disks as open, and records every change in
//! labels.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the options for opening labelled disks |
//! | `probe.rs` | probing the disks that a spec names |
//! | `diagnosis/` | findings about labels, and the operator's decisions that waive findings |
//! | `foreseen.rs` | the errors for which a start would refuse a graph |
//! | `text.rs` | the spec as labels contain it |
//! | `open.rs` | the labels of an open graph |
//! | `slot.rs` | writing the label of one disk |
//! | `kept.rs` | the states of devices in labels |
//! | `absent.rs` | the device in the place of an absent disk or device |
//! | `overwritten.rs` | disks whose content must be copied again from other disks |
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

pub(crate) use absent::Absent;
pub use diagnosis::{
    Case, DiskContent, DiskFacts, Facts, Finding, LostLabel, Waiver, counting, diagnose,
    duplicate_of, label_findings, newest, older, split_brain, split_brain_of,
};
pub use foreseen::objections;
pub use kept::{DiskLabel, LabelStateStore, Permits};
pub use open::{DataSource, Inspected, Labels};
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
    /// Whether the graph may be opened without absent disks, if the devices of the graph can serve all bytes without
    /// the absent disks.
    pub degraded: bool,
    /// Names of the disks that get a new label, whatever the disks contain.
    pub wipe: Vec<String>,
    /// Names of the disks that the operator has replaced by disks at other paths.
    pub replaced: Vec<String>,
    /// The disks that have been enlarged since they were labelled, and whose new bytes are used from now on. The number
    /// is the size in bytes that a preview assumes, if the disk is still smaller.
    pub grow: BTreeMap<String, u64>,
    /// Whether to open disks although their labels name another machine as holder (`--take`).
    pub take: bool,
    /// Whether devices may go on without data that was durable and is missing (`--accept-loss`).
    pub accept_loss: bool,
    /// Whether the spec may omit disks and devices that labels of the graph name, because the operator has changed the
    /// spec.
    pub changes: bool,
}
