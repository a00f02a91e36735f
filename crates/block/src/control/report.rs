//! Reports of devices: the state of a device, its counters, and the progress of its background work.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state and the counters of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Health of the device.
    pub health: Health,
    /// State of the device in one sentence for the operator; empty if there is nothing to report.
    pub summary: String,
    /// Members of the device, if it has any.
    pub members: Vec<Member>,
    /// Counters of the device since the start, each with its name.
    pub counters: Vec<(&'static str, u64)>,
    /// Scrubs of the device, if it has copies.
    pub scrub: Option<Scrub>,
    /// Next command for the operator to type, if the device needs action.
    pub next: Option<String>,
    /// Long-running background jobs of the device.
    pub jobs: Vec<Job>,
    /// Use of the device's space, if the device allocates space by itself.
    pub room: Option<SpaceUse>,
    /// Rows of the kind's own, each with a name and a value in words: at most [`ROWS_MAX`], further rows are not shown.
    pub rows: Vec<(String, String)>,
}

/// Largest number of rows of a device that are shown.
pub const ROWS_MAX: usize = 1024;

/// Used and total space of a device that allocates blocks when they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpaceUse {
    /// Bytes of the device's space that are allocated.
    pub taken_bytes: u64,
    /// Bytes of the device's whole space, allocated or free.
    pub of_bytes: u64,
}

/// A long-running background job of a device, as its report shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Name of the task, the same in every list, event and progress bar: `migration`, `packing`, `resync`, `scrub`.
    #[serde(default)]
    pub task: String,
    /// Description of the job, in words that are printed after its task: `from a to b`; may be empty.
    pub what: String,
    /// Whether the job reverts the steps that it carried out before a cancel.
    #[serde(default)]
    pub is_reversed: bool,
    /// Whether the job is running, paused, stopped or done.
    pub state: JobState,
    /// Error for which the job has stopped; may be empty.
    pub detail: String,
    /// Bytes of the job's work that are done, and that there are in all.
    pub progress: Progress,
}

/// State of a background job of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// The job carries out steps.
    Running,
    /// The job is paused until a command resumes it.
    Paused,
    /// The job has stopped after an error, and can be resumed.
    Stopped,
    /// The job has done all of its work, or a command cancelled it.
    Done,
}

/// A member of a redundant device, as the device's report shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Name of the member in the spec.
    pub name: String,
    /// State of the member.
    pub state: MemberState,
    /// Number of requests to the member that failed since the start.
    pub errors: u64,
    /// Cause for which the member is not in sync.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// Reason for the member's state in words, for the operator.
    pub detail: String,
    /// Time of the last change of the member's state, in seconds since 1970; `None` if the state has not changed since
    /// the start.
    pub since_unix_s: Option<u64>,
    /// Progress of the resync to the member, if one runs.
    pub progress: Option<Progress>,
}

/// The cause for which a member of a redundant device is not in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A command took the member out of service.
    Command,
    /// The member was absent at the start.
    Absent,
    /// Too many reads from the member failed.
    Reads,
    /// A request to the member failed, or the member did not answer it in time.
    Request,
    /// A write to the source of a resync to the member failed during the resync.
    Source,
}

/// The state of a member of a redundant device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// The member has every acknowledged write, and is read from.
    #[serde(rename = "in sync")]
    InSync,
    /// The member gets every new write, and a resync copies the missing writes to it.
    Copying,
    /// The member misses writes, and no resync to it runs.
    Stale,
    /// The member is out of service: a request to it failed, or a command took it out.
    Failed,
    /// The member has no copy of the data, and waits to replace a member that fails.
    Spare,
}

impl MemberState {
    /// Returns the word for this state of a member in text for people: `in sync`.
    pub fn word(self) -> &'static str {
        match self {
            Self::InSync => "in sync",
            Self::Copying => "copying",
            Self::Stale => "stale",
            Self::Failed => "failed",
            Self::Spare => "spare",
        }
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Progress of a job, resync or scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes of the job, resync or scrub that are done.
    pub done_bytes: u64,
    /// Bytes that the job, resync or scrub covers, done or not.
    pub all_bytes: u64,
    /// Size in bytes of the device on which the job, resync or scrub runs. It is larger than `all_bytes` if only a
    /// part of the device is covered.
    pub of_bytes: u64,
}

/// The running scrub of a device with copies, and the results of its scrubs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Scrub {
    /// Progress of the running scrub; `None` if no scrub runs.
    pub progress: Option<Progress>,
    /// Whether the running scrub repairs differences.
    #[serde(default)]
    pub is_repairing: bool,
    /// Start time of the running scrub, in seconds since 1970; `None` if no scrub runs.
    pub since_unix_s: Option<u64>,
    /// End time of the last complete scrub, in seconds since 1970; `None` if no scrub has ended.
    pub ended_unix_s: Option<u64>,
    /// Number of blocks in which copies differ, as the scrubs have found and left them. It is zero again after a
    /// complete scrub that leaves no difference.
    pub differing_blocks: u64,
    /// Size in bytes of a block that the scrub compares.
    pub block_bytes: u32,
    /// The first ranges that the last scrub, or the running scrub, has found to differ and has not repaired. The list
    /// has a limit, and is empty after a restart.
    #[serde(default)]
    pub differences: Vec<Difference>,
    /// Number of blocks in which copies differed and were repaired, since the start.
    pub repaired_blocks: u64,
    /// Number of ranges that a copy could not read and that were rewritten, since the start.
    pub unreadable: u64,
}

/// A byte range of a device in which copies differ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Difference {
    /// Offset of the first byte of the range.
    pub start_bytes: u64,
    /// Length of the range in bytes.
    pub len_bytes: u64,
    /// Members that differ from most of the copies; empty if no bytes have a majority.
    pub outvoted: Vec<String>,
}

/// Health of a device, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// The device works without a fault.
    #[default]
    Ok,
    /// The device works without a fault, but delays or refuses some requests as configured: a rate limit, or a limit of
    /// its space, is reached.
    Limited,
    /// The device serves, and its data are safe, but its redundancy is reduced.
    Degraded,
    /// The device does not serve requests any more.
    Failed,
}
