//! A simulated disk with a volatile cache. The times of its operations and its faults follow from the seed.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | operations: their delays and faults |
//! | `store.rs` | the medium, the cache, and the effect of a power cut on them |
//! | `config.rs` | profiles, fault rates, and the policies of a power cut |
//! | `hand.rs` | changes that a test makes directly |
//! | `plug.rs` | the disks of a world by path, and their open handles |

mod config;
mod hand;
mod plug;
mod store;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use block::env::{DiskIo, Outcome, Ticket, Tickets};
use block::{Buf, ByteRange, Error, ErrorKind, Extent, Result, State, Waiter, push_extent};

use crate::SimWorld;
use crate::clock::{Clock, Event, Fire};
use crate::counters::Count;
use crate::draw::{Stream, domain, hits, mix};
use store::{Cut, Payload, Pending, Store};

pub use config::{CutPolicy, DAMAGE, DiskConfig, Faults, PHYSICAL, Profile, SECTOR};
pub use hand::Image;
pub(crate) use plug::Disks;

/// Number of writes in a million that change a part of their sectors earlier than the others, if they have several
/// sectors.
const TWO_STEPS: u32 = 250_000;

/// A simulated disk: its content, its faults, and its operations in flight.
pub struct SimDisk {
    me: Weak<Self>,
    name: String,
    number: u64,
    config: DiskConfig,
    faults: Cell<Faults>,
    clock: Rc<Clock>,
    store: RefCell<Store>,
    flights: RefCell<BTreeMap<u64, Flight>>,
    outcomes: RefCell<BTreeMap<u64, Outcome>>,
    next: Cell<u64>,
    /// For a hash of type and byte range, the number of operations so far. The number is a part of the key of an
    /// operation's random numbers, so that they stay the same if another operation is removed from the run.
    seen: RefCell<BTreeMap<u64, u64>>,
    fates: Stream,
    cuts: Stream,
    openers: plug::Openers,
    lossy: Cell<bool>,
    /// Bytes by which a test has enlarged the disk.
    grown: Cell<u64>,
    /// Present size of the disk's file in bytes if a test has truncated the file; `None` otherwise.
    short: Cell<Option<u64>>,
    reads: Cell<u64>,
    bytes_written: Cell<u64>,
}

/// An operation of a simulated disk in flight, with its buffer.
struct Flight {
    io: DiskIo,
    /// Key from which all random numbers of the operation follow.
    key: u64,
    submitted: u64,
    waiter: Waiter,
    abandoned: bool,
    hung: bool,
    /// Whether the operation, a write, has changed a part of its sectors already.
    half: bool,
    /// Whether the operation, a read, will return junk, because a test has asked for it.
    garbled: bool,
}

/// The fault of a disk operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Fine,
    Error,
    Lost,
    Misdirected,
}

/// Types of clock events of a disk operation: `HALF` changes a part of a write's sectors, `WHOLE` completes the
/// operation.
const HALF: u64 = 0;
const WHOLE: u64 = 1;

impl SimDisk {
    /// Creates a simulated disk of zeros in `world`. The disk's random numbers follow from the seed and `number`.
    pub fn new(world: &SimWorld, number: u64, config: DiskConfig) -> Rc<Self> {
        let clock = world.clock();
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            name: format!("disk{number}"),
            number,
            faults: Cell::new(config.faults),
            config,
            store: RefCell::default(),
            flights: RefCell::default(),
            outcomes: RefCell::default(),
            next: Cell::new(1),
            seen: RefCell::default(),
            fates: Stream::new(clock.seed, "fates", number),
            cuts: Stream::new(clock.seed, "cuts", number),
            clock,
            openers: plug::Openers::default(),
            lossy: Cell::new(false),
            grown: Cell::new(0),
            short: Cell::new(None),
            reads: Cell::new(0),
            bytes_written: Cell::new(0),
        })
    }

    /// Returns the number of the disk, unique in its simulated world.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the configuration with which the disk was created.
    pub fn config(&self) -> &DiskConfig {
        &self.config
    }

    /// Sets the fault rates of the disk's later operations.
    pub fn set_faults(&self, faults: Faults) {
        self.faults.set(faults);
    }

    /// Truncates the disk's file to `size` bytes. A later write past the end extends the file again, with zeros
    /// between.
    pub fn cut_short(&self, size: u64) {
        self.count(Count::DiskCut);
        self.lossy.set(true);
        self.short.set(Some(size));
        self.store.borrow_mut().forget_from(size / SECTOR);
    }

    /// Whether a write, write zeroes or discard in flight ends past the address `size` of the disk.
    pub fn is_writing_behind(&self, size: u64) -> bool {
        let is_behind = |flight: &Flight| {
            let writes = !matches!(flight.io, DiskIo::Read { .. });
            writes && range_of(&flight.io).is_some_and(|range| range.end() > size)
        };
        self.flights.borrow().values().any(is_behind)
    }

    /// Extends the disk's truncated file to its configured size again, with zeros.
    pub fn grow_back(&self) {
        self.short.set(None);
    }

    /// Returns the present size of the disk's file in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.short.get().unwrap_or(self.whole_size())
    }

    /// Returns the size of the disk in bytes, also of a truncated one.
    fn whole_size(&self) -> u64 {
        self.config.size + self.grown.get()
    }

    /// Makes reads in flight that lie within `range` return junk. A test calls it after a mirror took the disk out of
    /// service, because the mirror must not use these replies.
    pub fn garble_reads(&self, range: ByteRange) {
        for flight in self.flights.borrow_mut().values_mut() {
            let DiskIo::Read { offset, into } = &flight.io else { continue };
            let read =
                ByteRange::new(*offset, into.len() as u64).expect("a read has at least one byte");
            flight.garbled = range.contains(read);
        }
    }

    /// Whether the disk has lost acknowledged writes other than in a power cut.
    pub fn is_lossy(&self) -> bool {
        self.lossy.get()
    }

    /// Returns the number of reads that the disk has begun so far.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Returns the number of bytes in the writes that the disk has begun so far.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.get()
    }

    /// Returns the number of the disk's sectors that are marked as unreadable.
    pub fn spoilt(&self) -> usize {
        self.store.borrow().spoilt()
    }

    /// Returns a description of each operation in flight on the disk.
    pub fn in_flight(&self) -> Vec<String> {
        let flights = self.flights.borrow();
        flights.values().map(|flight| format!("{}: {:?}", self.name, flight.io)).collect()
    }

    /// Returns the bytes that a read of `range` would return now, without a read operation.
    pub fn peek(&self, range: ByteRange) -> Vec<u8> {
        let mut bytes = vec![0; range.len() as usize];
        self.read(range, &mut bytes);
        bytes
    }

    fn read(&self, range: ByteRange, into: &mut [u8]) {
        let store = self.store.borrow();
        for (sector, into) in sectors(range).zip(into.chunks_mut(SECTOR as usize)) {
            store.read(sector, into);
        }
    }

    fn count(&self, count: Count) {
        self.clock.counters.add(count);
    }

    /// Returns the random number of the operation with this key for one purpose, for example `"delay"`.
    fn draw(&self, key: u64, what: &'static str) -> u64 {
        self.fates.at(key ^ domain(what))
    }

    fn strikes(&self, key: u64, what: &'static str, rate: u32) -> bool {
        rate > 0 && hits(self.draw(key, what), rate)
    }

    fn key_of(&self, io: &DiskIo) -> u64 {
        let place = range_of(io).map_or(0, |range| mix(range.start()) ^ range.len());
        let sort = mix(verb(io) as u64 ^ mix(place));
        let mut seen = self.seen.borrow_mut();
        let times = seen.entry(sort).or_default();
        *times += 1;
        mix(sort ^ *times)
    }

    fn begin(&self, io: DiskIo) -> Ticket {
        let id = self.next.replace(self.next.get() + 1);
        let key = self.key_of(&io);
        self.count(verb(&io));
        if let DiskIo::Write { data, .. } = &io {
            self.bytes_written.set(self.bytes_written.get() + data.len() as u64);
        }
        match &io {
            DiskIo::Write { fua: true, .. } => self.count(Count::DiskFua),
            DiskIo::Read { .. } => self.reads.set(self.reads.get() + 1),
            _ => {}
        }
        if let Some(range) = range_of(&io) {
            assert!(
                range.end() <= self.whole_size()
                    && range.is_aligned(self.config.profile.block_size()),
                "{}: {io:?} of {} bytes is not aligned or ends past the disk",
                self.name,
                self.whole_size()
            );
            let meets = |other: &Flight| range_of(&other.io).is_some_and(|o| o.overlaps(range));
            if self.flights.borrow().values().any(meets) {
                self.count(Count::Overlap);
            }
        }
        let me: Rc<Self> = self.me.upgrade().expect("the disk lives while its operations run");
        let faults = self.faults.get();
        let hung = self.strikes(key, "hang", faults.hang);
        let flight = Flight {
            submitted: self.clock.tick(),
            waiter: Waiter::default(),
            abandoned: false,
            half: false,
            garbled: false,
            io,
            key,
            hung,
        };
        if hung {
            self.count(Count::Hang);
        } else {
            self.schedule(id, &flight);
        }
        self.flights.borrow_mut().insert(id, flight);
        Ticket::new(me, id)
    }

    /// Whether a write that changes only a part of its sectors changes `sector`. `half` is the write's random number.
    fn is_in_half(&self, half: u64, sector: u64) -> bool {
        mix(half ^ (sector * SECTOR / self.config.profile.atomic())) & 1 == 1
    }

    fn schedule(&self, id: u64, flight: &Flight) {
        let me: Rc<Self> = self.me.upgrade().expect("the disk lives while its operations run");
        let span = self.config.most_ns - self.config.least_ns + 1;
        let mut delay = self.config.least_ns + self.draw(flight.key, "delay") % span;
        let faults = self.faults.get();
        let is_flush = matches!(flight.io, DiskIo::Flush);
        if is_flush {
            delay += self.config.flush_ns;
        }
        if self.strikes(flight.key, "stall", faults.stall)
            || is_flush && self.strikes(flight.key, "late flush", faults.late_flush)
        {
            self.count(Count::Stall);
            // Mirrors wait longer than three stalls: of a write of zeros, of the flush in flight, and of the
            // flush behind both.
            delay += 100_000_000 + self.draw(flight.key, "stalled") % 2_500_000_000;
        }
        let now = self.clock.now();
        let whole = range_of(&flight.io).is_some_and(|range| range.len() == SECTOR);
        let writes = !matches!(flight.io, DiskIo::Read { .. } | DiskIo::Flush);
        if writes && !whole && self.strikes(flight.key, "two steps", TWO_STEPS) {
            let half = now.after(Duration::from_nanos(delay / 2));
            self.clock.schedule(half, Event::Fire(me.clone(), id << 1 | HALF));
        }
        let at = now.after(Duration::from_nanos(delay));
        self.clock.schedule(at, Event::Fire(me, id << 1 | WHOLE));
    }

    /// Returns the sectors and the payload of the operation `id`; `None` for a read or a flush.
    fn pending(&self, id: u64, flight: &Flight) -> Option<Pending> {
        let range = range_of(&flight.io)?;
        let payload = match &flight.io {
            DiskIo::Write { data, .. } => Payload::Bytes(Rc::from(&*data.read())),
            DiskIo::Zero { .. } | DiskIo::Discard { .. } => Payload::Zero,
            DiskIo::Read { .. } | DiskIo::Flush => return None,
        };
        Some(Pending { write: id, sectors: sectors(range), payload })
    }

    /// Changes a random part of the sectors of the write `id`, before the write completes.
    fn take_half(&self, id: u64) {
        let mut flights = self.flights.borrow_mut();
        let Some(flight) = flights.get_mut(&id) else { return };
        if self.fate(flight) != Fate::Fine || matches!(flight.io, DiskIo::Discard { .. }) {
            return;
        }
        flight.half = true;
        self.count(Count::TwoSteps);
        let half = self.draw(flight.key, "half");
        let pending = self.pending(id, flight).expect("only a write takes effect in two steps");
        self.store.borrow_mut().apply(&pending, |sector| self.is_in_half(half, sector));
    }

    fn fate(&self, flight: &Flight) -> Fate {
        let (faults, key) = (self.faults.get(), flight.key);
        match &flight.io {
            DiskIo::Read { .. } if self.strikes(key, "read", faults.read_error) => Fate::Error,
            DiskIo::Flush if self.strikes(key, "flush", faults.flush_error) => Fate::Error,
            DiskIo::Read { .. } | DiskIo::Flush | DiskIo::Discard { .. } => Fate::Fine,
            DiskIo::Write { .. } | DiskIo::Zero { .. } => {
                if self.strikes(key, "write", faults.write_error) {
                    Fate::Error
                } else if self.strikes(key, "lost", faults.lost_write) {
                    Fate::Lost
                } else if self.strikes(key, "misdirected", faults.misdirected) {
                    Fate::Misdirected
                } else {
                    Fate::Fine
                }
            }
        }
    }

    fn finish(&self, id: u64) {
        let Some(flight) = self.flights.borrow_mut().remove(&id) else { return };
        self.clock.record(domain(&self.name), mix(id) ^ flight.key);
        let spoilt = self.spoilt();
        let result = self.carry_out(id, &flight);
        if flight.garbled
            && let DiskIo::Read { into, .. } = &flight.io
        {
            self.count(Count::ReadGarbled);
            into.write().iter_mut().for_each(|byte| *byte = !*byte);
        }
        self.destage(&flight);
        let repaired = spoilt.saturating_sub(self.spoilt());
        self.clock.counters.add_many(Count::ReadRepaired, repaired as u64);
        self.answer(id, flight, result);
    }

    fn answer(&self, id: u64, flight: Flight, result: Result<usize>) {
        if flight.abandoned {
            return;
        }
        let buf = match flight.io {
            DiskIo::Read { into: buf, .. } | DiskIo::Write { data: buf, .. } => Some(buf),
            DiskIo::Zero { .. } | DiskIo::Discard { .. } | DiskIo::Flush => None,
        };
        self.outcomes.borrow_mut().insert(id, Outcome { result, buf, parts: Vec::new() });
        flight.waiter.wake();
    }

    fn carry_out(&self, id: u64, flight: &Flight) -> Result<usize> {
        let fate = self.fate(flight);
        match &flight.io {
            DiskIo::Read { offset, into } => {
                let range = ByteRange::new(*offset, into.len() as u64)
                    .expect("a read has at least one byte");
                self.carry_out_read(range, into, flight.key, fate)
            }
            DiskIo::Flush => self.carry_out_flush(flight.submitted, fate),
            DiskIo::Write { fua, .. } => self.carry_out_write(id, flight, *fua, fate),
            DiskIo::Zero { .. } => self.carry_out_write(id, flight, false, fate),
            DiskIo::Discard { .. } => self.carry_out_discard(id, flight),
        }
    }

    fn carry_out_read(&self, range: ByteRange, into: &Buf, key: u64, fate: Fate) -> Result<usize> {
        let drawn = sectors(range).start + self.draw(key, "where") % (range.len() / SECTOR);
        if fate == Fate::Error {
            self.count(Count::ReadError);
            self.store.borrow_mut().spoil(drawn);
        }
        if self.strikes(key, "rot", self.faults.get().rot)
            && self.store.borrow_mut().rot(drawn, self.draw(key, "bit"))
        {
            self.count(Count::Rot);
        }
        if range.end() > self.size() {
            let words = format!("read of {} bytes at {} ends early", range.len(), range.start());
            return Err(Error::new(ErrorKind::Io, words));
        }
        if let Some(bad) = sectors(range).find(|s| self.store.borrow().is_spoilt(*s)) {
            return Err(Error::os(5, format_args!("read of sector {bad}")));
        }
        self.read(range, &mut into.write());
        Ok(into.len())
    }

    fn carry_out_flush(&self, submitted: u64, fate: Fate) -> Result<usize> {
        if self.config.profile == Profile::Liar {
            self.count(Count::FlushIgnored);
            return Ok(0);
        }
        if fate == Fate::Error {
            self.count(Count::FlushError);
            self.lossy.set(true);
            self.store.borrow_mut().drop_cache();
            return Err(Error::os(5, "flush"));
        }
        self.store.borrow_mut().flush(submitted);
        Ok(0)
    }

    fn carry_out_write(&self, id: u64, flight: &Flight, fua: bool, fate: Fate) -> Result<usize> {
        let mut pending = self.pending(id, flight).expect("the operation is a write");
        let len = (pending.sectors.end - pending.sectors.start) * SECTOR;
        // A failed write may leave sectors in the cache. The next flush covers them.
        if let Profile::Thin(space) = self.config.profile
            && self.store.borrow().allocated(pending.sectors.clone()) > space
        {
            self.count(Count::NoSpace);
            self.store.borrow_mut().complete(&pending, self.clock.tick());
            return Err(Error::os(28, format_args!("write of {len} bytes")));
        }
        let half = self.draw(flight.key, "half");
        if self.size() < pending.sectors.end * SECTOR {
            self.short.set(Some(pending.sectors.end * SECTOR));
        }
        let mut store = self.store.borrow_mut();
        match fate {
            Fate::Error => {
                // None, some or all of its sectors take effect.
                let part = self.draw(flight.key, "part");
                store.apply(&pending, |sector| {
                    part & 3 == 0 || (part & 3 == 1) && self.is_in_half(half, sector)
                });
                store.complete(&pending, self.clock.tick());
                self.count(Count::WriteError);
                return Err(Error::os(5, format_args!("write of {len} bytes")));
            }
            Fate::Lost => {
                self.lossy.set(true);
                self.count(Count::LostWrite);
                return Ok(len as usize);
            }
            Fate::Misdirected => {
                self.lossy.set(true);
                self.count(Count::Misdirected);
                let room = self.whole_size() / SECTOR - len / SECTOR + 1;
                let start = self.draw(flight.key, "elsewhere") % room;
                pending.sectors = start..start + len / SECTOR;
            }
            Fate::Fine => {}
        }
        store.apply(&pending, |sector| !flight.half || !self.is_in_half(half, sector));
        store.complete(&pending, self.clock.tick());
        if fua || !self.config.profile.is_volatile() {
            store.persist_write(&pending);
        }
        Ok(len as usize)
    }

    /// Carries out a discard. A disk that does not promise zeros makes a random part of the sectors zeros.
    fn carry_out_discard(&self, id: u64, flight: &Flight) -> Result<usize> {
        let pending = self.pending(id, flight).expect("the operation is a write");
        let half = self.draw(flight.key, "half");
        let mut store = self.store.borrow_mut();
        store.apply(&pending, |sector| self.config.discard_zeroes || self.is_in_half(half, sector));
        store.complete(&pending, self.clock.tick());
        if !self.config.profile.is_volatile() {
            store.persist_write(&pending);
        }
        Ok(0)
    }

    fn destage(&self, flight: &Flight) {
        if self.strikes(flight.key, "destage", self.config.destage) {
            let near = self.draw(flight.key, "near") % (self.whole_size() / SECTOR);
            let which = self.draw(flight.key, "version");
            let unit = self.config.profile.atomic() / SECTOR;
            self.store.borrow_mut().destage(near, which, unit, &self.clock.counters);
        }
    }

    /// Cuts the power of the disk. Operations in flight fail. `policy` selects the writes that survive, among those
    /// that no flush covers.
    pub fn power_cut(&self, policy: CutPolicy) {
        self.count(Count::PowerCut);
        let flights = self.flights.take();
        let in_flight: Vec<_> = flights
            .iter()
            .filter(|(_, flight)| self.fate(flight) == Fate::Fine)
            .filter_map(|(id, flight)| self.pending(*id, flight))
            .collect();
        let round = Stream::new(self.cuts.next(), "cut", 0);
        let profile = self.config.profile;
        let mut store = self.store.borrow_mut();
        if profile == Profile::Protected {
            // Its cache has a battery, so only writes in flight can be lost.
            store.flush(u64::MAX);
        }
        // The first of two steps took effect in its order, and later writes have replaced it; it is not applied
        // again.
        let is_open = |write, sector| {
            let flight: &Flight = &flights[&write];
            !flight.half || !self.is_in_half(self.draw(flight.key, "half"), sector)
        };
        let cut = Cut { policy, profile, draw: round };
        store.cut(&cut, &in_flight, is_open, &self.clock.counters);
        drop(store);
        for (id, flight) in flights {
            self.answer(
                id,
                flight,
                Err(Error::new(ErrorKind::Io, "the power of the machine was cut")),
            );
        }
        self.openers.close_all();
    }

    /// Ends the operations in flight of a process that was killed. The kernel carries out some of them; the others are
    /// lost.
    pub(crate) fn process_died(&self) {
        self.flights.borrow_mut().retain(|id, flight| {
            let lands = flight.hung || self.draw(flight.key, "lands") & 1 == 1;
            self.count(if lands { Count::KillLanded } else { Count::KillLost });
            if let (false, true, Some(half)) = (lands, flight.half, self.pending(*id, flight)) {
                // Only its first step took effect. The next flush covers it.
                self.store.borrow_mut().complete(&half, self.clock.tick());
            }
            lands
        });
    }

    /// Fails all operations of the disk that hang, as if its cable was removed.
    pub fn release(&self) {
        let mut flights = self.flights.borrow_mut();
        let hung: Vec<_> = flights.iter().filter(|(_, f)| f.hung).map(|(id, _)| *id).collect();
        let hung: Vec<_> = hung.into_iter().map(|id| (id, flights.remove(&id))).collect();
        drop(flights);
        for (id, flight) in hung {
            self.count(Count::Released);
            let flight = flight.expect("the hung operation was found above");
            self.answer(id, flight, Err(Error::new(ErrorKind::Io, "the disk was unplugged")));
        }
    }

    fn status(&self, range: ByteRange, max: usize) -> Vec<Extent> {
        let store = self.store.borrow();
        let mut extents = Vec::new();
        for sector in sectors(range) {
            let state = match (store.is_zero(sector), store.is_mapped(sector)) {
                (false, _) => State::Data,
                (true, true) => State::Zero,
                (true, false) => State::Hole,
            };
            let before = extents.len();
            push_extent(&mut extents, SECTOR, state);
            if before == max && extents.len() > max {
                extents.pop();
                break;
            }
        }
        extents
    }
}

impl Fire for SimDisk {
    fn fire(&self, id: u64) {
        match id & 1 {
            HALF => self.take_half(id >> 1),
            _ => self.finish(id >> 1),
        }
    }
}

impl Tickets for SimDisk {
    fn poll(&self, id: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(outcome) = self.outcomes.borrow_mut().remove(&id) {
            return Poll::Ready(outcome);
        }
        if let Some(flight) = self.flights.borrow_mut().get_mut(&id) {
            flight.waiter.wake_later(cx);
        }
        Poll::Pending
    }

    fn abandon(&self, id: u64) {
        let outcome = self.outcomes.borrow_mut().remove(&id);
        drop(outcome);
        if let Some(flight) = self.flights.borrow_mut().get_mut(&id) {
            flight.abandoned = true;
            flight.waiter.clear();
        }
    }
}

fn sectors(range: ByteRange) -> Range<u64> {
    range.start() / SECTOR..range.end() / SECTOR
}

fn range_of(io: &DiskIo) -> Option<ByteRange> {
    match io {
        DiskIo::Read { offset, into: buf } | DiskIo::Write { offset, data: buf, .. } => {
            ByteRange::new(*offset, buf.len() as u64)
        }
        DiskIo::Zero { range, .. } | DiskIo::Discard { range } => Some(*range),
        DiskIo::Flush => None,
    }
}

fn verb(io: &DiskIo) -> Count {
    match io {
        DiskIo::Read { .. } => Count::DiskRead,
        DiskIo::Write { .. } => Count::DiskWrite,
        DiskIo::Zero { .. } => Count::DiskZero,
        DiskIo::Discard { .. } => Count::DiskDiscard,
        DiskIo::Flush => Count::DiskFlush,
    }
}
