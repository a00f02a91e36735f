//! The state of a mirror in the labels beneath it: `docs/formats/mirror.md`.

use kind::Summary;
use meta::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::MEMBERS_MAX;
use super::regions::{Bitmap, Regions};
use super::room::{MEMBER_BYTES_MIN, StoreSizes};
use super::scrub::{Repair, Scrubbed};

/// Version of the record of a mirror without room for a store.
const VERSION: u32 = 4;

/// Version of the record of a mirror with room for a store.
const VERSION_WITH_ROOM: u32 = 5;

const ACTIVE: u16 = 1;
const FLUSH_FAILED: u16 = 2;

/// Position in the flags of the treatment of differences by the running scrub.
const REPAIR_SHIFT: u16 = 8;
const REPAIR_MASK: u16 = 0xf << REPAIR_SHIFT;

/// Encodings of that treatment: report, repair by majority, or repair with the bytes of the member whose number is
/// added to the last one.
const REPORT: u16 = 0;
const BY_MAJORITY: u16 = 1;
const TRUSTED: u16 = 2;

/// Highest number of a mirror's state that is read from labels. A mirror that counts its states one by one never
/// reaches it, so a higher number must be forged, to leave no number for the next state.
pub const CHANGE_MAX: u64 = 1 << 62;

/// Encoded time of the last scrub of a mirror that was never scrubbed.
const NO_TIME: u64 = 0;

/// Latest time that a record may contain, in seconds since 1970.
const TIME_MAX: u64 = 1 << 40;

/// Encoded scrub position of a mirror without an interrupted scrub.
const NOT_FOUND: u64 = u64::MAX;

/// Greatest size in bytes of a member with a room.
const SIZE_MAX: u64 = 1 << 62;

/// Encodings of a member's bitmap: empty, stored behind the entries of the members, or full.
const MAP_OF_NONE: u8 = 0;
const MAP_FOLLOWS: u8 = 1;
const MAP_OF_ALL: u8 = 2;

/// Bytes of the field for the name of a member.
const NAME_BYTES: usize = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    version: U32,
    members: U16,
    flags: U16,
    incarnation: U64,
    events: U64,
}

/// The fields behind the header: sizes in bytes of the mirror and of a region, and the state of scrubs.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Sizes {
    size: U64,
    region_bytes: U64,
    scrub_ended_unix_s: U64,
    scrub_at: U64,
    scrub_differing: U32,
    scrub_found: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    name: [u8; NAME_BYTES],
    state: u8,
    map: u8,
    refilled: u8,
    content: u8,
    zero: [u8; 4],
    known: RawPoint,
    sent: RawPoint,
}

/// The fields behind the entries of the members, if the members have room for a store. The sizes of the members follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRoom {
    vault: [u8; 16],
    region_bytes: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPoint {
    incarnation: U64,
    events: U64,
}

const _: () = assert!(size_of::<Header>() == 24 && size_of::<Sizes>() == 40);
const _: () = assert!(size_of::<Entry>() == 104 && size_of::<RawRoom>() == 24);

/// The state of a mirror as labels record it: which members have every write, and in which regions the others differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Generation of this state of the mirror; later states have higher numbers.
    pub generation: Generation,
    /// Division of the mirror into the regions of its bitmaps.
    pub regions: Regions,
    /// End of the last scrub, and position of an interrupted scrub.
    pub scrubbed: Scrubbed,
    /// Bitmap of the dirty regions of the mirror.
    pub active: Bitmap,
    /// Whether a failed flush of the mirror may have lost acknowledged writes.
    pub flush_failed: bool,
    /// The recorded facts about each member of the mirror.
    pub members: Vec<Known>,
    /// The room on the members for the mirror's store; `None` if they have none.
    pub room: Option<Room>,
}

/// The room on the members of a mirror for its store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// The store with the maps of the mirror; `None` if the maps are in the record. With a store, the maps of the record
    /// are empty.
    pub store: Option<Named>,
    /// Size in bytes of each member. The room is at its end.
    pub lowers: Vec<u64>,
}

/// A store that the record of a mirror names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// UUID of the vault.
    pub vault: Uuid,
    /// Division of the mirror into the regions of the bitmaps in the store.
    pub regions: Regions,
}

/// Describes the encoded state of a mirror for people.
///
/// # Errors
/// The reason why `bytes` are no valid record of a mirror.
pub fn describe(bytes: &[u8]) -> Result<Summary, String> {
    let record = Record::decode(bytes)?;
    let regions = |map: &Bitmap| format!("{} of {} regions", map.len(), record.regions.count());
    let one = |member: &Known| match member.state {
        MemberState::InSync => format!("{} in sync", member.name),
        MemberState::Stale if record.store().is_some() => format!("{} is stale", member.name),
        MemberState::Failed if record.store().is_some() => format!("{} failed", member.name),
        MemberState::Stale => format!("{} misses {}", member.name, regions(&member.missing)),
        MemberState::Failed => {
            format!("{} failed, misses {}", member.name, regions(&member.missing))
        }
    };
    let join = |members: Vec<String>| members.join(", ");
    let behind = record.members.iter().filter(|member| member.state != MemberState::InSync);
    let lacks = join(behind.map(one).collect());
    let members = join(record.members.iter().map(one).collect());
    let flush = if record.flush_failed { "; a flush has failed" } else { "" };
    let dirty = match record.store() {
        Some(_) => "maps in the store".to_owned(),
        None => format!("{} dirty", regions(&record.active)),
    };
    let words = format!("{members}; {dirty}{flush}");
    Ok(Summary { words, lacks })
}

/// The identity of one recorded state of a mirror: the opening of the mirror that wrote the state, and the number of
/// the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Generation {
    /// Random number of the opening of the mirror that wrote the state.
    pub incarnation: u64,
    /// Number of the state, which rises with each state that the mirror writes.
    pub events: u64,
}

/// The facts about one member in the recorded state of a mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Name of the member.
    pub name: String,
    /// State of the member: in sync, stale or failed.
    pub state: MemberState,
    /// The last state of the mirror that is known to be in the member's labels.
    pub known: Generation,
    /// The last state of the mirror that was sent to the member's labels.
    pub sent: Generation,
    /// Regions in which the member differs from the members in sync; empty if the member is in sync.
    pub missing: Bitmap,
    /// Whether a resync copied all bytes to the member because its own labels had no usable state, and at each opening
    /// since then another member was absent. The bytes of this member prove nothing about the time when the absent
    /// member was last present.
    pub refilled: bool,
    /// The bytes on the member if it is not in sync; [`Content::Stale`] for a member in sync.
    pub content: Content,
}

/// The bytes on a member that is not in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Content {
    /// A copy that lacks acknowledged writes in the regions that the member misses.
    #[default]
    Stale,
    /// A copy with all acknowledged writes. It differs only where writes were in flight or unflushed at an unclean stop.
    Divided,
    /// No copy of the mirror: the member was not in sync yet, or has no state that counts.
    Empty,
}

/// The recorded state of a member of a mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// The member has every acknowledged write.
    InSync,
    /// The member misses some writes.
    Stale,
    /// The member misses some writes, and was taken out because of a failure.
    Failed,
}

impl Record {
    /// Most bytes of the facts about the room on the members.
    pub const ROOM_BYTES_MAX: usize = size_of::<RawRoom>() + 8 * MEMBERS_MAX;

    /// Returns the store that has the maps of the mirror; `None` if they are in this record.
    pub fn store(&self) -> Option<Named> {
        self.room.as_ref()?.store
    }

    /// Returns the facts about the member called `name`.
    pub fn member(&self, name: &str) -> Option<&Known> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Returns the recorded state of scrubs, adjusted to a mirror of `regions` with the members `names`. The recorded
    /// position may be behind the end of a mirror that has shrunk; then no scrub counts as interrupted. A repair with
    /// the bytes of a member that has gone continues as a report.
    pub fn scrubbed_of(&self, regions: &Regions, names: &[&str]) -> Scrubbed {
        let at = self.scrubbed.at.filter(|at| *at <= regions.size());
        let index_of = |name: &str| names.iter().position(|one| *one == name);
        let repair = match self.scrubbed.repair {
            Repair::Trust(n) => index_of(&self.members[n].name).map_or(Repair::None, Repair::Trust),
            repair => repair,
        };
        Scrubbed { at, repair, ..self.scrubbed }
    }

    /// Returns the encoded length in bytes of the state of a mirror with `members` members, without bitmaps.
    pub const fn bytes_of(members: usize) -> usize {
        size_of::<Header>() + size_of::<Sizes>() + members * size_of::<Entry>()
    }

    /// Encodes the state of the mirror for labels.
    ///
    /// # Panics
    /// If the name of a member has more than 64 bytes, the limit for names of devices.
    pub fn encode(&self) -> Vec<u8> {
        let active = if self.active.is_empty() { 0 } else { ACTIVE };
        let flush_failed = if self.flush_failed { FLUSH_FAILED } else { 0 };
        let version = if self.room.is_some() { VERSION_WITH_ROOM } else { VERSION };
        let header = Header {
            version: version.into(),
            members: (self.members.len() as u16).into(),
            flags: (active | flush_failed | encode(self.scrubbed.repair)).into(),
            incarnation: self.generation.incarnation.into(),
            events: self.generation.events.into(),
        };
        let sizes = Sizes {
            size: self.regions.size().into(),
            region_bytes: self.regions.region_bytes().into(),
            scrub_ended_unix_s: self.scrubbed.ended_unix_s.unwrap_or(NO_TIME).into(),
            scrub_at: self.scrubbed.at.unwrap_or(NOT_FOUND).into(),
            scrub_differing: self.scrubbed.differing.into(),
            scrub_found: self.scrubbed.found.into(),
        };
        let mut bytes = [header.as_bytes(), sizes.as_bytes()].concat();
        for member in &self.members {
            bytes.extend_from_slice(member.encode().as_bytes());
        }
        if let Some(room) = &self.room {
            let vault = room.store.map_or([0; 16], |store| store.vault.0);
            let region_bytes = room.store.map_or(0, |store| store.regions.region_bytes());
            bytes.extend(RawRoom { vault, region_bytes: region_bytes.into() }.as_bytes());
            bytes.extend(room.lowers.iter().flat_map(|lower| lower.to_le_bytes()));
        }
        if !self.active.is_empty() {
            bytes.extend(self.active.encode());
        }
        let partly = |map: &&Bitmap| !map.is_empty() && map.len() < map.count();
        let maps = self.members.iter().map(|member| &member.missing).filter(partly);
        maps.for_each(|map| bytes.extend(map.encode()));
        bytes
    }

    /// Decodes the state of a mirror from a label.
    ///
    /// # Errors
    /// The reason why `bytes` are no valid record of a mirror.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (header, rest) =
            Header::ref_from_prefix(bytes).map_err(|_| format!("only {} bytes", bytes.len()))?;
        let (count, flags) = (usize::from(header.members.get()), header.flags.get());
        let version = header.version.get();
        if ![VERSION, VERSION_WITH_ROOM].contains(&version) {
            return Err(format!("record version {version}; {VERSION_WITH_ROOM} is supported"));
        }
        let (regions, mut scrubbed, rest) = sizes(rest)?;
        let unknown = flags & !(ACTIVE | FLUSH_FAILED | REPAIR_MASK);
        if !(1..=MEMBERS_MAX).contains(&count) || unknown != 0 {
            return Err(format!("invalid member count {count} or flags {flags:#x}"));
        }
        scrubbed.repair = decode((flags & REPAIR_MASK) >> REPAIR_SHIFT, count)?;
        let (entries, maps) = <[Entry]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| format!("{} bytes are too short for {count} members", rest.len()))?;
        let (room, maps) = match version {
            VERSION_WITH_ROOM => {
                let (room, maps) = Room::decode(maps, count, &regions)?;
                (Some(room), maps)
            }
            _ => (None, maps),
        };
        let mut maps = Maps::of(&regions, maps)?;
        let active = maps.of_all(flags & ACTIVE != 0)?;
        let mut members: Vec<Known> = Vec::new();
        for entry in entries {
            let member = entry.decode(&mut maps)?;
            if members.iter().any(|other| other.name == member.name) {
                return Err(format!("member {:?} is recorded twice", member.name));
            }
            members.push(member);
        }
        maps.end()?;
        let has_map =
            flags & ACTIVE != 0 || members.iter().any(|member| !member.missing.is_empty());
        if has_map && room.as_ref().is_some_and(|room| room.store.is_some()) {
            return Err("maps in the record, and in the store".to_owned());
        }
        Ok(Self {
            generation: Generation::new(header.incarnation.get(), header.events.get())?,
            regions,
            scrubbed,
            active,
            flush_failed: flags & FLUSH_FAILED != 0,
            members,
            room,
        })
    }
}

impl Room {
    /// Parses the facts about the room on `count` members at the start of `rest`. Returns them, and the bytes behind them.
    fn decode<'b>(
        rest: &'b [u8],
        count: usize,
        regions: &Regions,
    ) -> Result<(Self, &'b [u8]), String> {
        let short =
            || format!("{} bytes are too short for the room on {count} members", rest.len());
        let (raw, behind) = RawRoom::ref_from_prefix(rest).map_err(|_| short())?;
        let (lowers, behind) =
            <[U64]>::ref_from_prefix_with_elems(behind, count).map_err(|_| short())?;
        let lowers: Vec<u64> = lowers.iter().map(|lower| lower.get()).collect();
        if let Some(odd) =
            lowers.iter().find(|lower| !(MEMBER_BYTES_MIN..=SIZE_MAX).contains(lower))
        {
            return Err(format!("a room on a member of {odd} bytes"));
        }
        let region_bytes = raw.region_bytes.get();
        let store = match raw.vault {
            [0, ..] if raw.vault == [0; 16] && region_bytes == 0 => None,
            vault => {
                let own = Regions::new(regions.size(), region_bytes)?;
                let capacity = StoreSizes::of(lowers.iter().copied()).capacity();
                if own.count() as u64 > capacity {
                    return Err(format!("{} regions in a store for {capacity}", own.count()));
                }
                Some(Named { vault: Uuid(vault), regions: own })
            }
        };
        Ok((Self { store, lowers }, behind))
    }
}

/// Parses the [`Sizes`] at the start of `rest`. Returns the regions, the state of scrubs, and the bytes behind the
/// sizes.
fn sizes(rest: &[u8]) -> Result<(Regions, Scrubbed, &[u8]), String> {
    let (sizes, rest) =
        Sizes::ref_from_prefix(rest).map_err(|_| format!("only {} bytes of sizes", rest.len()))?;
    let regions = Regions::new(sizes.size.get(), sizes.region_bytes.get())?;
    let (ended, at) = (sizes.scrub_ended_unix_s.get(), sizes.scrub_at.get());
    if ended > TIME_MAX || at != NOT_FOUND && at > regions.size() {
        return Err(format!("invalid scrub state: end {ended} s after 1970, position {at}"));
    }
    let scrubbed = Scrubbed {
        ended_unix_s: (ended != NO_TIME).then_some(ended),
        at: (at != NOT_FOUND).then_some(at),
        repair: Repair::None,
        differing: sizes.scrub_differing.get(),
        found: sizes.scrub_found.get(),
    };
    Ok((regions, scrubbed, rest))
}

/// Encodes the treatment of differences for the flags of the record.
fn encode(repair: Repair) -> u16 {
    let word = match repair {
        Repair::None => REPORT,
        Repair::Majority => BY_MAJORITY,
        Repair::Trust(member) => TRUSTED + member as u16,
    };
    word << REPAIR_SHIFT
}

/// Decodes the treatment of differences in a mirror of `members` members.
fn decode(word: u16, members: usize) -> Result<Repair, String> {
    match word {
        REPORT => Ok(Repair::None),
        BY_MAJORITY => Ok(Repair::Majority),
        _ if usize::from(word - TRUSTED) < members => {
            Ok(Repair::Trust(usize::from(word - TRUSTED)))
        }
        _ => Err(format!("invalid scrub state: repair {word} with {members} members")),
    }
}

/// A reader of the encoded bitmaps in the record of a mirror's state, in order.
struct Maps<'b> {
    bytes: &'b [u8],
    count: usize,
}

impl<'b> Maps<'b> {
    fn of(regions: &Regions, bytes: &'b [u8]) -> Result<Self, String> {
        let (count, most) = (regions.count(), Regions::most(1));
        if count > most {
            return Err(format!("{count} regions; a mirror has at most {most}"));
        }
        Ok(Self { bytes, count })
    }

    /// Reads the bitmap of dirty regions from the record. `there` is whether the record contains that bitmap; without
    /// it, no region is dirty.
    fn of_all(&mut self, there: bool) -> Result<Bitmap, String> {
        if there { self.next() } else { Ok(Bitmap::none(self.count)) }
    }

    /// Reads the next bitmap of a member from the record. The bitmap must not contain all regions.
    fn of_some(&mut self) -> Result<Bitmap, String> {
        let map = self.next()?;
        if map.len() == self.count {
            return Err(format!("invalid bitmap: all {} regions are set", self.count));
        }
        Ok(map)
    }

    fn next(&mut self) -> Result<Bitmap, String> {
        let length = Bitmap::encoded_bytes(self.count);
        let Some((map, rest)) = self.bytes.split_at_checked(length) else {
            return Err(format!("{} bytes are too few for a bitmap of {length}", self.bytes.len()));
        };
        self.bytes = rest;
        Bitmap::decode(map, self.count)
    }

    fn end(self) -> Result<(), String> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(format!("{} extra bytes after the record", self.bytes.len()))
    }
}

impl Known {
    fn encode(&self) -> Entry {
        let mut name = [0; NAME_BYTES];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        Entry {
            name,
            state: match self.state {
                MemberState::InSync => 1,
                MemberState::Stale => 2,
                MemberState::Failed => 3,
            },
            map: match self.missing.len() {
                0 => MAP_OF_NONE,
                len if len == self.missing.count() => MAP_OF_ALL,
                _ => MAP_FOLLOWS,
            },
            refilled: self.refilled.into(),
            content: match self.content {
                Content::Stale => 0,
                Content::Divided => 1,
                Content::Empty => 2,
            },
            zero: [0; 4],
            known: self.known.into(),
            sent: self.sent.into(),
        }
    }
}

impl Entry {
    fn decode(&self, maps: &mut Maps<'_>) -> Result<Known, String> {
        let end = self.name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let name = std::str::from_utf8(&self.name[..end]).ok().filter(|name| !name.is_empty());
        let name = name.ok_or("a member has no valid name")?.to_owned();
        let state = match self.state {
            1 => MemberState::InSync,
            2 => MemberState::Stale,
            3 => MemberState::Failed,
            other => return Err(format!("invalid state {other} of member {name:?}")),
        };
        if self.refilled > 1 || self.zero != [0; 4] {
            return Err(format!("reserved bytes of member {name:?} are not zero"));
        }
        let content = match (state, self.content) {
            (_, 0) => Content::Stale,
            (MemberState::Stale, 1) => Content::Divided,
            (MemberState::Stale | MemberState::Failed, 2) => Content::Empty,
            (_, other) => return Err(format!("invalid content {other} of member {name:?}")),
        };
        let missing = match (state, self.map) {
            (_, MAP_OF_NONE) => Bitmap::none(maps.count),
            (MemberState::Stale | MemberState::Failed, MAP_OF_ALL) => Bitmap::all(maps.count),
            (MemberState::Stale | MemberState::Failed, MAP_FOLLOWS) => maps.of_some()?,
            (_, other) => return Err(format!("invalid bitmap mode {other} of member {name:?}")),
        };
        let (known, sent) = (self.known.decode()?, self.sent.decode()?);
        Ok(Known { name, state, known, sent, missing, refilled: self.refilled == 1, content })
    }
}

impl From<Generation> for RawPoint {
    fn from(generation: Generation) -> Self {
        Self { incarnation: generation.incarnation.into(), events: generation.events.into() }
    }
}

impl RawPoint {
    fn decode(&self) -> Result<Generation, String> {
        Generation::new(self.incarnation.get(), self.events.get())
    }
}

impl Generation {
    fn new(incarnation: u64, events: u64) -> Result<Self, String> {
        if events > CHANGE_MAX {
            return Err(format!("event count {events} is above the maximum {CHANGE_MAX}"));
        }
        Ok(Self { incarnation, events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of five regions; the last member misses the first and the last region.
    fn sample() -> Record {
        let generation = |incarnation, events| Generation { incarnation, events };
        let map = |set: &[usize]| {
            let mut map = Bitmap::none(5);
            set.iter().for_each(|region| map.insert(*region));
            map
        };
        let member = |name: &str, state, missing: &[usize]| Known {
            name: name.to_owned(),
            state,
            known: generation(3, 4),
            sent: generation(5, 6),
            missing: map(missing),
            refilled: state == MemberState::Failed,
            content: match state {
                MemberState::Failed => Content::Empty,
                MemberState::InSync | MemberState::Stale => Content::Stale,
            },
        };
        Record {
            generation: generation(0x0102, 7),
            regions: Regions::new(0x4800, 4096).unwrap(),
            scrubbed: Scrubbed {
                ended_unix_s: Some(0x6543),
                at: Some(0x4000),
                repair: Repair::Trust(1),
                differing: 0x21,
                found: 0x22,
            },
            active: map(&[1]),
            flush_failed: false,
            members: vec![
                member("a", MemberState::InSync, &[]),
                member("b", MemberState::Failed, &[0, 4]),
            ],
            room: None,
        }
    }

    /// Encodes the entries of two members, one in sync and one failed, into a record from byte `at` on.
    fn put_members(bytes: &mut [u8], at: usize) {
        for (at, name, state) in [(at, b'a', 1), (at + 104, b'b', 3)] {
            (bytes[at], bytes[at + 64]) = (name, state);
            for (n, byte) in [3, 4, 5, 6].into_iter().enumerate() {
                bytes[at + 72 + 8 * n] = byte;
            }
        }
    }

    #[test]
    fn mirror_record_encodes_to_golden_bytes() {
        let mut golden = vec![0; 64 + 2 * 104 + 2 * 8];
        golden[..17].copy_from_slice(&[4, 0, 0, 0, 2, 0, 1, 3, 2, 1, 0, 0, 0, 0, 0, 0, 7]);
        (golden[25], golden[33], golden[49]) = (0x48, 0x10, 0x40);
        golden[40..42].copy_from_slice(&[0x43, 0x65]);
        (golden[56], golden[60]) = (0x21, 0x22);
        put_members(&mut golden, 64);
        // The bitmap of the second member follows that of dirty regions.
        (golden[168 + 65], golden[272], golden[280]) = (1, 0b10, 0b1_0001);
        (golden[168 + 66], golden[168 + 67]) = (1, 2);
        assert_eq!(sample().encode(), golden);
        assert_eq!(Record::decode(&golden), Ok(sample()));
    }

    #[test]
    fn mirror_record_with_room_encodes_to_golden_bytes() {
        let lowers = vec![0x80_1000, 0x90_0000];
        let mut record = Record { room: Some(Room { store: None, lowers }), ..sample() };
        let plain = sample().encode();
        let maps = 64 + 2 * 104;
        let sizes = [0, 0x10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x90, 0, 0, 0, 0, 0];
        let mut golden = [&plain[..maps], &[0; 24], &sizes, &plain[maps..]].concat();
        golden[0] = 5;
        assert_eq!(record.encode(), golden);
        assert_eq!(Record::decode(&golden), Ok(record.clone()));

        let regions = Regions::new(0x4800, 8192).unwrap();
        let room = record.room.as_mut().unwrap();
        room.store = Some(Named { vault: Uuid([7; 16]), regions });
        assert!(Record::decode(&record.encode()).is_err(), "it has maps in two places");
        record.active = Bitmap::none(5);
        record.members[1].missing = Bitmap::none(5);
        let bytes = record.encode();
        assert_eq!(bytes.len(), maps + 24 + 16);
        assert_eq!((&bytes[maps..maps + 16], bytes[maps + 17]), (&[7; 16][..], 0x20));
        assert_eq!(Record::decode(&bytes), Ok(record));
        for (at, value) in [(maps + 16, 1), (maps + 17, 0), (maps + 17, 0x30), (maps + 26, 1)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert!(Record::decode(&bytes).is_err(), "{value} at {at}");
        }
        for len in 0..bytes.len() {
            assert!(Record::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn decode_rejects_malformed_mirror_record() {
        let good = sample().encode();
        let wrong: &[(usize, u8)] = &[
            (0, 3),
            (0, 5),
            (0, 6),
            (4, 0),
            (4, 9),
            (4, 1),
            (6, 4),
            // A repair with the bytes of a third member.
            (7, 4),
            // A bitmap that is present and should not be, or the other way round.
            (6, 0),
            (64 + 65, 1),
            (168 + 65, 0),
            (168 + 65, 2),
            (168 + 65, 3),
            // Sizes of zero, or beyond the limits.
            (25, 0),
            (31, 0xff),
            (33, 0x11),
            (33, 0x08),
            (26, 0xff),
            // A scrub in the far future, or beyond the end.
            (46, 1),
            (50, 1),
            (64, 0),
            (64 + 64, 0),
            (64 + 64, 4),
            (64 + 66, 2),
            // A content that the state of the member excludes, or that is unknown.
            (64 + 67, 1),
            (168 + 67, 1),
            (168 + 67, 3),
            (64 + 68, 1),
            (168, b'a'),
            // State numbers beyond the limit.
            (23, 0x40),
            (64 + 87, 0x40),
            (64 + 103, 0xff),
            // Empty bitmaps, and bits beyond the last region.
            (272, 0),
            (280, 0x1f),
            (272, 0x20),
            (287, 1),
        ];
        for (at, value) in wrong {
            let mut bytes = good.clone();
            bytes[*at] = *value;
            assert!(Record::decode(&bytes).is_err(), "{value} at {at}");
        }
        for len in 0..good.len() {
            assert!(Record::decode(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(Record::decode(&[&good[..], &[0]].concat()).is_err(), "a byte too many");
    }

    #[test]
    fn mirror_record_with_full_bitmaps_fits_label_cell() {
        for members in 2..=MEMBERS_MAX {
            let size = Regions::most(members) as u64 * 4096;
            let regions = Regions::new(size, 4096).unwrap();
            let missing = |n: usize| match n {
                0 => Bitmap::none(regions.count()),
                // All but one, or it would not be written down.
                _ => {
                    let mut map = Bitmap::all(regions.count());
                    map.remove(n);
                    map
                }
            };
            let known = |n: usize| Known {
                name: format!("{n}"),
                state: if n == 0 { MemberState::InSync } else { MemberState::Stale },
                missing: missing(n),
                ..sample().members[0].clone()
            };
            let record = Record {
                regions,
                active: Bitmap::all(regions.count()),
                members: (0..members).map(known).collect(),
                ..sample()
            };
            let bytes = record.encode();
            assert!(bytes.len() <= block::STATE_BYTES_MAX, "{} bytes", bytes.len());
            assert_eq!(Record::decode(&bytes), Ok(record));
        }
    }

    #[test]
    fn mirror_record_with_room_and_full_bitmaps_fits_label_cell() {
        for (members, shift) in (2..=MEMBERS_MAX).flat_map(|all| [(all, 24), (all, 40), (all, 60)])
        {
            let own = Regions::new(1 << shift, 4 << 20).unwrap();
            let regions = own.in_labels(members);
            let all_but_one = |n: usize| {
                let mut map = Bitmap::all(regions.count());
                map.remove(n % regions.count());
                map
            };
            let known = |n: usize| Known {
                name: format!("{n}"),
                state: if n == 0 { MemberState::InSync } else { MemberState::Stale },
                missing: if n == 0 { Bitmap::none(regions.count()) } else { all_but_one(n) },
                ..sample().members[0].clone()
            };
            let record = Record {
                regions,
                active: Bitmap::all(regions.count()),
                members: (0..members).map(known).collect(),
                room: Some(Room { store: None, lowers: vec![1 << shift; members] }),
                ..sample()
            };
            let bytes = record.encode();
            assert!(bytes.len() <= block::STATE_BYTES_MAX, "{} bytes", bytes.len());
            assert_eq!(Record::decode(&bytes), Ok(record));
        }
    }
}
