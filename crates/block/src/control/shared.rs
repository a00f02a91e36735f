//! Verbs that several kinds have.

use serde::{Deserialize, Serialize};

use super::{Health, Reach, Verb, VerbInfo};

/// Empty arguments, or an answer without content: the command has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Nothing {}

/// Verbs of devices with members.
pub mod member {
    use super::*;

    /// Takes a member out of service.
    pub struct Fail;

    /// A member.
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Name {
        /// Its name in the spec.
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

    /// Copies to a member the bytes that it missed, from the others.
    pub struct Resync;

    /// The members to copy to.
    #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct Stale {
        /// The member's name; all stale ones if left out.
        #[serde(default)]
        pub member: Option<String>,
    }

    impl Verb for Resync {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "member.resync",
            "copy to a member the bytes that it missed",
            "members",
            Reach::Here,
        );
        type Args = Stale;
        type Answer = Nothing;
    }
}

/// Verbs of devices with copies.
pub mod copies {
    use super::*;

    /// Reads and compares all copies, and makes them alike.
    pub struct Scrub;

    /// Whether to begin or to end it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct Action {
        /// End the scrub that is under way, instead of beginning one.
        #[serde(default)]
        pub stop: bool,
    }

    impl Verb for Scrub {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "copies.scrub",
            "compare all copies, and make them alike",
            "copies to compare",
            Reach::Here,
        );
        type Args = Action;
        type Answer = Nothing;
    }
}

/// Verbs of devices with a job.
pub mod job {
    use super::*;

    /// Pauses, resumes or cancels the job.
    pub struct Steer;

    /// A change of the course of a job.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Course {
        /// The change.
        pub action: Action,
    }

    /// A change of the course of a job.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Action {
        /// Let it rest until it is resumed, over restarts too.
        Pause,
        /// Let it go on.
        Resume,
        /// Take back its work so far.
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

    /// Answers when the job is over, or another device is about to take this one's place.
    pub struct Wait;

    impl Verb for Wait {
        const INFO: &'static VerbInfo =
            &VerbInfo::new::<Self>("job.wait", "wait until the job is over", "job", Reach::Here);
        type Args = Nothing;
        type Answer = Nothing;
    }
}

/// Verbs of devices that keep state below, beside data.
pub mod state {
    use super::*;

    /// Checks all state below, and changes nothing.
    pub struct Check;

    /// The result.
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct Checked {
        /// `Degraded` if all damaged state exists in another place too, `Failed` if something is lost.
        pub health: Health,
        /// The extent of the check, for a person.
        pub summary: String,
        /// Damage, for a person.
        pub wrong: Vec<String>,
    }

    impl Verb for Check {
        const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
            "state.check",
            "check the state below beside data",
            "state to check",
            Reach::Here,
        );
        type Args = Nothing;
        type Answer = Checked;
    }
}
