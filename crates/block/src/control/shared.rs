//! Verbs that several kinds share.

use serde::{Deserialize, Serialize};

use super::{Health, Part, Reach, Verb, VerbInfo};
use crate::{Result, error};

/// The arguments of a command that needs none, or the answer to a command that only succeeds or fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Nothing {}

/// Verbs of commands to devices with members.
pub mod member {
    use super::*;

    /// The verb that takes a member of a redundant device out of service.
    pub struct Fail;

    /// Arguments of [`Fail`]: the member that the command takes out of service.
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Name {
        /// Name of the member in the spec.
        pub member: String,
    }

    impl Verb for Fail {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "member.fail",
            "take a member out of service",
            "members",
            Reach::Here,
        );
        type Args = Name;
        type Answer = Nothing;
    }

    /// The verb that copies to a stale member the bytes that it missed, from the other members.
    pub struct Resync;

    /// Arguments of [`Resync`]: the stale members that get the missing writes.
    #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct Stale {
        /// Name of the stale member in the spec; all stale members if left out.
        #[serde(default)]
        pub member: Option<String>,
    }

    impl Verb for Resync {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "member.resync",
            "copy to a stale member the writes that the member missed",
            "members",
            Reach::Here,
        );
        type Args = Stale;
        type Answer = Nothing;
    }
}

/// Verbs of commands to devices with copies.
pub mod copies {
    use super::*;
    #[cfg(doc)]
    use crate::Copies;

    pub use crate::control::ranges::{RANGES_MAX, Ranges};

    /// The verb that reads and compares all copies of a device, and reports the blocks that differ.
    pub struct Scrub;

    /// Arguments of [`Scrub`]: whether the command begins or ends a scrub, and how the scrub treats differences.
    #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct Action {
        /// Whether to end the running scrub, instead of beginning a scrub.
        #[serde(default)]
        pub stop: bool,
        /// Whether the scrub makes copies alike where they differ, instead of only reporting the blocks.
        #[serde(default)]
        pub repair: bool,
        /// Name of the member whose bytes a repair gives to all copies; without it, the bytes of most copies count, and
        /// blocks without a majority stay as they are.
        #[serde(default)]
        pub trust: Option<String>,
        /// Whether only to check that the device can carry out the command.
        #[serde(default)]
        pub dry_run: bool,
    }

    impl Verb for Scrub {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "copies.scrub",
            "compare all copies, and report or repair differences",
            "copies to compare",
            Reach::Here,
        );
        type Args = Action;
        type Answer = Nothing;
    }

    /// The verb with which a device that verifies bytes reports that copies have wrong bytes. The redundant device below
    /// counts them as read errors of its members. Between devices; not for people.
    pub struct Wrong;

    /// Arguments of [`Wrong`]: the copies.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Numbers {
        /// The copies with wrong bytes, as bits ([`Copies`]).
        pub copies: u32,
    }

    impl Verb for Wrong {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "copies.wrong",
            "report that copies have wrong bytes",
            "copies",
            Reach::Known,
        );
        type Args = Numbers;
        type Answer = Nothing;

        fn merge(parts: Vec<Part<Nothing>>) -> Result<Nothing> {
            let first = parts.first().map(|part| part.answer);
            first.ok_or_else(|| error!(Unsupported, "no device below has copies of these bytes"))
        }
    }

    /// The verb that returns the ranges of a device in which copies may differ, because of an unclean stop or because a
    /// member returns. Between devices; not for people.
    pub struct Pending;

    impl Verb for Pending {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "copies.pending",
            "list the ranges in which copies may differ",
            "copies",
            Reach::Known,
        );
        type Args = Nothing;
        type Answer = Ranges;

        fn merge(parts: Vec<Part<Ranges>>) -> Result<Ranges> {
            Ok(Ranges::merge(&parts))
        }
    }

    /// The verb that waits until copies may differ in more ranges than before, or until a device below closes. The sender
    /// sends [`Pending`] afterwards, and this verb again before that. Between devices; not for people.
    pub struct Changed;

    impl Verb for Changed {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "copies.changed",
            "wait until copies may differ in more ranges",
            "copies",
            Reach::First,
        );
        type Args = Nothing;
        type Answer = Nothing;
    }

    /// The verb with which a device that verifies bytes reports that it has read all copies of a range, and has restored
    /// the wrong ones. Between devices; not for people.
    pub struct Verified;

    /// Arguments of [`Verified`]: the result for the range.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Verdict {
        /// Whether every copy that could be read has the right bytes now. If not, a block of the range has no checksum, or
        /// all its copies are wrong.
        pub alike: bool,
    }

    impl Verb for Verified {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "copies.verified",
            "report that all copies of a range were verified",
            "copies",
            Reach::Known,
        );
        type Args = Verdict;
        type Answer = Nothing;

        fn merge(_: Vec<Part<Nothing>>) -> Result<Nothing> {
            Ok(Nothing {})
        }
    }
}

/// Verbs of commands to devices with a background job.
pub mod job {
    use super::*;

    /// The verb that pauses, resumes or cancels the job of a device.
    pub struct Steer;

    /// Arguments of [`Steer`]: whether to pause, resume or cancel the job.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Course {
        /// The action on the job of the device.
        pub action: Action,
    }

    /// An action on the background job of a device.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Action {
        /// Pause the job until a command resumes it. The job stays paused over restarts.
        Pause,
        /// Resume the paused or stopped job.
        Resume,
        /// Cancel the job: revert the steps that it has carried out, or end it without reverting them.
        Cancel,
    }

    impl Verb for Steer {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "job.steer",
            "pause, resume or cancel the job",
            "job",
            Reach::Here,
        );
        type Args = Course;
        type Answer = Nothing;
    }

    /// The verb that waits until the job of a device is done, or until another device is about to replace the device.
    pub struct Wait;

    impl Verb for Wait {
        const INFO: &'static VerbInfo =
            &VerbInfo::new::<Self>("job.wait", "wait until the job has ended", "job", Reach::Here);
        type Args = Nothing;
        type Answer = Nothing;
    }
}

/// Verbs of commands to devices that keep state of their own on the lowers, besides the data.
pub mod state {
    use super::*;

    /// The verb that checks all state that a device keeps on its lowers, without changing it.
    pub struct Check;

    /// Answer to [`Check`]: the health of the state that a device keeps on its lowers.
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Checked {
        /// `Degraded` if all damaged state of the device has another copy, `Failed` if some of the state is lost.
        pub health: Health,
        /// Description of the state that was checked, for a person.
        pub summary: String,
        /// Description of each damaged part of the state, for a person.
        pub wrong: Vec<String>,
    }

    impl Verb for Check {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "state.check",
            "check the stored state of the device, but not its data",
            "state to check",
            Reach::Here,
        );
        type Args = Nothing;
        type Answer = Checked;
    }
}

/// Verbs of commands to devices that hold volumes ([`crate::Volumes`]).
pub mod volume {
    use super::*;

    /// The verb that creates a volume.
    pub struct Create;

    /// Arguments of [`Create`] and [`Resize`]: a volume and its size.
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Size {
        /// Name of the volume in its device.
        pub name: String,
        /// Size of the volume in bytes.
        pub size_bytes: u64,
        /// Whether to report only whether the command would succeed.
        #[serde(default)]
        pub dry_run: bool,
    }

    impl Verb for Create {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "volume.create",
            "create a volume, also under the name of a removed one",
            "volumes",
            Reach::Here,
        );
        type Args = Size;
        type Answer = Nothing;
    }

    /// The verb that removes a volume. A volume that a client has open is not removed.
    pub struct Remove;

    /// Arguments of [`Remove`]: the volume.
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Name {
        /// Name of the volume in its device.
        pub name: String,
        /// Whether to report only whether the command would succeed.
        #[serde(default)]
        pub dry_run: bool,
    }

    /// Answer to [`Remove`].
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Removed {
        /// Number of volumes that depend on removed ones. Their space stays for these volumes.
        pub dependants: u64,
    }

    impl Verb for Remove {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "volume.remove",
            "remove a volume that no client has open",
            "volumes",
            Reach::Here,
        );
        type Args = Name;
        type Answer = Removed;
    }

    /// The verb that changes the size of a volume. A volume that a client has open keeps its size.
    pub struct Resize;

    impl Verb for Resize {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "volume.resize",
            "change the size of a volume that no client has open",
            "volumes",
            Reach::Here,
        );
        type Args = Size;
        type Answer = Nothing;
    }
}
