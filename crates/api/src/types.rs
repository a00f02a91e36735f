//! What is asked and answered. Fields are only ever added.

use std::collections::BTreeMap;
use std::path::PathBuf;

use block::control::job::Action;
use block::{Health, Member, Room, Scrub};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::KeptGraph;

/// A graph: its nodes, those below first, and its exports.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GraphView {
    /// Its name.
    pub name: String,
    /// The process that serves it; none if this is a plan.
    pub pid: Option<u32>,
    /// Disks and devices.
    pub nodes: Vec<NodeView>,
    /// What clients see.
    pub exports: Vec<ExportView>,
}

/// A disk or device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// What it may do.
    pub power: Power,
    /// What it stands on, by name.
    pub lowers: Vec<String>,
    /// Bytes.
    pub size_bytes: u64,
    /// Every request is a multiple of it.
    pub block_size_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Of a disk, in words: `O_DIRECT`, `in memory`.
    pub words: String,
    /// How it is; a plan is well.
    pub health: Health,
}

/// What a node may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// It stands on real storage.
    Disk,
    /// It is a mapping.
    Table,
    /// It looks on.
    Hooks,
    /// It issues requests.
    Device,
}

/// An export.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExportView {
    /// Its name.
    pub name: String,
    /// The node that it shows.
    pub on: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Every request is a multiple of it.
    pub block_size_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// How clients reach it; none if this is a plan.
    pub uris: Vec<String>,
    /// What it is called as a device of this machine, if it is attached.
    #[serde(default)]
    pub attached: Option<String>,
}

/// A spec in which nothing is left open.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpecText {
    /// The graph's name.
    pub name: String,
    /// TOML.
    pub text: String,
}

/// How a graph is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub graph: String,
    /// The process that serves it.
    pub pid: u32,
    /// As its worst device.
    pub health: Health,
    /// Connections now.
    pub connections: usize,
    /// Connections since the start.
    pub served: u64,
    /// Disks and devices, those below first.
    pub devices: Vec<DeviceStatus>,
    /// Exports that are devices of this machine.
    #[serde(default)]
    pub attached: Vec<Attached>,
    /// How the daemon that keeps it sees it; none if no daemon does.
    #[serde(default)]
    pub kept: Option<KeptGraph>,
}

/// An export that is a block device of this machine, or would be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// Its name.
    pub name: String,
    /// The export.
    pub export: String,
    /// `/dev/cairn/NAME`
    pub path: String,
    /// `/dev/loopN` or `/dev/nbdN`; none if nothing was done yet.
    pub device: Option<String>,
    /// Whether this kernel can hand its requests to another process when ours dies.
    pub has_resend: bool,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// How an export becomes a block device of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// A file of a FUSE mount, and a loop device on it.
    Fuse,
    /// The kernel's own NBD client.
    Nbd,
}

/// What to attach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachRequest {
    /// The export.
    pub export: String,
    /// What to call it; as the export if left out.
    #[serde(default)]
    pub name: Option<String>,
    /// How; by the best that the kernel has if left out.
    #[serde(default)]
    pub by: Option<Means>,
    /// Only say whether it could be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// What to detach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DetachRequest {
    /// Its name.
    pub name: String,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// How a disk or device is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// How it is.
    pub health: Health,
    /// One sentence, empty if there is nothing to say.
    pub summary: String,
    /// Its members, if it has any.
    pub members: Vec<Member>,
    /// Named counters.
    pub counters: BTreeMap<String, u64>,
    /// Its scrubs, if it has copies.
    #[serde(default)]
    pub scrub: Option<Scrub>,
    /// How much of its room is taken, if it finds places for blocks by itself.
    #[serde(default)]
    pub room: Option<Room>,
    /// What to type next, if something should be done.
    pub next: Option<String>,
}

/// Something that has happened to a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventLine {
    /// Counted from 1 on by each process. What is missing in between came too fast.
    pub number: u64,
    /// When, in seconds since 1970.
    pub at_unix_s: u64,
    /// What: `member-failed`, `scrub-ended` and the like.
    pub event: String,
    /// The graph.
    pub graph: String,
    /// The device.
    pub device: String,
    /// Its member, if it was one of several.
    pub member: Option<String>,
    /// More about it, for people.
    pub words: String,
}

/// What to do with the copies of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScrubRequest {
    /// The device, or the graph if only one device in it has copies.
    pub of: String,
    /// End the scrub that is under way, instead of beginning one.
    #[serde(default)]
    pub stop: bool,
    /// Only say how things are.
    #[serde(default)]
    pub dry_run: bool,
}

/// A change of the disks beneath a redundant device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskRequest {
    /// The device, or the graph if only one device in it has such a member, or any.
    pub of: String,
    /// The member: a disk of the spec, or of the spec from now on.
    pub member: String,
    /// What to do with it.
    pub change: DiskChange,
    /// The directory of whoever asks, where relative paths begin.
    pub directory: PathBuf,
    /// Label the disk whatever is on it.
    #[serde(default)]
    pub wipe: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// What to do with a disk beneath a redundant device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskChange {
    /// Take the disk at that path in, as one more member.
    Insert(PathBuf),
    /// Take the disk at that path in the member's place.
    Replace(PathBuf),
    /// Leave the member away.
    Remove,
}

/// What devices have done since the start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Top {
    /// The graph's name.
    pub graph: String,
    /// When this was read, on a clock that only counts on.
    pub clock_us: u64,
    /// A row for each place where requests are counted.
    pub rows: Vec<TopRow>,
}

/// What one device has done, or one run of tables that are looked up as one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TopRow {
    /// The device's name; of a run, the uppermost table's.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// The other tables of the run.
    pub fused: Vec<String>,
    /// The figures; none for a hook, which is passed in place and not counted.
    pub counts: Option<Counts>,
}

/// Figures since the start.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Requests begun, by verb.
    pub ops: BTreeMap<String, u64>,
    /// Bytes that they were about, by verb.
    pub bytes: BTreeMap<String, u64>,
    /// Requests that failed.
    pub errors: u64,
    /// Requests begun and not yet answered.
    pub in_flight: u32,
}

/// Where a byte lies: a step on the way down.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The device's name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// The byte.
    pub offset_bytes: u64,
    /// Of a labelled disk: so many bytes stand before its data, so the byte is so much further.
    pub label_bytes: u64,
    /// What happens to bytes on the way here, in a word; may be empty.
    pub how: String,
    /// Where it lies below: more than once if it is kept in copies.
    pub below: Vec<Place>,
}

/// A member, for `fail` and `resync`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberRequest {
    /// The device, or the graph if only one device in it has such a member.
    pub of: String,
    /// The member.
    pub member: String,
    /// Only say whether it could be done, and how things are.
    #[serde(default)]
    pub dry_run: bool,
}

/// A command to a device. Its kind declares the verbs that it knows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CommandRequest {
    /// The device.
    pub device: String,
    /// The verb: `crypt.keys`.
    pub verb: String,
    /// Its arguments, by name.
    pub args: Value,
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// The exit code of a command that ends with it.
    pub exit: u8,
    /// One sentence with the value and the limit; several on lines of their own.
    pub message: String,
    /// The next step for a person, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// A stable code, if the exit code alone does not say it: `docs/reasons.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Problem {
    /// A problem with its exit code and its message.
    pub fn new(exit: u8, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), next: None, reason: None }
    }

    /// The same problem, with the next step for a person.
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

/// A spec that a running graph is to become.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApplyRequest {
    /// What to call it in messages: its file.
    pub file: String,
    /// The spec, as it stands in the file.
    pub text: String,
    /// The variables in it that whoever asks has in its environment.
    pub variables: BTreeMap<String, String>,
    /// The directory of whoever asks: relative paths begin there.
    pub directory: PathBuf,
    /// Disks that are labelled whatever is on them.
    pub wipe: Vec<String>,
    /// Where an export would show other bytes, its bytes move there, as a job.
    #[serde(default)]
    pub move_bytes: bool,
    /// Bytes per second that move at most; as many as clients leave if left out.
    #[serde(default)]
    pub speed_bytes: Option<u64>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// A background job of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its number in this process, from 1.
    pub number: usize,
    /// The device that does it.
    pub device: String,
    /// The device's kind.
    pub kind: String,
    /// The work, as the device reports it.
    #[serde(flatten)]
    pub work: block::Job,
}

/// What to do with a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRequest {
    /// Its number, or the device that does it.
    pub job: String,
    /// What to do.
    pub command: Action,
    /// Only say how things are.
    #[serde(default)]
    pub dry_run: bool,
}

/// A disk that is larger than it was, or is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResizeRequest {
    /// Its name in the spec.
    pub disk: String,
    /// The bytes that its file is to have; as many as it has by now if left out.
    pub size_bytes: Option<u64>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What the labels of a graph are like.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// The graph.
    pub graph: String,
    /// Its uuid, as labels have it.
    pub uuid: String,
    /// The change that its newest label tells of.
    pub change: u64,
    /// The worst that was found.
    pub soundness: Soundness,
    /// The disks that were found.
    pub disks: Vec<CheckedDisk>,
    /// What devices keep in the labels, in words.
    pub kept: Vec<CheckedDevice>,
    /// What is not as it should be, or worth knowing.
    pub findings: Vec<Finding>,
}

/// Whether all is as it should be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Soundness {
    /// It is.
    Sound,
    /// Something is damaged or missing, and all of it is in another place.
    Repairable,
    /// Somebody has it open.
    #[serde(rename = "in use")]
    InUse,
    /// Something is lost.
    Damaged,
}

/// A disk with a label.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedDisk {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub place: String,
    /// The change that its label tells of.
    pub change: u64,
    /// Whether a repair writes its label anew.
    pub to_renew: bool,
}

/// What a device keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedDevice {
    /// The device.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// What its newest state says.
    pub words: String,
}

/// Something that was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// How bad that is.
    pub soundness: Soundness,
    /// The disk or device that it is about, if it is one.
    pub name: Option<String>,
    /// In words.
    pub words: String,
    /// What to do, in words; empty if nothing is to be done.
    pub next: String,
}

/// What a graph was before: what its labels keep of that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History {
    /// The graph.
    pub graph: String,
    /// The change that it is at.
    pub change: u64,
    /// The specs before that, the newest first.
    pub past: Vec<PastSpec>,
}

/// A spec that a graph had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastSpec {
    /// The change that it was at.
    pub change: u64,
    /// When it was changed, in seconds since 1970.
    pub until_unix_s: u64,
    /// What became of it then, name by name: `safe added`, `vol changed`.
    pub then: Vec<String>,
    /// The spec, as labels keep it.
    pub text: String,
    /// Labelled disks of it of which the server does not know where they are.
    pub forgotten: Vec<ForgottenDisk>,
}

/// A labelled disk that is somewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForgottenDisk {
    /// Its name then.
    pub name: String,
    /// Its uuid, as its label has it.
    pub uuid: String,
}

/// Whether a graph is to become what it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UndoRequest {
    /// The change that it was at; the one before the last if left out.
    pub to: Option<u64>,
    /// Where disks are of which the server does not know it: the word of their kind, and their place.
    pub disks: BTreeMap<String, (String, String)>,
    /// Where keys come from of which the server does not know it.
    pub keys: BTreeMap<String, String>,
    /// Other options that labels do not keep, by device.
    #[serde(default)]
    pub options: BTreeMap<String, BTreeMap<String, String>>,
    /// The directory of whoever asks: relative paths begin there.
    pub directory: PathBuf,
    /// Disks that are labelled whatever is on them.
    pub wipe: Vec<String>,
    /// Where an export would show other bytes, its bytes move there, as a job.
    #[serde(default)]
    pub move_bytes: bool,
    /// Bytes per second that move at most; as many as clients leave if left out.
    #[serde(default)]
    pub speed_bytes: Option<u64>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What a change has done, or would do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// The graph.
    pub graph: String,
    /// What is not as before; empty if all is.
    pub changes: Vec<ChangeLine>,
    /// What is worth knowing.
    pub notes: Vec<String>,
}

/// What becomes of a disk, a device or an export.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeLine {
    /// `add`, `remove`, `change`, or `reopen`: the same on something that changes.
    pub verb: String,
    /// Its name.
    pub name: String,
    /// In words.
    pub words: String,
}
