//! What a server has answered and may still forget: kept until a flush, to be sent again.
//!
//! The order of the entries is the order of the answers. Changes that overlap are sent one after the
//! other, so this order is right wherever it matters.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use block::{BUF_ALIGN, Buf, BufPool, ByteRange, Notify};
use wire::nbd::{Command, CommandFlags};

use super::ring::{RECORD_BYTES, Ring};

/// What an entry counts for beside its payload, so that payloads of nothing are bounded too.
const ENTRY_BYTES: u64 = 256;

const _: () =
    assert!(RECORD_BYTES as u64 <= ENTRY_BYTES, "a ring of the log's limit holds the log");

/// While the pool has less than this part of its bytes free, the log is emptied early.
const POOL_SHORT: usize = 4;

/// ... if it holds at least so much: a flush for less gives nobody room.
const SHORT_LEAST_BYTES: u64 = 1 << 20;

/// A change of the export: a write, zeros, or a trim.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub command: Command,
    pub flags: CommandFlags,
    pub range: ByteRange,
    pub data: Option<Buf>,
}

impl Change {
    /// What it counts for in the log.
    fn cost(&self) -> u64 {
        let payload = self.data.as_ref().map_or(0, |data| data.len().next_multiple_of(BUF_ALIGN));
        payload as u64 + ENTRY_BYTES
    }
}

/// The log of one disk.
pub(super) struct Unflushed {
    limit_bytes: u64,
    pool: BufPool,
    /// Bytes of the entries and of the room that is promised.
    used_bytes: Cell<u64>,
    kept_bytes: Cell<u64>,
    entries: RefCell<VecDeque<(u64, Change)>>,
    /// The entries once more, for the next process.
    ring: RefCell<Option<Ring>>,
    /// The number of the next answer.
    next: Cell<u64>,
    /// The number of the last change that makes the log incomplete, and that no flush has covered: it
    /// found no room, or was refused on top of another.
    forgotten: Cell<Option<u64>>,
    /// Nothing is kept any more: it would be of no use.
    given_up: Cell<bool>,
    waiting: Notify,
    flusher: Notify,
}

impl Unflushed {
    /// At most `limit_bytes` of payload in buffers of `pool`; with 0 nothing is kept.
    pub fn new(limit_bytes: u64, pool: &BufPool) -> Rc<Self> {
        Rc::new(Self {
            limit_bytes,
            pool: pool.clone(),
            used_bytes: Cell::new(0),
            kept_bytes: Cell::new(0),
            entries: RefCell::default(),
            ring: RefCell::default(),
            next: Cell::new(1),
            forgotten: Cell::new(None),
            given_up: Cell::new(false),
            waiting: Notify::default(),
            flusher: Notify::default(),
        })
    }

    /// The same with a ring, and with what a process before this one has left in it.
    pub fn lasting(limit_bytes: u64, pool: &BufPool, ring: Ring, left: Vec<Change>) -> Rc<Self> {
        let log = Self::new(limit_bytes.min(ring.capacity()), pool);
        let bytes = left.iter().map(Change::cost).sum();
        log.used_bytes.set(bytes);
        log.kept_bytes.set(bytes);
        log.next.set(1 + left.len() as u64);
        *log.entries.borrow_mut() = (1..).zip(left).collect();
        *log.ring.borrow_mut() = Some(ring);
        log
    }

    /// Whether it keeps anything.
    pub fn keeps(&self) -> bool {
        self.limit_bytes > 0 && !self.given_up.get()
    }

    /// Bytes that it keeps now.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.get()
    }

    /// Room for a change that is about to be sent, as soon as flushes have made some. A change that
    /// can never fit gets a place that keeps nothing.
    pub async fn room(self: &Rc<Self>, change: &Change) -> Room {
        let cost = change.cost();
        poll_fn(|cx| {
            if !self.keeps() || cost > self.limit_bytes {
                return Poll::Ready(Room { log: self.clone(), cost: 0, kept: false });
            }
            if self.used_bytes.get() + cost > self.limit_bytes {
                self.waiting.wake_later(cx);
                self.press();
                return Poll::Pending;
            }
            self.used_bytes.set(self.used_bytes.get() + cost);
            Poll::Ready(Room { log: self.clone(), cost, kept: true })
        })
        .await
    }

    /// What a flush that is submitted now will cover: all that was answered before.
    pub fn stamp(&self) -> u64 {
        self.next.get()
    }

    /// A flush that was submitted at `stamp` is done.
    pub fn flushed(&self, stamp: u64) {
        let mut entries = self.entries.borrow_mut();
        let mut count = 0;
        while entries.front().is_some_and(|(number, _)| *number < stamp) {
            let (_, change) = entries.pop_front().expect("looked at above");
            self.kept_bytes.set(self.kept_bytes.get() - change.cost());
            self.used_bytes.set(self.used_bytes.get() - change.cost());
            count += 1;
        }
        let was_whole = self.forgotten.get().is_none();
        if self.forgotten.get().is_some_and(|number| number < stamp) {
            self.forgotten.set(None);
        }
        drop(entries);
        let is_whole = self.forgotten.get().is_none();
        if count > 0 || is_whole != was_whole {
            self.record(|ring| ring.trim(count, is_whole));
        }
        self.wake();
    }

    /// Changes the ring, if there is one. One that cannot be changed keeps what it has, which is at worst
    /// sent once more than it need be.
    fn record(&self, change: impl FnOnce(&mut Ring) -> block::Result<()>) -> bool {
        self.ring.borrow_mut().as_mut().is_none_or(|ring| change(ring).is_ok())
    }

    /// The server was told something that is not kept, and a flush is due.
    fn forget(&self) {
        self.forgotten.set(Some(self.next.replace(self.next.get() + 1)));
        // That takes no memory which was not there before.
        self.record(Ring::lacks);
    }

    /// Whether the server was told something that is not kept here, and may forget it.
    pub fn has_forgotten(&self) -> bool {
        self.forgotten.get().is_some()
    }

    /// No flush will succeed any more: nothing is kept from now on.
    pub fn give_up(&self) {
        self.given_up.set(true);
        for (_, change) in self.entries.take() {
            self.used_bytes.set(self.used_bytes.get() - change.cost());
        }
        self.kept_bytes.set(0);
        self.forgotten.set(None);
        self.record(Ring::give_up);
        self.wake();
    }

    /// Keeps nothing for the next process any more: all is flushed, and another disk may have that memory.
    pub fn leave_ring(&self) {
        *self.ring.borrow_mut() = None;
    }

    /// The `at`-th entry from the oldest on.
    pub fn entry(&self, at: usize) -> Option<Change> {
        self.entries.borrow().get(at).map(|(_, change)| change.clone())
    }

    /// The number of the oldest entry; `None` if there is none.
    pub fn oldest(&self) -> Option<u64> {
        self.entries.borrow().front().map(|(number, _)| *number)
    }

    /// Waits until it should be emptied by a flush: it is half full, somebody waits for room, or the
    /// pool is short.
    pub async fn pressed(&self) {
        self.flusher.until(|| self.is_pressed() || self.given_up.get()).await;
    }

    fn is_pressed(&self) -> bool {
        let kept = self.kept_bytes.get();
        let short = self.pool.free_bytes() < self.pool.limit_bytes() / POOL_SHORT;
        kept >= self.limit_bytes.div_ceil(2)
            || kept > 0 && self.waiting.is_awaited()
            || kept >= SHORT_LEAST_BYTES && short
            || kept > 0 && self.has_forgotten()
    }

    fn press(&self) {
        if self.is_pressed() {
            self.flusher.wake();
        }
    }

    fn wake(&self) {
        self.waiting.wake();
        self.flusher.wake();
    }

    fn overlaps(&self, range: ByteRange) -> bool {
        self.entries.borrow().iter().any(|(_, change)| change.range.overlaps(range))
    }
}

/// Room in the log for one change; given back when dropped.
pub(super) struct Room {
    log: Rc<Unflushed>,
    cost: u64,
    kept: bool,
}

impl Room {
    /// The change was answered. One that is durable is kept only as long as something older that
    /// overlaps it is: sent again, that would undo it.
    pub fn answered(mut self, change: Change, durable: bool) {
        let log = self.log.clone();
        if log.given_up.get() || durable && !log.overlaps(change.range) {
            return;
        }
        if self.kept && log.record(|ring| ring.append(&change)) {
            let number = log.next.replace(log.next.get() + 1);
            log.kept_bytes.set(log.kept_bytes.get() + self.cost);
            log.entries.borrow_mut().push_back((number, change));
            self.cost = 0;
            log.press();
        } else {
            log.forget();
        }
    }
}

impl Room {
    /// The server has refused the change, and may have done part of it. If something older that
    /// overlaps it were sent again, bytes would change that somebody has read: a flush is due, and
    /// until then the log is not whole.
    pub fn refused(self, range: ByteRange) {
        let log = &self.log;
        if log.overlaps(range) {
            log.forget();
            log.press();
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.cost > 0 {
            self.log.used_bytes.set(self.log.used_bytes.get() - self.cost);
            self.log.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn change(pool: &BufPool, start: u64, len: usize) -> Change {
        Change {
            command: Command::Write,
            flags: CommandFlags::NONE,
            range: ByteRange::new(start, len as u64).unwrap(),
            data: Some(pool.take(len).unwrap()),
        }
    }

    fn room(log: &Rc<Unflushed>, change: &Change) -> Option<Room> {
        match pin!(log.room(change)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(room) => Some(room),
            Poll::Pending => None,
        }
    }

    fn answer(log: &Rc<Unflushed>, change: &Change, durable: bool) {
        room(log, change).unwrap().answered(change.clone(), durable);
    }

    fn starts(log: &Unflushed) -> Vec<u64> {
        (0..).map_while(|at| log.entry(at)).map(|change| change.range.start()).collect()
    }

    #[test]
    fn a_flush_covers_what_was_answered_before_it_was_submitted() {
        let pool = BufPool::new(1 << 20, 0);
        let log = Unflushed::new(1 << 20, &pool);
        answer(&log, &change(&pool, 0, 512), false);
        let late = change(&pool, 512, 512);
        let open = room(&log, &late).unwrap();
        let stamp = log.stamp();
        open.answered(late, false);
        log.flushed(stamp);
        assert_eq!(starts(&log), [512], "it was not answered when the flush began");
        log.flushed(log.stamp());
        assert_eq!((log.kept_bytes(), pool.used_bytes()), (0, 0));
    }

    #[test]
    fn what_is_durable_is_kept_only_on_top_of_what_is_not() {
        let pool = BufPool::new(1 << 20, 0);
        let log = Unflushed::new(1 << 20, &pool);
        answer(&log, &change(&pool, 0, 512), true);
        assert_eq!(starts(&log), [0; 0]);
        answer(&log, &change(&pool, 512, 1024), false);
        answer(&log, &change(&pool, 1024, 512), true);
        answer(&log, &change(&pool, 2048, 512), true);
        assert_eq!(starts(&log), [512, 1024], "the first alone would undo the second");
    }

    #[test]
    fn it_is_bounded_and_says_what_it_forgot() {
        let pool = BufPool::new(1 << 20, 0);
        let log = Unflushed::new(2 * (4096 + ENTRY_BYTES), &pool);
        answer(&log, &change(&pool, 0, 4096), false);
        answer(&log, &change(&pool, 4096, 4096), false);
        let third = change(&pool, 8192, 4096);
        assert!(room(&log, &third).is_none(), "it waits for a flush");
        assert!(log.is_pressed() && !log.has_forgotten());
        log.flushed(log.stamp());
        answer(&log, &third, false);
        answer(&log, &change(&pool, 0, 64 << 10), false);
        assert!(log.has_forgotten(), "more than it may ever keep");
        let before = log.stamp() - 1;
        log.flushed(before);
        assert!(log.has_forgotten(), "a flush that began before");
        log.flushed(log.stamp());
        assert!(!log.has_forgotten());
    }

    #[test]
    fn what_is_refused_on_top_of_something_asks_for_a_flush() {
        let pool = BufPool::new(1 << 20, 0);
        let log = Unflushed::new(1 << 20, &pool);
        let (one, apart) = (change(&pool, 0, 1024), change(&pool, 1024, 512));
        answer(&log, &one, false);
        room(&log, &apart).unwrap().refused(apart.range);
        assert!(!log.has_forgotten() && !log.is_pressed(), "nothing older is there");
        let over = change(&pool, 512, 512);
        room(&log, &over).unwrap().refused(over.range);
        assert!(log.has_forgotten() && log.is_pressed());
        log.flushed(log.stamp());
        assert!(!log.has_forgotten() && !log.is_pressed());
    }

    #[test]
    fn a_change_that_failed_gives_its_room_back() {
        let pool = BufPool::new(1 << 20, 0);
        let log = Unflushed::new(4096 + ENTRY_BYTES, &pool);
        let one = change(&pool, 0, 4096);
        drop(room(&log, &one).unwrap());
        assert!(room(&log, &one).is_some());
        answer(&log, &one, false);
        log.give_up();
        assert!(log.entry(0).is_none() && !log.keeps());
        answer(&log, &one, false);
        assert!(!log.has_forgotten(), "flushes fail anyway");
    }
}
