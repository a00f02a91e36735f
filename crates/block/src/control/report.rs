//! Reports of devices: their state and their figures.

use std::time::Duration;

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

/// Room for blocks that are placed when they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes that are taken.
    pub taken: u64,
    /// Bytes that there are.
    pub of: u64,
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The device's name in the spec.
    pub name: String,
    /// `in sync`, `stale`, `failed`, `copying`.
    pub state: &'static str,
    /// Errors it gave since the start.
    pub errors: u64,
    /// What happened, in words.
    pub detail: String,
    /// When it came to this state, by the wall clock since 1970; `None` if at the start.
    pub since: Option<Duration>,
    /// How far it is, while it is brought up to date.
    pub progress: Option<Progress>,
}

/// How far something is, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Done.
    pub done: u64,
    /// To be done, together with what is done.
    pub all: u64,
    /// What there is.
    pub of: u64,
}

/// What is known of a redundant device's scrubs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scrub {
    /// How far the one is that is under way, if one is.
    pub progress: Option<Progress>,
    /// When that one began, by the wall clock since 1970.
    pub since: Option<Duration>,
    /// When the last one ended, by the wall clock since 1970.
    pub ended: Option<Duration>,
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
