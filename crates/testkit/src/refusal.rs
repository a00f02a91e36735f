//! The reasons for which the battery refuses a device under test.

use std::fmt;

use sim::Rule;

/// The rule of the battery that a device under test has broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A rule about the bytes that reads of the device return.
    Bytes(Rule),
    /// The device answers every request.
    Completes,
    /// After all requests the device holds no buffer and the engine no slot.
    Returns,
    /// The device reports an error of a lower, or hides the error if it has redundancy. It fails no request without an
    /// error of a lower.
    Errors,
    /// The device sends only requests to its lowers that are within their size, block size and limits.
    Seam,
    /// The device does not change the buffer of a write in flight.
    Payload,
    /// All lowers of a mirror have the same bytes when no request is in flight.
    Copies,
    /// A read that avoids copies, a write that restores copies, and a last resort concern only the copies that they name.
    Named,
    /// The device's size, block size and limits are valid and fit each other.
    Facts,
    /// The device does not panic.
    Panic,
    /// The device can be created over its lowers.
    Builds,
    /// The device refuses used disks without a state, and does not change their bytes.
    Foreign,
    /// The device refuses the store of another device, and does not change the store.
    OtherStore,
    /// A device that a live change makes changes nothing below before the change is committed.
    Uncommitted,
    /// The close of a device ends, and after it the device sends no request and no state.
    Closes,
    /// The report of the device after a start is as the subject promises.
    Promise,
    /// The device accepts only declared commands. Commands and answers stay the same when they are encoded and decoded.
    Commands,
}

/// The result of the battery for a device that has broken a rule.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The rule that the device has broken.
    pub broken: Broken,
    /// How the device has broken the rule, in words.
    pub words: String,
    /// The name of the device under test, the part of the battery, the seed, and whether the tables of the graph were
    /// fused.
    pub place: String,
}

impl Refusal {
    /// Creates a refusal without a place; the battery adds the place.
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
            Self::Named => "requests that name copies concern these copies",
            Self::Facts => "the device's size, block size and limits are consistent",
            Self::Panic => "the device does not panic",
            Self::Builds => "the device can be opened",
            Self::Foreign => {
                "the device refuses used disks without a state, and does not change them"
            }
            Self::OtherStore => {
                "the device refuses the store of another device, and does not change the store"
            }
            Self::Uncommitted => "a device changes nothing below before it is committed",
            Self::Closes => "the close of a device ends its work on its lowers",
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
