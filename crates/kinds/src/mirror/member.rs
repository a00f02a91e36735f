//! One member of a mirror: its state, its errors, its latency.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::control::Cause;
use block::seeded::{self, Bug};
use block::{
    ByteRange, CopyNumbers, Env, Error, ErrorKind, Lower, Member as MemberReport,
    MemberState as State, Mono, Progress,
};

use super::opening::in_words;
use super::record::Content;
use super::regions::Bitmap;
use super::spans::Spans;

/// Number of read errors within [`ERRORS_WITHIN`] after which the mirror marks a member as failed.
pub const ERRORS_MAX: usize = 10;

/// Time span in which read errors of a member are counted, see [`ERRORS_MAX`].
pub const ERRORS_WITHIN: Duration = Duration::from_secs(600);

/// Least read latency that is recorded, in nanoseconds. Below this latency, the number of reads in flight is a better
/// measure than the clock.
const FASTEST_NS: u64 = 1000;

/// A member of a running mirror: its lower, its state, and its figures since the opening of the mirror.
pub struct Member {
    env: Env,
    pub lower: Lower,
    /// Numbers of the member's copies in the mirror.
    pub numbers: CopyNumbers,
    state: Cell<State>,
    /// Number of calls of [`Member::set`]. A task that copies to the member compares the number to detect a change of
    /// the state.
    changes: Cell<u64>,
    /// Regions in which the member differs from the members in sync, as the state of the mirror in labels records them.
    missing: RefCell<Bitmap>,
    /// The bytes on the member while it is not in sync.
    content: Cell<Content>,
    /// Ranges that verifiers were asked to scan since the running resync of the member began.
    asked: RefCell<Spans>,
    /// The parts of `asked` that verifiers have been through.
    verified: RefCell<Spans>,
    /// Parts of missed regions in which the member has the right bytes: those that a verifier has found right, and those that a
    /// client has read since.
    alike: RefCell<Spans>,
    /// Ranges that the member could not read, and that a verifier has not been through since.
    pub unread: RefCell<Spans>,
    cause: Cell<Option<Cause>>,
    detail: RefCell<String>,
    since: Cell<Option<Duration>>,
    errors: Cell<u64>,
    /// Times of the read errors within the last [`ERRORS_WITHIN`].
    recent: RefCell<Vec<Mono>>,
    /// Number of reads of this member in flight.
    queue: Cell<u64>,
    /// Smoothed latency of reads of this member, in nanoseconds.
    latency_ns: Cell<u64>,
    /// Number of requests past their deadline to which the member has not replied.
    late: Rc<Cell<u32>>,
    progress: Cell<Option<Progress>>,
    absent: Cell<bool>,
    /// Whether the state of a device beneath the absent member is damaged.
    damaged: Cell<bool>,
}

impl Member {
    pub fn new(
        env: &Env,
        lower: Lower,
        numbers: CopyNumbers,
        (state, missing, content): (State, Bitmap, Content),
    ) -> Self {
        Self {
            env: env.clone(),
            lower,
            numbers,
            state: Cell::new(state),
            changes: Cell::new(0),
            missing: RefCell::new(missing),
            content: Cell::new(content_in(state, content)),
            asked: RefCell::default(),
            verified: RefCell::default(),
            alike: RefCell::default(),
            unread: RefCell::default(),
            cause: Cell::default(),
            detail: RefCell::default(),
            since: Cell::new(None),
            errors: Cell::new(0),
            recent: RefCell::default(),
            queue: Cell::new(0),
            latency_ns: Cell::new(FASTEST_NS),
            late: Rc::default(),
            progress: Cell::new(None),
            absent: Cell::new(false),
            damaged: Cell::new(false),
        }
    }

    pub fn state(&self) -> State {
        self.state.get()
    }

    /// Returns the number of changes of the member's state, which a task compares to detect that the state has changed
    /// since.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    pub fn set(&self, state: State, cause: Option<Cause>, detail: impl Into<String>) {
        self.state.set(state);
        self.content.set(content_in(state, self.content.get()));
        self.cause.set(cause);
        self.changes.set(self.changes.get() + 1);
        *self.detail.borrow_mut() = detail.into();
        self.since.set(Some(self.env.wall()));
        if state != State::Copying {
            self.progress.set(None);
        }
    }

    /// Returns the regions in which the member differs from the members in sync.
    pub fn missing(&self) -> Bitmap {
        self.missing.borrow().clone()
    }

    /// Whether the member misses `region`.
    pub fn lacks(&self, region: usize) -> bool {
        self.missing.borrow().has(region)
    }

    /// Adds `map` to the regions that the member misses.
    pub fn misses(&self, map: &Bitmap) {
        self.missing.borrow_mut().unite(map);
    }

    /// Adds the regions from `first` to `last` to the regions that the member misses.
    pub fn misses_all(&self, first: usize, last: usize) {
        self.missing.borrow_mut().insert_all(first, last);
    }

    /// Removes `map` from the regions that the member misses, after the regions were copied to the member durably.
    pub fn has_got(&self, map: &Bitmap) {
        self.missing.borrow_mut().subtract(map);
    }

    /// Returns the bytes on the member while it is not in sync.
    pub fn content(&self) -> Content {
        self.content.get()
    }

    /// Begins to count the ranges that verifiers go through for a resync.
    pub fn begin_verification(&self) {
        self.asked.borrow_mut().clear();
        self.verified.borrow_mut().clear();
        self.alike.borrow_mut().clear();
    }

    /// Records that a verifier is asked to scan a range.
    pub fn ask(&self, range: ByteRange) {
        self.asked.borrow_mut().add(range);
    }

    /// Records that a verifier has been through a range. A pass that began before the resync did not see the member.
    pub fn note_verified(&self, range: ByteRange) {
        self.counted(range).into_iter().for_each(|part| self.verified.borrow_mut().add(part));
    }

    /// Records that a verifier has found the right bytes on the member, or has restored them, in the part of a range that the
    /// member can read.
    pub fn note_alike(&self, range: ByteRange) {
        let mut alike = self.alike.borrow_mut();
        self.counted(range).into_iter().for_each(|part| alike.add(part));
        let unread = self.unread.borrow().within(range);
        unread.into_iter().for_each(|part| alike.remove(part));
    }

    /// Records that the member has got the bytes of a range that it misses, and gets each new write.
    pub fn has_alike(&self, range: ByteRange) {
        self.alike.borrow_mut().add(range);
    }

    /// Returns the parts of a range in which the member needs no copy: it has the right bytes, and gets each new write.
    pub fn alike(&self, range: ByteRange) -> Vec<ByteRange> {
        self.alike.borrow().within(range)
    }

    fn counted(&self, range: ByteRange) -> Vec<ByteRange> {
        match seeded::on(Bug::EarlierPassCounts) {
            true => vec![range],
            false => self.asked.borrow().within(range),
        }
    }

    /// Returns the parts of a range that no verifier has been through since the running resync began.
    pub fn unverified(&self, range: ByteRange) -> Vec<ByteRange> {
        self.verified.borrow().gaps(range)
    }

    /// Marks the member as absent, from the opening of the mirror until the next start. `closed` is the error of a device
    /// beneath it that did not open.
    pub fn leave(&self, closed: Option<&Error>) {
        self.absent.set(true);
        self.cause.set(Some(Cause::Absent));
        self.damaged.set(closed.is_some_and(|why| why.kind() == ErrorKind::Corrupt));
        *self.detail.borrow_mut() = match closed {
            Some(why) => format!("cannot be opened: {}", in_words(why)),
            None => "absent since the start".to_owned(),
        };
    }

    /// Whether the state of a device beneath the absent member is damaged.
    pub fn is_damaged(&self) -> bool {
        self.damaged.get()
    }

    pub fn is_absent(&self) -> bool {
        self.absent.get()
    }

    pub fn set_progress(&self, progress: Progress) {
        self.progress.set(Some(progress));
    }

    /// Records that the running resync has copied `done` bytes to the member.
    pub fn copied(&self, done: u64) {
        self.progress
            .set(self.progress.get().map(|progress| Progress { done_bytes: done, ..progress }));
    }

    /// Returns the expected time in nanoseconds of one more read from the member: the smoothed latency, times the reads
    /// in flight and this read.
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

    /// Reduces the recorded latency of the member a little, because the mirror read another member instead. So the
    /// mirror reads a slow member again after some time.
    pub fn passed_over(&self) {
        let before = self.latency_ns.get();
        self.latency_ns.set((before - before / 512).max(FASTEST_NS));
    }

    pub fn count_error(&self) {
        self.errors.set(self.errors.get() + 1);
    }

    /// Counts a read error of the member. Returns whether the mirror must mark the member as failed: the member has had
    /// [`ERRORS_MAX`] read errors within [`ERRORS_WITHIN`].
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

    /// Returns the counter of late requests of the member, for the task that waits for the reply to one of these
    /// requests.
    pub fn late_counter(&self) -> Rc<Cell<u32>> {
        self.late.clone()
    }

    /// Whether the mirror sends writes to the member: the member is in sync, or a resync copies to it.
    pub fn takes_writes(&self) -> bool {
        matches!(self.state(), State::InSync | State::Copying)
    }

    pub fn report(&self) -> MemberReport {
        MemberReport {
            name: self.lower.name().to_owned(),
            state: self.state.get(),
            errors: self.errors.get(),
            cause: self.cause.get(),
            detail: self.detail.borrow().clone(),
            since_unix_s: self.since.get().map(|at| at.as_secs()),
            progress: self.progress.get(),
        }
    }

    /// Returns the text with which the member's state reports the error of the operation `what`.
    pub fn words_of(what: &str, error: &Error) -> String {
        format!("{what} failed: {error}")
    }
}

/// Returns the bytes on a member that gets the state `state` and had the bytes `before`. A member that takes no writes lags
/// behind.
fn content_in(state: State, before: Content) -> Content {
    match (state, before) {
        (State::InSync, _) => Content::Stale,
        (State::Copying, before) => before,
        (_, Content::Divided) if seeded::on(Bug::LaggingCountsDivided) => Content::Divided,
        (State::Stale | State::Failed | State::Spare, Content::Empty) => Content::Empty,
        (State::Stale | State::Failed | State::Spare, _) => Content::Stale,
    }
}
