//! Control requests: what a person or the manager asks of a device in the graph.

use std::fmt;
use std::time::Duration;

use crate::env::LocalFuture;
use crate::{KeySource, Result};

/// A control request. It goes to the named device, which answers or passes it on downwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// Take a member out of service.
    Fail {
        /// The member's name.
        member: String,
    },
    /// Copy what a member missed, or all of it, from the others.
    Resync {
        /// The member's name; all stale ones if `None`.
        member: Option<String>,
    },
    /// Look after what a device does for long in the background.
    Job(JobCommand),
    /// Read and compare all copies, and make alike what is not.
    Scrub {
        /// End that instead, if it is under way.
        stop: bool,
    },
    /// Look at all that the device keeps below beside data, and change nothing.
    Check,
    /// List or change the key slots of an encrypted device. Keys come from their sources: none is
    /// ever part of a request.
    Keys {
        /// What to do.
        command: KeyCommand,
        /// Only say what would be done.
        dry_run: bool,
    },
}

/// What to do with a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobCommand {
    /// Let it rest until it is resumed, over restarts too.
    Pause,
    /// Let it go on.
    Resume,
    /// Take back what it has done so far.
    Cancel,
    /// Nothing but to answer when it is over, or another device is about to take this one's place.
    Wait,
}

/// What to do with key slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyCommand {
    /// Nothing but to list them.
    List,
    /// Put the volume key into one more slot.
    Add {
        /// A passphrase that opens a slot.
        key: KeySource,
        /// The passphrase for the new one.
        new: KeySource,
        /// A word for people.
        label: String,
    },
    /// Empty a slot.
    Remove {
        /// Its number.
        slot: usize,
    },
    /// Make a slot open with another passphrase.
    Change {
        /// The passphrase that opens it now.
        key: KeySource,
        /// The passphrase that will.
        new: KeySource,
    },
}

/// Whether a device answered.
#[expect(
    clippy::large_enum_variant,
    reason = "it is made and taken apart once for a request of a person"
)]
pub enum Handled {
    /// It did.
    Done(Result<Report>),
    /// It will: what was asked takes time.
    Later(LocalFuture<Result<Report>>),
    /// It hands the request back, to travel on.
    Pass,
}

impl fmt::Debug for Handled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(answer) => f.debug_tuple("Done").field(answer).finish(),
            Self::Later(_) => f.write_str("Later"),
            Self::Pass => f.write_str("Pass"),
        }
    }
}

/// A device's answer.
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
    /// Its key slots that are in use, if it was asked about them.
    pub key_slots: Vec<KeySlot>,
    /// What it does for long in the background.
    pub jobs: Vec<Job>,
    /// How much of its room is taken, if it finds places by itself.
    pub room: Option<Room>,
    /// What is wrong with what it keeps below beside data, in words, if it was asked about that: its health is
    /// `Degraded` if all of it is in another place too, `Failed` if something is lost.
    pub wrong: Vec<String>,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// A key slot that is in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeySlot {
    /// Its number.
    pub number: usize,
    /// A word for people; may be empty.
    pub label: String,
    /// When it was made, by the wall clock since 1970.
    pub made: Duration,
    /// How a passphrase becomes a key: `argon2id`.
    pub derivation: &'static str,
    /// The memory that this takes.
    pub memory_bytes: u64,
    /// Passes over it.
    pub passes: u32,
    /// Lanes of it.
    pub lanes: u32,
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Health {
    /// All is well.
    #[default]
    Ok,
    /// The data are safe, redundancy is not what it should be.
    Degraded,
    /// It does not serve any more.
    Failed,
}
