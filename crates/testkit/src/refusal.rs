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
