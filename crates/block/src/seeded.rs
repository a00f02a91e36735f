//! Bugs that can be switched on, so that the tests prove that they would find them.
//!
//! They exist only with the feature `seeded-bugs`, in builds that nobody gets; elsewhere [`on`] is the
//! constant `false`. One at a time is chosen by its number: `CAIRN_SEEDED_BUG=02a`. `tools/mutants`
//! takes the numbers and the words from the lines below.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// 02a flush only the first child of a table
    FlushFirstChild,
    /// 02b flush only the first member of a mirror
    FlushFirstMember,
    /// 04 retry a flush that failed, and say yes
    FlushRetried,
    /// 05 an update of a label goes over the copies that count
    LabelOverActive,
    /// 06 the newest copy of a label counts, whole or not
    LabelUnchecked,
    /// 07 a member that missed writes serves after a restart
    StaleServes,
    /// 08 a write is answered before a member's failure is durable
    AnsweredEarly,
    /// 15 overlapping writes in another order on each copy
    OverlapUnordered,
    /// 40 a flush covers its own connection only
    FlushPerConnection,
    /// 35 one tweak for all data units of a request
    TweakOnce,
    /// 41 a payload that came in part is written
    PartialPayload,
    /// 10 the tail of a vault's log moves before the pages are flushed
    LogTailEarly,
    /// 03 a transaction is answered before its record is flushed
    CommitBeforeFlush,
    /// 05b a vault's superblock goes over the one that counts
    SuperblockOverActive,
    /// 08b a commit is answered before the others know durably who missed it
    LeftBehindLate,
    /// 23 a vault's log ends at any record that is damaged
    LogCutAtDamage,
    /// 44 the boundary of a migration moves before what is behind it is flushed
    MoveUnflushed,
    /// 44b a migration changes a window before its state is durable
    MoveUnrecorded,
    /// 44c a migration turns round in the midst of a window
    TurnedAtOnce,
    /// 50 a server that came back is not sent again what it was not asked to flush
    ReplaySkipped,
    /// 51 a write is answered before its record is in the memory that outlives the process
    AnsweredUnrecorded,
    /// 60 clients are not held while a graph changes
    ChangeNotHeld,
    /// 61 a graph changes without a flush before
    ChangeUnflushed,
    /// 62 labels tell of a change before its devices are made
    ChangeToldEarly,
    /// 63 a new disk counts before the others are told of the change that it came with
    NewDiskEarly,
    /// 64 a disk of an earlier time is served beside the others
    OlderServes,
    /// 13 a copy's progress is told before what was copied is flushed
    ProgressEarly,
    /// 70 a region is marked after the write to it is sent
    RegionMarkedLate,
    /// 71 a region is called clean without a flush
    RegionUnflushed,
    /// 72 the map of a member that comes back is ignored
    MapIgnored,
    /// 73 the data that a vault's last record names are not looked at
    DataUnverified,
    /// 74 data that a vault's last record names are changed in place all the same
    DataNotLetGo,
    /// 12 a member that is being copied is read
    ResyncReadsTarget,
    /// 14 what a crash left different on members in sync is not made alike
    CrashUnreconciled,
    /// 75 a member's image from when it was in use is the source of those that were closed in order
    ImageIsSource,
    /// 76 a copy begins before the member has a state that says so, and stays
    CopyUntold,
    /// 77 what the last member does late lands on top of what was answered since
    LateUnfenced,
    /// 43 a change forgets a request that waits for its end
    ChangeDropsHeld,
    /// 45 a flush counts for what was answered after it was submitted
    FlushJoinedLate,
    /// 52 a disk is served before its lock is had
    ServedUnlocked,
    /// 53 what a client had sent that is gone is begun beside its successor's
    GoneNotClosed,
    /// 54 a disk is served after a kill before its server is flushed
    KilledNotFlushed,
}

impl Bug {
    /// All of them, by their numbers.
    pub const ALL: [(&str, Self); 42] = [
        ("02a", Self::FlushFirstChild),
        ("02b", Self::FlushFirstMember),
        ("04", Self::FlushRetried),
        ("05", Self::LabelOverActive),
        ("06", Self::LabelUnchecked),
        ("07", Self::StaleServes),
        ("08", Self::AnsweredEarly),
        ("15", Self::OverlapUnordered),
        ("40", Self::FlushPerConnection),
        ("35", Self::TweakOnce),
        ("41", Self::PartialPayload),
        ("10", Self::LogTailEarly),
        ("03", Self::CommitBeforeFlush),
        ("05b", Self::SuperblockOverActive),
        ("08b", Self::LeftBehindLate),
        ("23", Self::LogCutAtDamage),
        ("44", Self::MoveUnflushed),
        ("44b", Self::MoveUnrecorded),
        ("44c", Self::TurnedAtOnce),
        ("50", Self::ReplaySkipped),
        ("51", Self::AnsweredUnrecorded),
        ("60", Self::ChangeNotHeld),
        ("61", Self::ChangeUnflushed),
        ("62", Self::ChangeToldEarly),
        ("63", Self::NewDiskEarly),
        ("64", Self::OlderServes),
        ("13", Self::ProgressEarly),
        ("70", Self::RegionMarkedLate),
        ("71", Self::RegionUnflushed),
        ("72", Self::MapIgnored),
        ("73", Self::DataUnverified),
        ("74", Self::DataNotLetGo),
        ("12", Self::ResyncReadsTarget),
        ("14", Self::CrashUnreconciled),
        ("75", Self::ImageIsSource),
        ("76", Self::CopyUntold),
        ("77", Self::LateUnfenced),
        ("43", Self::ChangeDropsHeld),
        ("45", Self::FlushJoinedLate),
        ("52", Self::ServedUnlocked),
        ("53", Self::GoneNotClosed),
        ("54", Self::KilledNotFlushed),
    ];
}

#[cfg(not(feature = "seeded-bugs"))]
mod switch {
    use super::Bug;

    /// Whether the bug is switched on.
    #[inline(always)]
    pub const fn on(_: Bug) -> bool {
        false
    }

    /// Notes something about a thing, by its address, for a bug that depends on it.
    #[inline(always)]
    pub const fn note(_: usize) {}

    /// Whether something was noted since this was asked last.
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
    /// If there is no bug of the number that was asked for.
    pub fn on(bug: Bug) -> bool {
        *CHOSEN.get_or_init(chosen) == Some(bug)
    }

    fn chosen() -> Option<Bug> {
        let wanted = std::env::var("CAIRN_SEEDED_BUG").ok()?;
        let found = Bug::ALL.into_iter().find(|(number, _)| *number == wanted);
        Some(found.unwrap_or_else(|| panic!("CAIRN_SEEDED_BUG={wanted}: there is none")).1)
    }

    /// Notes something about a thing, by its address, for a bug that depends on it.
    pub fn note(thing: usize) {
        NOTED.with_borrow_mut(|noted| noted.insert(thing));
    }

    /// Whether something was noted since this was asked last.
    pub fn take_note(thing: usize) -> bool {
        NOTED.with_borrow_mut(|noted| noted.remove(&thing))
    }
}

pub use switch::{note, on, take_note};
