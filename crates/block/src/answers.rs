//! Answers of a running graph to questions of the operator, which the control socket passes on unchanged.

use serde::{Deserialize, Serialize};

/// A step on the way of one byte from an export down to the disks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocateStep {
    /// Name of the device at this step.
    pub name: String,
    /// Kind of the device at this step.
    pub kind: String,
    /// Offset of the byte in the device's address space, in bytes.
    pub offset_bytes: u64,
    /// Length of the label before the data of a labelled disk, in bytes. The offset on the raw disk is larger by this
    /// number.
    pub label_bytes: u64,
    /// Path of the file or block device of a disk; `None` for other devices and other disks.
    #[serde(default)]
    pub path: Option<String>,
    /// Offset of the byte in the file or block device at `path`, in bytes.
    #[serde(default)]
    pub path_offset_bytes: Option<u64>,
    /// Transformation of the byte on the way from the device above to this device, in a word; may be empty.
    pub how: String,
    /// Places of the byte in the lowers of this device: several if the device keeps copies.
    pub below: Vec<LocateStep>,
}

/// The effect of a live change of a graph on one disk, device or export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangeLine {
    /// `add`, `remove`, `change`, or `reopen`: the same options, but on top of a device that changes.
    pub verb: String,
    /// Name of the disk, device or export in the spec.
    pub name: String,
    /// Description of the effect for the operator.
    pub words: String,
}
