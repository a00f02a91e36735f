//! The queue of records that are not yet written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use block::{Error, Notify};

use super::entry::{Entry, Record};

/// A bounded queue from the hook to the writer. The hook never waits for room.
pub struct Queue {
    records: RefCell<VecDeque<Record>>,
    limit: usize,
    /// Wakes the writer once there are `wanted` records.
    writer: Notify,
    wanted: Cell<usize>,
    closed: Cell<bool>,
    /// Records that the writer took and that are not yet in the file.
    taken: Cell<u64>,
    written: Cell<u64>,
    lost: Cell<u64>,
    /// Lost records for which the trace does not yet have an entry.
    unsaid: Cell<u64>,
    failure: RefCell<Option<Error>>,
}

impl Queue {
    /// Creates a queue of at most `limit` records. Allocates its memory now, so that no request waits for memory.
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

    /// Returns the number of records that are not yet in the file.
    pub fn waiting(&self) -> u64 {
        self.len() as u64 + self.taken.get()
    }

    /// Returns the number of records in the file.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Returns the number of records that will never be in the file.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Returns the error that ended writing.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Appends a record, or counts it as lost.
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

    /// Takes the next entry to write.
    pub fn pop(&self) -> Option<Entry> {
        if let Some(record) = self.records.borrow_mut().pop_front() {
            self.taken.set(self.taken.get() + 1);
            return Some(Entry::Request(record));
        }
        let count = self.unsaid.take();
        (count > 0).then_some(Entry::Lost { count })
    }

    /// Counts the records that were taken as written.
    pub fn wrote(&self) {
        self.written.set(self.written.get() + self.taken.take());
    }

    /// Waits until `many` records are queued, the queue is full, or it is closed.
    pub async fn has(&self, many: usize) {
        let many = many.min(self.limit);
        self.wanted.set(many);
        self.writer.until(|| self.len() >= many || self.closed.get()).await;
    }

    /// Closes the queue: no more records will come.
    pub fn close(&self) {
        self.closed.set(true);
        self.writer.wake();
    }

    /// Whether the queue is closed and empty.
    pub fn is_done(&self) -> bool {
        self.closed.get() && self.len() == 0
    }

    /// Notes that writing has ended with `error`. Records that are not in the file are lost, and so are all later ones.
    pub fn fail(&self, error: Error) {
        *self.failure.borrow_mut() = Some(error);
        self.lost.set(self.lost.get() + self.waiting());
        self.taken.set(0);
        self.records.borrow_mut().clear();
    }
}
