//! The commands of a pool besides those of all devices with volumes.

use block::control::{Nothing, Reach, Verb, VerbInfo};
use serde::{Deserialize, Serialize};

/// The command that takes snapshots of vdisks, all at one instant.
pub struct Snapshot;

/// Arguments of [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotArgs {
    /// Names of the vdisks. The empty name is that of a versioned device itself.
    pub vdisks: Vec<String>,
    /// Label of the snapshots, such as `monday`; without one they have only numbers.
    #[serde(default)]
    pub label: Option<String>,
    /// Whether the answer does not wait for a flush. The snapshots are durable after the next flush.
    #[serde(default)]
    pub is_async: bool,
    /// Whether to report only whether the command would succeed.
    #[serde(default)]
    pub dry_run: bool,
}

/// Answer to [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshots {
    /// Number of the snapshot of each vdisk, in the order of the arguments; none after a dry run.
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
    /// Whether to report only whether the command would succeed.
    #[serde(default)]
    pub dry_run: bool,
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

/// The command that sets how many bytes a vdisk may hold with its snapshots.
pub struct SetQuota;

/// Arguments of [`SetQuota`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaArgs {
    /// Name of the vdisk, as in [`SnapshotArgs`].
    pub vdisk: String,
    /// The bytes; 0 for no limit.
    pub quota_bytes: u64,
    /// Whether to report only whether the command would succeed.
    #[serde(default)]
    pub dry_run: bool,
}

impl Verb for SetQuota {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.quota",
        "set how many bytes a vdisk may hold with its snapshots",
        "vdisks",
        Reach::Here,
    );
    type Args = QuotaArgs;
    type Answer = Nothing;
}

/// The command that gives a vdisk the content of one of its snapshots.
pub struct RollBack;

/// Arguments of [`RollBack`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RollBackArgs {
    /// Name of the snapshot, such as `web@monday`.
    pub to: String,
    /// Whether to report only whether the command would succeed.
    #[serde(default)]
    pub dry_run: bool,
}

/// Answer to [`RollBack`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RolledBack {
    /// Number of the snapshot with the content before, if that was in no snapshot; `None` after a dry run.
    pub taken: Option<u64>,
}

impl Verb for RollBack {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.rollback",
        "give a vdisk the content of one of its snapshots, and keep all snapshots",
        "vdisks",
        Reach::Here,
    );
    type Args = RollBackArgs;
    type Answer = RolledBack;
}

/// Most items of one page of a list.
pub const PAGE_MAX: usize = 1024;

/// The command that lists vdisks.
pub struct ListVdisks;

/// Arguments of [`ListVdisks`]: a page of the list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VdisksAfter {
    /// Only vdisks with later names are listed; empty for the first page.
    pub after: String,
    /// Most vdisks of the page, at most [`PAGE_MAX`].
    pub most: usize,
}

/// A page of the list of vdisks, in the order of their names. It has fewer than the wanted only if it is the last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Vdisks {
    /// The vdisks.
    pub vdisks: Vec<VdiskView>,
}

/// A vdisk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VdiskView {
    /// Name of the vdisk in its pool.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Name of the snapshot that it was cloned from. That of a removed vdisk begins with `@`.
    pub origin: Option<String>,
    /// Time when it was made, in seconds since 1970.
    pub made_unix_s: u64,
    /// When it takes snapshots of itself.
    #[serde(default)]
    pub taking: Taking,
    /// Number of its last snapshots that a rule keeps; 0 for no rule.
    #[serde(default)]
    pub keep_last: u64,
    /// Seconds of an interval of which a rule keeps the first snapshot; 0 for no rule.
    #[serde(default)]
    pub keep_interval_s: u64,
    /// Bytes of data that its head has and that are its own, not those of an origin, as of the last checkpoint.
    #[serde(default)]
    pub own_bytes: u64,
    /// Bytes of `own_bytes` that may be overwritten, and that folds have yet to find: at most so many.
    #[serde(default)]
    pub unfound_bytes: u64,
    /// Bytes of data that only its snapshots have.
    #[serde(default)]
    pub snapshot_bytes: u64,
    /// Bytes of its maps.
    #[serde(default)]
    pub map_bytes: u64,
    /// Bytes that it may hold with its snapshots and maps; 0 for no limit.
    #[serde(default)]
    pub quota_bytes: u64,
}

impl Verb for ListVdisks {
    const INFO: &'static VerbInfo =
        &VerbInfo::new::<Self>("vdisk.list", "list vdisks", "vdisks", Reach::Here);
    type Args = VdisksAfter;
    type Answer = Vdisks;
}

/// The command that lists the snapshots of a vdisk.
pub struct ListSnapshots;

/// Arguments of [`ListSnapshots`]: a page of the list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotsFrom {
    /// Name of the vdisk, as in [`SnapshotArgs`].
    pub vdisk: String,
    /// Only snapshots from this number on are listed; 1 for the first page.
    pub from: u64,
    /// Most snapshots of the page, at most [`PAGE_MAX`].
    pub most: usize,
}

/// A page of the list of snapshots, in the order of their numbers. It has fewer than the wanted only if it is the last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotPage {
    /// The snapshots.
    pub snapshots: Vec<SnapshotView>,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotView {
    /// Number of the snapshot.
    pub number: u64,
    /// Label of the snapshot, if it has one.
    pub label: Option<String>,
    /// Size of the vdisk at that time, in bytes.
    pub size_bytes: u64,
    /// Time when it was taken, in microseconds since 1970.
    pub taken_unix_us: u64,
    /// Number of clones and rollbacks that depend on it.
    pub clones: u32,
    /// Bytes that it alone holds, as of the last checkpoint: removing it frees them.
    #[serde(default)]
    pub alone_bytes: u64,
}

impl Verb for ListSnapshots {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.snapshots",
        "list the snapshots of a vdisk",
        "vdisks",
        Reach::Here,
    );
    type Args = SnapshotsFrom;
    type Answer = SnapshotPage;
}

/// The command that counts the bytes with data of a vdisk or a snapshot.
pub struct CountData;

/// Arguments of [`CountData`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataFrom {
    /// Name of the vdisk or the snapshot.
    pub version: String,
    /// First byte of the count; 0 for the first command.
    pub from_bytes: u64,
}

/// A part of the count, which reads the maps and takes time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataCount {
    /// Bytes that the vdisk has written, or one of its snapshots.
    pub own_bytes: u64,
    /// Bytes that it reads from the snapshot that it was cloned from.
    pub inherited_bytes: u64,
    /// First byte of the next command; `None` at the end.
    pub next_bytes: Option<u64>,
}

impl Verb for CountData {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.data",
        "count the bytes with data of a vdisk or a snapshot",
        "vdisks",
        Reach::Here,
    );
    type Args = DataFrom;
    type Answer = DataCount;
}

/// When a vdisk takes snapshots of itself, if it has changed since the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Taking {
    /// Only by command.
    #[default]
    ByCommand,
    /// After each such time, in microseconds.
    EveryUs(u64),
    /// Before each flush.
    WithFlush,
    /// After each write.
    WithWrite,
}

/// The command that sets when a vdisk takes snapshots of itself.
pub struct SetTaking;

/// Arguments of [`SetTaking`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TakingArgs {
    /// Name of the vdisk, as in [`SnapshotArgs`].
    pub vdisk: String,
    /// When it takes snapshots.
    pub taking: Taking,
    /// Whether to report only whether the command would succeed.
    #[serde(default)]
    pub dry_run: bool,
}

impl Verb for SetTaking {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.take",
        "set when a vdisk takes snapshots of itself",
        "vdisks",
        Reach::Here,
    );
    type Args = TakingArgs;
    type Answer = Nothing;
}

/// The command that removes the snapshots of a vdisk that a rule does not keep.
pub struct Keep;

/// Arguments of [`Keep`]. Snapshots with a label, with clones or with clients are kept by every rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeepArgs {
    /// Name of the vdisk, as in [`SnapshotArgs`].
    pub vdisk: String,
    /// Number of the last snapshots that are kept; 0 for none.
    #[serde(default)]
    pub last: u64,
    /// Seconds of an interval of which the first snapshot is kept; 0 for none. With 0 for both all are kept.
    #[serde(default)]
    pub interval_s: u64,
    /// Whether the rule is carried out once only. Otherwise it is carried out after each checkpoint, too.
    #[serde(default)]
    pub once: bool,
    /// Whether to report only the number of snapshots that would be removed.
    #[serde(default)]
    pub dry_run: bool,
}

/// Answer to [`Keep`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Thinned {
    /// Number of removed snapshots.
    pub removed: u64,
}

impl Verb for Keep {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.keep",
        "remove the snapshots of a vdisk that a rule does not keep",
        "vdisks",
        Reach::Here,
    );
    type Args = KeepArgs;
    type Answer = Thinned;
}

/// The command that gives a snapshot a label, or takes it away.
pub struct SetLabel;

/// Arguments of [`SetLabel`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LabelArgs {
    /// Name of the snapshot.
    pub snapshot: String,
    /// The label; `None` for no label.
    pub label: Option<String>,
    /// Whether to report only whether the command would succeed.
    #[serde(default)]
    pub dry_run: bool,
}

impl Verb for SetLabel {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "vdisk.label",
        "give a snapshot a label, or take it away",
        "vdisks",
        Reach::Here,
    );
    type Args = LabelArgs;
    type Answer = Nothing;
}
