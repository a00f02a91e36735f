//! The reasons for which the battery refuses a subject.

use std::fmt;

use sim::Rule;

/// The rule that a subject has broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The subject broke a rule of the model about the bytes of a volume.
    Bytes(Rule),
    /// The subject broke the rule that every request completes.
    Completes,
    /// The subject broke the rule that all buffers and slots are returned after a request.
    Returns,
    /// The subject broke the rules about errors: an error of a lower is reported, or masked by redundancy, and a
    /// request fails only after an error of a lower.
    Errors,
    /// The subject sent a request to a lower that does not respect the facts about the lower, such as its size.
    Seam,
    /// The subject changed a payload while its write was in flight.
    Payload,
    /// The copies of the subject differ although no request is in flight.
    Copies,
    /// The size, the block size and the limits of the subject are not consistent.
    Facts,
    /// The code of the subject panicked.
    Panic,
    /// The subject could not be built over its lowers.
    Builds,
    /// The subject started on used disks without a state, or changed their bytes.
    Foreign,
    /// The report of the subject is not as the subject promises.
    Promise,
    /// A command of the subject is not declared, or is not the same after encoding and decoding.
    Commands,
}

/// The result of the battery for a subject that breaks a rule.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The rule that the subject has broken.
    pub broken: Broken,
    /// A description of the violation in words.
    pub words: String,
    /// The part of the battery, its seed, and whether the tables of the graph were fused.
    pub place: String,
}

impl Refusal {
    /// Creates a refusal. The battery sets `place` later.
    pub fn new(broken: Broken, words: impl fmt::Display) -> Self {
        Self { broken, words: words.to_string(), place: String::new() }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes(rule) => return rule.fmt(f),
            Self::Completes => "every request completes",
            Self::Returns => "the device returns all buffers and slots",
            Self::Errors => "the device reports an error of a lower, or masks it by redundancy",
            Self::Seam => "requests to a lower obey the lower's limits",
            Self::Payload => "the payload of a write is not changed in flight",
            Self::Copies => "all copies are equal when no request is in flight",
            Self::Facts => "the device's size, block size and limits are consistent",
            Self::Panic => "the device does not panic",
            Self::Builds => "the device can be opened",
            Self::Foreign => {
                "the device refuses used disks without a state, and does not change them"
            }
            Self::Promise => "the state in a report survives a crash as the kind promises",
            Self::Commands => "every command is declared and can be encoded and decoded unchanged",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the device breaks the rule \"{}\": {}", self.place, self.broken, self.words)
    }
}
