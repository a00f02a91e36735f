//! Reports of devices: their state and their figures.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state and the figures of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// How it is.
    pub health: Health,
    /// One sentence for a person, empty if there is nothing to say.
    pub summary: String,
    /// Its members, if it has any.
    pub members: Vec<Member>,
    /// Named counters.
    pub counters: Vec<(&'static str, u64)>,
    /// Its scrubs, if it has copies.
    pub scrub: Option<Scrub>,
    /// What to type next, if something should be done.
    pub next: Option<String>,
    /// What it does for long in the background.
    pub jobs: Vec<Job>,
    /// How much of its room is taken, if it finds places by itself.
    pub room: Option<Room>,
}

/// Space for blocks that are placed when they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Room {
    /// Bytes that are taken.
    pub taken_bytes: u64,
    /// Bytes in all.
    pub of_bytes: u64,
}

/// Something that takes long, done in the background.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// What is done, in words that follow the device's kind and name: `from a to b`.
    pub what: String,
    /// Whether it goes on.
    pub state: JobState,
    /// What has stopped it, in words.
    pub detail: String,
    /// How far it is.
    pub progress: Progress,
}

/// Whether a job goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It does.
    Running,
    /// Not before it is resumed.
    Paused,
    /// It cannot.
    Stopped,
    /// It is over.
    Done,
}

/// A member of a redundant device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The device's name in the spec.
    pub name: String,
    /// Its state.
    pub state: MemberState,
    /// Errors that it gave since the start.
    pub errors: u64,
    /// The reason of the state, for a person.
    pub detail: String,
    /// The time of the last change of its state, in seconds since 1970; `None` if at the start.
    pub since_unix_s: Option<u64>,
    /// The progress of a copy to it.
    pub progress: Option<Progress>,
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
    /// It misses everything, and waits to replace a member that fails.
    Spare,
}

impl MemberState {
    /// The word for people: `in sync`.
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
    /// Bytes to be done, with those that are done.
    pub all_bytes: u64,
    /// Bytes of the device: more than that where only a part is to be done.
    pub of_bytes: u64,
}

/// The scrubs of a device with copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scrub {
    /// The progress of the scrub that is under way.
    pub progress: Option<Progress>,
    /// The time when it began, in seconds since 1970.
    pub since_unix_s: Option<u64>,
    /// The time when the last scrub ended, in seconds since 1970.
    pub ended_unix_s: Option<u64>,
    /// Blocks in which copies differed and that were made alike, since the start.
    pub mismatches: u64,
    /// Ranges that a copy could not read and that were written anew, since the start.
    pub unreadable: u64,
}

/// How a device is, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// All is well.
    #[default]
    Ok,
    /// The data are safe, redundancy is not what it should be.
    Degraded,
    /// It does not serve any more.
    Failed,
}
