//! What the battery says to a device that it refuses.

use std::fmt;

use sim::Rule;

/// The rule that was broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// One about bytes.
    Bytes(Rule),
    /// Every request completes.
    Completes,
    /// Buffers and slots come back.
    Returns,
    /// An error below is told, or masked by redundancy; without one there is none.
    Errors,
    /// Requests below keep to what the lower says of itself.
    Seam,
    /// A payload is not changed on its way.
    Payload,
    /// Copies are alike when all is quiet.
    Copies,
    /// Size, block size and limits hold together.
    Facts,
    /// Nothing panics.
    Panic,
    /// It can be built.
    Builds,
    /// Disks that are not new and have no state are refused, and keep their bytes.
    Foreign,
    /// What the subject itself promises over its report.
    Promise,
    /// Commands are declared, and cross to other processes unchanged.
    Commands,
}

/// Why a device was refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The rule.
    pub broken: Broken,
    /// What happened.
    pub words: String,
    /// Where: the part of the battery, its seed, fused or not.
    pub place: String,
}

impl Refusal {
    /// A refusal, its place to be filled in.
    pub fn new(broken: Broken, words: impl fmt::Display) -> Self {
        Self { broken, words: words.to_string(), place: String::new() }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes(rule) => return rule.fmt(f),
            Self::Completes => "every request completes",
            Self::Returns => "buffers and slots come back",
            Self::Errors => "an error below is told, or masked by redundancy",
            Self::Seam => "requests below keep to what the lower says of itself",
            Self::Payload => "a payload is not changed on its way",
            Self::Copies => "copies are alike when all is quiet",
            Self::Facts => "size, block size and limits hold together",
            Self::Panic => "nothing panics",
            Self::Builds => "it can be built",
            Self::Foreign => "used disks without a state are refused, and keep their bytes",
            Self::Promise => "what a report says outlives a crash as its kind promises",
            Self::Commands => "commands are declared, and cross to other processes unchanged",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: breaks \"{}\": {}", self.place, self.broken, self.words)
    }
}
