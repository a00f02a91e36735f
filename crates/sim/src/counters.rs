//! Counters of the events in a simulated world. They show whether a test never had an event of some type.

use std::cell::Cell;

macro_rules! counts {
    ($($name:ident $words:literal,)*) => {
        /// A type of event in a simulated world, such as a disk operation, a fault or a live change.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Count { $(#[doc = $words] $name,)* }

        impl Count {
            /// All types of events, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name of the event type in words, as the simulator prints it.
            pub const fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }
        }
    };
}

counts! {
    DiskRead "disk reads",
    DiskWrite "disk writes",
    DiskFua "disk writes with FUA",
    DiskZero "disk zeroes",
    DiskDiscard "disk discards",
    DiskFlush "disk flushes",
    Overlap "disk operations begun while another on the same bytes was in flight",
    TwoSteps "writes that took effect in two steps",
    Destage "cached sectors that a disk wrote to its medium without a flush",
    Overtaken "cached sectors that reached the medium after a later write",
    PowerCut "power cuts",
    CutKept "sectors that a power cut kept from the cache",
    CutLost "sectors of the cache that a power cut lost",
    CutOlder "sectors for which a power cut kept an older write than the last",
    CutInFlight "sectors of writes in flight that a power cut kept",
    Torn "torn writes of a power cut",
    Damaged "sectors that are unreadable after a torn write",
    Kill "process kills",
    KillLanded "writes in flight that landed after a kill",
    KillLost "writes in flight that a kill cancelled",
    ReadError "latent read errors",
    ReadRepaired "sectors with a read error that a write repaired",
    WriteError "failed writes",
    FlushError "failed flushes that dropped the cache",
    FlushIgnored "flushes that a lying disk ignored",
    NoSpace "writes that found a thin disk full",
    Stall "late replies of disks",
    Hang "disk operations without a reply",
    Rot "sectors whose content changed without a write",
    LostWrite "acknowledged writes that a disk lost",
    Misdirected "misdirected writes",
    Released "hung disk operations that ended",
    Locked "opens refused because the disk was in use",
    Retired "members that a mirror failed",
    ReadRetired "members that a mirror failed for too many read errors",
    Rewritten "ranges that a mirror rewrote after a read error",
    MemberFailed "members that a command failed",
    Resynced "members that came in sync again",
    CopiedPart "resyncs of a part of a member, begun at a start",
    CopiedWhole "resyncs of a whole member, begun at a start",
    ScrubEnded "scrubs that ended",
    EventReported "other events of devices",
    Trusted "restarts of a mirror that trust another member than before",
    Compared "members in sync that were compared with another",
    Unread "checks that a mirror does not read a failed member",
    Injected "requests that failed by an injected error",
    Connected "connections",
    Reset "connections that broke",
    Unknown "requests whose connection broke before the answer",
    TakenOver "times that all members with a late flush failed after others had come in sync",
    ServerCut "power cuts of a server whose clients stayed alive",
    Replayed "unflushed writes that an NBD disk replayed",
    Sent "network sends",
    SplitSend "network sends that took only a part of the bytes",
    Received "network receives",
    Labelled "openings of labelled graphs",
    KillRetired "kills at the moment when a member failed",
    Swapped "openings with disks under each other's paths",
    Without "openings without a member",
    OldImage "older images of a member that were put back",
    TwinRefused "openings refused because two disks had one label",
    ApartRefused "openings refused because of a split brain",
    DiskCut "disk files that were truncated while in use",
    ReadGarbled "reads to which a disk replied with junk after a mirror had failed the disk",
    StaleRefused "openings refused because all members in sync were missing",
    OlderRefused "openings refused because a single disk was an older image",
    ForeignRefused "openings refused because another machine had the disks open",
    LabelRot "bits of labels that flipped",
    Overwritten "members whose first bytes another program overwrote",
    OverwrittenRefused "overwritten members that were refused because no other member was in sync",
    StartCut "starts that were interrupted",
    Moved "openings by another machine than the one that closed the disks",
    ChangeDone "live changes of a graph under load",
    ChangeGrew "members that a live change added",
    ChangeShrank "members that a live change removed",
    ChangeReopened "live changes that reopened disks in use with other options",
    ChangeRefused "live changes that were refused",
    ChangeUndone "live changes that failed and were undone",
    ChangeCrashed "crashes in the middle of a live change",
    ChangeRecorded "crashes in a live change after which the labels held only the new spec",
    ChangeUnrecorded "crashes in a live change after which the labels held only the old spec",
    DoubtTears "labelled graphs over disks whose torn writes damage other sectors",
    DoubtFlushes "labelled graphs with a disk that ignores flushes",
    DoubtLost "labelled graphs with a disk that loses writes",
    DoubtMisdirected "labelled graphs with a disk that misdirects writes",
    DoubtRefused "starts refused because of such a disk, and repeated without the disk",
    MigrationBegun "migrations that a live change began",
    MigrationWindow "windows that a migration moved",
    MigrationTurned "migrations that reversed their direction",
    MigrationPaused "migrations that paused",
    MigrationCrashed "crashes in the middle of a migration",
    MigrationEnded "migrations that a live change ended",
    MigrationLeft "openings without a disk that a migration has emptied",
    SumsAlone "graphs with checksums and no redundancy",
    SumsBelow "graphs with checksums above a mirror",
    SumsAbove "graphs with checksums below a mirror",
    SumsElsewhere "graphs with checksums on another disk",
    SumsRotted "sectors below checksums whose content changed without a write",
    SumsMisdirected "misdirected writes below checksums",
    SumsLost "acknowledged writes below checksums that a disk lost",
    SumsIgnored "flushes below checksums that a lying disk ignored",
    SumsRepaired "copies that a checksum device restored",
    SumsAccepted "blocks that a checksum device accepted",
    SumsDamaged "reads of blocks that differed from their checksums on every copy",
    SumsScanned "scans of regions marked at an opening",
    SumsScanCut "crashes while regions were unverified",
    SumsReplayed "records that an opening replayed from a journal",
    SumsGrown "openings of checksum devices over grown disks",
    SumsMaking "openings with bytes without checksums yet",
    SumsMakingCut "crashes before all bytes had checksums",
    SumsRefused "starts refused because of such a disk",
    SumsDegraded "starts without such a disk",
    Work "jobs of worker threads",
}

/// For each type of event, the number of events that happened in a simulated world.
#[derive(Debug)]
pub struct Counters([Cell<u64>; Count::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { Cell::new(0) }; Count::ALL.len()])
    }
}

impl Counters {
    /// Counts one event of the type `count`.
    pub fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    /// Counts `times` events of the type `count`.
    pub fn add_many(&self, count: Count, times: u64) {
        let cell = &self.0[count as usize];
        cell.set(cell.get() + times);
    }

    /// Returns the number of events of the type `count` so far.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize].get()
    }

    /// Adds the counters of `other` to these counters.
    pub fn absorb(&self, other: &Self) {
        for count in Count::ALL {
            self.add_many(*count, other.get(*count));
        }
    }

    /// Returns the types of events that have not happened so far.
    pub fn zeroes(&self) -> impl Iterator<Item = Count> {
        Count::ALL.iter().copied().filter(|count| self.get(*count) == 0)
    }
}
