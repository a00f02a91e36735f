//! What was recorded and is not yet written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use block::{Error, Notify};

use super::entry::{Entry, Record};

/// A bounded queue from the hook to the writer. Nobody ever waits to put something in.
pub struct Queue {
    records: RefCell<VecDeque<Record>>,
    limit: usize,
    /// Wakes the writer once there are so many records.
    writer: Notify,
    wanted: Cell<usize>,
    closed: Cell<bool>,
    /// Taken out and not yet in the file.
    taken: Cell<u64>,
    written: Cell<u64>,
    lost: Cell<u64>,
    /// Of the lost ones, how many the trace does not say.
    unsaid: Cell<u64>,
    failure: RefCell<Option<Error>>,
}

impl Queue {
    /// Of so many records at most. Its memory is set aside now, so that no request waits for it.
    pub fn new(limit: usize) -> Self {
        Self {
            records: RefCell::new(VecDeque::with_capacity(limit)),
            limit,
            writer: Notify::default(),
            wanted: Cell::new(0),
            closed: Cell::new(false),
            taken: Cell::new(0),
            written: Cell::new(0),
            lost: Cell::new(0),
            unsaid: Cell::new(0),
            failure: RefCell::default(),
        }
    }

    fn len(&self) -> usize {
        self.records.borrow().len()
    }

    /// Records that are not yet in the file.
    pub fn waiting(&self) -> u64 {
        self.len() as u64 + self.taken.get()
    }

    /// Records that are in the file.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Records that are not and will not be there.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Why nothing is written any more.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Puts a record in, or counts it as lost.
    pub fn push(&self, record: Record) {
        let mut records = self.records.borrow_mut();
        if records.len() == self.limit || self.failure.borrow().is_some() {
            self.lost.set(self.lost.get() + 1);
            self.unsaid.set(self.unsaid.get() + 1);
            return;
        }
        records.push_back(record);
        if records.len() >= self.wanted.get() {
            self.writer.wake();
        }
    }

    /// The next thing to write.
    pub fn pop(&self) -> Option<Entry> {
        if let Some(record) = self.records.borrow_mut().pop_front() {
            self.taken.set(self.taken.get() + 1);
            return Some(Entry::Request(record));
        }
        let count = self.unsaid.take();
        (count > 0).then_some(Entry::Lost { count })
    }

    /// What was taken out is in the file now.
    pub fn wrote(&self) {
        self.written.set(self.written.get() + self.taken.take());
    }

    /// Waits until there are so many records, or will be no more. A full queue is enough too.
    pub async fn has(&self, many: usize) {
        let many = many.min(self.limit);
        self.wanted.set(many);
        self.writer.until(|| self.len() >= many || self.closed.get()).await;
    }

    /// There will be no more records.
    pub fn close(&self) {
        self.closed.set(true);
        self.writer.wake();
    }

    /// Whether there is nothing to write and never will be.
    pub fn is_done(&self) -> bool {
        self.closed.get() && self.len() == 0
    }

    /// Nobody writes any more: what is not in the file is lost, and all that comes.
    pub fn fail(&self, error: Error) {
        *self.failure.borrow_mut() = Some(error);
        self.lost.set(self.lost.get() + self.waiting());
        self.taken.set(0);
        self.records.borrow_mut().clear();
    }
}
