//! Types of the requests and replies of a graph's control socket. New versions only add fields.

use std::collections::BTreeMap;
use std::path::PathBuf;

use block::answers::ChangeLine;
use block::control::job::Action;
use block::{Health, Member, MemberState, Scrub, SpaceUse};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::KeptGraph;

/// The structure of a graph: its nodes, lowers before uppers, and its exports.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GraphView {
    /// Name of the graph.
    pub name: String,
    /// Process id of the server of the graph; `None` in a plan.
    pub pid: Option<u32>,
    /// Disks and devices of the graph.
    pub nodes: Vec<NodeView>,
    /// The exports that clients see.
    pub exports: Vec<ExportView>,
}

/// A disk or device of a graph.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeView {
    /// Name of the node.
    pub name: String,
    /// Name of the kind of the node.
    pub kind: String,
    /// The part that the node has in requests.
    pub power: Power,
    /// Names of the lowers of the node.
    pub lowers: Vec<String>,
    /// Size of the node in bytes.
    pub size_bytes: u64,
    /// Block size in bytes: the unit of the offset and length of every request.
    pub block_size_bytes: u32,
    /// Whether the node refuses writes.
    pub read_only: bool,
    /// Properties of a disk for the user, such as `O_DIRECT` or `in memory`.
    pub words: String,
    /// Health of the node; `ok` in a plan.
    pub health: Health,
    /// State of the node as a member of the device above it; `None` if it is no member, and in a plan.
    #[serde(default)]
    pub member: Option<MemberState>,
}

/// The part that a node has in requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// A disk: it carries out requests on real storage.
    Disk,
    /// A mapping of byte ranges, which the engine looks up without running code of a device.
    Table,
    /// A hook: code that sees requests and replies, and changes no bytes.
    Hooks,
    /// A device that carries out requests by requests of its own to its lowers.
    Device,
}

/// An export of a graph.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExportView {
    /// Name of the export.
    pub name: String,
    /// Name of the node that the export shows.
    pub on: String,
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Block size in bytes: the unit of the offset and length of every request.
    pub block_size_bytes: u32,
    /// Whether the export refuses writes.
    pub read_only: bool,
    /// URIs at which NBD clients can connect to the export; empty in a plan.
    pub uris: Vec<String>,
    /// Path of the export's block device on this machine, if the export is attached.
    #[serde(default)]
    pub attached: Option<String>,
}

/// A request for the volumes after a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumesAfter {
    /// Full name of the last volume that the client has; empty for the first volumes.
    #[serde(default)]
    pub after: String,
    /// Most volumes of the reply.
    pub most: usize,
}

/// A request for a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeName {
    /// Full name of the volume: `DEVICE/VOLUME`.
    pub name: String,
}

/// Volumes in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumePage {
    /// The volumes.
    pub volumes: Vec<VolumeView>,
    /// Whether further volumes may follow.
    pub has_more: bool,
}

/// A volume of a device, which clients open by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeView {
    /// Full name of the volume: `DEVICE/VOLUME`.
    pub name: String,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Whether the volume refuses writes.
    pub read_only: bool,
    /// Whether a client has the volume open.
    pub is_open: bool,
    /// URIs at which NBD clients can connect to the volume.
    pub uris: Vec<String>,
    /// Path of the volume's block device on this machine, if the volume is attached.
    #[serde(default)]
    pub attached: Option<String>,
}

/// A complete spec, in which each option has its value or its default.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpecText {
    /// Name of the graph.
    pub name: String,
    /// The spec as TOML text.
    pub text: String,
}

/// Status of a graph.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Name of the graph.
    pub graph: String,
    /// Process id of the server of the graph; 0 if no process serves it.
    pub pid: u32,
    /// Health of the graph: that of its worst device.
    pub health: Health,
    /// Number of open NBD connections to the graph.
    pub connections: usize,
    /// Number of NBD connections to the graph since the server was started.
    pub served: u64,
    /// Status of each disk and device, lowers before uppers.
    pub devices: Vec<DeviceStatus>,
    /// Exports that are attached as block devices of this machine.
    #[serde(default)]
    pub attached: Vec<Attached>,
    /// The state of the graph in its daemon; `None` if no daemon keeps the graph.
    #[serde(default)]
    pub kept: Option<KeptGraph>,
}

/// An export that is attached as a block device of this machine; in a dry run, that would be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// Name of the block device.
    pub name: String,
    /// Name of the export.
    pub export: String,
    /// Path of the block device: `/dev/cairn/NAME`.
    pub path: String,
    /// Path of the kernel's device, `/dev/loopN` or `/dev/nbdN`; `None` in a dry run.
    pub device: Option<String>,
    /// Whether this kernel can pass the unanswered requests of a killed server to the next server.
    pub has_resend: bool,
    /// Notes for the user about the attachment.
    pub notes: Vec<String>,
}

/// The facility of the kernel that makes an export a block device of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// A FUSE mount with one file, and a loop device on this file.
    Fuse,
    /// The kernel's NBD client.
    Nbd,
}

/// A request to attach an export as a block device of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachRequest {
    /// Name of the export.
    pub export: String,
    /// Name of the block device; the name of the export by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Facility of the kernel to use; by default the best that the kernel has.
    #[serde(default)]
    pub by: Option<Means>,
    /// Whether only to check that the export can be attached.
    #[serde(default)]
    pub dry_run: bool,
}

/// A request to detach a block device of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DetachRequest {
    /// Name of the block device.
    pub name: String,
    /// Whether only to return the effects, and change nothing.
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
    /// Sentence about the state of the device; empty if there is nothing to report.
    pub summary: String,
    /// Members of the device; empty if it has none.
    pub members: Vec<Member>,
    /// Values of the device's counters, by name.
    pub counters: BTreeMap<String, u64>,
    /// Number of requests to the device that failed, since the start.
    #[serde(default)]
    pub errors: u64,
    /// State of the scrubs of the device; `None` if it has no copies.
    #[serde(default)]
    pub scrub: Option<Scrub>,
    /// Space taken and available; `None` if the device does not allocate blocks.
    #[serde(default)]
    pub room: Option<SpaceUse>,
    /// Rows of the kind's own, in the order in which the device reports them; empty for most kinds.
    #[serde(default)]
    pub rows: Vec<StatusRow>,
    /// Command that the user should enter next; `None` if nothing must be done.
    pub next: Option<String>,
}

/// A row in the status of a device. The manual of its kind explains the row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatusRow {
    /// Name of the row.
    pub name: String,
    /// Value of the row, in words for the user.
    pub value: String,
}

/// An event of a device, as the routes for events report it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventLine {
    /// Number of the event, from 1 in each server process. A gap in the numbers stands for events that were dropped
    /// because too many happened at once.
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
    /// Details of the event for the user.
    pub words: String,
}

/// A request to start or stop a scrub.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScrubRequest {
    /// Name of the device; or of the graph, if it has only one device with copies.
    pub of: String,
    /// Whether to stop the running scrub instead of starting one.
    #[serde(default)]
    pub stop: bool,
    /// Whether the scrub makes copies alike where they differ, instead of only reporting the blocks.
    #[serde(default)]
    pub repair: bool,
    /// Name of the member whose bytes a repair gives to all copies; `None` to follow the majority of the copies.
    #[serde(default)]
    pub trust: Option<String>,
    /// Whether only to check the request and return the status, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// A request to change the disks below a redundant device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskRequest {
    /// Name of the device; or of the graph, if only one device in it has the member, or has members at all.
    pub of: String,
    /// Name of the member: a disk of the spec, or the disk that the change adds to the spec. For a replacement also a member
    /// over one disk, or a disk beneath a member.
    pub member: String,
    /// The kind of change, with the path of the new disk.
    pub change: DiskChange,
    /// Working directory of the client, to which paths in the request are relative.
    pub directory: PathBuf,
    /// Whether the disk gets a new label whatever it contains.
    #[serde(default)]
    pub wipe: bool,
    /// Whether only to return the effects, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// The kind of change of the disks below a redundant device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskChange {
    /// Insertion of the disk at this path, as one more member.
    Insert(PathBuf),
    /// Replacement of the member by the disk at this path.
    Replace(PathBuf),
    /// Removal of the member.
    Remove,
}

/// Request counts of all devices of a graph since the server was started.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Top {
    /// Name of the graph.
    pub graph: String,
    /// Time of the reading in microseconds, by a monotonic clock of this machine.
    pub clock_us: u64,
    /// A row for each device, or run of fused tables, that counts requests.
    pub rows: Vec<TopRow>,
}

/// Request counts of one device, or of a run of tables that the engine has fused.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TopRow {
    /// Name of the device; for fused tables, name of the uppermost table.
    pub name: String,
    /// Kind of the device.
    pub kind: String,
    /// Names of the other tables of the run.
    pub fused: Vec<String>,
    /// The counts; `None` for hooks, which do not count requests.
    pub counts: Option<Counts>,
}

/// Request counts of one device since the server was started.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Number of requests that have begun, by operation.
    pub ops: BTreeMap<String, u64>,
    /// Number of bytes of these requests, by operation.
    pub bytes: BTreeMap<String, u64>,
    /// Number of failed requests.
    pub errors: u64,
    /// Number of requests in flight.
    pub in_flight: u32,
}

/// The position of a byte of an export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Byte {
    /// Name of the export.
    pub export: String,
    /// Offset in the export of the byte to locate.
    pub offset: u64,
}

/// A request for the events after one that the client has already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventsAfter {
    /// Number of the last event that the client has; 0 for all events.
    #[serde(default)]
    pub after: u64,
}

/// A request about a member, for the routes `fail` and `resync`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberRequest {
    /// Name of the device; or of the graph, if only one device in it has such a member.
    pub of: String,
    /// Name of the member.
    pub member: String,
    /// Whether only to check that the request is possible and return the status, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// A command to a device. The kind of the device determines the possible verbs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CommandRequest {
    /// Name of the device.
    pub device: String,
    /// Verb of the command, for example `crypt.keys`.
    pub verb: String,
    /// Arguments of the command, by name.
    pub args: Value,
}

/// A command of one verb to a device: the request of a route that carries out such commands only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CommandTo<A> {
    /// Name of the device.
    pub device: String,
    /// Arguments of the command. Their fields are fields of the request.
    #[serde(flatten)]
    pub args: A,
}

/// The reason why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// Exit code of a command-line program that ends with this problem.
    pub exit: u8,
    /// Message with the value and the limit; one sentence on each line.
    pub message: String,
    /// The next step for the user, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Stable code of the reason (`docs/reasons.md`), if the exit code alone does not determine the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Problem {
    /// Returns a problem with this exit code and this message.
    pub fn new(exit: u8, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), next: None, reason: None }
    }

    /// Returns this problem with a next step for the user.
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

/// A request to apply a spec to a running graph.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ApplyRequest {
    /// Name of the spec's file, for messages.
    pub file: String,
    /// Text of the spec.
    pub text: String,
    /// Values of the variables in the spec, from the environment of the client.
    pub variables: BTreeMap<String, String>,
    /// Options of the change.
    #[serde(flatten)]
    pub way: ChangeWay,
}

/// Options of a change of a running graph to another spec.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChangeWay {
    /// Working directory of the client, to which paths in the request are relative.
    pub directory: PathBuf,
    /// Names of the disks that get a new label whatever they contain.
    pub wipe: Vec<String>,
    /// Whether to migrate the bytes of an export that would show other bytes after the change, as a background job.
    #[serde(default)]
    pub move_bytes: bool,
    /// Maximum number of bytes that the migration moves per second; by default it uses the bandwidth that clients leave
    /// unused.
    #[serde(default)]
    pub speed_bytes: Option<u64>,
    /// Whether only to return the effects, and change nothing.
    pub dry_run: bool,
}

/// A background job of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Number of the job, from 1 in each server process.
    pub number: usize,
    /// Name of the device that runs the job.
    pub device: String,
    /// Kind of the device.
    pub kind: String,
    /// State and progress of the job, as the device reports them.
    #[serde(flatten)]
    pub work: block::Job,
}

/// A request to pause, resume or cancel a background job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRequest {
    /// Number of the job, or name of the device that runs it.
    pub job: String,
    /// The action: pause, resume or cancel.
    pub command: Action,
    /// Whether only to return the state of the job, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// A request to enlarge a disk, or to use all bytes of one that has been enlarged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResizeRequest {
    /// Name of the disk in the spec.
    pub disk: String,
    /// New size in bytes of the disk's file; by default its present size.
    pub size_bytes: Option<u64>,
    /// Whether only to return the effects, and change nothing.
    pub dry_run: bool,
}

/// The earlier specs of a graph, as its labels contain them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History {
    /// Name of the graph.
    pub graph: String,
    /// Present epoch of the graph.
    pub change: u64,
    /// The earlier specs, the newest first.
    pub past: Vec<PastSpec>,
}

/// An earlier spec of a graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastSpec {
    /// Last epoch of the graph in which it had this spec.
    pub change: u64,
    /// Time at which another spec replaced this one, in seconds since 1970.
    pub until_unix_s: u64,
    /// The effects of the change that replaced this spec: `safe added`, `vol changed`.
    pub then: Vec<String>,
    /// Text of the spec, without settings of one machine.
    pub text: String,
    /// Labelled disks of this spec whose paths the server does not know any more.
    pub forgotten: Vec<ForgottenDisk>,
}

/// A labelled disk of an earlier spec whose path is unknown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForgottenDisk {
    /// Name of the disk in the earlier spec.
    pub name: String,
    /// Uuid of the disk in its label.
    pub uuid: String,
}

/// A request to change a graph back to an earlier spec.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UndoRequest {
    /// Epoch of the earlier spec; by default the spec before the last change.
    pub to: Option<u64>,
    /// Disks whose paths the server does not know, by name: for each, the name of its kind and its path.
    pub disks: BTreeMap<String, (String, String)>,
    /// Sources of keys that the server does not know, by name of the device.
    pub keys: BTreeMap<String, String>,
    /// Other options that labels do not contain, by name of the device and of the option.
    #[serde(default)]
    pub options: BTreeMap<String, BTreeMap<String, String>>,
    /// Options of the change.
    #[serde(flatten)]
    pub way: ChangeWay,
}

/// The effects of a change of a graph; in a dry run, those that it would have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// Name of the graph.
    pub graph: String,
    /// One line for each effect; empty if nothing changes.
    pub changes: Vec<ChangeLine>,
    /// Notes for the user about the change.
    pub notes: Vec<String>,
}
