//! The commands of a pool besides those of all devices with volumes.

use block::control::{Nothing, Reach, Verb, VerbInfo};
use serde::{Deserialize, Serialize};

/// The command that takes snapshots of vdisks, all at one instant.
pub struct Snapshot;

/// Arguments of [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotArgs {
    /// Names of the vdisks.
    pub vdisks: Vec<String>,
    /// Label of the snapshots, such as `monday`; without one they have only numbers.
    #[serde(default)]
    pub label: Option<String>,
    /// Whether the answer does not wait for a flush. The snapshots are durable after the next flush.
    #[serde(default)]
    pub is_async: bool,
}

/// Answer to [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshots {
    /// Number of the snapshot of each vdisk, in the order of the arguments.
    pub numbers: Vec<u64>,
}

impl Verb for Snapshot {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.snapshot",
        "take a snapshot of each vdisk, all at one instant",
        "vdisks",
        Reach::Here,
    );
    type Args = SnapshotArgs;
    type Answer = Snapshots;
}

/// The command that makes vdisks with the content of a snapshot.
pub struct CloneOf;

/// Arguments of [`CloneOf`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CloneArgs {
    /// Name of the snapshot, such as `gold@v1`; or of a vdisk, of which a snapshot is taken first.
    pub of: String,
    /// Names of the vdisks to make.
    pub names: Vec<String>,
}

impl Verb for CloneOf {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.clone",
        "make vdisks with the content of a snapshot",
        "vdisks",
        Reach::Here,
    );
    type Args = CloneArgs;
    type Answer = Nothing;
}
