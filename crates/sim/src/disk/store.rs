//! The content of a simulated disk in sectors: the medium, and the volatile cache above the medium. It knows no time
//! and no operations in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use super::config::{CutPolicy, DAMAGE, PHYSICAL, Profile, SECTOR};
use crate::counters::{Count, Counters};
use crate::draw::{Stream, mix};

const PER_PAGE: u64 = PHYSICAL / SECTOR;

/// The data of a write on a simulated disk: bytes, or zeros.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    Zero,
    Bytes(Rc<[u8]>),
}

impl Payload {
    /// Returns the bytes of the payload's sector number `n`, counted from the begin of the write; `None` for zeros.
    fn sector(&self, n: u64) -> Option<&[u8]> {
        match self {
            Self::Zero => None,
            Self::Bytes(bytes) => Some(&bytes[(n * SECTOR) as usize..][..SECTOR as usize]),
        }
    }
}

/// A write to a simulated disk: its number, its sectors and its data.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub write: u64,
    pub sectors: Range<u64>,
    pub payload: Payload,
}

/// The data that one cached write has for one sector of the disk.
#[derive(Clone, Debug)]
struct Version {
    write: u64,
    /// Number of the sector, counted from the begin of its write.
    index: u64,
    payload: Payload,
    /// Number of the event that completed the write; `None` while the write is in flight.
    completed: Option<u64>,
}

#[derive(Clone, Default)]
pub(super) struct Store {
    medium: BTreeMap<u64, Box<[u8; PHYSICAL as usize]>>,
    /// For each cached sector, the data of all writes to the sector in the order in which they took effect. A read
    /// returns the last.
    cache: BTreeMap<u64, Vec<Version>>,
    unreadable: BTreeSet<u64>,
}

impl Store {
    /// Copies the newest bytes of the disk's sector to `into`, from the cache or the medium.
    pub fn read(&self, sector: u64, into: &mut [u8]) {
        match self.cache.get(&sector).and_then(|versions| versions.last()) {
            Some(newest) => put(into, newest.payload.sector(newest.index)),
            None => put(into, self.on_medium(sector)),
        }
    }

    fn on_medium(&self, sector: u64) -> Option<&[u8]> {
        let page = self.medium.get(&(sector / PER_PAGE))?;
        Some(&page[(sector % PER_PAGE * SECTOR) as usize..][..SECTOR as usize])
    }

    /// Whether a read of the sector would return zeros.
    pub fn is_zero(&self, sector: u64) -> bool {
        let mut bytes = [0; SECTOR as usize];
        self.read(sector, &mut bytes);
        block::is_zero(&bytes)
    }

    fn settle(&mut self, sector: u64, bytes: Option<&[u8]>) {
        self.unreadable.remove(&sector);
        let page = sector / PER_PAGE;
        if bytes.is_none() && !self.medium.contains_key(&page) {
            return;
        }
        let page = self.medium.entry(page).or_insert_with(|| Box::new([0; PHYSICAL as usize]));
        put(&mut page[(sector % PER_PAGE * SECTOR) as usize..][..SECTOR as usize], bytes);
    }

    /// Makes all sectors from number `sector` on zeros, on the medium and in the cache, because a test truncates the
    /// disk's file.
    pub fn forget_from(&mut self, sector: u64) {
        self.cache.split_off(&sector);
        let kept: Vec<u64> = self.medium.keys().copied().collect();
        let last = kept.last().map_or(0, |page| (page + 1) * PER_PAGE);
        (sector..last).for_each(|sector| self.settle(sector, None));
    }

    /// Adds a write to the cache, for each of its sectors for which `which` returns `true`.
    pub fn apply(&mut self, pending: &Pending, which: impl Fn(u64) -> bool) {
        for sector in pending.sectors.clone().filter(|sector| which(*sector)) {
            let index = sector - pending.sectors.start;
            let payload = pending.payload.clone();
            let version = Version { write: pending.write, index, payload, completed: None };
            self.cache.entry(sector).or_default().push(version);
        }
    }

    /// Records that the event number `at` has completed the write, so that later flushes cover it.
    pub fn complete(&mut self, pending: &Pending, at: u64) {
        for sector in pending.sectors.clone() {
            let versions = self.cache.get_mut(&sector).into_iter().flatten();
            for version in versions.filter(|version| version.write == pending.write) {
                version.completed = Some(at);
            }
        }
    }

    /// Records that the event number `at` has completed all cached writes that were in flight.
    pub fn complete_all(&mut self, at: u64) {
        for version in self.cache.values_mut().flatten() {
            version.completed.get_or_insert(at);
        }
    }

    /// Moves the data number `n` of a cached sector to the medium, and drops earlier data of the sector from the cache.
    fn persist(&mut self, sector: u64, n: usize) {
        let Some(versions) = self.cache.get_mut(&sector) else { return };
        let version =
            versions.drain(..=n).next_back().expect("the sector has at least one older version");
        if versions.is_empty() {
            self.cache.remove(&sector);
        }
        self.settle(sector, version.payload.sector(version.index));
    }

    /// Moves one write from the cache to the medium, and drops the earlier writes to its sectors from the cache.
    pub fn persist_write(&mut self, pending: &Pending) {
        for sector in pending.sectors.clone() {
            let versions = self.cache.get(&sector);
            let own = versions.and_then(|v| v.iter().rposition(|v| v.write == pending.write));
            if let Some(n) = own {
                self.persist(sector, n);
            }
        }
    }

    /// Carries out a flush: moves all writes to the medium that completed before the event number `submitted`, and no
    /// others.
    pub fn flush(&mut self, submitted: u64) {
        let covered = |version: &Version| version.completed.is_some_and(|at| at < submitted);
        let newest = |versions: &Vec<Version>| versions.iter().rposition(covered);
        let due: Vec<_> =
            self.cache.iter().filter_map(|(sector, v)| Some((*sector, newest(v)?))).collect();
        for (sector, n) in due {
            self.persist(sector, n);
        }
    }

    /// Drops all cached writes, as a failed flush does.
    pub fn drop_cache(&mut self) {
        self.cache.clear();
    }

    /// Moves the data of one random cached write to the medium without a flush: in the first cached sector from number
    /// `near` on, and in the other sectors of the same `unit` sectors. Drops earlier data of these sectors from the
    /// cache.
    pub fn destage(&mut self, near: u64, draw: u64, unit: u64, counters: &Counters) {
        let found = self.cache.range(near..).next().or_else(|| self.cache.first_key_value());
        let Some((sector, versions)) = found else { return };
        let write = versions[draw as usize % versions.len()].write;
        let first = sector / unit * unit;
        for sector in first..first + unit {
            let versions = self.cache.get(&sector);
            let own = versions.and_then(|v| v.iter().rposition(|v| v.write == write));
            if let Some(n) = own {
                counters.add(Count::Destage);
                counters.add_many(Count::Overtaken, n as u64);
                self.persist(sector, n);
            }
        }
    }

    /// Makes a sector unreadable, until a write to the sector reaches the medium.
    pub fn spoil(&mut self, sector: u64) {
        self.unreadable.insert(sector);
    }

    /// Whether a read of the sector fails, because the sector is unreadable on the medium and not in the cache.
    pub fn is_spoilt(&self, sector: u64) -> bool {
        self.unreadable.contains(&sector) && !self.cache.contains_key(&sector)
    }

    /// Returns the number of sectors that are unreadable on the medium.
    pub fn spoilt(&self) -> usize {
        self.unreadable.len()
    }

    /// Flips a bit of a sector on the medium, selected by the random number `draw`. Returns `false` if the medium has
    /// no bytes there yet.
    pub fn rot(&mut self, sector: u64, draw: u64) -> bool {
        let Some(page) = self.medium.get_mut(&(sector / PER_PAGE)) else { return false };
        let byte = sector % PER_PAGE * SECTOR + draw % SECTOR;
        page[byte as usize] ^= 1 << (draw >> 32 & 7);
        true
    }

    /// Returns the number of bytes that the disk has allocated, in pages of 4 KiB, if the sectors `more` are also
    /// allocated.
    pub fn allocated(&self, more: Range<u64>) -> u64 {
        let mut pages: BTreeSet<u64> = self.medium.keys().copied().collect();
        pages.extend(self.cache.keys().map(|sector| sector / PER_PAGE));
        pages.extend(more.map(|sector| sector / PER_PAGE));
        pages.len() as u64 * PHYSICAL
    }

    /// Whether the disk has allocated the sector. An allocated sector may hold zeros.
    pub fn is_mapped(&self, sector: u64) -> bool {
        self.medium.contains_key(&(sector / PER_PAGE)) || self.cache.contains_key(&sector)
    }

    /// Cuts the power of the disk. `cut` selects which cached sectors survive, and which sectors of the writes
    /// `in_flight`. `is_open` returns whether a sector of a write in flight has not changed yet.
    pub fn cut(
        &mut self,
        cut: &Cut,
        in_flight: &[Pending],
        is_open: impl Fn(u64, u64) -> bool,
        counters: &Counters,
    ) {
        let keep = Keep::draw(cut, &self.writes_in_order(in_flight));
        let mut torn = Torn::default();
        for (sector, versions) in std::mem::take(&mut self.cache) {
            let kept = versions.iter().rposition(|v| keep.keeps(v.write, sector));
            versions.iter().for_each(|v| torn.note(v.write, sector, keep.keeps(v.write, sector)));
            counters.add(if kept.is_some() { Count::CutKept } else { Count::CutLost });
            let Some(kept) = kept else { continue };
            if kept + 1 < versions.len() {
                counters.add(Count::CutOlder);
            }
            self.settle(sector, versions[kept].payload.sector(versions[kept].index));
        }
        for pending in in_flight {
            for sector in pending.sectors.clone().filter(|s| is_open(pending.write, *s)) {
                let kept = keep.keeps(pending.write, sector);
                torn.note(pending.write, sector, kept);
                if kept {
                    counters.add(Count::CutInFlight);
                    self.settle(sector, pending.payload.sector(sector - pending.sectors.start));
                }
            }
        }
        self.damage(cut.profile, &torn, counters);
    }

    /// Cuts the power of the disk. A sector of a cached write survives if `keeps` returns `true` for the numbers of the
    /// write and the sector.
    pub fn keep(&mut self, keeps: impl Fn(u64, u64) -> bool) {
        for (sector, versions) in std::mem::take(&mut self.cache) {
            let kept = versions.iter().rfind(|version| keeps(version.write, sector));
            if let Some(kept) = kept {
                self.settle(sector, kept.payload.sector(kept.index));
            }
        }
    }

    /// Returns a hash of the medium, without the cache.
    pub fn digest(&self) -> u64 {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let page =
            |sum: u64, bytes: &[u8]| bytes.chunks(8).fold(sum, |sum, at| mix(sum ^ word(at)));
        self.medium.iter().fold(0, |sum, (at, bytes)| page(mix(sum ^ at), &bytes[..]))
    }

    /// Returns the numbers of all cached writes in the order in which they completed, with the writes in flight last.
    pub fn writes_in_order(&self, in_flight: &[Pending]) -> Vec<u64> {
        let cached = self.cache.values().flatten();
        let mut order: Vec<_> =
            cached.map(|version| (version.completed.unwrap_or(u64::MAX), version.write)).collect();
        order.extend(in_flight.iter().map(|pending| (u64::MAX, pending.write)));
        order.sort_unstable();
        order.dedup();
        order.into_iter().map(|(_, write)| write).collect()
    }

    /// Returns the numbers of all cached writes that are in flight.
    pub fn writes_in_flight(&self) -> Vec<u64> {
        let cached = self.cache.values().flatten();
        let open = cached.filter(|version| version.completed.is_none());
        open.map(|version| version.write).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn damage(&mut self, profile: Profile, torn: &Torn, counters: &Counters) {
        let writes: Vec<_> = torn.0.values().filter(|t| t.kept > 0 && t.lost > 0).collect();
        counters.add_many(Count::Torn, writes.len() as u64);
        for torn in writes {
            let sector = torn.last_kept;
            let (sectors, from) = match profile {
                Profile::Emulated512 => {
                    let page = sector / PER_PAGE * PER_PAGE;
                    ((page..page + PER_PAGE).filter(|s| *s != sector).collect::<Vec<_>>(), 0)
                }
                Profile::NotAtomic => (vec![sector], SECTOR as usize / 2),
                _ => return,
            };
            counters.add_many(Count::Damaged, sectors.len() as u64);
            for sector in sectors {
                let mut bytes = [0; SECTOR as usize];
                self.read(sector, &mut bytes);
                bytes[from..].fill(DAMAGE);
                self.settle(sector, Some(&bytes));
            }
        }
    }
}

fn put(into: &mut [u8], bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => into.copy_from_slice(bytes),
        None => into.fill(0),
    }
}

/// The policy, the disk's profile and the random numbers of a power cut.
pub(super) struct Cut {
    pub policy: CutPolicy,
    pub profile: Profile,
    pub draw: Stream,
}

/// The selection of writes or sectors that survive a power cut.
struct Keep {
    /// Numbers of the writes that survive; `None` if each write and unit of sectors survives or not at random.
    writes: Option<BTreeSet<u64>>,
    /// Number of consecutive sectors that survive or are lost together, if writes are torn.
    unit: u64,
    key: u64,
}

impl Keep {
    fn draw(cut: &Cut, order: &[u64]) -> Self {
        let key = cut.draw.next();
        let count = order.len();
        let at = if count == 0 { 0 } else { key as usize % count };
        let unit = match cut.policy {
            CutPolicy::Torn => cut.profile.atomic() / SECTOR,
            _ => u64::MAX,
        };
        let chosen: Option<&[u64]> = match cut.policy {
            CutPolicy::DropAll => Some(&[]),
            CutPolicy::KeepAll => Some(order),
            CutPolicy::Prefix => Some(&order[..at]),
            CutPolicy::Reverse => Some(&order[at..]),
            CutPolicy::KeepOne => Some(&order[at..count.min(at + 1)]),
            CutPolicy::OmitOne | CutPolicy::Random | CutPolicy::Torn => None,
        };
        let mut writes = chosen.map(|writes| writes.iter().copied().collect::<BTreeSet<_>>());
        if cut.policy == CutPolicy::OmitOne {
            let left = order.iter().enumerate().filter(|(n, _)| *n != at).map(|(_, w)| *w);
            writes = Some(left.collect());
        }
        Self { writes, unit, key }
    }

    fn keeps(&self, write: u64, sector: u64) -> bool {
        match &self.writes {
            Some(writes) => writes.contains(&write),
            None => mix(self.key ^ mix(write) ^ (sector / self.unit)) & 1 == 1,
        }
    }
}

/// For each write number, how many of its sectors a power cut has kept and lost.
#[derive(Default)]
struct Torn(BTreeMap<u64, TornWrite>);

#[derive(Default)]
struct TornWrite {
    kept: u64,
    lost: u64,
    last_kept: u64,
}

impl Torn {
    fn note(&mut self, write: u64, sector: u64, kept: bool) {
        let torn = self.0.entry(write).or_default();
        if kept {
            torn.kept += 1;
            torn.last_kept = sector;
        } else {
            torn.lost += 1;
        }
    }
}
