//! The marked regions in memory: which writes, flushes and verifications a region still needs before it may be cleared.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use block::seeded::{self, Bug};
use block::{ByteRange, Mono, Result};

use super::{Division, Report};

/// Regions that one commit marks, and the result of the commit.
#[derive(Default)]
pub struct Batch {
    pub regions: RefCell<BTreeSet<u64>>,
    /// The result; `None` until the commit has ended.
    pub result: RefCell<Option<Result<()>>>,
}

/// State of the durable mark of a region.
pub enum Mark {
    /// The last commit of the mark has failed.
    Missing,
    /// A commit will set the mark, or is setting it.
    Coming(Rc<Batch>),
    /// The mark is durable.
    Durable,
    /// A transaction that clears the mark is on its way.
    Clearing,
}

/// A region that is marked, or has writes.
struct Region {
    mark: Mark,
    /// Number of writes in flight, including writes that wait for the mark.
    writes: u32,
    /// Number of the first flush that covers all ended writes and the last verification.
    needed_flush: u64,
    /// Time when the last write ended.
    last: Mono,
    /// The parts of a region marked at the opening that the owner has not verified yet. There are at most as many as
    /// verifications of separate ranges in one region.
    unverified: Vec<ByteRange>,
}

/// The state of all regions that are marked, or have writes.
pub struct State {
    division: Division,
    regions: BTreeMap<u64, Region>,
    /// Regions for the next commit of marks.
    pending: Option<Rc<Batch>>,
    /// Number of the last flush that has begun.
    begun: u64,
    /// Number of the last flush that has succeeded.
    flushed: u64,
}

impl Region {
    /// Returns a region without mark and writes.
    fn new(now: Mono) -> Self {
        Self { mark: Mark::Missing, writes: 0, needed_flush: 0, last: now, unverified: Vec::new() }
    }

    /// Adds the region, which has this number, to the next batch, and returns that.
    fn join(&mut self, number: u64, pending: &mut Option<Rc<Batch>>) -> Rc<Batch> {
        let batch = pending.get_or_insert_default().clone();
        batch.regions.borrow_mut().insert(number);
        self.mark = Mark::Coming(batch.clone());
        batch
    }

    fn may_be_cleared(&self, flushed: u64) -> bool {
        let is_flushed = self.needed_flush <= flushed || seeded::on(Bug::ClearedBeforeFlush);
        let is_verified = self.unverified.is_empty() || seeded::on(Bug::ClearedUnverified);
        let is_idle = self.writes == 0
            || seeded::on(Bug::ClearedDuringWrite)
            || seeded::on(Bug::RegionLeftBusy);
        matches!(self.mark, Mark::Durable) && is_idle && is_flushed && is_verified
    }
}

impl State {
    pub fn new(division: Division) -> Self {
        Self { division, regions: BTreeMap::new(), pending: None, begun: 0, flushed: 0 }
    }

    /// Adds a region that was marked at the opening.
    pub fn add_opened(&mut self, region: u64, now: Mono) {
        let unverified = vec![self.division.range(region)];
        let mark = Mark::Durable;
        let found = Region { mark, unverified, ..Region::new(now) };
        self.regions.insert(region, found);
    }

    /// Whether no region from `first` to `last` has a clear on its way.
    pub fn is_open(&self, first: u64, last: u64) -> bool {
        let mut all = self.regions.range(first..=last);
        !all.any(|(_, region)| matches!(region.mark, Mark::Clearing))
            || seeded::on(Bug::WriteDuringClear)
    }

    /// Counts a write to the regions from `first` to `last`.
    pub fn begin_write(&mut self, first: u64, last: u64, now: Mono) {
        for region in first..=last {
            self.regions.entry(region).or_insert_with(|| Region::new(now)).writes += 1;
        }
    }

    /// Returns a batch with one of `regions` for which the caller must wait; `None` if all of them are durably marked. Adds
    /// those without a mark to the next batch, and then also the regions behind them up to `ahead`. All `regions` have
    /// counted a write of the caller.
    pub fn want(
        &mut self,
        regions: RangeInclusive<u64>,
        ahead: u64,
        now: Mono,
    ) -> Option<Rc<Batch>> {
        let (mut wait, mut is_new) = (None, false);
        for (number, region) in self.regions.range_mut(regions.clone()) {
            match &region.mark {
                Mark::Durable | Mark::Clearing => {}
                Mark::Coming(batch) => wait = Some(batch.clone()),
                Mark::Missing => {
                    is_new = true;
                    wait = Some(region.join(*number, &mut self.pending));
                }
            }
        }
        for number in (regions.end() + 1..=ahead).filter(|_| is_new) {
            let region = self.regions.entry(number).or_insert_with(|| Region::new(now));
            if matches!(region.mark, Mark::Missing) {
                region.join(number, &mut self.pending);
            }
        }
        wait
    }

    /// Ends a write to the regions from `first` to `last`.
    pub fn end_write(&mut self, first: u64, last: u64, now: Mono) {
        let needed = self.begun + 1;
        for number in first..=last {
            let Some(region) = self.regions.get_mut(&number) else { continue };
            region.writes = region.writes.saturating_sub(1);
            (region.needed_flush, region.last) = (needed, now);
            if region.writes == 0 && matches!(region.mark, Mark::Missing) {
                self.regions.remove(&number);
            }
        }
    }

    /// Whether regions wait for the next commit of marks.
    pub fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Takes the regions for the next commit of marks.
    pub fn take_pending(&mut self) -> Option<Rc<Batch>> {
        self.pending.take()
    }

    /// Notes the result of the commit that marks the regions of `batch`.
    pub fn marked(&mut self, batch: &Batch, result: Result<()>) {
        for number in &*batch.regions.borrow() {
            let region = self.regions.get_mut(number).expect("a region stays until it is marked");
            region.mark = if result.is_ok() { Mark::Durable } else { Mark::Missing };
            if result.is_err() && region.writes == 0 {
                self.regions.remove(number);
            }
        }
        *batch.result.borrow_mut() = Some(result);
    }

    /// Notes that a flush begins. Returns its number.
    pub fn begin_flush(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// Notes that the flush with this number has succeeded. Returns whether any region is marked.
    pub fn end_flush(&mut self, number: u64) -> bool {
        let covers = if seeded::on(Bug::FlushCountsLater) { self.begun + 1 } else { number };
        self.flushed = self.flushed.max(covers);
        !self.regions.is_empty()
    }

    /// Notes that the owner has verified a byte range.
    pub fn verified(&mut self, range: ByteRange) {
        let (first, last) = self.division.of(range);
        let needed = self.begun + 1;
        for region in self.regions.range_mut(first..=last).map(|(_, region)| region) {
            if region.unverified.is_empty() {
                continue;
            }
            region.unverified =
                region.unverified.iter().flat_map(|part| rest(*part, range)).collect();
            if region.unverified.is_empty() {
                region.needed_flush = needed;
            }
        }
    }

    /// Returns the first part, at or behind byte `from`, of a region marked at the opening that is not verified.
    pub fn next_unverified(&self, from: u64) -> Option<ByteRange> {
        let first = from / self.division.region_bytes();
        let mut parts = self.regions.range(first..).flat_map(|(_, region)| &region.unverified);
        parts.find_map(|part| ByteRange::between(part.start().max(from), part.end()))
    }

    /// Whether a byte of `range` was in a region marked at the opening, and is not verified yet.
    pub fn is_unverified(&self, range: ByteRange) -> bool {
        let (first, last) = self.division.of(range);
        let mut parts = self.regions.range(first..=last).flat_map(|(_, region)| &region.unverified);
        parts.any(|part| part.overlaps(range))
    }

    /// Changes regions from region `from` on, at most `most`, from marked to clearing, and returns them. Only
    /// regions that may be cleared and had no write for `delay` change.
    pub fn take_quiet(&mut self, from: u64, now: Mono, delay: Duration, most: usize) -> Vec<u64> {
        let flushed = self.flushed;
        let quiet = self.regions.range_mut(from..).filter(|(_, region)| {
            region.may_be_cleared(flushed) && region.last.after(delay) <= now
        });
        let mark = |(number, region): (&u64, &mut Region)| {
            region.mark = Mark::Clearing;
            *number
        };
        quiet.take(most).map(mark).collect()
    }

    /// Whether a region may be cleared as soon as it was quiet long enough.
    pub fn has_clearable(&self) -> bool {
        self.regions.values().any(|region| region.may_be_cleared(self.flushed))
    }

    /// Whether a marked region without a write for `delay` needs a later flush before it may be cleared.
    pub fn waits_for_flush(&self, now: Mono, delay: Duration) -> bool {
        self.regions.values().any(|region| {
            let is_quiet = region.writes == 0 && region.last.after(delay) <= now;
            is_quiet && matches!(region.mark, Mark::Durable) && region.needed_flush > self.flushed
        })
    }

    /// Whether no region is marked or has writes.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the numbers of the regions that are marked or have writes.
    pub fn used(&self) -> Vec<u64> {
        self.regions.keys().copied().collect()
    }

    /// Notes the end of the transaction that clears `regions`. Unless `is_marked`, their marks may be gone.
    pub fn cleared(&mut self, regions: &[u64], is_marked: bool) {
        for number in regions {
            let Some(region) = self.regions.get_mut(number) else { continue };
            match is_marked {
                true => region.mark = Mark::Durable,
                false => drop(self.regions.remove(number)),
            }
        }
    }

    pub fn report(&self) -> Report {
        let mut report = Report::default();
        for (number, region) in &self.regions {
            if matches!(region.mark, Mark::Missing) {
                continue;
            }
            report.marked += 1;
            report.marked_bytes += self.division.range(*number).len();
            report.opened += u64::from(!region.unverified.is_empty());
            report.unverified_bytes += region.unverified.iter().map(|part| part.len()).sum::<u64>();
        }
        report
    }
}

/// Returns the parts of `part` outside of `gone`.
fn rest(part: ByteRange, gone: ByteRange) -> impl Iterator<Item = ByteRange> {
    let before = ByteRange::between(part.start(), part.end().min(gone.start()));
    let behind = ByteRange::between(part.start().max(gone.end()), part.end());
    before.into_iter().chain(behind)
}
