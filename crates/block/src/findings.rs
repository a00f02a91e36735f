//! Results of a check of the labels of graphs.

use serde::{Deserialize, Serialize};

/// Result of a check of the labels of a graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked<F = Finding> {
    /// Name of the graph.
    pub graph: String,
    /// Uuid of the graph in its labels.
    pub uuid: String,
    /// Change number in the newest label.
    pub change: u64,
    /// The worst of the findings.
    pub soundness: Soundness,
    /// The disks that were found.
    pub disks: Vec<CheckedDisk>,
    /// The states of devices in the labels, in words.
    pub kept: Vec<CheckedDevice>,
    /// Faults, and notes that are worth knowing.
    pub findings: Vec<F>,
}

impl<F> Checked<F> {
    /// Returns the same result with each finding replaced.
    pub fn map<T>(self, each: impl FnMut(F) -> T) -> Checked<T> {
        let Self { graph, uuid, change, soundness, disks, kept, findings } = self;
        let findings = findings.into_iter().map(each).collect();
        Checked { graph, uuid, change, soundness, disks, kept, findings }
    }
}

/// Grade of a finding or of a whole check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Soundness {
    /// No fault.
    Sound,
    /// Something is damaged or missing, but another copy holds all of the data.
    Repairable,
    /// A disk is open in a process or on another machine.
    #[serde(rename = "in use")]
    InUse,
    /// Something is lost.
    Damaged,
}

/// A disk with a label.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedDisk {
    /// Name of the disk.
    pub name: String,
    /// Path or address of the disk.
    pub place: String,
    /// Change number in its label.
    pub change: u64,
    /// Whether a repair would rewrite its label.
    pub to_renew: bool,
}

/// The persistent state of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedDevice {
    /// Name of the device.
    pub name: String,
    /// Kind of the device.
    pub kind: String,
    /// Summary of its newest state.
    pub words: String,
}

/// A finding of a check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Its grade.
    pub soundness: Soundness,
    /// Name of the disk or device that it concerns, if it concerns one.
    pub name: Option<String>,
    /// Description of the finding.
    pub words: String,
    /// Next step; empty if nothing needs to be done.
    pub next: String,
}
