//! Properties and fault rates of a simulated disk.

use crate::draw::Ppm;

/// Length of a sector in bytes. A disk writes a sector atomically, unless its profile permits otherwise.
pub const SECTOR: u64 = 512;

/// Length in bytes of a physical sector of a present disk.
pub const PHYSICAL: u64 = 4096;

/// The byte with which a torn write fills the part of a sector that it has destroyed.
pub const DAMAGE: u8 = 0xda;

/// The type of a disk, which decides the effect of a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Sectors of 4 KiB, each atomic.
    Native4k,
    /// Sectors of 512 bytes, each atomic.
    Native512,
    /// Sectors of 512 bytes in physical sectors of 4 KiB. A torn write damages neighbouring sectors to which it did
    /// not write.
    Emulated512,
    /// A sector that is being written at the power cut may become junk.
    NotAtomic,
    /// The cache of the disk survives power cuts.
    Protected,
    /// The disk acknowledges flushes without carrying them out.
    Liar,
    /// The disk has less space than its size: this number of bytes.
    Thin(u64),
}

impl Profile {
    /// Returns the block size in bytes: offset and length of each operation are multiples of it.
    pub fn block_size(self) -> u32 {
        if self == Self::Native4k { 4096 } else { 512 }
    }

    /// Returns the number of bytes that the disk writes atomically.
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

/// Fault rates of a disk, each in a million operations of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Rate of operations that make a sector unreadable until the next write to it.
    pub read_error: Ppm,
    /// Rate of writes that fail, perhaps after a part has taken effect.
    pub write_error: Ppm,
    /// Rate of flushes that fail and lose the cache; the next flush succeeds.
    pub flush_error: Ppm,
    /// Rate of operations that complete late.
    pub stall: Ppm,
    /// Rate of flushes that complete late.
    pub late_flush: Ppm,
    /// Rate of operations that never complete.
    pub hang: Ppm,
    /// Rate of operations that flip a bit of a sector on the medium.
    pub rot: Ppm,
    /// Rate of writes that are acknowledged and lost.
    pub lost_write: Ppm,
    /// Rate of writes that go to another address.
    pub misdirected: Ppm,
}

/// Configuration of a simulated disk.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Type of the disk, which decides the effect of a power cut.
    pub profile: Profile,
    /// Fault rates of the disk.
    pub faults: Faults,
    /// Whether the disk can zero a range without data.
    pub zeroes: bool,
    /// Whether a discard has an effect on the disk.
    pub discard: bool,
    /// Whether discarded bytes read as zeros.
    pub discard_zeroes: bool,
    /// Shortest time of an operation, in nanoseconds.
    pub least_ns: u64,
    /// Longest time of an operation that is not late, in nanoseconds.
    pub most_ns: u64,
    /// Rate of operations after which the disk moves one cached sector to the medium.
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

/// The choice of the writes that survive a power cut, among those that are not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutPolicy {
    /// No write survives.
    DropAll,
    /// All writes survive, including those in flight.
    KeepAll,
    /// The writes that completed first survive.
    Prefix,
    /// The writes that completed last survive.
    Reverse,
    /// All writes but one survive.
    OmitOne,
    /// One write survives.
    KeepOne,
    /// A random set of whole writes survives.
    Random,
    /// A random set of sectors survives: writes are torn wherever the profile permits it.
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
