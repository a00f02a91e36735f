//! The configuration of a simulated disk: its type, and the rates of its faults.

use crate::draw::Ppm;

/// Length in bytes of a sector, the smallest unit of a simulated disk. A disk writes a sector atomically, unless its
/// profile permits otherwise.
pub const SECTOR: u64 = 512;

/// Length in bytes of a physical sector of a modern disk.
pub const PHYSICAL: u64 = 4096;

/// The byte with which a torn write on a simulated disk overwrites the sectors that it destroys.
pub const DAMAGE: u8 = 0xda;

/// The type of a simulated disk, which decides the effect of a power cut on its writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// A disk with sectors of 4 KiB, each of which it writes atomically.
    Native4k,
    /// A disk with sectors of 512 bytes, each of which it writes atomically.
    Native512,
    /// A disk with sectors of 512 bytes inside physical sectors of 4 KiB. A torn write also damages neighbouring
    /// sectors in the physical sector.
    Emulated512,
    /// A disk with sectors of 512 bytes. A power cut may leave junk in the sector in which a torn write stopped.
    NotAtomic,
    /// A disk whose cache survives power cuts.
    Protected,
    /// A disk that acknowledges flushes without effect, so that a power cut can lose flushed writes.
    Liar,
    /// A thin disk, which fails writes when it holds this number of bytes, less than its size.
    Thin(u64),
}

impl Profile {
    /// Returns the block size of the disk in bytes. Address and length of each operation must be multiples of the block
    /// size.
    pub fn block_size(self) -> u32 {
        if self == Self::Native4k { 4096 } else { 512 }
    }

    /// Returns the number of bytes that the disk writes atomically at a power cut.
    pub(super) fn atomic(self) -> u64 {
        if self == Self::Native4k { PHYSICAL } else { SECTOR }
    }

    /// Whether a power cut of the disk can lose acknowledged writes that were not flushed.
    pub(super) fn is_volatile(self) -> bool {
        self != Self::Protected
    }

    /// Whether flushed writes survive a power cut of the disk, and torn writes damage no other sectors.
    pub fn is_honest(self) -> bool {
        !matches!(self, Self::Emulated512 | Self::NotAtomic | Self::Liar)
    }
}

/// Fault rates of a simulated disk. Each is a number of operations in a million.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Reads in a million that make a random sector of their range unreadable until the next write to the sector.
    pub read_error: Ppm,
    /// Writes in a million that fail, perhaps after they have changed some sectors.
    pub write_error: Ppm,
    /// Flushes in a million that fail and lose all cached writes. The next flush succeeds.
    pub flush_error: Ppm,
    /// Operations in a million that complete 0.1 to 2.6 s late.
    pub stall: Ppm,
    /// Flushes in a million that complete 0.1 to 2.6 s late.
    pub late_flush: Ppm,
    /// Operations in a million that never complete by themselves.
    pub hang: Ppm,
    /// Reads in a million before which the disk flips a bit of a sector in their range.
    pub rot: Ppm,
    /// Writes in a million that the disk acknowledges without storing them.
    pub lost_write: Ppm,
    /// Writes in a million that the disk stores at a random other address.
    pub misdirected: Ppm,
}

/// The configuration of a simulated disk.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Type of the disk, which decides the effect of a power cut on its writes.
    pub profile: Profile,
    /// Rates of the disk's faults at the begin of the run.
    pub faults: Faults,
    /// Whether the disk offers write zeroes; if not, devices above must write zeros as data.
    pub zeroes: bool,
    /// Whether the disk offers discards.
    pub discard: bool,
    /// Whether discarded bytes of the disk always read as zeros.
    pub discard_zeroes: bool,
    /// Shortest time of a disk operation, in nanoseconds.
    pub least_ns: u64,
    /// Longest time of a disk operation without a late reply, in nanoseconds.
    pub most_ns: u64,
    /// Time in nanoseconds that a flush takes longer than another operation.
    pub flush_ns: u64,
    /// Operations in a million after which the disk moves one cached sector to the medium without a flush.
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
            flush_ns: 0,
            destage: 300_000,
        }
    }
}

/// How a power cut selects the writes that survive on a simulated disk, among the writes that no flush covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutPolicy {
    /// No write that is not durable survives.
    DropAll,
    /// All writes survive, including the writes in flight.
    KeepAll,
    /// A random number of writes survives: those that completed first.
    Prefix,
    /// A random number of writes survives: those that completed last.
    Reverse,
    /// All writes except a random one survive.
    OmitOne,
    /// One random write survives.
    KeepOne,
    /// Each write survives or is lost as a whole, at random.
    Random,
    /// Each sector survives or is lost at random, so that writes are torn where the disk's profile permits it.
    Torn,
}

impl CutPolicy {
    /// All policies, from which a trial draws one for each power cut.
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
