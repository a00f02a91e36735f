//! What a simulated disk is like, and what may go wrong with it.

use crate::draw::Ppm;

/// Bytes of a sector: what a disk writes wholly or not at all, unless its profile says otherwise.
pub const SECTOR: u64 = 512;

/// Bytes of a physical sector of today's disks.
pub const PHYSICAL: u64 = 4096;

/// What fills the bytes that a torn write has destroyed.
pub const DAMAGE: u8 = 0xda;

/// Sorts of disks, by what a power cut does to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Sectors of 4 KiB, each atomic.
    Native4k,
    /// Sectors of 512 bytes, each atomic.
    Native512,
    /// Sectors of 512 bytes in physical ones of 4 KiB: a torn one damages neighbours that nobody wrote.
    Emulated512,
    /// A sector that is being written may become garbage.
    NotAtomic,
    /// The cache survives power cuts.
    Protected,
    /// Answers flushes and does nothing.
    Liar,
    /// Has less space than it says; so many bytes.
    Thin(u64),
}

impl Profile {
    /// What its operations are multiples of.
    pub fn block_size(self) -> u32 {
        if self == Self::Native4k { 4096 } else { 512 }
    }

    /// How many bytes are written wholly or not at all.
    pub(super) fn atomic(self) -> u64 {
        if self == Self::Native4k { PHYSICAL } else { SECTOR }
    }

    /// Whether what it has answered can be lost with power.
    pub(super) fn is_volatile(self) -> bool {
        self != Self::Protected
    }

    /// Whether it keeps what it promises: what was flushed is there, and nothing else is touched.
    pub fn is_honest(self) -> bool {
        !matches!(self, Self::Emulated512 | Self::NotAtomic | Self::Liar)
    }
}

/// How often what goes wrong, in a million operations of its sort.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// A sector cannot be read until it is written anew.
    pub read_error: Ppm,
    /// A write fails; part of it may be there.
    pub write_error: Ppm,
    /// A flush fails and what it should have kept is gone; the next one succeeds.
    pub flush_error: Ppm,
    /// An answer comes late.
    pub stall: Ppm,
    /// An answer of a flush comes late.
    pub late_flush: Ppm,
    /// An answer never comes.
    pub hang: Ppm,
    /// A bit of a sector turns over on the medium.
    pub rot: Ppm,
    /// A write is answered and lost.
    pub lost_write: Ppm,
    /// A write goes to another place.
    pub misdirected: Ppm,
}

/// A simulated disk, before it is made.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Bytes.
    pub size: u64,
    /// What a power cut does to it.
    pub profile: Profile,
    /// What else goes wrong.
    pub faults: Faults,
    /// Whether it zeroes ranges by itself.
    pub zeroes: bool,
    /// Whether a discard does anything.
    pub discard: bool,
    /// Whether it reads as zeros afterwards.
    pub discard_zeroes: bool,
    /// The fastest answer, in nanoseconds.
    pub least_ns: u64,
    /// The slowest answer that is not late, in nanoseconds.
    pub most_ns: u64,
    /// How often an answer is followed by one cached sector going to the medium.
    pub destage: Ppm,
}

impl DiskConfig {
    /// An honest disk of `size` bytes on which nothing goes wrong but power.
    pub fn new(size: u64, profile: Profile) -> Self {
        Self {
            size,
            profile,
            faults: Faults::default(),
            zeroes: true,
            discard: true,
            discard_zeroes: true,
            least_ns: 5_000,
            most_ns: 500_000,
            destage: 300_000,
        }
    }
}

/// Which writes that are not durable a power cut leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutPolicy {
    /// None.
    DropAll,
    /// All, also those in flight.
    KeepAll,
    /// Those that completed first.
    Prefix,
    /// Those that completed last.
    Reverse,
    /// All but one.
    OmitOne,
    /// One.
    KeepOne,
    /// A drawn choice, by write.
    Random,
    /// A drawn choice by sector: writes are torn wherever the profile allows it.
    Torn,
}

impl CutPolicy {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::DropAll,
        Self::KeepAll,
        Self::Prefix,
        Self::Reverse,
        Self::OmitOne,
        Self::KeepOne,
        Self::Random,
        Self::Torn,
    ];
}
