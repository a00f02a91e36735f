//! Commits: the changes of clients in order, in records with their data.
//!
//! Changes wait in a queue. One leader at a time takes as many as fit into a record, gives each its place in the order,
//! and starts the writes of the data and of the record together. Then it takes the next ones, so several records are in
//! flight. The map in memory changes when a record is acknowledged, which happens in the order of the records.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use block::env::Mono;
use block::seeded::{self, Bug};
use block::{Buf, Child, Error, ErrorKind, OneShot, Op, Result, bail, error, first, is_zero};
use crc_fast::CrcAlgorithm;
use meta::io::{step, write_all};
use meta::ring::Appended;
use smallvec::{SmallVec, smallvec};

use super::pool::{CHANGES_HALF, Inner, UNFLUSHED_BYTES_MAX};
use super::step::Step;
use super::vdisk::Vdisk;
use crate::extent::{ExtentFlags, ExtentHeader};
use crate::log::{Changes, LogItem, Run as LogRun, SnapshotItem};
use crate::map::{Number, Run, RunChange, RunKind, Sums};
use crate::name::Label;
use crate::rows::{ExtentRow, Row, SnapshotFlags, SumKind, Table, VdiskFlags};
use crate::space::Claims;
use crate::{Address, BLOCK_BYTES};

/// Most bytes of data of one record.
const RECORD_DATA_MAX: usize = 1 << 20;

/// Most bytes of the items of one record, if the ring permits that.
const RECORD_ITEMS_MAX: usize = 128 << 10;

/// Most records in flight.
const RECORDS_MAX: usize = 8;

/// Delay of a record when the changes in memory have reached their bound.
const SLOWEST: Duration = Duration::from_millis(4);

/// Most bytes of the item of a snapshot.
const SNAPSHOT_BYTES_MAX: usize = 128;

/// Bytes of a checksum of kind 1.
pub const SUM_BYTES: u8 = crate::map::SumKind::Crc32c.bytes();

const BLOCK: usize = BLOCK_BYTES as usize;

/// Longest time that a write waits for space in a full pool.
pub const ROOM_WITHIN: Duration = Duration::from_secs(10);

/// Time between two looks of a write that waits for space, if nothing wakes it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Most writes that wait for space at the same time. Further ones fail at once, so that slots remain for other requests.
const HELD_MAX: u32 = 16;

/// A change that waits for its record.
#[derive(Clone)]
pub enum Change {
    /// Whole blocks of a vdisk get the bytes of a buffer.
    Write(Rc<Vdisk>, u64, Buf),
    /// Blocks of a vdisk become zeros.
    Hole(Rc<Vdisk>, u64, u64),
    /// A snapshot of each vdisk, all at one instant, with the number of their group, or 0.
    Snapshot(Vec<Rc<Vdisk>>, Option<Label>, u64),
    /// Rows of tables: those that are added or replaced, and keys of those that are removed.
    Rows(Vec<(Table, Vec<u8>)>, Vec<(Table, Vec<u8>)>),
    /// A new end of the snapshot numbers in reserve of a vdisk, or of the allocator's own numbers.
    Numbers(Option<Rc<Vdisk>>, u64),
}

struct Waiting {
    change: Change,
    done: Rc<OneShot<Result<Vec<Number>>>>,
}

/// The queue of changes.
#[derive(Default)]
pub struct Commits {
    queue: RefCell<VecDeque<Waiting>>,
    pub has_leader: Cell<bool>,
    /// The records in flight.
    flights: RefCell<VecDeque<Flight>>,
    has_lander: Cell<bool>,
    /// Memory for the items of the next record.
    items: RefCell<Vec<u8>>,
    /// Number of writes that wait for space.
    held: Cell<u32>,
}

/// Guard of a write that waits for space.
struct Held<'c>(&'c Cell<u32>);

impl<'c> Held<'c> {
    fn new(count: &'c Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The client of a change, with the numbers of its snapshots.
type Answer = (Rc<OneShot<Result<Vec<Number>>>>, Vec<Number>);

/// The runs of a change.
type Runs = SmallVec<[RunChange; 1]>;

/// A record in flight.
struct Flight {
    appended: Result<Appended>,
    steps: Vec<Step>,
    answers: Vec<Answer>,
}

/// A record that is being put together.
#[derive(Default)]
struct Draft {
    items: Vec<u8>,
    count: u32,
    steps: Vec<Step>,
    /// Places of data, and their bytes.
    data: Vec<(Address, Buf)>,
    /// Writes of headers of extents.
    writes: Vec<Child>,
    answers: Vec<Answer>,
    data_bytes: usize,
}

impl Change {
    fn data_bytes(&self) -> usize {
        if let Self::Write(_, _, data) = self { data.len() } else { 0 }
    }

    /// Returns the most bytes that the items of the change take.
    fn item_bytes(&self) -> usize {
        match self {
            // In the worst case each block is a run of its own, and a snapshot follows.
            Self::Write(_, _, data) => 64 + data.len() / BLOCK * 32 + SNAPSHOT_BYTES_MAX,
            Self::Hole(..) => 64 + SNAPSHOT_BYTES_MAX,
            Self::Snapshot(vdisks, ..) => vdisks.len() * SNAPSHOT_BYTES_MAX,
            Self::Rows(put, removed) => {
                put.iter().chain(removed).map(|(_, bytes)| bytes.len() + 24).sum()
            }
            Self::Numbers(..) => 24,
        }
    }
}

impl Inner {
    /// Puts a change in line, and waits for its acknowledgement. Returns the numbers of its snapshots, in the order of
    /// their vdisks. The change is durable after a flush.
    ///
    /// # Errors
    /// `NoSpace` without free space; `Limit` for a change that no record can have; errors of writes. After an error of a write the pool takes no further changes.
    pub async fn commit(self: &Rc<Self>, change: Change) -> Result<Vec<Number>> {
        let Change::Write(..) = &change else { return self.try_commit(change).await };
        let given = self.room.given();
        let full = match self.try_commit(change.clone()).await {
            Err(error) if error.kind() == ErrorKind::NoSpace => error,
            done => return done,
        };
        if self.commits.held.get() >= HELD_MAX {
            return Err(full);
        }
        let _held = Held::new(&self.commits.held);
        let end = self.env.now().after(ROOM_WITHIN);
        self.commit_with_room(change, full, given, end).await
    }

    /// Tries a write again whenever blocks became free, up to `end`. `given` is the number of given blocks before the
    /// first try, and `full` its error.
    async fn commit_with_room(
        self: &Rc<Self>,
        change: Change,
        full: Error,
        mut given: u64,
        end: Mono,
    ) -> Result<Vec<Number>> {
        // Blocks that records have freed need proof, and those of removed versions a checkpoint. Folds find blocks that are
        // overwritten.
        self.flush().await?;
        for vdisk in self.vdisks.borrow().values().filter(|vdisk| vdisk.own.borrow().len() > 1) {
            vdisk.wants_fold.set(true);
            self.touch(vdisk);
        }
        self.wants_checkpoint.set(true);
        self.changed();
        loop {
            let has_more = || self.room.given() > given || self.check_writable().is_err();
            // The end of a read may free blocks, too.
            while !has_more() {
                if self.env.now() >= end {
                    return Err(full);
                }
                let _ = first(self.changes.until(has_more), self.env.sleep(LOOK_EVERY)).await;
            }
            given = self.room.given();
            match self.try_commit(change.clone()).await {
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                done => return done,
            }
        }
    }

    async fn try_commit(self: &Rc<Self>, change: Change) -> Result<Vec<Number>> {
        self.check_writable()?;
        if let Change::Write(vdisk, ..) | Change::Hole(vdisk, ..) = &change
            && vdisk.has(VdiskFlags::SNAPSHOT_WITH_WRITE)
        {
            // Boxed, because the reservation is a change as well.
            let vdisk = vdisk.clone();
            Box::pin(self.reserve_snapshots(&vdisk)).await?;
        }
        let (bytes, most) = (change.item_bytes(), self.items_max());
        if bytes > most {
            return Err(error!(
                Limit,
                "a change takes {bytes} bytes of the log; at most {most} fit"
            )
            .next("divide it: fewer bytes in one write, or fewer vdisks in one snapshot"));
        }
        let done = Rc::new(OneShot::default());
        let waiting = Waiting { change, done: done.clone() };
        self.commits.queue.borrow_mut().push_back(waiting);
        if !self.commits.has_leader.replace(true) {
            let pool = self.clone();
            self.tasks.spawn("commits of a pool", async move { pool.lead().await });
        }
        done.wait().await
    }

    /// Returns the most bytes of the items of one record, besides those of claimed extents.
    fn items_max(&self) -> usize {
        RECORD_ITEMS_MAX.min(self.log.items_max() / 2)
    }

    /// Makes records of the changes in line until none is left.
    async fn lead(self: Rc<Self>) {
        let commits = &self.commits;
        while !commits.queue.borrow().is_empty() {
            // Changes in memory are bounded: the running checkpoint ends before more of them begin.
            let may_begin = || {
                let is_bounded = self.fresh_changes.get() < CHANGES_HALF
                    && self.unflushed_bytes.get() < UNFLUSHED_BYTES_MAX;
                let is_failed = self.check_writable().is_err();
                commits.flights.borrow().len() < RECORDS_MAX && (is_bounded || is_failed)
            };
            self.changes.until(may_begin).await;
            self.slow_down().await;
            self.log.room().await;
            let mut draft = Draft { items: commits.items.take(), ..Draft::default() };
            self.fill(&mut draft);
            if draft.count > 0 || !draft.answers.is_empty() {
                self.send(draft);
            }
        }
        commits.has_leader.set(false);
        if self.tasks.is_closing() {
            self.changed();
        }
    }

    /// Delays the next record while a checkpoint runs. So writes become slower, and seldom stop until it has ended.
    async fn slow_down(&self) {
        let delay = delay(self.taken_changes.get(), self.fresh_changes.get());
        if !delay.is_zero() {
            self.env.sleep(delay).await;
        }
    }

    /// Moves changes from the queue into a record, as long as they fit.
    fn fill(self: &Rc<Self>, draft: &mut Draft) {
        let items_max = self.items_max();
        loop {
            let waiting = {
                let mut queue = self.commits.queue.borrow_mut();
                let Some(next) = queue.front() else { return };
                let bytes = draft.data_bytes + next.change.data_bytes();
                let items = draft.items.len() + next.change.item_bytes();
                let is_first = draft.count == 0;
                if !is_first && (bytes > RECORD_DATA_MAX || items > items_max) {
                    return;
                }
                queue.pop_front().expect("the queue has a front")
            };
            let Waiting { change, done } = waiting;
            match self.add(draft, change) {
                Ok(snapshots) => draft.answers.push((done, snapshots)),
                Err(error) => done.set(Err(error)),
            }
        }
    }

    /// Adds a change to a record. It has its place in the order from here on.
    fn add(&self, draft: &mut Draft, change: Change) -> Result<Vec<Number>> {
        match change {
            Change::Write(vdisk, block, data) => {
                self.add_write(draft, &vdisk, block, &data)?;
                self.add_snapshot_with_write(draft, &vdisk)?;
            }
            Change::Hole(vdisk, ..)
                if seeded::on(Bug::DiscardShowsOrigin) && vdisk.origin.borrow().is_some() => {}
            Change::Hole(vdisk, block, blocks) => {
                let mut from = block;
                while from < block + blocks {
                    let part = (block + blocks - from).min(u64::from(u32::MAX));
                    let run = hole(&vdisk, from, part);
                    draft.put_runs(&vdisk, smallvec![RunChange { run, sums: Sums::NONE }]);
                    from += part;
                }
                self.add_snapshot_with_write(draft, &vdisk)?;
            }
            Change::Snapshot(vdisks, label, group) => {
                return self.add_snapshots(draft, vdisks, label, group);
            }
            Change::Rows(put, removed) => {
                for (table, row) in put {
                    draft.put_item(&LogItem::PutRow(table, &row));
                    draft.steps.push(Step::Put(table, row));
                }
                for (table, key) in removed {
                    draft.put_item(&LogItem::RemoveRow(crate::log::RowKey { table, key: &key }));
                    draft.steps.push(Step::Remove(table, key));
                }
            }
            Change::Numbers(vdisk, end) => {
                let number = vdisk.as_ref().map_or(0, |vdisk| vdisk.number);
                draft.put_item(&LogItem::Numbers { vdisk: number, end });
                draft.steps.push(match vdisk {
                    Some(vdisk) => Step::Numbers(vdisk, end),
                    None => Step::OwnNumbers(end),
                });
            }
        }
        Ok(Vec::new())
    }

    /// Gives the blocks of a write their places. The bytes of a refused change are not written, because its places may be
    /// given to the next change.
    fn add_write(
        &self,
        draft: &mut Draft,
        vdisk: &Rc<Vdisk>,
        block: u64,
        data: &Buf,
    ) -> Result<()> {
        let (mut runs, mut from, blocks) = (Runs::new(), 0, data.len() / BLOCK);
        let mut charged = 0;
        while from < blocks {
            let (is_hole, count) = alike(&data.read()[from * BLOCK..]);
            let at = block + from as u64;
            if is_hole {
                runs.push(RunChange { run: hole(vdisk, at, count as u64), sums: Sums::NONE });
                from += count;
                continue;
            }
            let room = vdisk.check_quota(charged + count as u64);
            let (address, taken) = match room.and_then(|()| self.room.take_data(count as u64)) {
                Ok(taken) => taken,
                Err(error) => {
                    self.give_back(&runs);
                    return Err(error);
                }
            };
            charged += taken;
            let part = data.slice(from * BLOCK..(from + taken as usize) * BLOCK);
            let sums = Sums::collect(checksums(&part.read()));
            let run = Run { kind: RunKind::DATA, address, blocks: taken, ..hole(vdisk, at, taken) };
            runs.push(RunChange { run, sums });
            from += taken as usize;
        }
        self.add_claims(draft)?;
        for RunChange { run, .. } in runs.iter().filter(|change| change.run.kind.has_blocks()) {
            let from = (run.block - block) as usize * BLOCK;
            let part = data.slice(from..from + run.blocks as usize * BLOCK);
            draft.data.push((run.address, part));
        }
        draft.data_bytes += data.len();
        vdisk.charges.in_flight.set(vdisk.charges.in_flight.get() + charged);
        draft.put_runs(vdisk, runs);
        Ok(())
    }

    /// Adds the rows of extents claimed for data to a record, before the blocks in them, and starts the writes of their
    /// headers.
    fn add_claims(&self, draft: &mut Draft) -> Result<()> {
        for row in self.room.with(|space| space.take_claimed(Claims::Data)) {
            draft.writes.push(self.start_header(&row)?);
            let (table, bytes) = row_bytes(&row);
            draft.put_item(&LogItem::PutRow(table, &bytes));
        }
        Ok(())
    }

    /// Starts the write of the header of a claimed extent.
    pub(super) fn start_header(&self, row: &ExtentRow) -> Result<Child> {
        let newest = self.newest.borrow();
        let header = ExtentHeader {
            content: row.content,
            flags: ExtentFlags(0),
            owner: row.owner,
            pool: newest.pool,
            extent: row.extent,
            generation: row.generation,
            epoch: 1,
            opening: newest.opening,
            claimed_unix_s: self.env.wall().as_secs(),
        };
        let buf = self.env.pool().take_reserved(BLOCK)?;
        buf.write().copy_from_slice(&header.encode());
        let first = Address::new(row.extent, 0).expect("an extent of the pool");
        Ok(self.lower.start(Op::write(self.room.range(first, 1)?, buf)))
    }

    /// Frees the places of a write that is refused. No record names them.
    fn give_back(&self, runs: &[RunChange]) {
        for RunChange { run, .. } in runs.iter().filter(|change| change.run.kind.has_blocks()) {
            self.room.with(|space| space.untake(run.address, run.blocks));
        }
    }

    fn add_snapshot_with_write(&self, draft: &mut Draft, vdisk: &Rc<Vdisk>) -> Result<()> {
        let has_room = vdisk.sealed.get() < vdisk.row.borrow().numbers_end;
        match vdisk.has(VdiskFlags::SNAPSHOT_WITH_WRITE) && has_room {
            true => self.add_snapshots(draft, vec![vdisk.clone()], None, 0).map(drop),
            false => Ok(()),
        }
    }

    fn add_snapshots(
        &self,
        draft: &mut Draft,
        vdisks: Vec<Rc<Vdisk>>,
        label: Option<Label>,
        group: u64,
    ) -> Result<Vec<Number>> {
        if let Some(vdisk) = vdisks.iter().find(|it| it.sealed.get() >= it.row.borrow().numbers_end)
        {
            bail!(Limit, "vdisk {} has no snapshot number in reserve", vdisk.number);
        }
        let taken_unix_us = self.env.wall().as_micros() as u64;
        let mut numbers = Vec::new();
        for vdisk in vdisks {
            let (number, size) = (vdisk.sealed.get(), vdisk.row.borrow().size);
            vdisk.sealed.set(number + 1);
            vdisk.is_changed.set(false);
            let item = SnapshotItem {
                vdisk: vdisk.number,
                number,
                taken_unix_us,
                group,
                size,
                flags: SnapshotFlags(0),
                label: label.clone(),
            };
            draft.put_item(&LogItem::Snapshot(item.clone()));
            draft.steps.push(Step::Snapshot(vdisk, item));
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// Starts the writes of the data of a record. Bytes with adjacent places are written together.
    fn start_data(&self, data: &[(Address, Buf)]) -> Result<Vec<Child>> {
        let most = step(&self.lower) / BLOCK * BLOCK;
        let mut writes = Vec::new();
        let mut from = 0;
        while from < data.len() {
            let (first, bytes) = (data[from].0, &data[from].1);
            let (mut to, mut len) = (from + 1, bytes.len());
            while let Some((address, next)) = data.get(to)
                && address.bits() == first.bits() + (len / BLOCK) as u64
                && len + next.len() <= most
            {
                (to, len) = (to + 1, len + next.len());
            }
            // Without a free buffer each part is a write of its own.
            let gathered = if to > from + 1 { self.env.buf(len).ok() } else { None };
            match gathered {
                Some(buf) => {
                    let mut at = 0;
                    for (_, part) in &data[from..to] {
                        buf.write()[at..at + part.len()].copy_from_slice(&part.read());
                        at += part.len();
                    }
                    let range = self.room.range(first, (len / BLOCK) as u64)?;
                    writes.push(self.lower.start(Op::write(range, buf)));
                }
                None => {
                    for (address, part) in &data[from..to] {
                        let range = self.room.range(*address, (part.len() / BLOCK) as u64)?;
                        writes.extend(write_all(&self.lower, range.start(), part));
                    }
                }
            }
            from = to;
        }
        Ok(writes)
    }

    /// Sends a record. One task waits for the records in flight, in their order.
    fn send(self: &Rc<Self>, draft: Draft) {
        let Draft { mut items, count, steps, data, mut writes, answers, data_bytes } = draft;
        self.unflushed_bytes.set(self.unflushed_bytes.get() + data_bytes as u64);
        let appended = self.start_data(&data).and_then(|data| {
            writes.extend(data);
            self.log.append(&items, count, writes)
        });
        items.clear();
        self.commits.items.replace(items);
        let flight = Flight { appended, steps, answers };
        self.commits.flights.borrow_mut().push_back(flight);
        if !self.commits.has_lander.replace(true) {
            let pool = self.clone();
            self.tasks.spawn("records of a pool", async move { pool.land().await });
        }
    }

    /// Makes the changes of acknowledged records, in the order of the records, until none is in flight.
    async fn land(self: Rc<Self>) {
        loop {
            let Some(flight) = self.commits.flights.borrow_mut().pop_front() else { break };
            let Flight { appended, mut steps, answers } = flight;
            if seeded::on(Bug::MapTooEarly) {
                self.apply(self.applied.get().number, std::mem::take(&mut steps));
            }
            let result = match appended {
                Ok(appended) => self.log.acknowledged(appended).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(end) => {
                    let record = end.number - 1;
                    self.applied.set(end);
                    steps.iter().for_each(Step::landed);
                    self.apply(record, steps);
                    if seeded::on(Bug::GivenUnflushed) {
                        self.room.with(|space| space.proven(record));
                    }
                    for (done, snapshots) in answers {
                        done.set(Ok(snapshots));
                    }
                }
                Err(error) => {
                    self.fail(&error);
                    answers.into_iter().for_each(|(done, _)| done.set(Err(error.clone())));
                }
            }
            self.changed();
        }
        self.commits.has_lander.set(false);
    }
}

impl Draft {
    fn put_item(&mut self, item: &LogItem<'_>) {
        item.encode(&mut self.items);
        self.count += 1;
    }

    fn put_runs(&mut self, vdisk: &Rc<Vdisk>, runs: Runs) {
        vdisk.is_changed.set(true);
        self.put_item(&LogItem::Changes(Changes {
            vdisk: vdisk.number,
            birth: birth(vdisk),
            sum_kind: SumKind::CRC32C,
            sum_bytes: SUM_BYTES,
            runs: runs.iter().map(log_run).collect(),
        }));
        self.steps.extend(runs.into_iter().map(|change| Step::Changed(vdisk.clone(), change)));
    }
}

/// Returns a run as a record has it.
fn log_run(RunChange { run, sums }: &RunChange) -> LogRun<'_> {
    LogRun {
        block: run.block,
        kind: run.kind.bits(),
        address: run.address,
        blocks: run.blocks as u32,
        origin: 0,
        stored: 0,
        sums: sums.bytes(run.sums() as usize * usize::from(SUM_BYTES)),
    }
}

/// Encodes a row, for a record.
pub fn row_bytes<R: Row>(row: &R) -> (Table, Vec<u8>) {
    let mut bytes = Vec::new();
    row.encode(&mut bytes);
    (R::TABLE, bytes)
}

/// Returns the birth of the changes of the next record.
fn birth(vdisk: &Vdisk) -> Number {
    match seeded::on(Bug::BirthTooEarly) {
        true => vdisk.next.get(),
        false => vdisk.sealed.get(),
    }
}

/// Returns a hole of a vdisk that is born with the next snapshot.
fn hole(vdisk: &Vdisk, block: u64, blocks: u64) -> Run {
    let birth = birth(vdisk);
    let (kind, address) = (RunKind::HOLE, Address::from_bits(0));
    Run { block, blocks, kind, address, birth, first: birth }
}

/// Returns whether the first block is zeros, and how many blocks from there on are of the same sort.
fn alike(bytes: &[u8]) -> (bool, usize) {
    let mut blocks = bytes.chunks_exact(BLOCK).map(is_zero);
    let first = blocks.next().unwrap_or_default();
    (first, 1 + blocks.take_while(|is| *is == first).count())
}

/// Returns the checksum of each block.
pub fn checksums(bytes: &[u8]) -> impl Iterator<Item = [u8; SUM_BYTES as usize]> {
    let sum = |block| crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, block) as u32;
    bytes.chunks_exact(BLOCK).map(move |block| sum(block).to_le_bytes())
}

/// Returns the delay of a record: in proportion to the changes in memory above half of their bound, while a checkpoint
/// merges `taken` of them.
fn delay(taken: usize, fresh: usize) -> Duration {
    let over = (taken + fresh).saturating_sub(CHANGES_HALF).min(CHANGES_HALF) as u32;
    if taken == 0 { Duration::ZERO } else { SLOWEST * over / CHANGES_HALF as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_slow_down_in_proportion_to_changes_above_half_of_bound() {
        assert_eq!(delay(0, CHANGES_HALF), Duration::ZERO, "no checkpoint runs");
        assert_eq!(delay(CHANGES_HALF / 2, CHANGES_HALF / 2), Duration::ZERO);
        assert_eq!(delay(CHANGES_HALF, CHANGES_HALF / 2), SLOWEST / 2);
        assert_eq!(delay(CHANGES_HALF, CHANGES_HALF), SLOWEST);
        assert_eq!(delay(CHANGES_HALF, 3 * CHANGES_HALF), SLOWEST, "a record may go beyond");
    }
}
