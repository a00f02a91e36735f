//! One member of a mirror.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::{Env, Error, Lower, Member as MemberReport, MemberState as State, Mono, Progress};

use super::regions::Bitmap;

/// So many read errors within [`ERRORS_WITHIN`] retire a member.
pub const ERRORS_MAX: usize = 10;

/// See [`ERRORS_MAX`].
pub const ERRORS_WITHIN: Duration = Duration::from_secs(600);

/// Answers faster than this count as this fast: below it, queues tell more than clocks.
const FASTEST_NS: u64 = 1000;

/// A member and what is known of it.
pub struct Member {
    env: Env,
    pub lower: Lower,
    state: Cell<State>,
    /// How often its state was set: who copies to it knows by this that nothing has come between.
    changes: Cell<u64>,
    /// Where it differs from those in sync, as states tell it.
    missing: RefCell<Bitmap>,
    detail: RefCell<String>,
    since: Cell<Option<Duration>>,
    errors: Cell<u64>,
    /// When the latest read errors were.
    recent: RefCell<Vec<Mono>>,
    /// Reads that have not been answered.
    queue: Cell<u64>,
    /// How long an answer takes, smoothed.
    latency_ns: Cell<u64>,
    /// Requests that nobody waits for any more and that are not back.
    late: Rc<Cell<u32>>,
    progress: Cell<Option<Progress>>,
    absent: Cell<bool>,
}

impl Member {
    pub fn new(env: &Env, lower: Lower, state: State, missing: Bitmap) -> Self {
        Self {
            env: env.clone(),
            lower,
            state: Cell::new(state),
            changes: Cell::new(0),
            missing: RefCell::new(missing),
            detail: RefCell::default(),
            since: Cell::new(None),
            errors: Cell::new(0),
            recent: RefCell::default(),
            queue: Cell::new(0),
            latency_ns: Cell::new(FASTEST_NS),
            late: Rc::default(),
            progress: Cell::new(None),
            absent: Cell::new(false),
        }
    }

    pub fn state(&self) -> State {
        self.state.get()
    }

    /// See [`Member::set`]: another number says that it was called.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    pub fn set(&self, state: State, detail: impl Into<String>) {
        self.state.set(state);
        self.changes.set(self.changes.get() + 1);
        *self.detail.borrow_mut() = detail.into();
        self.since.set(Some(self.env.wall()));
        if state != State::Copying {
            self.progress.set(None);
        }
    }

    /// Where it differs from those in sync.
    pub fn missing(&self) -> Bitmap {
        self.missing.borrow().clone()
    }

    /// The first region that it misses, from that one on.
    pub fn next_missing(&self, from: usize) -> Option<usize> {
        self.missing.borrow().next(from)
    }

    /// It misses these as well.
    pub fn misses(&self, map: &Bitmap) {
        self.missing.borrow_mut().unite(map);
    }

    /// It has these now, and keeps them.
    pub fn has_got(&self, map: &Bitmap) {
        self.missing.borrow_mut().subtract(map);
    }

    /// It is not there: nothing brings it back but another start.
    pub fn leave(&self) {
        self.absent.set(true);
        *self.detail.borrow_mut() = "not there".to_owned();
    }

    pub fn is_absent(&self) -> bool {
        self.absent.get()
    }

    pub fn set_progress(&self, progress: Progress) {
        self.progress.set(Some(progress));
    }

    /// So many bytes have been copied.
    pub fn copied(&self, done: u64) {
        self.progress
            .set(self.progress.get().map(|progress| Progress { done_bytes: done, ..progress }));
    }

    /// How long one more read would take here, by its queue and its speed.
    pub fn cost(&self) -> u64 {
        (self.queue.get() + 1) * self.latency_ns.get()
    }

    pub fn read_begins(&self) {
        self.queue.set(self.queue.get() + 1);
    }

    pub fn read_ends(&self, took: Duration) {
        self.queue.set(self.queue.get() - 1);
        let took = (took.as_nanos() as u64).max(FASTEST_NS);
        let before = self.latency_ns.get();
        self.latency_ns.set(before - before / 8 + took / 8);
    }

    /// Somebody else was read: forget a little of how slow this one was, so that it is tried again
    /// some day.
    pub fn passed_over(&self) {
        let before = self.latency_ns.get();
        self.latency_ns.set((before - before / 512).max(FASTEST_NS));
    }

    pub fn count_error(&self) {
        self.errors.set(self.errors.get() + 1);
    }

    /// Counts a read error; whether it was one too many.
    pub fn read_failed(&self, now: Mono) -> bool {
        self.count_error();
        let mut recent = self.recent.borrow_mut();
        recent.retain(|at| now.since(*at) < ERRORS_WITHIN);
        recent.push(now);
        recent.len() >= ERRORS_MAX
    }

    pub fn late(&self) -> u32 {
        self.late.get()
    }

    pub fn one_late(&self) {
        self.late.set(self.late.get() + 1);
    }

    /// The count of late requests, for whoever waits for one of them.
    pub fn back(&self) -> Rc<Cell<u32>> {
        self.late.clone()
    }

    /// Whether writes go there.
    pub fn takes_writes(&self) -> bool {
        matches!(self.state(), State::InSync | State::Copying)
    }

    pub fn report(&self) -> MemberReport {
        MemberReport {
            name: self.lower.name().to_owned(),
            state: self.state.get(),
            errors: self.errors.get(),
            detail: self.detail.borrow().clone(),
            since_unix_s: self.since.get().map(|at| at.as_secs()),
            progress: self.progress.get(),
        }
    }

    /// What it says of an error that retires it.
    pub fn words_of(what: &str, error: &Error) -> String {
        format!("{what} failed: {error}")
    }
}
