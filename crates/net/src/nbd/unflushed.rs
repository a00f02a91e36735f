//! Log of an NBD disk: the changes that its server has completed and not flushed. The log holds each change until a
//! flush, so that the change can be sent again in a new session.
//!
//! The entries of the log are in the order in which the changes were completed. Overlapping changes are sent one after
//! the other, so for them this is also the order in which the server carried them out.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use block::{BUF_ALIGN, Buf, BufPool, ByteRange, Notify};
use wire::nbd::{Command, CommandFlags};

use super::ring::{RECORD_BYTES, Ring};

/// Cost of an entry in bytes besides its payload, so that the limit of the log also limits changes without payload.
const ENTRY_BYTES: u64 = 256;

const _: () =
    assert!(RECORD_BYTES as u64 <= ENTRY_BYTES, "a ring as large as the log's limit holds the log");

/// Share of the buffer pool, one part in this many. While less than this share of the pool is free, a log with at least
/// [`SHORT_LEAST_BYTES`] is flushed early.
const POOL_SHORT: usize = 4;

/// Smallest cost in bytes of the entries for which a shortage of the pool causes a flush. Flushing fewer bytes would
/// free too little.
const SHORT_LEAST_BYTES: u64 = 1 << 20;

/// A change of the bytes of the export: a write, a write of zeroes, or a trim.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub command: Command,
    pub flags: CommandFlags,
    pub range: ByteRange,
    pub data: Option<Buf>,
}

impl Change {
    /// Returns the number of bytes that this change occupies in the log.
    fn cost(&self) -> u64 {
        let payload = self.data.as_ref().map_or(0, |data| data.len().next_multiple_of(BUF_ALIGN));
        payload as u64 + ENTRY_BYTES
    }
}

/// The log of one NBD disk: changes that the server has completed and not flushed.
pub(super) struct Unflushed {
    limit_bytes: u64,
    pool: BufPool,
    /// Number of bytes that the entries and the reserved room occupy.
    used_bytes: Cell<u64>,
    kept_bytes: Cell<u64>,
    entries: RefCell<VecDeque<(u64, Change)>>,
    /// The ring that keeps a copy of the log for the next process; `None` if the log has no ring.
    ring: RefCell<Option<Ring>>,
    /// Number of the next change to be completed.
    next: Cell<u64>,
    /// Number of the last change because of which the log is incomplete, and which no flush has covered: either the log
    /// had no room for the change, or the server refused the change although it overlaps an entry.
    forgotten: Cell<Option<u64>>,
    /// Whether the log holds no changes any more, because no flush of the disk can succeed.
    given_up: Cell<bool>,
    waiting: Notify,
    flusher: Notify,
}

impl Unflushed {
    /// Creates an empty log of at most `limit_bytes` for a disk with buffers of `pool`. With 0, the log holds no
    /// changes.
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

    /// Creates a log that copies its entries to `ring`, and that begins with the changes `left`, which an earlier
    /// process has left in the ring.
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

    /// Whether the log holds completed changes at all.
    pub fn keeps(&self) -> bool {
        self.limit_bytes > 0 && !self.given_up.get()
    }

    /// Returns the number of bytes that the entries occupy in the log.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.get()
    }

    /// Reserves room in the log for a change that is about to be sent, and waits for flushes until there is enough. For
    /// a change that is larger than the whole log, returns a [`LogReservation`] that holds no change.
    pub async fn room(self: &Rc<Self>, change: &Change) -> LogReservation {
        let cost = change.cost();
        poll_fn(|cx| {
            if !self.keeps() || cost > self.limit_bytes {
                return Poll::Ready(LogReservation { log: self.clone(), cost: 0, kept: false });
            }
            if self.used_bytes.get() + cost > self.limit_bytes {
                self.waiting.wake_later(cx);
                self.press();
                return Poll::Pending;
            }
            self.used_bytes.set(self.used_bytes.get() + cost);
            Poll::Ready(LogReservation { log: self.clone(), cost, kept: true })
        })
        .await
    }

    /// Returns the stamp of a flush that is sent now. The flush covers all changes that were completed before.
    pub fn stamp(&self) -> u64 {
        self.next.get()
    }

    /// Removes the entries that the successful flush with this stamp covers.
    pub fn flushed(&self, stamp: u64) {
        let mut entries = self.entries.borrow_mut();
        let mut count = 0;
        while entries.front().is_some_and(|(number, _)| *number < stamp) {
            let (_, change) = entries.pop_front().expect("the log has an entry, as checked above");
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

    /// Applies `change` to the ring, if there is one. Returns whether this succeeded. A ring that cannot be changed has
    /// its old records; at worst, the next process sends these changes again without need.
    fn record(&self, change: impl FnOnce(&mut Ring) -> block::Result<()>) -> bool {
        self.ring.borrow_mut().as_mut().is_none_or(|ring| change(ring).is_ok())
    }

    /// Records that the server has completed a change which is not in the log, so that a flush is due.
    fn forget(&self) {
        self.forgotten.set(Some(self.next.replace(self.next.get() + 1)));
        // This change of the ring needs no further memory.
        self.record(Ring::lacks);
    }

    /// Whether the server may have unflushed changes that are not in the log.
    pub fn has_forgotten(&self) -> bool {
        self.forgotten.get().is_some()
    }

    /// Removes all entries, and makes the log hold no more changes, because no flush of the disk can succeed any more.
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

    /// Drops the ring of the log, because everything is flushed. Another disk may use the memory of the ring after
    /// that.
    pub fn leave_ring(&self) {
        *self.ring.borrow_mut() = None;
    }

    /// Returns the change in the entry with index `at`, counted from the oldest entry.
    pub fn entry(&self, at: usize) -> Option<Change> {
        self.entries.borrow().get(at).map(|(_, change)| change.clone())
    }

    /// Returns the number of the change in the oldest entry; `None` if the log is empty.
    pub fn oldest(&self) -> Option<u64> {
        self.entries.borrow().front().map(|(number, _)| *number)
    }

    /// Waits until the log should be flushed: it is half full, a change waits for room, it is incomplete, or few
    /// buffers of the pool are free.
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

/// LogReservation in the log that is reserved for one change. Dropping this value releases the room.
pub(super) struct LogReservation {
    log: Rc<Unflushed>,
    cost: u64,
    kept: bool,
}

impl LogReservation {
    /// Puts the completed change into the log. A durable change is put there only if it overlaps an older entry:
    /// sending that entry again would undo the change.
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

    /// Handles a change of `range` that the server has refused, and may have carried out in part. If the change
    /// overlaps an entry, sending this entry again could alter bytes that a client has read since. So a flush is due,
    /// and the log is incomplete until then.
    pub fn refused(self, range: ByteRange) {
        let log = &self.log;
        if log.overlaps(range) {
            log.forget();
            log.press();
        }
    }
}

impl Drop for LogReservation {
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

    fn room(log: &Rc<Unflushed>, change: &Change) -> Option<LogReservation> {
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
    fn flush_clears_writes_acknowledged_before_flush_from_log() {
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
    fn log_keeps_durable_write_only_when_overlapping_unflushed_write() {
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
    fn log_requests_flush_when_full_and_reports_dropped_write() {
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
    fn log_requests_flush_after_refused_overlapping_write() {
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
    fn log_frees_space_of_failed_write() {
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
