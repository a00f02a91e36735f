//! Results of a check of the labels of graphs.

use serde::{Deserialize, Serialize};

/// Result of a check of the labels of a graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked<F = Finding> {
    /// Name of the graph.
    pub graph: String,
    /// Uuid of the graph, from its labels.
    pub uuid: String,
    /// Number of the latest change of the graph in its newest label.
    pub change: u64,
    /// The worst grade among the findings.
    pub soundness: Soundness,
    /// The disks of the graph that were found.
    pub disks: Vec<CheckedDisk>,
    /// The newest states of devices in the labels of the graph, in words.
    pub kept: Vec<CheckedDevice>,
    /// Faults of the labels, and notes that are worth knowing.
    pub findings: Vec<F>,
}

impl<F> Checked<F> {
    /// Returns the same result with each finding converted by `each`.
    pub fn map<T>(self, each: impl FnMut(F) -> T) -> Checked<T> {
        let Self { graph, uuid, change, soundness, disks, kept, findings } = self;
        let findings = findings.into_iter().map(each).collect();
        Checked { graph, uuid, change, soundness, disks, kept, findings }
    }
}

/// Grade of a finding about labels, or of a whole check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Soundness {
    /// No fault was found.
    Sound,
    /// Something is damaged or missing in the labels, but another copy holds all of the data.
    Repairable,
    /// A disk of the graph is open in a process or on another machine.
    #[serde(rename = "in use")]
    InUse,
    /// Something is lost: no copy holds it.
    Damaged,
}

/// A disk with a label, as a check of labels found it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedDisk {
    /// Name of the disk.
    pub name: String,
    /// Path or address of the disk.
    pub place: String,
    /// Number of the latest change of the graph in the disk's label.
    pub change: u64,
    /// Whether a repair would rewrite the label of the disk.
    pub to_renew: bool,
}

/// The newest state of a device in the labels of its graph, in words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedDevice {
    /// Name of the device.
    pub name: String,
    /// Kind of the device.
    pub kind: String,
    /// Summary of the newest state of the device.
    pub words: String,
}

/// A finding of a check of the labels of a graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Grade of the finding.
    pub soundness: Soundness,
    /// Name of the disk or device that the finding concerns, if it concerns one.
    pub name: Option<String>,
    /// Description of the finding.
    pub words: String,
    /// Next step for a person; empty if nothing needs to be done.
    pub next: String,
}
