//! Counts of all kinds of events, which show if a test never exercised one.

use std::cell::Cell;

macro_rules! counts {
    ($($name:ident $words:literal,)*) => {
        /// A kind of event in a simulated world.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Count { $(#[doc = $words] $name,)* }

        impl Count {
            /// All kinds of events, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns its description.
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
    Destage "cached sectors written to the medium by themselves",
    Overtaken "cached sectors that a later write overtook",
    PowerCut "power cuts",
    CutKept "sectors that a power cut kept from the cache",
    CutLost "sectors of the cache that a power cut lost",
    CutOlder "sectors of which a power cut kept an older write than the last",
    CutInFlight "sectors of writes in flight that a power cut kept",
    Torn "writes that a power cut tore",
    Damaged "sectors that a torn write damaged",
    Kill "process kills",
    KillLanded "writes in flight that landed after a kill",
    KillLost "writes in flight that a kill called off",
    ReadError "latent read errors",
    ReadRepaired "sectors with a read error that were written anew",
    WriteError "failed writes",
    FlushError "failed flushes that dropped the cache",
    FlushIgnored "flushes that a lying disk ignored",
    NoSpace "writes that found a thin disk full",
    Stall "late answers",
    Hang "operations that were never answered",
    Rot "sectors that rotted",
    LostWrite "writes that were answered and lost",
    Misdirected "writes that went elsewhere",
    Released "hung operations that were let go",
    Locked "opens refused because the disk was in use",
    Retired "members that a mirror took out",
    ReadRetired "members that a mirror took out for too many read errors",
    Rewritten "ranges that a mirror rewrote after a read error",
    MemberFailed "members that were taken out by command",
    Resynced "members that came back in sync",
    CopiedPart "copies of a part of a member, begun with a start",
    CopiedWhole "copies of a whole member, begun with a start",
    ScrubEnded "scrubs that ended",
    EventTold "other events of devices",
    Trusted "restarts of a mirror that trust another member than before",
    Compared "members in sync that were compared with another",
    Unread "checks that nobody reads a member that is out",
    Injected "requests that failed on purpose",
    Connected "connections",
    Reset "connections that broke",
    Unknown "requests whose connection broke before the answer",
    TakenOver "times that all members with a late flush were taken out after others had come in sync",
    ServerCut "power cuts of a server while its clients lived on",
    Replayed "changes that a disk over NBD sent again",
    Sent "network sends",
    SplitSend "network sends that took less than all",
    Received "network receives",
    Labelled "openings of labelled graphs",
    KillRetired "kills at the moment when a member failed",
    Swapped "openings with disks under each other's paths",
    Without "openings without a member",
    OldImage "older images of a member that were put back",
    TwinRefused "openings refused because two disks had one label",
    ApartRefused "openings refused because halves were written apart",
    DiskCut "disks whose files were cut short while they were used",
    ReadGarbled "reads answered with junk by a disk that was taken out meanwhile",
    StaleRefused "openings refused because no member in sync was there",
    OlderRefused "openings refused because a single disk was of an earlier time",
    ForeignRefused "openings refused because another machine had the disks",
    LabelRot "bits of labels that turned over",
    Overwritten "members whose front another program has overwritten",
    OverwrittenRefused "overwritten members that were refused for want of a copy",
    StartCut "starts that were cut short before the next life",
    Moved "openings by another machine than the one that closed the disks",
    ChangeDone "changes of a graph under load",
    ChangeGrew "members that a change added",
    ChangeShrank "members that a change removed",
    ChangeReopened "changes that opened disks in use otherwise",
    ChangeRefused "changes that were refused",
    ChangeUndone "changes that failed and were undone",
    ChangeCrashed "crashes in the middle of a change",
    ChangeTold "crashes in a change after which labels told of the new graph alone",
    ChangeNotTold "crashes in a change after which labels told of the old graph alone",
    DoubtTears "labelled graphs over disks that tear beyond their sectors",
    DoubtFlushes "labelled graphs with a disk that ignores flushes",
    DoubtLost "labelled graphs with a disk that loses writes",
    DoubtMisdirected "labelled graphs with a disk that puts writes elsewhere",
    DoubtRefused "starts refused for what such a disk had done, and done without it",
    MigrationBegun "migrations that a change began",
    MigrationWindow "windows that a migration moved",
    MigrationTurned "migrations that turned round",
    MigrationPaused "migrations that paused",
    MigrationCrashed "crashes in the middle of a migration",
    MigrationEnded "migrations that a change ended",
    MigrationLeft "openings without a disk that a volume has left",
    Work "jobs for other threads",
}

/// The number of events of each kind.
#[derive(Debug)]
pub struct Counters([Cell<u64>; Count::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { Cell::new(0) }; Count::ALL.len()])
    }
}

impl Counters {
    /// Adds one event.
    pub fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    /// Adds `times` events.
    pub fn add_many(&self, count: Count, times: u64) {
        let cell = &self.0[count as usize];
        cell.set(cell.get() + times);
    }

    /// Returns the number of events of a kind.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize].get()
    }

    /// Adds the counts of `other`.
    pub fn absorb(&self, other: &Self) {
        for count in Count::ALL {
            self.add_many(*count, other.get(*count));
        }
    }

    /// Returns the kinds of events that never happened.
    pub fn zeroes(&self) -> impl Iterator<Item = Count> {
        Count::ALL.iter().copied().filter(|count| self.get(*count) == 0)
    }
}
