//! The pass: takes flushed records in order, writes their parts in place, and moves the tail.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Result, error, first};

use super::record::{Record, read_data};
use super::{IDLE_AFTER, ITEM_BYTES_MAX, Inner};

impl Inner {
    /// Runs passes whenever one is needed, until the journal closes.
    pub async fn keep(self: Rc<Self>) {
        loop {
            if self.needs_pass() {
                // An error makes the journal refuse changes, and the next caller reports it.
                let _ = self.pass().await.inspect_err(|error| self.fail(error));
                continue;
            }
            if self.is_closing.get() && self.commits.is_idle() {
                break;
            }
            let seen = self.has_unplaced();
            let is_changed = || self.has_unplaced() != seen || self.needs_pass();
            let is_over = || self.is_closing.get() && self.commits.is_idle();
            let woken = self.changed.until(|| is_changed() || is_over());
            if !seen {
                woken.await;
                continue;
            }
            let idle_at = self.last_append.get().after(IDLE_AFTER);
            let is_idle = first(woken, self.env.sleep_until(idle_at)).await.is_err();
            if is_idle && self.env.now() >= self.last_append.get().after(IDLE_AFTER) {
                self.wanted.set(self.log.numbers().written);
            }
        }
    }

    /// Whether a written record has parts that are not in place.
    pub fn has_unplaced(&self) -> bool {
        let last = self.records.borrow().last_with_parts(self.log.numbers().written);
        self.check().is_ok() && last.is_some_and(|last| last > self.in_place.get())
    }

    fn needs_pass(&self) -> bool {
        let is_wanted = self.wanted.get() >= self.log.numbers().tail;
        let is_long = || self.records.borrow().item_bytes > ITEM_BYTES_MAX / 2;
        self.has_unplaced() && (is_wanted || self.log.is_half_full() || is_long())
    }

    /// Writes all records in place that are written now, and moves the tail behind them.
    async fn pass(&self) -> Result<()> {
        let mut goal = self.log.numbers().written;
        if !seeded::on(Bug::InPlaceBeforeFlush) {
            self.flush().await?;
            goal = self.log.numbers().flushed;
        }
        for number in self.in_place.get() + 1..=goal {
            self.place(number).await?;
        }
        self.placer.ended().await?;
        // From now on readers find these ranges in place. The space in the ring stays theirs until the tail is durable.
        let first = self.in_place.replace(goal) + 1;
        self.records.borrow_mut().release(first, goal);
        if seeded::on(Bug::BesideBeforeTail) {
            self.changed.wake();
        }
        self.placer.flush().await?;
        self.move_tail(goal).await
    }

    /// Begins to write the parts of a record in place.
    async fn place(&self, number: u64) -> Result<()> {
        let count = self.records.borrow().get(number).map_or(0, |record| record.parts.len());
        for part in 0..count {
            let (stored, mut data) = {
                let records = self.records.borrow();
                let record = records.get(number).expect("its tail has not moved");
                let stored = record.parts[part].clone();
                let data = record.data(&stored);
                (stored, data)
            };
            self.placer.room(stored.part.payload_bytes()).await;
            if data.is_none() {
                let read = read_data(self.env.pool(), &self.ring, &stored, false).await?;
                data = read.ok_or_else(|| {
                    let range = stored.part.range;
                    error!(Corrupt, "record {number} of the journal: damaged payload of {range}")
                })?;
            }
            self.placer.place(stored.part, data)?;
        }
        Ok(())
    }

    /// Moves the tail behind record `placed`, by an empty record that a flush makes durable. Its space is kept free.
    async fn move_tail(&self, placed: u64) -> Result<()> {
        let end = self.records.borrow().get(placed).map(|record| record.end);
        self.log.advance(end.expect("its tail has not moved"));
        if seeded::on(Bug::SpaceBeforeTail) {
            self.changed.wake();
        }
        let appended = self.log.append(&[], 0, Vec::new())?;
        self.records.borrow_mut().push(Record::new(appended.head(), [], None));
        self.log.acknowledged(appended).await?;
        self.flush().await
    }

    /// Flushes the ring, and removes the records before the durable tail.
    pub async fn flush(&self) -> Result<()> {
        self.check()?;
        let flushed = self.log.flush().await.inspect_err(|error| self.fail(error));
        self.records.borrow_mut().trim(self.log.numbers().tail);
        self.changed.wake();
        flushed
    }

    /// Waits until the durable tail has passed record `number`.
    pub async fn until_past(&self, number: u64) -> Result<()> {
        self.wanted.set(self.wanted.get().max(number));
        self.changed.wake();
        let is_past = || match seeded::on(Bug::BesideBeforeTail) {
            true => self.in_place.get() >= number,
            false => self.log.numbers().tail > number,
        };
        self.changed.until(|| is_past() || self.check().is_err()).await;
        if is_past() { Ok(()) } else { self.check() }
    }
}
