//! Answers of a graph that its control socket passes on as they are.

use serde::{Deserialize, Serialize};

/// A step on the way of a byte down to the disks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Name of the device.
    pub name: String,
    /// Kind of the device.
    pub kind: String,
    /// Offset of the byte.
    pub offset_bytes: u64,
    /// Bytes of label before the data of a labelled disk. The offset on the raw disk is larger by this number.
    pub label_bytes: u64,
    /// Transformation of the bytes on the way here, in a word; may be empty.
    pub how: String,
    /// The places of the byte below: several if it is kept in copies.
    pub below: Vec<Place>,
}

/// The effect of a change on a disk, a device or an export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangeLine {
    /// `add`, `remove`, `change`, or `reopen`: unchanged itself, on top of something that changes.
    pub verb: String,
    /// Name of the disk, device or export.
    pub name: String,
    /// Description of the effect.
    pub words: String,
}
