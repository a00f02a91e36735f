//! The queue of recorded requests that are not yet in the trace file.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use block::{Error, Notify};

use super::entry::{Entry, Record};

/// A bounded queue of recorded requests, from the trace hook to the writer of the trace file. The hook never waits for
/// room.
pub struct Queue {
    records: RefCell<VecDeque<Record>>,
    limit: usize,
    /// Wakes the writer once the queue has `wanted` recorded requests.
    writer: Notify,
    wanted: Cell<usize>,
    closed: Cell<bool>,
    /// Number of recorded requests that the writer has taken from the queue, and that are not yet in the file.
    taken: Cell<u64>,
    written: Cell<u64>,
    lost: Cell<u64>,
    /// Number of lost requests for which the trace has no [`Entry::Lost`] yet.
    unsaid: Cell<u64>,
    failure: RefCell<Option<Error>>,
}

impl Queue {
    /// Returns a queue of at most `limit` recorded requests. Allocates the memory now, so that no request waits for
    /// memory.
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

    /// Returns the number of recorded requests that are not yet in the trace file.
    pub fn waiting(&self) -> u64 {
        self.len() as u64 + self.taken.get()
    }

    /// Returns the number of recorded requests in the trace file.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Returns the number of requests that will never be in the trace file.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Returns the error that ended writing of the trace file, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Appends a recorded request to the queue, or counts it as lost if the queue is full or writing has ended.
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

    /// Takes the next entry to write from the queue.
    pub fn pop(&self) -> Option<Entry> {
        if let Some(record) = self.records.borrow_mut().pop_front() {
            self.taken.set(self.taken.get() + 1);
            return Some(Entry::Request(record));
        }
        let count = self.unsaid.take();
        (count > 0).then_some(Entry::Lost { count })
    }

    /// Counts the recorded requests that the writer took as written to the trace file.
    pub fn wrote(&self) {
        self.written.set(self.written.get() + self.taken.take());
    }

    /// Waits until `many` recorded requests are in the queue, the queue is full, or the queue is closed.
    pub async fn has(&self, many: usize) {
        let many = many.min(self.limit);
        self.wanted.set(many);
        self.writer.until(|| self.len() >= many || self.closed.get()).await;
    }

    /// Closes the queue: no more requests will be recorded.
    pub fn close(&self) {
        self.closed.set(true);
        self.writer.wake();
    }

    /// Whether the queue is closed and empty.
    pub fn is_done(&self) -> bool {
        self.closed.get() && self.len() == 0
    }

    /// Records that writing of the trace file has ended with `error`. Requests that are not in the file are lost, and
    /// so are all later ones.
    pub fn fail(&self, error: Error) {
        *self.failure.borrow_mut() = Some(error);
        self.lost.set(self.lost.get() + self.waiting());
        self.taken.set(0);
        self.records.borrow_mut().clear();
    }
}
