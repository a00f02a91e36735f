//! Control requests: what a person or the manager asks of a device in the graph.

use std::time::Duration;

use crate::Result;

/// A control request. It goes to the named device, which answers or passes it on downwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// How are you?
    Report,
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
}

/// Whether a device answered.
#[derive(Debug)]
pub enum Handled {
    /// It did.
    Done(Result<Report>),
    /// It hands the request back, to travel on.
    Pass,
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
    /// What to type next, if something should be done.
    pub next: Option<String>,
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
    /// Bytes copied and to copy, while it is brought up to date.
    pub progress: Option<(u64, u64)>,
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
