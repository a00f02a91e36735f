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
    /// 02a a table flushes only its first lower
    FlushFirstChild = "02a",
    /// 02b a mirror flushes only its first member
    FlushFirstMember = "02b",
    /// 04 a device retries a failed flush and reports success
    FlushRetried = "04",
    /// 05 a label update overwrites the newest valid copy of the label
    LabelOverActive = "05",
    /// 06 the newest copy of a label is used although it is damaged
    LabelUnchecked = "06",
    /// 07 a mirror serves a stale member after a restart
    StaleServes = "07",
    /// 08 a mirror acknowledges a write before the failure of a member is durable
    AnsweredEarly = "08",
    /// 15 a mirror sends overlapping writes to its members in different orders
    OverlapUnordered = "15",
    /// 40 the server's flush covers only writes of its own connection
    FlushPerConnection = "40",
    /// 35 an encryption uses one tweak for all data units of a request
    TweakOnce = "35",
    /// 35b an encryption uses the first tweak for all parts of a request that it splits for busy workers
    TweakOfSplit = "35b",
    /// 66 a disk does not continue a write that the kernel carried out in part
    ShortWrite = "66",
    /// 41 the server writes a payload that arrived only in part
    PartialPayload = "41",
    /// 10 a vault moves the tail of its log before its pages are flushed
    LogTailEarly = "10",
    /// 10b a vault computes the free space of its log without the new record
    RoomForNothing = "10b",
    /// 03 a vault acknowledges a transaction before its record is flushed
    CommitBeforeFlush = "03",
    /// 05b a vault overwrites the superblock that is valid
    SuperblockOverActive = "05b",
    /// 08b a vault acknowledges a commit before the other disks record which disk missed it
    LeftBehindLate = "08b",
    /// 05c a vault does not raise its epoch when it leaves a copy behind
    EpochKept = "05c",
    /// 23 a vault ends its log at every damaged record
    LogCutAtDamage = "23",
    /// 44 a migration moves its boundary before the moved bytes are flushed
    MoveUnflushed = "44",
    /// 44b a migration changes a window before its state is durable
    MoveUnrecorded = "44b",
    /// 44c a migration reverses in the middle of a window
    TurnedAtOnce = "44c",
    /// 44d a migration unlocks a moved window before its state is durable
    MoveReleasedEarly = "44d",
    /// 50 an NBD disk does not replay unflushed writes to a server that came back
    ReplaySkipped = "50",
    /// 50b an NBD disk replays overlapping writes over several connections at the same time
    ReplayUnordered = "50b",
    /// 51 an NBD disk acknowledges a write before its record is in persistent memory
    AnsweredUnrecorded = "51",
    /// 60 a live change does not hold the requests of clients
    ChangeNotHeld = "60",
    /// 61 a live change does not flush the old graph first
    ChangeUnflushed = "61",
    /// 62 labels record a live change before its devices are made
    ChangeToldEarly = "62",
    /// 63 a new disk counts before the other disks record the live change that added it
    NewDiskEarly = "63",
    /// 64 a start serves a stale disk beside newer disks
    OlderServes = "64",
    /// 64b a start serves a disk that missed the last broadcast beside the other disks
    OlderByOneServes = "64b",
    /// 13 a mirror records the progress of a resync before the copied bytes are flushed
    ProgressEarly = "13",
    /// 70 a mirror marks a region as dirty after it sent the write
    RegionMarkedLate = "70",
    /// 70b a mirror clears a region in its bitmap while a write there is in flight
    RegionLeftBusy = "70b",
    /// 71 a mirror marks a region as clean without a flush
    RegionUnflushed = "71",
    /// 72 a mirror ignores the bitmap of a member that comes back
    MapIgnored = "72",
    /// 73 a vault does not check the data that unflushed records name
    DataUnverified = "73",
    /// 74 a vault permits overwrites of data that an unproven record names
    DataNotLetGo = "74",
    /// 12 a mirror reads a member during its resync
    ResyncReadsTarget = "12",
    /// 14 a mirror does not resync dirty regions of members in sync after a crash
    CrashUnreconciled = "14",
    /// 75 a mirror copies from an older image of a member to members that were closed in order
    ImageIsSource = "75",
    /// 76 a mirror begins a resync before the member's state records it
    CopyUntold = "76",
    /// 77 a late write of the last member lands on newer acknowledged data
    LateUnfenced = "77",
    /// 78 a mirror keeps a member on which a write of a restarted resync is late
    LateCopyStays = "78",
    /// 79 a mirror returns the block status of a failed member with that of the next member
    StatusLeftOver = "79",
    /// 80 a mirror returns bytes of a member that failed during the read
    FailedBelieved = "80",
    /// 43 a live change forgets a request that waits for the end of the change
    ChangeDropsHeld = "43",
    /// 45 a flush covers a write that was acknowledged after the flush was submitted
    FlushJoinedLate = "45",
    /// 45b a mirror's flush in flight skips a member that came in sync meanwhile
    FlushNotAskedAnew = "45b",
    /// 52 a disk is served before its lock is held
    ServedUnlocked = "52",
    /// 53 the server begins requests of a disconnected client after its next connection is served
    GoneNotClosed = "53",
    /// 54 an NBD disk is served after a kill before its server is flushed
    KilledNotFlushed = "54",
    /// 55 the server forgets the error of one piece of a long request
    PieceErrorForgotten = "55",
    /// 06b a start trusts a disk whose front label was overwritten
    OverwrittenBelieved = "06b",
    /// 07b the option trust in a spec brings a stale member in sync
    TrustOverLabels = "07b",
    /// 37 a disk reads and writes a file that was truncated
    CutUnnoticed = "37",
    /// 60b the pieces of a long request are not admitted one by one
    PieceUnadmitted = "60b",
    /// 85 a flush succeeds while another flush fails
    FlushBeside = "85",
    /// 86 a mirror that a live change made again forgets states sent before
    SentForgotten = "86",
    /// 96 a mirror trusts the former bytes of a member that was copied completely
    RefilledProves = "96",
    /// 98 a new label is older than the label that an interrupted start left
    LeftLabelNewer = "98",
    /// 91 a live change reaches disks without device states as early as disks with states
    StatelessEarly = "91",
    /// 87 a live change is undone on removed disks before other disks
    UndoneOnRemovedFirst = "87",
    /// 88 a start repeats a migration that has ended
    MigrationRepeated = "88",
    /// 89 a migration moves a window with checksums that a power cut invalidated
    MoveMendedUnrecorded = "89",
    /// 99 a migration takes zeros in a window as proof that the window has moved
    MoveProvedByZeros = "99",
    /// 100 a vault is closed while a record is being written
    CloseLeavesRecord = "100",
    /// 101 a repair without a majority takes the first copy
    RepairGuesses = "101",
    /// 90 a graph is closed while a request of a closed connection is in flight
    FlushUndrained = "90",
    /// 92 a start does not check the spec in a label against the allow list
    LabelBelieved = "92",
    /// 93 a label contains local options and key sources
    LabelHoldsAll = "93",
    /// 94 a removed key slot stays in the older generation of a label
    OldSlotsStay = "94",
    /// 95 the server keeps a connection whose certificate is no longer admitted
    BarredStays = "95",
    /// 97 the label with the most updates counts, even with a lower epoch
    EpochIgnored = "97",
    /// 110 the server creates a volume for a client that asks for its properties
    InfoCreates = "110",
    /// 111 two clients that open one name at the same time get two volumes
    OpensUnordered = "111",
    /// 112 a live change leaves open volumes at the device that it replaces
    VolumesNotMoved = "112",
    /// 113 a connection that is handed over goes on with another volume of the same name
    VolumeByName = "113",
    /// 114 clients can write to a volume that a device of the graph uses
    HeldVolumeShared = "114",
    /// 130 a merge into a tree takes the last overwrite for the first
    LastOverwrite = "130",
    /// 131 an interval tree lacks the last birth that a snapshot can see
    IntervalLacksLast = "131",
    /// 132 a version without a successor is freed by its trees and by later dead entries
    LaterDeadStay = "132",
    /// 133 a fold drops explicit holes that hide blocks of an origin
    HoleDropped = "133",
    /// 134 an interval tree is born at its end
    IntervalBornLate = "134",
    /// 140 a pool gives a freed block away before the record that freed it is proven
    GivenUnproven = "140",
    /// 141 a pool gives a freed block away under a read that began before
    GivenUnderRead = "141",
    /// 143 a log that lacks a flushed record is replayed up to it, without a word
    FlushedIgnored = "143",
    /// 145 a pool uses the number of a lost snapshot again
    NumberUsedAgain = "145",
    /// 146 a clone counts its snapshots from one, so its births are older than those that it inherits
    CloneCountsFromOne = "146",
    /// 147 a birth is set before the record has its place in the order
    BirthTooEarly = "147",
    /// 148 a rollback counts on from its snapshot, and not from the highest number of the name
    RollbackFromOrigin = "148",
    /// 149 a rollback takes no hold on its snapshot
    RollbackForgetsHold = "149",
    /// 150 a snapshot with a clone leaves with its name
    HoldIgnored = "150",
    /// 151 a head is removed before its overwritten blocks are found
    HeadUnmerged = "151",
    /// 152 the map changes before the data of a record are written
    MapTooEarly = "152",
    /// 153 the nodes of a settled snapshot without a successor are not freed
    SettledNodesStay = "153",
    /// 154 a pool discards a freed block below before the record that freed it is proven
    DiscardedUnproven = "154",
    /// 155 a damaged node is not read from its second copy
    SecondCopyUnread = "155",
    /// 156 a freed node leaves its second copy in use
    SecondCopyStays = "156",
    /// 157 a fold over several checkpoints begins again with the first change
    FoldFromStart = "157",
    /// 158 a checkpoint merges changes into the change tree that a fold reads
    FoldedTreeChanges = "158",
    /// 159 a checkpoint takes changes before their data are durable
    CheckpointUnflushed = "159",
    /// 160 births of another line count as those of the own line, where a settled snapshot leaves
    BirthsAcrossLines = "160",
    /// 161 a record of an earlier opening continues a log
    EarlierOpening = "161",
    /// 162 a replay applies the changes of a record in the order of their blocks
    ReplayByBlock = "162",
    /// 163 a write gets its birth after its record is written, so a snapshot taken meanwhile lacks it
    BornAfterRecord = "163",
    /// 164 a write to a snapshot changes its vdisk
    SnapshotWritable = "164",
    /// 165 a discard of a clone leaves the blocks of its origin visible
    DiscardShowsOrigin = "165",
    /// 166 a node is born when it is written, after snapshots that see it
    NodeBornLate = "166",
    /// 167 blocks of a snapshot with a clone leave with the next snapshot
    NextFreesHeld = "167",
    /// 168 a pool gives a freed block away before the flush of the record that freed it
    GivenUnflushed = "168",
    /// 169 the record of a clone comes before that of its hold
    HoldComesLater = "169",
    /// 170 a vault counts records as flushed when their flush begins
    FlushedAhead = "170",
    /// 171 a vault checks the data of the last unflushed record alone
    MiddleUnverified = "171",
    /// 172 a vault replays records of an earlier opening
    OpeningIgnored = "172",
    /// 173 a vault changes its pages before the record with the changes is written
    AppliedEarly = "173",
    /// 174 a remap takes freed blocks again before the record that freed them is proven
    FreedReusedEarly = "174",
    /// 175 a remap discards freed blocks below before the record that freed them is proven
    FreedDiscardedEarly = "175",
    /// 176 a vault keeps a record with data that could not be written, and acknowledges later ones
    RecordWithoutDataKept = "176",
    /// 177 a vault acknowledges a record before an earlier one is written
    RecordOvertakes = "177",
    /// 178 a vault gives the number of a dropped record to another one
    NumberIssuedTwice = "178",
    /// 179 an opening of a vault answers before its checkpoint
    OpenedBeforeCheckpoint = "179",
    /// 180 a journal writes a change in place before the flush of its record
    InPlaceBeforeFlush = "180",
    /// 181 a journal reuses the space of records before the tail behind them is durable
    SpaceBeforeTail = "181",
    /// 182 a journal lets a change beside its ring pass before the tail behind the records of its range is durable
    BesideBeforeTail = "182",
    /// 183 a replay of a journal takes the payload of an unflushed record as it is
    PayloadUnverified = "183",
    /// 190 a mirror does not translate the numbers of copies to avoid for its members
    CopiesUntranslated = "190",
    /// 191 a mirror writes to all members a write that restores one copy
    RestoresAllCopies = "191",
    /// 192 a mirror passes a last resort on before its own copies have failed
    LastResortFirst = "192",
    /// 193 a mirror does not count wrong bytes that a verifier reports
    WrongUncounted = "193",
    /// 194 a mirror hides from a verifier the regions in which copies may differ
    PendingHidden = "194",
    /// 200 a write to a region begins when the record of its mark is written, and not yet flushed
    MarkNotFlushed = "200",
    /// 201 a region is cleared before a flush of its last write
    ClearedBeforeFlush = "201",
    /// 202 a region that was marked at the opening is cleared before its owner has verified it
    ClearedUnverified = "202",
    /// 203 a write begins in a region with a clear on its way, as if the region were marked
    WriteDuringClear = "203",
    /// 204 a flush counts for writes that ended after the flush had begun
    FlushCountsLater = "204",
    /// 205 a region is cleared while a write to it is in flight
    ClearedDuringWrite = "205",
    /// 206 a superblock with the sizes of a grown vault is written before the new part is zeroed
    GrownBeforeZeroed = "206",
    /// 207 a superblock with the sizes of a grown vault is written before the new part is flushed
    GrownUnflushed = "207",
    /// 208 the root of a vault with more levels stays that of the old level
    OldRootKept = "208",
    /// 209 a copy that was left behind while its vault grew is resynced without zeros in its new part
    RejoinedUnzeroed = "209",
    /// 230 a raise of a number in an array stores nothing
    RaiseNotStored = "230",
    /// 231 a post returns before its record is written
    PostBehindAnswer = "231",
    /// 232 a raise sets a number that may be lower than that of an earlier record
    RaiseLowers = "232",
    /// 233 the store of a device is made before the labels name a store that is being made
    StoreBeforeState = "233",
    /// 234 the store of a device is opened for writing before the live change that makes the device is committed
    StoreBeforeCommit = "234",
    /// 235 a store is made on disks that are not new and have no state
    StoreOnUsedDisks = "235",
    /// 236 a device accepts a store that its labels do not name
    StoreOfOther = "236",
    /// 237 the close of a device does not wait until its first start has ended
    CloseDuringStart = "237",
    /// 240 the labels do not get the size of a pool that has grown in its opening
    GrowthNotInState = "240",
    /// 241 a pool accepts the header and the superblock of another pool
    PoolOfOther = "241",
    /// 213 the checksum of a block does not cover its address
    AddressNotInSum = "213",
    /// 214 a computed checksum of 0 is stored as 0, which states that the block has zeros
    ComputedZeroStored = "214",
    /// 215 a zeroed range gets checksums of 0, and no zeros
    ZeroSumWithoutZeros = "215",
    /// 216 a checksum device accepts unverified blocks outside of regions marked at the opening
    AcceptedUnmarked = "216",
    /// 217 a checksum device accepts an unverified block before it has asked all copies
    AcceptedFirstCopy = "217",
    /// 218 a checksum device accepts unverified blocks after its scan has been through their region
    AcceptedAfterScan = "218",
    /// 219 a checksum device accepts the bytes of a stale copy
    AcceptedStale = "219",
    /// 220 a checksum device with a journal accepts unverified blocks
    AcceptedInJournal = "220",
    /// 221 a checksum device restores a copy after it has released the lock of the block
    RestoredUnlocked = "221",
    /// 222 a checksum device answers with an accepted block before it has posted the checksum
    AcceptedUnposted = "222",
    /// 223 a checksum device leaves the new checksum of a block behind a failed write
    FailedWriteUnread = "223",
    /// 224 a scan ends the acceptance of blocks that the redundant device above has not written yet
    ScanForgetsUnverified = "224",
    /// 225 a checksum device writes to a region before the region is marked
    WrittenUnmarked = "225",
    /// 226 a checksum device with redundancy above accepts an unverified block for a read that is no last resort
    AcceptedAtOnce = "226",
    /// 227 the progress of a device's first checksums is stored before the checksums
    ProgressAhead = "227",
    /// 228 a change of a checksum device is in place in its journal before the checksums are
    PlacedWithoutSum = "228",
    /// 210 a checkpoint moves the tail of a vault's log back to records that were dropped
    TailMovedBack = "210",
    /// 250 a mirror hides copies that are not in sync from reads that avoid others
    CopiesHidden = "250",
    /// 251 a mirror makes a region alike before a verifier has been through it
    AlikeBeforeVerified = "251",
    /// 184 a resync copies a range in which a verifier has found the right bytes on both members
    AlikeCopied = "184",
    /// 185 the ring of a journal is read from the first copy alone, although another copy may have gone on for a whole lap
    LaggingRing = "185",
    /// 252 the scrub of a mirror beneath a verifier rewrites copies
    ScrubBeneathVerifier = "252",
    /// 253 a mirror answers reads of a last resort from copies that are not in sync
    LastResortStale = "253",
    /// 254 a mirror beneath a verifier rewrites a range after a failed read from another copy, unverified
    RepairedUnverified = "254",
    /// 255 a report of a verifier counts for a member that began to return during its pass
    EarlierPassCounts = "255",
    /// 256 a verifier scans pending ranges at its opening alone
    ReturnsUnscanned = "256",
    /// 257 a mirror does not rewrite blocks that a member below cannot verify
    UnverifiedStay = "257",
    /// 258 a mirror takes a last resort before it has asked the members that have all acknowledged writes
    DividedUnasked = "258",
    /// 259 a mirror forgets over a restart that a member has all acknowledged writes, or no copy
    ContentForgotten = "259",
    /// 242 a checksum device still accepts a block in a region marked at the opening after a write to the block
    AcceptedWritten = "242",
    /// 243 a flush of a checksum device with a journal leaves the first checksums unflushed
    FirstSumsUnflushed = "243",
    /// 244 an opening of a mirror leaves a state that reached only some disks of a member
    TornStateLeft = "244",
    /// 260 a mirror waits for a verifier before it copies to a member without a copy
    EmptyWaits = "260",
    /// 261 a mirror counts a member that has missed writes as one with all acknowledged writes
    LaggingCountsDivided = "261",
    /// 286 a vault reads its log from one copy of a redundant disk
    LogOfOneCopy = "286",
    /// 287 the newest superblock or root is looked for on one copy of a redundant disk
    NewestOfOneCopy = "287",
    /// 288 a page of a vault is read from one copy of a redundant disk
    PageOfOneCopy = "288",
    /// 289 wrong copies of metadata are not restored
    CopyNotRestored = "289",
    /// 290 a vault that is opened read-only restores wrong copies of its superblock and log
    RestoredReadOnly = "290",
    /// 276 a graph opens a device with a state beneath a mirror although a disk of the device is absent
    AbsentLowerOpened = "276",
    /// 277 a graph goes on without a device if its disks hold the metadata of another device
    ForeignStateSpared = "277",
    /// 278 a mirror copies only the missed writes to a member with damaged metadata, once these are made anew
    DamagedKept = "278",
    /// 279 a mirror fails a member that cannot read the rest of a block for a write
    PartFailsMember = "279",
    /// 280 a write to a mirror locks only its own part of a block
    PartLockedAlone = "280",
    /// 281 a mirror does not count the blocks that a member could not read for a write
    PartUncounted = "281",
    /// 292 a client reads bytes of the source before divided members have them
    DividedUntold = "292",
    /// 293 regions in which a divided member differed from its source are not copied once it replaces the source
    ReplacedUnmissed = "293",
    /// 294 a mirror does not open from a divided member if no member in sync is present
    DividedRefused = "294",
    /// 295 a mirror goes on with a member whose part of the store could not be flushed
    RoomFailsAlone = "295",
    /// 296 a mirror takes a member for one in sync although its copy of the store is older
    OldStoreCounts = "296",
    /// 297 a mirror copies from its last member in sync after a flush of the member has failed
    CopiedAfterFailedFlush = "297",
    /// 298 block status fails with the source, although a divided member has all acknowledged writes
    StatusOfSourceFails = "298",
    /// 301 a mirror does not read the store that was left with its newest state, so it takes an older image for its member
    LeftStoreUnread = "301",
    /// 302 a mirror takes a member with the state before the newest one for current, although its copy of the store is missing
    OlderStateUnproven = "302",
    /// 304 a checksum device reports differences after an unclean stop as wrong bytes of a disk
    CrashCounted = "304",
    /// 305 a block that the source has lost, and that no divided member can verify, is lost
    DividedNoLastResort = "305",
    /// 306 a mirror beneath a verifier gives up the copy of a member, because it cannot prove that it is no older image
    UnprovenEmptied = "306",
    /// 307 a mirror does not read the copy of its store on a member that cannot verify it after a power cut
    StoreBelowUnread = "307",
    /// 308 a mirror records that a divided member has replaced the source before it has recorded in which regions the two differ
    ReplacedUnrecorded = "308",
    /// 291 an error of the kind, such as a missing journal, leads to a new vault if the operator accepts losses
    StoreReplacedForKind = "291",
    /// 262 a vault leaves a copy behind before its owner has recorded that the copy does not count
    ReplicaLeftAlone = "262",
    /// 263 a mirror clears a dirty region before its store records which members miss the region
    ClearedUnmissed = "263",
    /// 265 a member comes in sync before its replica of the store is current
    InSyncBeforeReplica = "265",
    /// 266 a mirror names its store in labels before the store has its maps
    StoreNamedEarly = "266",
    /// 267 a mirror opens without the maps in its store
    StoreUnread = "267",
    /// 268 a mirror fails a member that returns, because its store had left the replica behind
    LeftReplicaFails = "268",
}

#[cfg(not(feature = "seeded-bugs"))]
mod switch {
    use super::Bug;

    /// Whether `bug` is switched on: never in this build.
    #[inline(always)]
    pub const fn on(_: Bug) -> bool {
        false
    }

    /// Marks the object at an address, for a bug that depends on an earlier event of the object. Does nothing in this
    /// build.
    #[inline(always)]
    pub const fn note(_: usize) {}

    /// Returns whether the object at an address was marked, and removes the mark. `false` in this build.
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

    /// Whether `bug` is the bug that `CAIRN_SEEDED_BUG` selects.
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

    /// Marks the object at address `thing`, for a bug that depends on an earlier event of the object.
    pub fn note(thing: usize) {
        NOTED.with_borrow_mut(|noted| noted.insert(thing));
    }

    /// Returns whether the object at address `thing` was marked, and removes the mark.
    pub fn take_note(thing: usize) -> bool {
        NOTED.with_borrow_mut(|noted| noted.remove(&thing))
    }
}

pub use switch::{note, on, take_note};
