//! Properties and fault rates of a simulated disk.

use crate::draw::Ppm;

/// Bytes of a sector. A disk writes a sector atomically, unless its profile differs.
pub const SECTOR: u64 = 512;

/// Bytes of a physical sector of today's disks.
pub const PHYSICAL: u64 = 4096;

/// The byte that fills the part of a sector that a torn write destroyed.
pub const DAMAGE: u8 = 0xda;

/// Types of disks, by the effect of a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Sectors of 4 KiB, each atomic.
    Native4k,
    /// Sectors of 512 bytes, each atomic.
    Native512,
    /// Sectors of 512 bytes in physical sectors of 4 KiB: a torn write damages neighbours that were not
    /// written.
    Emulated512,
    /// A sector that is being written may become garbage.
    NotAtomic,
    /// The cache survives power cuts.
    Protected,
    /// Acknowledges flushes without doing them.
    Liar,
    /// Has less space than its size; so many bytes.
    Thin(u64),
}

impl Profile {
    /// Returns the block size: start and length of each operation are multiples of it.
    pub fn block_size(self) -> u32 {
        if self == Self::Native4k { 4096 } else { 512 }
    }

    /// Returns the number of bytes that are written atomically.
    pub(super) fn atomic(self) -> u64 {
        if self == Self::Native4k { PHYSICAL } else { SECTOR }
    }

    /// Whether a power cut can lose acknowledged writes.
    pub(super) fn is_volatile(self) -> bool {
        self != Self::Protected
    }

    /// Whether flushed writes survive a power cut, and torn writes damage no other sectors.
    pub fn is_honest(self) -> bool {
        !matches!(self, Self::Emulated512 | Self::NotAtomic | Self::Liar)
    }
}

/// Fault rates, in a million operations of the sort concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// A sector cannot be read until it is written anew.
    pub read_error: Ppm,
    /// A write fails, possibly after a part took effect.
    pub write_error: Ppm,
    /// A flush fails and the cache is lost; the next flush succeeds.
    pub flush_error: Ppm,
    /// An answer comes late.
    pub stall: Ppm,
    /// An answer of a flush comes late.
    pub late_flush: Ppm,
    /// An answer never comes.
    pub hang: Ppm,
    /// A bit of a sector flips on the medium.
    pub rot: Ppm,
    /// A write is acknowledged and lost.
    pub lost_write: Ppm,
    /// A write goes to another address.
    pub misdirected: Ppm,
}

/// Configuration of a simulated disk.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Size in bytes.
    pub size: u64,
    /// Its type, by the effect of a power cut.
    pub profile: Profile,
    /// Its fault rates.
    pub faults: Faults,
    /// Whether it supports zeroing of ranges.
    pub zeroes: bool,
    /// Whether a discard does anything.
    pub discard: bool,
    /// Whether discarded bytes read as zeros.
    pub discard_zeroes: bool,
    /// The fastest answer, in nanoseconds.
    pub least_ns: u64,
    /// The slowest answer that is not late, in nanoseconds.
    pub most_ns: u64,
    /// How often an answer is followed by a write-back of one cached sector to the medium.
    pub destage: Ppm,
}

impl DiskConfig {
    /// Returns the configuration of a disk of `size` bytes without faults.
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

/// The choice of writes that survive a power cut, among those that are not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutPolicy {
    /// None.
    DropAll,
    /// All, including those in flight.
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
    /// All policies.
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
