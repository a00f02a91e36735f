//! Bugs that can be switched on, to prove that the tests find them.
//!
//! They exist only with the feature `seeded-bugs`, in builds that are not released; in all other builds [`on`] is the
//! constant `false`. One bug at a time is selected by its number: `CAIRN_SEEDED_BUG=02a`. `tools/mutants` reads the
//! numbers and the words from the lines below.

/// Declares the bugs: each with its number.
macro_rules! bugs {
    ($($(#[$words:meta])* $bug:ident = $number:literal,)*) => {
        /// A seeded bug.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $($(#[$words])* $bug,)*
        }

        impl Bug {
            /// All bugs, with their numbers.
            pub const ALL: &[(&str, Self)] = &[$(($number, Self::$bug),)*];
        }
    };
}

bugs! {
    /// 02a flush only the first child of a table
    FlushFirstChild = "02a",
    /// 02b flush only the first member of a mirror
    FlushFirstMember = "02b",
    /// 04 retry a flush that failed, and say yes
    FlushRetried = "04",
    /// 05 an update of a label goes over the copies that count
    LabelOverActive = "05",
    /// 06 the newest copy of a label counts, whole or not
    LabelUnchecked = "06",
    /// 07 a member that missed writes serves after a restart
    StaleServes = "07",
    /// 08 a write is answered before a member's failure is durable
    AnsweredEarly = "08",
    /// 15 overlapping writes in another order on each copy
    OverlapUnordered = "15",
    /// 40 a flush covers its own connection only
    FlushPerConnection = "40",
    /// 35 one tweak for all data units of a request
    TweakOnce = "35",
    /// 35b a request that is split while workers are busy has the tweak of its beginning everywhere
    TweakOfSplit = "35b",
    /// 66 a write that the system carries out in part is not continued
    ShortWrite = "66",
    /// 41 a payload that came in part is written
    PartialPayload = "41",
    /// 10 the tail of a vault's log moves before the pages are flushed
    LogTailEarly = "10",
    /// 10b room in a vault's log is computed without the record itself
    RoomForNothing = "10b",
    /// 03 a transaction is answered before its record is flushed
    CommitBeforeFlush = "03",
    /// 05b a vault's superblock goes over the one that counts
    SuperblockOverActive = "05b",
    /// 08b a commit is answered before the others know durably who missed it
    LeftBehindLate = "08b",
    /// 05c the epoch of a vault stays when a copy is left behind
    EpochKept = "05c",
    /// 23 a vault's log ends at any record that is damaged
    LogCutAtDamage = "23",
    /// 44 the boundary of a migration moves before what is behind it is flushed
    MoveUnflushed = "44",
    /// 44b a migration changes a window before its state is durable
    MoveUnrecorded = "44b",
    /// 44c a migration turns round in the midst of a window
    TurnedAtOnce = "44c",
    /// 44d the window that a migration has moved is released before its state is durable
    MoveReleasedEarly = "44d",
    /// 50 a server that came back is not sent again what it was not asked to flush
    ReplaySkipped = "50",
    /// 50b overlapping changes are sent again at once over several connections
    ReplayUnordered = "50b",
    /// 51 a write is answered before its record is in the memory that outlives the process
    AnsweredUnrecorded = "51",
    /// 60 clients are not held while a graph changes
    ChangeNotHeld = "60",
    /// 61 a graph changes without a flush before
    ChangeUnflushed = "61",
    /// 62 labels tell of a change before its devices are made
    ChangeToldEarly = "62",
    /// 63 a new disk counts before the others are told of the change that it came with
    NewDiskEarly = "63",
    /// 64 a disk of an earlier time is served beside the others
    OlderServes = "64",
    /// 64b a disk that is one round older than the others is served beside them
    OlderByOneServes = "64b",
    /// 13 a copy's progress is told before what was copied is flushed
    ProgressEarly = "13",
    /// 70 a region is marked after the write to it is sent
    RegionMarkedLate = "70",
    /// 70b a region leaves the map while a write there is in flight
    RegionLeftBusy = "70b",
    /// 71 a region is called clean without a flush
    RegionUnflushed = "71",
    /// 72 the map of a member that comes back is ignored
    MapIgnored = "72",
    /// 73 the data that a vault's last record names are not looked at
    DataUnverified = "73",
    /// 74 data that a vault's last record names are changed in place all the same
    DataNotLetGo = "74",
    /// 12 a member that is being copied is read
    ResyncReadsTarget = "12",
    /// 14 what a crash left different on members in sync is not made alike
    CrashUnreconciled = "14",
    /// 75 a member's image from when it was in use is the source of those that were closed in order
    ImageIsSource = "75",
    /// 76 a copy begins before the member has a state that says so, and stays
    CopyUntold = "76",
    /// 77 what the last member does late lands on top of what was answered since
    LateUnfenced = "77",
    /// 78 a member stays although a write of a copy that was begun again since is late there
    LateCopyStays = "78",
    /// 79 the block status that one copy gave before it failed stays in the answer of the next one
    StatusLeftOver = "79",
    /// 80 bytes count that a member of a mirror gave after it was taken out
    FailedBelieved = "80",
    /// 43 a change forgets a request that waits for its end
    ChangeDropsHeld = "43",
    /// 45 a flush counts for what was answered after it was submitted
    FlushJoinedLate = "45",
    /// 45b a flush on its way does not ask a member that came in sync meanwhile
    FlushNotAskedAnew = "45b",
    /// 52 a disk is served before its lock is had
    ServedUnlocked = "52",
    /// 53 what a client had sent that is gone is begun beside its successor's
    GoneNotClosed = "53",
    /// 54 a disk is served after a kill before its server is flushed
    KilledNotFlushed = "54",
    /// 55 the error of one piece of a long request is forgotten
    PieceErrorForgotten = "55",
    /// 06b a disk whose label at the front was overwritten is believed
    OverwrittenBelieved = "06b",
    /// 07b trust in a spec brings back a member that missed writes
    TrustOverLabels = "07b",
    /// 37 a file that was cut short is read and written all the same
    CutUnnoticed = "37",
    /// 60b the pieces of a long request are not admitted
    PieceUnadmitted = "60b",
    /// 85 a flush succeeds beside one that fails
    FlushBeside = "85",
    /// 86 a mirror that is made anew forgets the states that were sent before
    SentForgotten = "86",
    /// 96 a member copied as a whole proves what its former bytes had
    RefilledProves = "96",
    /// 98 a new label begins before one that a start which was cut short has left
    LeftLabelNewer = "98",
    /// 91 a change reaches disks without its states together with those that have them
    StatelessEarly = "91",
    /// 87 a change is undone on the disks that it removes before any other disk
    UndoneOnRemovedFirst = "87",
    /// 88 a start repeats a migration that has ended
    MigrationRepeated = "88",
    /// 89 a window is moved under sums that a power cut has made wrong
    MoveMendedUnrecorded = "89",
    /// 90 a graph is closed in order while a request of a closed connection is under way
    FlushUndrained = "90",
    /// 92 the spec in a label is not checked against the allow list
    LabelBelieved = "92",
    /// 93 a label holds local options, and sources of keys
    LabelHoldsAll = "93",
    /// 94 a removed key slot stays in the older generation of a label
    OldSlotsStay = "94",
    /// 95 a connection whose certificate is not admitted any more stays
    BarredStays = "95",
    /// 97 the label with the most updates counts, whatever its epoch
    EpochIgnored = "97",
}

#[cfg(not(feature = "seeded-bugs"))]
mod switch {
    use super::Bug;

    /// Whether the bug is switched on.
    #[inline(always)]
    pub const fn on(_: Bug) -> bool {
        false
    }

    /// Marks an object, by its address, for a bug that depends on it.
    #[inline(always)]
    pub const fn note(_: usize) {}

    /// Whether the object was marked since the last call.
    #[inline(always)]
    pub const fn take_note(_: usize) -> bool {
        false
    }
}

#[cfg(feature = "seeded-bugs")]
mod switch {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::sync::OnceLock;

    use super::Bug;

    static CHOSEN: OnceLock<Option<Bug>> = OnceLock::new();

    thread_local! {
        static NOTED: RefCell<BTreeSet<usize>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// Whether the bug is switched on.
    ///
    /// # Panics
    /// If no bug has the selected number.
    pub fn on(bug: Bug) -> bool {
        *CHOSEN.get_or_init(chosen) == Some(bug)
    }

    fn chosen() -> Option<Bug> {
        let wanted = std::env::var("CAIRN_SEEDED_BUG").ok()?;
        let found = Bug::ALL.iter().find(|(number, _)| *number == wanted);
        Some(
            found
                .unwrap_or_else(|| {
                    panic!("CAIRN_SEEDED_BUG={wanted}: no seeded bug has this number")
                })
                .1,
        )
    }

    /// Marks an object, by its address, for a bug that depends on it.
    pub fn note(thing: usize) {
        NOTED.with_borrow_mut(|noted| noted.insert(thing));
    }

    /// Whether the object was marked since the last call.
    pub fn take_note(thing: usize) -> bool {
        NOTED.with_borrow_mut(|noted| noted.remove(&thing))
    }
}

pub use switch::{note, on, take_note};
