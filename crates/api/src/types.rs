//! The requests and answers of the control socket. Fields are only ever added.

use std::collections::BTreeMap;
use std::path::PathBuf;

use block::answers::ChangeLine;
use block::control::job::Action;
use block::{Health, Member, Room, Scrub};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::KeptGraph;

/// A graph: its nodes, lowers before uppers, and its exports.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GraphView {
    /// Name of the graph.
    pub name: String,
    /// Process that serves it; absent in a plan.
    pub pid: Option<u32>,
    /// Disks and devices.
    pub nodes: Vec<NodeView>,
    /// The exports that clients see.
    pub exports: Vec<ExportView>,
}

/// A disk or device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeView {
    /// Name of the node.
    pub name: String,
    /// Kind of the node.
    pub kind: String,
    /// The way in which the node takes part in requests.
    pub power: Power,
    /// Names of its lowers.
    pub lowers: Vec<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block size in bytes: the unit of the offset and length of every request.
    pub block_size_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Properties of a disk, in words: `O_DIRECT`, `in memory`.
    pub words: String,
    /// Health of the node; `ok` in a plan.
    pub health: Health,
}

/// The way in which a node takes part in requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// A disk on real storage.
    Disk,
    /// A mapping of byte ranges, looked up in place.
    Table,
    /// Hooks that see requests and replies, and change nothing.
    Hooks,
    /// A device that issues requests of its own.
    Device,
}

/// An export.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExportView {
    /// Name of the export.
    pub name: String,
    /// Name of the node that it offers.
    pub on: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block size in bytes: the unit of the offset and length of every request.
    pub block_size_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// URIs for clients; empty in a plan.
    pub uris: Vec<String>,
    /// Path of its block device on this machine, if it is attached.
    #[serde(default)]
    pub attached: Option<String>,
}

/// A complete spec, with all defaults filled in.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpecText {
    /// Name of the graph.
    pub name: String,
    /// The spec, in TOML.
    pub text: String,
}

/// Status of a graph.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Name of the graph.
    pub graph: String,
    /// Process that serves it.
    pub pid: u32,
    /// Health of its worst device.
    pub health: Health,
    /// Number of connections now.
    pub connections: usize,
    /// Number of connections since the start.
    pub served: u64,
    /// Disks and devices, lowers before uppers.
    pub devices: Vec<DeviceStatus>,
    /// Exports that are attached as block devices of this machine.
    #[serde(default)]
    pub attached: Vec<Attached>,
    /// The daemon's view of the graph; absent if no daemon keeps it.
    #[serde(default)]
    pub kept: Option<KeptGraph>,
}

/// An export that is, or would be, a block device of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// Name of the block device.
    pub name: String,
    /// Name of the export.
    pub export: String,
    /// Path of the block device: `/dev/cairn/NAME`.
    pub path: String,
    /// Kernel device, `/dev/loopN` or `/dev/nbdN`; absent if nothing was done yet.
    pub device: Option<String>,
    /// Whether this kernel can hand the requests of a dead process to the next one.
    pub has_resend: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The kernel facility that makes an export a block device of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// A file of a FUSE mount, and a loop device on it.
    Fuse,
    /// The kernel's own NBD client.
    Nbd,
}

/// An export to attach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachRequest {
    /// Name of the export.
    pub export: String,
    /// Name of the block device; the name of the export by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Facility to use; the best that the kernel has by default.
    #[serde(default)]
    pub by: Option<Means>,
    /// Whether to report only whether it is possible.
    #[serde(default)]
    pub dry_run: bool,
}

/// A block device to detach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DetachRequest {
    /// Name of the block device.
    pub name: String,
    /// Whether to report only the effects.
    #[serde(default)]
    pub dry_run: bool,
}

/// Status of a disk or device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Name of the device.
    pub name: String,
    /// Kind of the device.
    pub kind: String,
    /// Health of the device.
    pub health: Health,
    /// One sentence, empty if there is nothing to report.
    pub summary: String,
    /// Members, if the device has any.
    pub members: Vec<Member>,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
    /// State of its scrubs, if the device keeps copies.
    #[serde(default)]
    pub scrub: Option<Scrub>,
    /// Space taken and available, if the device allocates blocks by itself.
    #[serde(default)]
    pub room: Option<Room>,
    /// Command to type next, if something should be done.
    pub next: Option<String>,
}

/// An event of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventLine {
    /// Number of the event, from 1 in each process. Missing numbers are events that came too fast to be kept.
    pub number: u64,
    /// Time of the event, in seconds since 1970.
    pub at_unix_s: u64,
    /// Type of the event: `member-failed`, `scrub-ended` and others.
    pub event: String,
    /// Name of the graph.
    pub graph: String,
    /// Name of the device.
    pub device: String,
    /// Name of the member, if the event concerns one.
    pub member: Option<String>,
    /// Details for people.
    pub words: String,
}

/// A scrub to start or stop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScrubRequest {
    /// Name of the device, or of the graph if only one device in it has copies.
    pub of: String,
    /// Whether to stop the current scrub instead of starting one.
    #[serde(default)]
    pub stop: bool,
    /// Whether to report only the status.
    #[serde(default)]
    pub dry_run: bool,
}

/// A change of the disks beneath a redundant device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskRequest {
    /// Name of the device. The name of the graph will do if only one device in it has the member, or any members.
    pub of: String,
    /// Name of the member: a disk of the spec, or one that the change adds to it.
    pub member: String,
    /// The change.
    pub change: DiskChange,
    /// Directory of the client, to which paths are relative.
    pub directory: PathBuf,
    /// Whether to label the disk regardless of its content.
    #[serde(default)]
    pub wipe: bool,
    /// Whether to report only the effects.
    #[serde(default)]
    pub dry_run: bool,
}

/// A change of a disk beneath a redundant device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskChange {
    /// Insert the disk at that path, as one more member.
    Insert(PathBuf),
    /// Replace the member by the disk at that path.
    Replace(PathBuf),
    /// Remove the member.
    Remove,
}

/// Request counts of all devices since the start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Top {
    /// Name of the graph.
    pub graph: String,
    /// Time of the reading in microseconds, on a monotonic clock.
    pub clock_us: u64,
    /// A row for each place where requests are counted.
    pub rows: Vec<TopRow>,
}

/// Request counts of one device, or of a run of fused tables.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TopRow {
    /// Name of the device; for fused tables, of the uppermost one.
    pub name: String,
    /// Kind of the device.
    pub kind: String,
    /// The other tables of the run.
    pub fused: Vec<String>,
    /// The counts; absent for hooks, which requests pass without being counted.
    pub counts: Option<Counts>,
}

/// Request counts since the start.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Requests begun, by verb.
    pub ops: BTreeMap<String, u64>,
    /// Bytes of these requests, by verb.
    pub bytes: BTreeMap<String, u64>,
    /// Failed requests.
    pub errors: u64,
    /// Requests in flight.
    pub in_flight: u32,
}

/// A byte of an export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Byte {
    /// Name of the export.
    pub export: String,
    /// Offset of the byte.
    pub offset: u64,
}

/// The number of the last event that is known already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventsAfter {
    /// The number; 0 for all events.
    #[serde(default)]
    pub after: u64,
}

/// A member, for `fail` and `resync`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberRequest {
    /// Name of the device, or of the graph if only one device in it has such a member.
    pub of: String,
    /// Name of the member.
    pub member: String,
    /// Whether to report only the status, and whether it is possible.
    #[serde(default)]
    pub dry_run: bool,
}

/// A command to a device. The kind of the device declares its verbs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CommandRequest {
    /// Name of the device.
    pub device: String,
    /// Verb, for example `crypt.keys`.
    pub verb: String,
    /// Arguments by name.
    pub args: Value,
}

/// The reason why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// Exit code of a command that ends with this problem.
    pub exit: u8,
    /// One sentence with the value and the limit. Several sentences are on lines of their own.
    pub message: String,
    /// Next step for a person, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Stable code of the reason, if the exit code alone does not determine it: `docs/reasons.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Problem {
    /// Returns a problem with its exit code and its message.
    pub fn new(exit: u8, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), next: None, reason: None }
    }

    /// Returns the same problem with the next step for a person.
    pub fn next(self, step: impl Into<String>) -> Self {
        Self { next: Some(step.into()), ..self }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        match &self.next {
            Some(next) => write!(f, ". Next: {next}"),
            None => Ok(()),
        }
    }
}

/// A spec to apply to a running graph.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ApplyRequest {
    /// File of the spec, as its name in messages.
    pub file: String,
    /// Text of the spec.
    pub text: String,
    /// Values of the variables in the spec, from the environment of the client.
    pub variables: BTreeMap<String, String>,
    /// The way of the change.
    #[serde(flatten)]
    pub way: ChangeWay,
}

/// The way in which a graph is changed to another spec.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChangeWay {
    /// Directory of the client, to which paths are relative.
    pub directory: PathBuf,
    /// Disks to label regardless of their content.
    pub wipe: Vec<String>,
    /// Whether to migrate the bytes of an export that would otherwise show other bytes, as a background job.
    #[serde(default)]
    pub move_bytes: bool,
    /// Limit of the migration in bytes per second. By default, it uses the bandwidth that clients leave.
    #[serde(default)]
    pub speed_bytes: Option<u64>,
    /// Whether to report only the effects.
    pub dry_run: bool,
}

/// A background job of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Number of the job in this process, from 1.
    pub number: usize,
    /// Name of the device that does it.
    pub device: String,
    /// Kind of the device.
    pub kind: String,
    /// The work, as the device reports it.
    #[serde(flatten)]
    pub work: block::Job,
}

/// A command to a background job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRequest {
    /// Number of the job, or name of the device that does it.
    pub job: String,
    /// The command.
    pub command: Action,
    /// Whether to report only the status.
    #[serde(default)]
    pub dry_run: bool,
}

/// A disk that has grown, or should grow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResizeRequest {
    /// Name of the disk in the spec.
    pub disk: String,
    /// New size of its file in bytes; the present size by default.
    pub size_bytes: Option<u64>,
    /// Whether to report only the effects.
    pub dry_run: bool,
}

/// The previous specs of a graph, as its labels keep them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History {
    /// Name of the graph.
    pub graph: String,
    /// Its present change number.
    pub change: u64,
    /// The previous specs, the newest first.
    pub past: Vec<PastSpec>,
}

/// A previous spec of a graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastSpec {
    /// Change number at which it was in force.
    pub change: u64,
    /// Time when it was replaced, in seconds since 1970.
    pub until_unix_s: u64,
    /// The effects of that change by name: `safe added`, `vol changed`.
    pub then: Vec<String>,
    /// Text of the spec, as labels keep it.
    pub text: String,
    /// Labelled disks of the spec whose paths the server does not know.
    pub forgotten: Vec<ForgottenDisk>,
}

/// A labelled disk at an unknown path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForgottenDisk {
    /// Name of the disk in that spec.
    pub name: String,
    /// Uuid of the disk in its label.
    pub uuid: String,
}

/// A previous spec to which the graph should return.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UndoRequest {
    /// Change number of that spec; the one before the last change by default.
    pub to: Option<u64>,
    /// Disks whose paths the server does not know: for each, the word of its kind and its path.
    pub disks: BTreeMap<String, (String, String)>,
    /// Key sources that the server does not know, by device.
    pub keys: BTreeMap<String, String>,
    /// Other options that labels do not keep, by device.
    #[serde(default)]
    pub options: BTreeMap<String, BTreeMap<String, String>>,
    /// The way of the change.
    #[serde(flatten)]
    pub way: ChangeWay,
}

/// The effects of a change, done or only planned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// Name of the graph.
    pub graph: String,
    /// The changes; empty if there are none.
    pub changes: Vec<ChangeLine>,
    /// Notes for the user.
    pub notes: Vec<String>,
}
