//! Reports of devices: their state and their figures.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state and the figures of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Health of the device.
    pub health: Health,
    /// One sentence for a person; empty if there is nothing to report.
    pub summary: String,
    /// Its members, if it has any.
    pub members: Vec<Member>,
    /// Named counters.
    pub counters: Vec<(&'static str, u64)>,
    /// Its scrubs, if it has copies.
    pub scrub: Option<Scrub>,
    /// Next command for a person to type, if action is needed.
    pub next: Option<String>,
    /// Its long-running background jobs.
    pub jobs: Vec<Job>,
    /// Use of its space, if it allocates space by itself.
    pub room: Option<Room>,
}

/// Space for blocks that are allocated when they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Room {
    /// Bytes in use.
    pub taken_bytes: u64,
    /// All bytes.
    pub of_bytes: u64,
}

/// A long-running background job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Description of the work, in words that follow the device's kind and name: `from a to b`.
    pub what: String,
    /// Whether it takes its work back.
    #[serde(default)]
    pub is_reversed: bool,
    /// Whether it is running.
    pub state: JobState,
    /// The reason why it has stopped, in words; may be empty.
    pub detail: String,
    /// Its progress.
    pub progress: Progress,
}

/// State of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It is running.
    Running,
    /// It rests until it is resumed.
    Paused,
    /// It cannot continue.
    Stopped,
    /// It has ended.
    Done,
}

/// A member of a redundant device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Name of the device in the spec.
    pub name: String,
    /// Its state.
    pub state: MemberState,
    /// Number of its errors since the start.
    pub errors: u64,
    /// Cause of the state, if it is not in sync.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// Reason for the state, for a person.
    pub detail: String,
    /// Time of the last change of its state, in seconds since 1970; `None` if the state has not changed since the
    /// start.
    pub since_unix_s: Option<u64>,
    /// Progress of a copy to it.
    pub progress: Option<Progress>,
}

/// The cause for which a member is not in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A command took it out.
    Command,
    /// It was absent at the start.
    Absent,
    /// Too many reads failed.
    Reads,
    /// A request failed, or was not answered in time.
    Request,
    /// A write failed on the source while it was being copied.
    Source,
}

/// The state of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It has every write, and is read from.
    #[serde(rename = "in sync")]
    InSync,
    /// It has every new write, and the old ones are copied to it.
    Copying,
    /// It misses writes, and no copy to it is under way.
    Stale,
    /// It is out of service: it failed, or a command took it out.
    Failed,
    /// It has no copy of the data, and waits to replace a member that fails.
    Spare,
}

impl MemberState {
    /// Returns the word for people: `in sync`.
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

/// Progress in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes that are done.
    pub done_bytes: u64,
    /// Bytes of the whole task, done or not.
    pub all_bytes: u64,
    /// Bytes of the device: more than the task if that is only a part.
    pub of_bytes: u64,
}

/// The scrubs of a device with copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scrub {
    /// Progress of the running scrub.
    pub progress: Option<Progress>,
    /// Start time of the running scrub, in seconds since 1970.
    pub since_unix_s: Option<u64>,
    /// End time of the last scrub, in seconds since 1970.
    pub ended_unix_s: Option<u64>,
    /// Blocks in which copies differed and were repaired, since the start.
    pub mismatches: u64,
    /// Ranges that a copy could not read and that were rewritten, since the start.
    pub unreadable: u64,
}

/// Health of a device, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// The device works as it should.
    #[default]
    Ok,
    /// The data are safe; redundancy is reduced.
    Degraded,
    /// The device does not serve any more.
    Failed,
}
