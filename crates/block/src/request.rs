//! Requests: the data operations, exhaustive on purpose.

use std::fmt;

use crate::{Buf, ByteRange};

/// A request on its way down; when it is done, the same value comes back up with what was read.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// A number that stays the same through the whole graph, for traces.
    pub id: u64,
}

/// A data operation. A new one breaks the build of every kind until its author has decided.
#[derive(Debug)]
pub enum Op {
    /// Fills `into`, which has the length of `range`. A device may put another buffer there instead.
    /// Once it is answered the buffer is the reader's alone, to change as well: a device that wants to
    /// keep the bytes copies them.
    Read {
        /// Which bytes.
        range: ByteRange,
        /// Where to; after completion, where they are.
        into: Buf,
        /// Copies that a redundant device should not answer from, if it has another.
        avoid: Copies,
    },
    /// Stores `data`, which has the length of `range`, and which nobody changes any more.
    Write {
        /// Which bytes.
        range: ByteRange,
        /// From where.
        data: Buf,
        /// Durable at completion.
        fua: bool,
    },
    /// Makes the range read as zeros.
    WriteZeroes {
        /// Which bytes.
        range: ByteRange,
        /// Whether the space may be given back.
        unmap: bool,
        /// Durable at completion.
        fua: bool,
    },
    /// Says that nobody needs the bytes. Reads afterwards are stable: zeros, or the old bytes.
    Discard {
        /// Which bytes.
        range: ByteRange,
        /// Durable at completion.
        fua: bool,
    },
    /// Makes durable every write that completed before this was submitted.
    Flush,
    /// Says which parts hold data, read as zeros, or are holes.
    Status {
        /// Which bytes.
        range: ByteRange,
        /// The answer; covers at least the beginning of the range, in order, without gaps. Empty when the
        /// request is submitted. After an error it may hold anything.
        extents: Vec<Extent>,
    },
}

impl Op {
    /// A read into `into` from any copy.
    pub fn read(range: ByteRange, into: Buf) -> Self {
        Self::Read { range, into, avoid: Copies::NONE }
    }

    /// A write; durable only after a flush.
    pub fn write(range: ByteRange, data: Buf) -> Self {
        Self::Write { range, data, fua: false }
    }

    /// The bytes that it is about; `None` for a flush, which is about all.
    pub fn range(&self) -> Option<ByteRange> {
        match self {
            Self::Read { range, .. }
            | Self::Write { range, .. }
            | Self::WriteZeroes { range, .. }
            | Self::Discard { range, .. }
            | Self::Status { range, .. } => Some(*range),
            Self::Flush => None,
        }
    }

    /// Moves it to `range` of the device below; a flush stays what it is.
    pub fn set_range(&mut self, to: ByteRange) {
        match self {
            Self::Read { range, .. }
            | Self::Write { range, .. }
            | Self::WriteZeroes { range, .. }
            | Self::Discard { range, .. }
            | Self::Status { range, .. } => *range = to,
            Self::Flush => {}
        }
    }

    /// Its verb.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Read { .. } => Verb::Read,
            Self::Write { .. } => Verb::Write,
            Self::WriteZeroes { .. } => Verb::WriteZeroes,
            Self::Discard { .. } => Verb::Discard,
            Self::Flush => Verb::Flush,
            Self::Status { .. } => Verb::Status,
        }
    }

    /// Whether it must be durable at completion.
    pub fn fua(&self) -> bool {
        match self {
            Self::Write { fua, .. } | Self::WriteZeroes { fua, .. } | Self::Discard { fua, .. } => {
                *fua
            }
            Self::Read { .. } | Self::Flush | Self::Status { .. } => false,
        }
    }

    /// Whether it changes bytes.
    pub fn writes(&self) -> bool {
        self.verb().writes()
    }

    /// The part of it that touches `part`, a range inside its own: the same buffers, sliced.
    ///
    /// # Panics
    /// If `part` is not inside, or for a flush.
    pub fn part(&self, part: ByteRange) -> Self {
        let whole = self.range().expect("a flush has no parts");
        assert!(whole.contains(part), "part {part} of {whole}");
        let from = (part.start() - whole.start()) as usize;
        let bytes = from..from + part.len() as usize;
        match self {
            Self::Read { into, avoid, .. } => {
                Self::Read { range: part, into: into.slice(bytes), avoid: *avoid }
            }
            Self::Write { data, fua, .. } => {
                Self::Write { range: part, data: data.slice(bytes), fua: *fua }
            }
            Self::WriteZeroes { unmap, fua, .. } => {
                Self::WriteZeroes { range: part, unmap: *unmap, fua: *fua }
            }
            Self::Discard { fua, .. } => Self::Discard { range: part, fua: *fua },
            Self::Status { .. } => Self::Status { range: part, extents: Vec::new() },
            Self::Flush => unreachable!("has no range"),
        }
    }
}

/// The name of an operation, without its operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Verb {
    /// [`Op::Read`]
    Read,
    /// [`Op::Write`]
    Write,
    /// [`Op::WriteZeroes`]
    WriteZeroes,
    /// [`Op::Discard`]
    Discard,
    /// [`Op::Flush`]
    Flush,
    /// [`Op::Status`]
    Status,
}

impl Verb {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::WriteZeroes, Self::Discard, Self::Flush, Self::Status];

    /// The word that specs, traces and metrics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteZeroes => "zero",
            Self::Discard => "discard",
            Self::Flush => "flush",
            Self::Status => "status",
        }
    }

    /// Whether it changes bytes.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteZeroes | Self::Discard)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of copies of a redundant device, by number; at most 32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copies(pub u32);

impl Copies {
    /// No copy.
    pub const NONE: Self = Self(0);

    /// Whether copy `n` is in the set.
    pub const fn has(self, n: usize) -> bool {
        n < 32 && self.0 & (1 << n) != 0
    }

    /// The set with copy `n` in it.
    #[must_use]
    pub const fn with(self, n: usize) -> Self {
        Self(if n < 32 { self.0 | 1 << n } else { self.0 })
    }
}

/// A run of bytes of one state, within a [`Op::Status`] answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// How many bytes.
    pub len: u64,
    /// What is there.
    pub state: State,
}

/// What a run of bytes holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// Bytes that must be read to be known.
    Data,
    /// Allocated, reads as zeros.
    Zero,
    /// Not allocated, reads as zeros.
    Hole,
}

impl State {
    /// Whether it is known to read as zeros.
    pub const fn is_zero(self) -> bool {
        !matches!(self, Self::Data)
    }
}

/// The most extents that one status request answers with; the client asks again for the rest.
pub const EXTENTS_MAX: usize = 4096;

/// Adds a run to an answer, merged with the one before if both are of one state.
pub fn push_extent(extents: &mut Vec<Extent>, len: u64, state: State) {
    match extents.last_mut() {
        // A server may say anything.
        Some(last) if last.state == state => last.len = last.len.saturating_add(len),
        _ => extents.push(Extent { len, state }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_state_are_one_and_never_wrap() {
        let mut all = Vec::new();
        for (len, state) in
            [(4, State::Data), (5, State::Data), (u64::MAX, State::Hole), (2, State::Hole)]
        {
            push_extent(&mut all, len, state);
        }
        let merged = [(9, State::Data), (u64::MAX, State::Hole)];
        assert_eq!(all, merged.map(|(len, state)| Extent { len, state }));
    }
}
