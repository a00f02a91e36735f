//! The reasons for which the battery refuses a device.

use std::fmt;

use sim::Rule;

/// The rule that was broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A rule about bytes.
    Bytes(Rule),
    /// Every request completes.
    Completes,
    /// Buffers and slots are returned.
    Returns,
    /// An error of a lower is reported, or masked by redundancy. Without such an error there is none.
    Errors,
    /// Requests to a lower respect its facts.
    Seam,
    /// A payload does not change while its write is in flight.
    Payload,
    /// Copies are equal once no request is in flight.
    Copies,
    /// Size, block size and limits are consistent.
    Facts,
    /// Nothing panics.
    Panic,
    /// The device can be built.
    Builds,
    /// Used disks without a state are refused, and their bytes do not change.
    Foreign,
    /// A promise of the subject about its report.
    Promise,
    /// Commands are declared, and cross to other processes unchanged.
    Commands,
}

/// The refusal of a device.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The rule.
    pub broken: Broken,
    /// A description of the violation.
    pub words: String,
    /// The part of the battery, its seed, and whether the graph was fused.
    pub place: String,
}

impl Refusal {
    /// Makes a refusal without a place.
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
            Self::Errors => "an error below is reported, or masked by redundancy",
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
