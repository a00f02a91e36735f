//! The model of a volume: it checks the bytes of every read against the permitted results, also after failures, kills
//! and power cuts.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the volume: begin and end of requests, power cuts, deaths of processes |
//! | `register.rs` | one sector: the versions that a read may return |
//! | `unknown.rs` | sectors that may hold any bytes |
//! | `stamp.rs` | payloads in which each sector identifies its write |

mod register;
mod stamp;
#[cfg(test)]
mod tests;
mod unknown;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use block::{ByteRange, Extent};

use crate::disk::SECTOR;
use register::{End, FIRST, Flaw, Register, Version};
use unknown::Unknown;

pub use stamp::{Content, Stamp};
pub use unknown::Unsure;

/// The guarantees about a volume's bytes that the model checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// All guarantees of the contract of a device.
    Full,
    /// All guarantees, except that a sector may hold the damage of a torn write.
    Damage,
    /// Acknowledged writes may be lost, so that older bytes return. But a sector never holds bytes of another sector,
    /// nor a mixture of two writes.
    Lossy,
    /// As [`Self::Lossy`], but a device below remaps blocks, so the older bytes of a sector may be those of another
    /// block.
    Displaced,
    /// No guarantee about bytes, because a disk corrupts them and no device verifies them.
    Nothing,
}

/// A rule that the model checks in the replies to requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Requests on a sector of 512 bytes take effect in some order, in which each lies between its submission and its
    /// reply.
    Order,
    /// A read returns for a sector only bytes that were written to the same sector.
    Place,
    /// A write changes a sector completely or not at all.
    Whole,
    /// Writes that a flush or FUA made durable survive a power cut.
    Durable,
    /// Block status reports zeros only for bytes that read as zeros.
    Status,
    /// After a failed flush every later flush fails.
    Sticky,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Order => "the reads of a sector match some order of its writes",
            Self::Place => "a sector holds bytes that were written to this sector",
            Self::Whole => "a write changes a sector completely or not at all",
            Self::Durable => "durable writes survive a power cut",
            Self::Status => "block status reports zeros only for sectors that read as zeros",
            Self::Sticky => "after a failed flush every later flush fails",
        })
    }
}

/// A rule that a reply has broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// The broken rule.
    pub rule: Rule,
    /// The number of the sector, and its content or the wrong reply, in words.
    pub words: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rule \"{}\" is broken: {}", self.rule, self.words)
    }
}

/// The type of a request that changes the bytes of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A write: the byte range gets the data that the model chooses.
    Write,
    /// A write zeroes: the byte range becomes zeros.
    Zero,
    /// A discard: each sector of the byte range becomes zeros, or stays unchanged.
    Discard,
}

/// The number of a write, write zeroes or discard in flight.
#[derive(Debug)]
pub struct Changing(u64);

/// The moment, on the model's own clock, at which a read, block status or flush in flight was submitted.
#[derive(Debug)]
pub struct Looking(u64);

/// The model of a volume: all contents that each sector may have.
pub struct Model {
    volume: u64,
    now: Cell<u64>,
    next: Cell<u64>,
    registers: RefCell<Vec<Register>>,
    /// For sectors that were not zeros before the first write, the bytes that they had.
    first: RefCell<BTreeMap<u64, Box<[u8]>>>,
    changes: RefCell<BTreeMap<u64, Range<u64>>>,
    looks: RefCell<BTreeSet<u64>>,
    /// Moment of the submission of the latest flush that succeeded. Writes that were answered before it are durable.
    flushed: Cell<u64>,
    /// Moment at which the first failed flush failed; `None` if no flush has failed.
    flush_failed: Cell<Option<u64>>,
    promise: Cell<Promise>,
    /// Whether more members of a mirror may fail than the mirror can survive.
    copies_fail: Cell<bool>,
    /// The sectors that may hold any bytes.
    unknown: RefCell<Unknown>,
}

impl Model {
    /// Creates the model of a volume of `size` bytes, all zeros. The data of every write contains the number `volume`.
    pub fn new(volume: u64, size: u64) -> Self {
        Self {
            volume,
            now: Cell::new(1),
            next: Cell::new(1),
            registers: RefCell::new(vec![Register::new(true); (size / SECTOR) as usize]),
            first: RefCell::default(),
            changes: RefCell::default(),
            looks: RefCell::default(),
            flushed: Cell::new(0),
            flush_failed: Cell::new(None),
            promise: Cell::new(Promise::Full),
            copies_fail: Cell::new(false),
            unknown: RefCell::default(),
        }
    }

    /// Records the bytes that a byte range has before the first write, or from now on, while no request is in flight.
    pub fn learn(&self, range: ByteRange, bytes: &[u8]) {
        let mut registers = self.registers.borrow_mut();
        for (sector, bytes) in sectors(range).zip(bytes.chunks_exact(SECTOR as usize)) {
            self.set(&mut registers, sector, bytes);
        }
    }

    fn set(&self, registers: &mut [Register], sector: u64, bytes: &[u8]) {
        let is_zero = Content::of(bytes) == Content::Zero;
        registers[sector as usize] = Register::new(is_zero);
        match is_zero {
            true => self.first.borrow_mut().remove(&sector),
            false => self.first.borrow_mut().insert(sector, bytes.into()),
        };
    }

    /// Returns which write's data the bytes of a read are, or which other content of the sector.
    fn content(&self, sector: u64, bytes: &[u8]) -> Content {
        match self.first.borrow().get(&sector) {
            Some(first) if **first == *bytes => Content::First,
            _ => Content::of(bytes),
        }
    }

    /// Sets the guarantees that the model checks in the replies to later reads.
    pub fn demand(&self, promise: Promise) {
        self.promise.set(promise);
    }

    /// Permits more failed members of a mirror than the mirror can survive. Then a read may return the data of a write
    /// in flight from a member that is lost afterwards, and the write fails on the other members.
    pub fn let_copies_fail(&self) {
        self.copies_fail.set(true);
    }

    fn tick(&self) -> u64 {
        self.now.replace(self.now.get() + 1)
    }

    /// Records that a client submits a write, write zeroes or discard of `range`.
    pub fn begin(&self, range: ByteRange, change: Change, fua: bool) -> Changing {
        let (write, at) = (self.next.replace(self.next.get() + 1), self.tick());
        let (zero, discard) = (change != Change::Write, change == Change::Discard);
        let version = Version::begun(write, zero, discard, fua, at);
        let oldest = self.looks.borrow().first().copied().unwrap_or(at);
        let mut registers = self.registers.borrow_mut();
        for sector in sectors(range) {
            let register = &mut registers[sector as usize];
            register.forget(self.flushed.get(), oldest);
            register.begin(version);
        }
        self.changes.borrow_mut().insert(write, sectors(range));
        Changing(write)
    }

    /// Fills the buffer of a write with data by which the model recognizes the write in later reads.
    pub fn fill(&self, changing: &Changing, into: &mut [u8]) {
        let sectors = self.changes.borrow()[&changing.0].clone();
        for (sector, into) in sectors.zip(into.chunks_exact_mut(SECTOR as usize)) {
            Stamp { volume: self.volume, sector, write: changing.0 }.put(into);
        }
    }

    /// Records that a write, write zeroes or discard was answered; `ok`: with success.
    pub fn end(&self, changing: Changing, ok: bool) {
        let at = self.tick();
        let end = match ok {
            true => End::Answered,
            false if self.copies_fail.get() => End::Revoked,
            false => End::Failed,
        };
        let sectors = self.changes.borrow_mut().remove(&changing.0);
        let mut registers = self.registers.borrow_mut();
        for sector in sectors.expect("a write ends only once") {
            let register = &mut registers[sector as usize];
            register.end(changing.0, end, at);
            if ok && register.is_certain(changing.0) {
                self.unknown.borrow_mut().write_ended(sector, at);
            }
        }
    }

    /// Records that the reply to a write, write zeroes or discard is lost with its connection. If the request has an
    /// effect, the effect comes before any request that is submitted later.
    pub fn lost(&self, changing: Changing) {
        let at = self.tick();
        let sectors = self.changes.borrow_mut().remove(&changing.0);
        let mut registers = self.registers.borrow_mut();
        for sector in sectors.expect("a write ends only once") {
            registers[sector as usize].end(changing.0, End::Lost, at);
        }
    }

    /// Records that a client submits a read or block status.
    pub fn look(&self) -> Looking {
        let at = self.tick();
        self.looks.borrow_mut().insert(at);
        Looking(at)
    }

    /// Records that a read or block status failed, or that its client does not wait for the reply.
    pub fn look_failed(&self, looking: Looking) {
        self.looks.borrow_mut().remove(&looking.0);
    }

    /// Checks the bytes that a read of `range` returned.
    ///
    /// # Errors
    /// The rule that the bytes break.
    pub fn saw(&self, looking: Looking, range: ByteRange, bytes: &[u8]) -> Result<(), Wrong> {
        let end = self.tick();
        self.looks.borrow_mut().remove(&looking.0);
        for (sector, bytes) in sectors(range).zip(bytes.chunks_exact(SECTOR as usize)) {
            self.judge(sector, self.content(sector, bytes), looking.0, end)?;
        }
        Ok(())
    }

    /// Checks the reply to a block status of `range`: bytes that the reply reports as zeros must be able to read as
    /// zeros.
    ///
    /// # Errors
    /// The rule that the reply breaks.
    pub fn judge_status(
        &self,
        looking: Looking,
        range: ByteRange,
        told: &[Extent],
    ) -> Result<(), Wrong> {
        let end = self.tick();
        self.looks.borrow_mut().remove(&looking.0);
        let wrong = |words: String| Wrong { rule: Rule::Status, words };
        let mut at = range.start();
        for extent in told {
            let part = ByteRange::new(at, extent.len)
                .filter(|part| range.contains(*part) && part.is_aligned(SECTOR as u32))
                .ok_or_else(|| {
                    wrong(format!(
                        "block status of {range} returned extents that do not fit: {told:?}"
                    ))
                })?;
            for sector in sectors(part).filter(|_| extent.state.is_zero()) {
                self.judge(sector, Content::Zero, looking.0, end).map_err(|flaw| {
                    wrong(format!("block status reported {:?}; {}", extent.state, flaw.words))
                })?;
            }
            at = part.end();
        }
        if at == range.start() {
            return Err(wrong(format!("block status of {range} returned no extent")));
        }
        Ok(())
    }

    /// Records that a client submits a flush.
    pub fn flush(&self) -> Looking {
        Looking(self.tick())
    }

    /// Records the reply to a flush, and checks the rule about failed flushes; `ok`: the flush succeeded.
    ///
    /// # Errors
    /// The flush succeeded although it was submitted after another flush had failed.
    pub fn flushed(&self, flush: Looking, ok: bool) -> Result<(), Wrong> {
        if !ok {
            self.flush_failed.set(self.flush_failed.get().or(Some(self.tick())));
            return Ok(());
        }
        if self.flush_failed.get().is_some_and(|failed| failed < flush.0) {
            let words = "a later flush succeeded".to_owned();
            return Err(Wrong { rule: Rule::Sticky, words });
        }
        self.flushed.set(self.flushed.get().max(flush.0));
        Ok(())
    }

    /// Records a power cut of all disks: writes that are not durable may be lost, and requests in flight get no reply.
    pub fn power_cut(&self) {
        let at = self.tick();
        self.forget_open();
        let mut registers = self.registers.borrow_mut();
        let flushed = self.flushed.get();
        let keeps_flushed = self.promise.get() == Promise::Full;
        self.unknown.borrow_mut().power_cut(
            |sector| keeps_flushed && registers[sector as usize].has_durable_write(flushed),
            flushed,
        );
        for register in registers.iter_mut() {
            register.power_cut(self.flushed.get(), at);
        }
    }

    /// Records that the server process was killed and the next process has opened the disks. From now on each write
    /// that was in flight has taken effect, or never will.
    pub fn restarted(&self) {
        let at = self.tick();
        self.forget_open();
        for register in self.registers.borrow_mut().iter_mut() {
            register.restarted(at);
        }
    }

    fn forget_open(&self) {
        self.changes.borrow_mut().clear();
        self.looks.borrow_mut().clear();
        self.flush_failed.set(None);
    }

    fn judge(&self, sector: u64, content: Content, start: u64, end: u64) -> Result<(), Wrong> {
        let is_unknown = self.unknown.borrow().may_be_any(sector, start);
        if is_unknown || self.promise.get() == Promise::Nothing {
            return Ok(());
        }
        let wrong = |rule, words: &str| {
            Err(Wrong { rule, words: format!("sector {sector} read as {content}{words}") })
        };
        let register = &mut self.registers.borrow_mut()[sector as usize];
        let seen = match content {
            Content::Damage if self.promise.get() != Promise::Full => return Ok(()),
            Content::Damage | Content::Mixture(_) | Content::Junk => return wrong(Rule::Whole, ""),
            Content::Stamp(s) if s.volume != self.volume => return wrong(Rule::Place, ""),
            Content::Stamp(s) if s.sector != sector && self.promise.get() != Promise::Displaced => {
                return wrong(Rule::Place, "");
            }
            Content::Stamp(s) if s.write >= self.next.get() => return wrong(Rule::Whole, ""),
            Content::Zero | Content::Stamp(_) | Content::First
                if matches!(self.promise.get(), Promise::Lossy | Promise::Displaced) =>
            {
                Ok(())
            }
            Content::Stamp(stamp) => register.read(stamp.write, start, end),
            Content::First => register.read(FIRST, start, end),
            Content::Zero => register.read_zero(start, end),
        };
        match seen {
            Ok(()) => Ok(()),
            Err(Flaw::Undone) => wrong(Rule::Durable, ", which a durable write had replaced"),
            Err(Flaw::Replaced(by)) => {
                wrong(Rule::Order, &format!(", which write {by} had replaced"))
            }
            Err(Flaw::Unknown) => {
                wrong(Rule::Order, ", which was replaced earlier or never written")
            }
        }
    }
}

fn sectors(range: ByteRange) -> Range<u64> {
    range.start() / SECTOR..range.end() / SECTOR
}
