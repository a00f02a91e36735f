//! Results of a check of the labels of a graph.

use serde::{Deserialize, Serialize};

/// Result of a check of the labels of one graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked<F = Finding> {
    /// Name of the graph.
    pub graph: String,
    /// Uuid of the graph, from its labels.
    pub uuid: String,
    /// Number of the latest change of the graph that its newest label records.
    pub change: u64,
    /// The worst grade of all findings.
    pub soundness: Soundness,
    /// The disks of the graph that the check found.
    pub disks: Vec<CheckedDisk>,
    /// The newest states of devices that the labels of the graph contain, in words.
    pub kept: Vec<CheckedDevice>,
    /// Faults of the labels, and notes for the operator.
    pub findings: Vec<F>,
}

impl<F> Checked<F> {
    /// Returns the same result with `each` applied to each finding.
    pub fn map<T>(self, each: impl FnMut(F) -> T) -> Checked<T> {
        let Self { graph, uuid, change, soundness, disks, kept, findings } = self;
        let findings = findings.into_iter().map(each).collect();
        Checked { graph, uuid, change, soundness, disks, kept, findings }
    }
}

/// Grade of one finding about labels, or of the whole check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Soundness {
    /// The labels have no fault.
    Sound,
    /// A part of a label is damaged or missing, but another copy holds all of the data.
    Repairable,
    /// A disk of the graph is open in a process or on another machine.
    #[serde(rename = "in use")]
    InUse,
    /// A part of a label is lost: no copy holds it.
    Damaged,
}

/// A labelled disk of a graph, as a check of the labels found it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedDisk {
    /// Name of the disk.
    pub name: String,
    /// Path or address of the disk.
    pub place: String,
    /// Number of the latest change of the graph that the disk's label records.
    pub change: u64,
    /// Whether a repair would rewrite the label of the disk.
    pub to_renew: bool,
}

/// The newest state of a device in the labels of its graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedDevice {
    /// Name of the device.
    pub name: String,
    /// Kind of the device.
    pub kind: String,
    /// Summary of the newest state of the device, in words.
    pub words: String,
}

/// A fault or a note that a check of the labels of a graph has found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Grade of the finding.
    pub soundness: Soundness,
    /// Name of the disk or device that the finding concerns, if it concerns one.
    pub name: Option<String>,
    /// Description of the fault or note for the operator.
    pub words: String,
    /// Next step for the operator; empty if no step is needed.
    pub next: String,
}
