//! Reports of devices: their state and their figures.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state and the figures of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Health of the device.
    pub health: Health,
    /// State of the device in one sentence for a person; empty if there is nothing to report.
    pub summary: String,
    /// Members of the device, if it has any.
    pub members: Vec<Member>,
    /// Counters of the device, each with its name.
    pub counters: Vec<(&'static str, u64)>,
    /// Scrubs of the device, if it has copies.
    pub scrub: Option<Scrub>,
    /// Next command for a person to type, if the device needs action.
    pub next: Option<String>,
    /// Long-running background jobs of the device.
    pub jobs: Vec<Job>,
    /// Use of the device's space, if the device allocates space by itself.
    pub room: Option<Room>,
}

/// Space of a device that allocates blocks when they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Room {
    /// Bytes of the device's space that are in use.
    pub taken_bytes: u64,
    /// Bytes of the device's space, in use or free.
    pub of_bytes: u64,
}

/// A long-running background job of a device, as its report shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Description of the job, in words that follow the device's kind and name: `from a to b`.
    pub what: String,
    /// Whether the job reverts its earlier steps.
    #[serde(default)]
    pub is_reversed: bool,
    /// Whether the job is running, paused, stopped or done.
    pub state: JobState,
    /// The reason why the job has stopped, in words; may be empty.
    pub detail: String,
    /// Progress of the job.
    pub progress: Progress,
}

/// State of a background job of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// The job carries out its work.
    Running,
    /// The job is paused until it is resumed.
    Paused,
    /// The job has stopped after an error.
    Stopped,
    /// The job has done all of its work, or was ended early.
    Done,
}

/// A member of a redundant device, as the device's report shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Name of the member in the spec.
    pub name: String,
    /// State of the member.
    pub state: MemberState,
    /// Number of errors of the member since the start.
    pub errors: u64,
    /// Cause for which the member is not in sync.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// Reason for the member's state, for a person.
    pub detail: String,
    /// Time of the last change of the member's state, in seconds since 1970; `None` if the state has not changed since
    /// the start.
    pub since_unix_s: Option<u64>,
    /// Progress of the resync to the member.
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
    /// A request to the member failed, or was not answered in time.
    Request,
    /// A write to the source failed while the source was copied to the member.
    Source,
}

/// The state of a member of a redundant device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// The member has every acknowledged write, and is read from.
    #[serde(rename = "in sync")]
    InSync,
    /// The member gets every new write, and the old ones are copied to it.
    Copying,
    /// The member misses writes, and no copy to it is under way.
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

/// Progress of a job, resync or scrub, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes of the task that are done.
    pub done_bytes: u64,
    /// Bytes of the whole task, done or not.
    pub all_bytes: u64,
    /// Size in bytes of the device on which the task runs; larger than the task if that covers only a part of the
    /// device.
    pub of_bytes: u64,
}

/// The running scrub and the results of scrubs of a device with copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scrub {
    /// Progress of the running scrub; `None` if no scrub runs.
    pub progress: Option<Progress>,
    /// Start time of the running scrub, in seconds since 1970.
    pub since_unix_s: Option<u64>,
    /// End time of the last scrub, in seconds since 1970.
    pub ended_unix_s: Option<u64>,
    /// Number of blocks in which copies differed and were repaired, since the start.
    pub mismatches: u64,
    /// Number of ranges that a copy could not read and that were rewritten, since the start.
    pub unreadable: u64,
}

/// Health of a device, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// The device works without a fault.
    #[default]
    Ok,
    /// The device serves, and its data are safe, but its redundancy is reduced.
    Degraded,
    /// The device does not serve requests any more.
    Failed,
}
