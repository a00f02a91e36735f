//! Commands to devices, and the reports of devices.
//!
//! The set of commands is open, and each command is closed: it is a type of its own, a [`Verb`], with typed arguments
//! and a typed answer. A kind declares its verbs. All kinds that have members, copies, jobs or state share
//! [`member`], [`copies`], [`job`] and [`state`]. The range, the origin and the number of a command are outside its
//! arguments, so tables, hooks and remote disks can carry commands that they do not know.

mod report;
mod shared;
mod verb;

pub use report::{
    Cause, Health, Job, JobState, Member, MemberState, Progress, Report, Room, Scrub,
};
pub use shared::{Nothing, copies, job, member, state};
pub use verb::{
    Codec, Command, Message, Part, Reach, Reply, Resolved, Verb, VerbInfo, find_verb, only_one,
};
