//! Commands to devices, and the reports of devices.
//!
//! The set of commands is open: each command has a type of its own, a [`Verb`], with typed arguments and a typed
//! answer. A kind declares its verbs. All kinds with members, copies, jobs or state share the verbs in [`member`],
//! [`copies`], [`job`] and [`state`]. The range, the client and the number of a command are separate from its
//! arguments, so tables, hooks and remote disks can pass on commands that they do not know.

mod ranges;
mod report;
mod shared;
mod verb;

pub use report::{
    Cause, Difference, Health, Job, JobState, Member, MemberState, Progress, ROWS_MAX, Report,
    Scrub, SpaceUse,
};
pub use shared::{Nothing, copies, job, member, state, volume};
pub use verb::{
    Codec, Command, Message, Part, Reach, Reply, Resolved, Verb, VerbInfo, find_verb, only_one,
};
