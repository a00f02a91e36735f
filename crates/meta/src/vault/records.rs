//! Records of the log in flight, written by one task of the vault.
//!
//! All transactions that wait at one moment become one record. The task writes it to the log of every copy, beside the
//! data that its transactions name. When the oldest record in flight is written, the task applies its changes to the
//! pages in memory, and returns its number to the callers. So a transaction is acknowledged after all records before its
//! own. The pages were loaded into memory before: only the copies themselves can fail, and writes of data. The task
//! flushes nothing; `flushing.rs` does.

use std::collections::VecDeque;

use block::seeded::{self, Bug};
use block::{Child, Error, Result, first};

use super::Inner;
use super::commit::Pending;
use super::record::{self, Head, RECORD_HEADER_BYTES};
use super::replicas::Replicas;
use super::superblock::Position;
use crate::io::all_of;

/// Maximum number of records in flight. A few keep the disks busy; with more, records would contain fewer transactions
/// and cost more bytes.
pub(super) const IN_FLIGHT_MAX: usize = 3;

/// The content of one record of the log.
#[derive(Default)]
struct Group {
    lazy: Vec<u8>,
    pending: Vec<Pending>,
    count: u32,
}

/// A record of the log that is being written.
struct Record {
    head: Head,
    group: Group,
    writes: Vec<(Target, Child)>,
    /// Transactions of the group with data that could not be written, by index.
    failed: Vec<(usize, Error)>,
}

/// Destination of a write.
#[derive(Clone, Copy)]
enum Target {
    /// The copy of the vault with this index.
    Copy(usize),
    /// Data of the transaction with this index in the group.
    Data(usize),
}

type InFlight = VecDeque<Record>;

impl Group {
    fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Record {
    /// Waits until all writes of the record have ended. May be dropped and called again.
    async fn written(&mut self, replicas: &Replicas) {
        while let Some((target, child)) = self.writes.last_mut() {
            let (target, done) = (*target, child.await);
            self.writes.pop();
            match (done.result, target) {
                (Ok(()), _) => {}
                (Err(error), Target::Copy(copy)) => replicas.fail(copy, &error),
                (Err(error), Target::Data(index)) => self.failed.push((index, error)),
            }
        }
    }
}

impl Inner {
    /// Writes queued transactions until there are none.
    pub(super) async fn lead(&self) {
        while self.has_group() {
            let alone = self.commits.logging.lock().await;
            self.write_records().await;
            drop(alone);
        }
        self.commits.leading.set(false);
        self.progress.wake();
    }

    /// Writes records until no transaction is queued, or until another task waits for the lock of the log.
    async fn write_records(&self) {
        let (mut in_flight, mut begun) = (InFlight::new(), 0);
        loop {
            let may_begin = |count, begun| {
                count < IN_FLIGHT_MAX && (begun == 0 || self.commits.logging.wanted() == 1)
            };
            while may_begin(in_flight.len(), begun)
                && let Some(group) = self.next_group()
            {
                self.begin(group, &mut in_flight).await;
                begun += 1;
            }
            let count = in_flight.len();
            let next = match seeded::on(Bug::RecordOvertakes) {
                true => in_flight.back_mut(),
                false => in_flight.front_mut(),
            };
            let Some(oldest) = next else { return };
            let more = self.commits.arrived.until(|| may_begin(count, begun) && self.has_group());
            if first(oldest.written(&self.replicas), more).await.is_ok() {
                self.end_oldest(&mut in_flight).await;
                self.checkpoint_if_due();
            }
        }
    }

    /// Whether changes wait for a record.
    fn has_group(&self) -> bool {
        let commits = &self.commits;
        !commits.queue.borrow().is_empty()
            || commits.lazy_due.get() && !commits.lazy.borrow().is_empty()
    }

    /// Returns the changes for the next record, which are empty if the record is only a proof; `None` if no record is
    /// due.
    fn next_group(&self) -> Option<Group> {
        if !self.has_group() {
            return None;
        }
        let most = self.replicas.geometry().record_bytes_max() as usize;
        let mut group = self.lazy_group(most / 2);
        let mut bytes = RECORD_HEADER_BYTES + group.lazy.len();
        let mut queue = self.commits.queue.borrow_mut();
        while let Some(next) = queue.front()
            && (bytes + next.changes.len() <= most)
        {
            bytes += next.changes.len();
            group.count += next.count;
            group.pending.push(queue.pop_front().expect("the queue has a front"));
        }
        Some(group)
    }

    /// Takes waiting changes of advisory objects for the next record, at most `most` bytes.
    fn lazy_group(&self, most: usize) -> Group {
        let mut group = Group::default();
        let mut lazy = self.commits.lazy.borrow_mut();
        let mut taken = 0;
        for (object, change) in lazy.iter() {
            if RECORD_HEADER_BYTES + group.lazy.len() + change.len() > most {
                break;
            }
            // Changes of an object that was deleted meanwhile are dropped.
            if self.directory.borrow().get(*object).is_some() {
                group.lazy.extend_from_slice(change);
                group.count += 1;
            }
            taken += 1;
        }
        lazy.drain(..taken);
        self.commits.lazy_due.set(!lazy.is_empty());
        group
    }

    /// Begins to write a group of changes to the log as one record.
    async fn begin(&self, mut group: Group, in_flight: &mut InFlight) {
        if seeded::on(Bug::AppliedEarly) {
            group.pending.iter().for_each(|pending| self.apply_all(&pending.changes));
        }
        match self.try_begin(&mut group, in_flight).await {
            Ok(Some((head, writes))) => {
                in_flight.push_back(Record { head, group, writes, failed: Vec::new() });
            }
            Ok(None) => self.answer(group, &Ok(self.commits.written())),
            Err(error) => {
                self.fail(&error);
                for pending in &mut group.pending {
                    // The transaction failed already.
                    let _ = all_of(std::mem::take(&mut pending.writes)).await;
                }
                self.answer(group, &Err(error));
            }
        }
    }

    /// Begins to write a group of changes to the log, and returns its record with all writes. If the log is full, a
    /// checkpoint proves all earlier records, and an empty group needs no record.
    async fn try_begin(
        &self,
        group: &mut Group,
        in_flight: &mut InFlight,
    ) -> Result<Option<(Head, Vec<(Target, Child)>)>> {
        self.check_writable()?;
        let changes = group.pending.iter().map(|pending| pending.changes.len()).sum::<usize>();
        let padded = record::padded(RECORD_HEADER_BYTES + group.lazy.len() + changes);
        if !self.has_room(padded) {
            self.commits.count(|counters| counters.waited += 1);
            while let Some(oldest) = in_flight.front_mut() {
                oldest.written(&self.replicas).await;
                self.end_oldest(in_flight).await;
            }
            self.checkpoint(false).await?;
            if group.is_empty() {
                return Ok(None);
            }
        }
        let (head, mut writes) = self.write_record(group, padded).await?;
        for (index, pending) in group.pending.iter_mut().enumerate() {
            writes.extend(pending.writes.drain(..).map(|child| (Target::Data(index), child)));
        }
        self.commits.head.set(head.next());
        Ok(Some((head, writes)))
    }

    /// Whether a record of this length fits into the log.
    fn has_room(&self, padded: usize) -> bool {
        let used = self.commits.head.get().offset - self.replicas.durable.get().tail.offset;
        let record = if seeded::on(Bug::RoomForNothing) { 0 } else { padded as u64 };
        used + record <= self.replicas.geometry().log_bytes
    }

    /// Starts the writes of a record to every copy.
    async fn write_record(
        &self,
        group: &Group,
        padded: usize,
    ) -> Result<(Head, Vec<(Target, Child)>)> {
        let buf = self.env.pool().scratch(padded).await?;
        let at = Position { epoch: self.replicas.epoch().number, ..self.commits.head.get() };
        let mut parts: Vec<&[u8]> = vec![&group.lazy];
        parts.extend(group.pending.iter().map(|pending| &pending.changes[..]));
        let (vault, flushed) = (self.replicas.vault, self.replicas.flushed());
        let head = record::encode(vault, at, flushed, group.count, &parts, &mut buf.write());
        let log_bytes = self.replicas.geometry().log_bytes;
        let first = padded.min((log_bytes - at.offset % log_bytes) as usize);
        let mut begun =
            self.replicas.start_write(self.replicas.log_place(at.offset), &buf.slice(0..first));
        if first < padded {
            let rest = buf.slice(first..padded);
            begun.extend(self.replicas.start_write(self.replicas.log_place(0), &rest));
        }
        let of_copy = |(copy, children): (usize, Vec<Child>)| {
            children.into_iter().map(move |child| (Target::Copy(copy), child))
        };
        Ok((head, begun.into_iter().flat_map(of_copy).collect()))
    }

    /// Applies the changes of the oldest record in flight, which is written, and answers its transactions.
    async fn end_oldest(&self, in_flight: &mut InFlight) {
        let oldest = match seeded::on(Bug::RecordOvertakes) {
            true => in_flight.pop_back(),
            false => in_flight.pop_front(),
        };
        let record = oldest.expect("a record is in flight");
        if let Err(error) = self.replicas.settle().await {
            self.fail(&error);
            return self.answer(record.group, &Err(error));
        }
        // The superblocks of copies that remain may have proven records.
        self.note_proven();
        if !record.failed.is_empty() {
            in_flight.push_front(record);
            return self.drop_records(in_flight).await;
        }
        let Record { head, group, .. } = record;
        let (number, has_hints) = (head.at.number, !group.lazy.is_empty());
        self.commits.stated.set(head.flushed);
        self.commits.done.set(head.next());
        if let Some(place) = &self.data {
            let named = group.pending.iter().flat_map(|pending| pending.named.iter());
            named.for_each(|range| place.note_named(*range, number));
        }
        if !group.is_empty() {
            self.commits.last.set(number);
            self.commits.last_at.set(self.env.now());
            self.commits.count(|counters| {
                counters.records += 1;
                counters.transactions += group.pending.len() as u64;
            });
        }
        self.answer(group, &Ok(number));
        self.seal_later();
        if has_hints {
            // On an error the vault is marked as failed.
            let _ = self.flush_to(number).await;
        }
    }

    /// Drops all records in flight, because the first of them has transactions whose data could not be written, and a
    /// replay would end there. A checkpoint moves the tail past them. These transactions are answered with their errors,
    /// the others return to the queue.
    async fn drop_records(&self, in_flight: &mut InFlight) {
        for record in in_flight.iter_mut() {
            record.written(&self.replicas).await;
        }
        let dropped = self.checkpoint_past_dropped(in_flight).await;
        let mut others = Vec::new();
        for Record { group, mut failed, .. } in in_flight.drain(..) {
            for (index, pending) in group.pending.into_iter().enumerate() {
                match failed.iter().position(|(transaction, _)| *transaction == index) {
                    Some(at) => pending.fail(failed.swap_remove(at).1),
                    None => others.push(pending),
                }
            }
        }
        match dropped {
            Ok(()) => {
                let mut queue = self.commits.queue.borrow_mut();
                others.into_iter().rev().for_each(|pending| queue.push_front(pending));
            }
            Err(error) => others.into_iter().for_each(|pending| pending.fail(error.clone())),
        }
    }

    async fn checkpoint_past_dropped(&self, in_flight: &InFlight) -> Result<()> {
        let head = self.commits.head.get();
        self.replicas.settle().await.inspect_err(|error| self.fail(error))?;
        if !seeded::on(Bug::RecordWithoutDataKept) && !seeded::on(Bug::NumberIssuedTwice) {
            self.checkpoint_past(head).await?;
        }
        self.commits.continue_at(head);
        if seeded::on(Bug::NumberIssuedTwice) {
            let Head { at, .. } = in_flight.front().expect("a record failed").head;
            self.commits.continue_at(Position { number: at.number, previous: at.previous, ..head });
        }
        Ok(())
    }

    fn answer(&self, group: Group, result: &Result<u64>) {
        for Pending { changes, pages, plans, kept, until_proven, answer, .. } in group.pending {
            if let Ok(number) = result {
                self.apply_all(&changes);
                plans.keep();
                if !until_proven.is_empty() {
                    self.commits.held.borrow_mut().push_back((*number, until_proven));
                }
            }
            drop((pages, kept));
            answer.set(result.clone());
        }
    }
}
