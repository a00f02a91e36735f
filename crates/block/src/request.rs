//! Data requests, and their operations: a closed set of types.

use std::fmt;

use crate::{Buf, ByteRange, Copies};

/// A data request to a device. After completion the same value is returned to the upper, with the bytes that were
/// read.
#[derive(Debug)]
pub struct Request {
    /// Operation of the request, with its operands.
    pub op: Op,
    /// Number of the request, for traces. It is the same in all devices that the request passes.
    pub id: u64,
}

/// The operation of a data request. A new variant must be handled by every kind, or the kind does not compile.
#[derive(Debug)]
pub enum Op {
    /// Reads `range` into `into`, which has the same length. A device may replace `into` with another buffer. After
    /// completion the buffer belongs to the reader alone, which may change it: a device that needs the bytes later
    /// must copy them.
    Read {
        /// Bytes of the device to read.
        range: ByteRange,
        /// Buffer for the bytes; after completion, the buffer with the bytes.
        into: Buf,
        /// Copies that the device must not read, as long as it can read another copy. After completion, these copies and
        /// the copy that was read. If parts of the range were read from different copies, all these copies are added.
        avoid: Copies,
        /// Whether all copies of the bytes but those of this device have failed. A device that verifies may then return
        /// bytes that it cannot verify. A redundant device passes it on only when all of its own copies have failed.
        last_resort: bool,
    },
    /// Writes `data` to `range`, which has the same length. The buffer must not change after the request is
    /// submitted. A write that restores copies changes no content: the bytes of `data` are those of the device, and
    /// only the named copies are written. A device that has none of the copies does not get the write.
    Write {
        /// Bytes of the device to write.
        range: ByteRange,
        /// Buffer with the bytes to write.
        data: Buf,
        /// Whether the write must be durable at completion.
        fua: bool,
        /// Copies that the write restores, because their bytes are wrong; empty for a write of new content. A device
        /// with one copy carries out both in the same way.
        restores: Copies,
    },
    /// Makes a range of the device read as zeros.
    WriteZeroes {
        /// Bytes of the device to zero.
        range: ByteRange,
        /// Whether the space of the range may be freed.
        unmap: bool,
        /// Whether the zeros must be durable at completion.
        fua: bool,
    },
    /// Gives up the bytes of `range`. All later reads return the same bytes: zeros, or the bytes before the discard.
    Discard {
        /// Bytes of the device to discard.
        range: ByteRange,
        /// Whether the discard must be durable at completion.
        fua: bool,
    },
    /// Makes every write durable that completed before this flush was submitted.
    Flush,
    /// Reports which parts of `range` are data, allocated zeros, or holes.
    Status {
        /// Bytes of the device whose block status is requested.
        range: ByteRange,
        /// Block status of the range: at least of its beginning, in order and without gaps. Empty when the request is
        /// submitted. After an error the content is undefined.
        extents: Vec<Extent>,
    },
}

impl Op {
    /// Creates a read of `range` into `into`, from any copy.
    pub fn read(range: ByteRange, into: Buf) -> Self {
        Self::Read { range, into, avoid: Copies::NONE, last_resort: false }
    }

    /// Creates a write of `data` to `range` that is durable only after a flush.
    pub fn write(range: ByteRange, data: Buf) -> Self {
        Self::Write { range, data, fua: false, restores: Copies::NONE }
    }

    /// Creates a write of `data`, the bytes that the device has at `range`, to the copies in `restores` alone. The write
    /// is durable only after a flush.
    pub fn restore(range: ByteRange, data: Buf, restores: Copies) -> Self {
        Self::Write { range, data, fua: false, restores }
    }

    /// Returns the byte range of the operation; `None` for a flush, which concerns the whole device.
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

    /// Replaces the range of the operation with `to`, a range of a lower. A flush has no range and does not change.
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

    /// Returns the type of the operation, without its operands.
    pub fn verb(&self) -> OpKind {
        match self {
            Self::Read { .. } => OpKind::Read,
            Self::Write { .. } => OpKind::Write,
            Self::WriteZeroes { .. } => OpKind::WriteZeroes,
            Self::Discard { .. } => OpKind::Discard,
            Self::Flush => OpKind::Flush,
            Self::Status { .. } => OpKind::Status,
        }
    }

    /// Whether the operation must be durable at completion.
    pub fn fua(&self) -> bool {
        match self {
            Self::Write { fua, .. } | Self::WriteZeroes { fua, .. } | Self::Discard { fua, .. } => {
                *fua
            }
            Self::Read { .. } | Self::Flush | Self::Status { .. } => false,
        }
    }

    /// Whether the operation changes bytes of the device.
    pub fn writes(&self) -> bool {
        self.verb().writes()
    }

    /// Whether the operation is a write that restores none of the first `count` copies: there is nothing to write for a
    /// device that has no others.
    pub fn restores_none_of(&self, count: u32) -> bool {
        matches!(self, Self::Write { restores, .. }
            if *restores != Copies::NONE && restores.and(Copies::first(count)) == Copies::NONE)
    }

    /// Adds `copies` to the copies that a read avoids or has read. Does nothing for any other operation.
    pub fn add_copies(&mut self, copies: Copies) {
        if let Self::Read { avoid, .. } = self {
            *avoid = avoid.or(copies);
        }
    }

    /// Returns the operation for the bytes `part` of its range, with slices of the same buffers.
    ///
    /// # Panics
    /// If `part` is not inside the operation's range, or for a flush.
    pub fn part(&self, part: ByteRange) -> Self {
        let whole = self.range().expect("a flush request has no parts");
        assert!(whole.contains(part), "the part {part} is outside of the request's range {whole}");
        let from = (part.start() - whole.start()) as usize;
        let bytes = from..from + part.len() as usize;
        match self {
            Self::Read { into, avoid, last_resort, .. } => Self::Read {
                range: part,
                into: into.slice(bytes),
                avoid: *avoid,
                last_resort: *last_resort,
            },
            Self::Write { data, fua, restores, .. } => {
                Self::Write { range: part, data: data.slice(bytes), fua: *fua, restores: *restores }
            }
            Self::WriteZeroes { unmap, fua, .. } => {
                Self::WriteZeroes { range: part, unmap: *unmap, fua: *fua }
            }
            Self::Discard { fua, .. } => Self::Discard { range: part, fua: *fua },
            Self::Status { .. } => Self::Status { range: part, extents: Vec::new() },
            Self::Flush => unreachable!("a flush request has no range"),
        }
    }
}

/// The type of a data operation, without its operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum OpKind {
    /// A read ([`Op::Read`]).
    Read,
    /// A write of data ([`Op::Write`]).
    Write,
    /// A write of zeros without data ([`Op::WriteZeroes`]).
    WriteZeroes,
    /// A discard ([`Op::Discard`]).
    Discard,
    /// A flush ([`Op::Flush`]).
    Flush,
    /// A query of the block status ([`Op::Status`]).
    Status,
}

impl OpKind {
    /// All types of operations, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::WriteZeroes, Self::Discard, Self::Flush, Self::Status];

    /// Returns the word for this type of operation in specs, traces and metrics.
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

    /// Whether an operation of this type changes bytes of the device.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteZeroes | Self::Discard)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A run of bytes in one state, in the block status that a device reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length of the run in bytes.
    pub len: u64,
    /// State of the bytes in the run.
    pub state: State,
}

/// State of a run of bytes in a block status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// The bytes may be other than zeros: they must be read to be known.
    Data,
    /// The bytes are allocated, and read as zeros.
    Zero,
    /// The bytes are not allocated, and read as zeros.
    Hole,
}

impl State {
    /// Whether bytes in this state read as zeros for certain.
    pub const fn is_zero(self) -> bool {
        !matches!(self, Self::Data)
    }
}

/// Most extents in the reply to one block status request. The client requests the rest with another request.
pub const EXTENTS_MAX: usize = 4096;

/// Returns the block status of `len` bytes from `told`, the block status of a lower, which begins `skip` bytes before
/// these bytes. If `told` covers none of the bytes, they count as data.
pub fn clip_extents(told: &[Extent], mut skip: u64, len: u64) -> Vec<Extent> {
    let (mut all, mut left) = (Vec::new(), len);
    for extent in told.iter().take(EXTENTS_MAX) {
        let cut = skip.min(extent.len);
        skip -= cut;
        let here = (extent.len - cut).min(left);
        if here > 0 {
            push_extent(&mut all, here, extent.state);
            left -= here;
        }
    }
    if all.is_empty() {
        push_extent(&mut all, len, State::Data);
    }
    all
}

/// Appends a run of `len` bytes to the block status `extents`. The run is merged with the last extent if both have
/// the same state.
pub fn push_extent(extents: &mut Vec<Extent>, len: u64, state: State) {
    match extents.last_mut() {
        // A server may report any length.
        Some(last) if last.state == state => last.len = last.len.saturating_add(len),
        _ => extents.push(Extent { len, state }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_extent_merges_neighbours_of_same_state_without_overflow() {
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
