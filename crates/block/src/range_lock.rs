//! The range lock: overlapping requests run one after the other, in the order of arrival.
//!
//! A device with copies, derived data or moving bytes locks the range of every write. Without the lock two members
//! could carry out overlapping writes in different orders, both permitted, and the members would differ permanently.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::{ByteRange, Waiter};

/// Mode of a lock on a byte range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Other tasks may hold bytes of the range at the same time, if their locks are shared too.
    Shared,
    /// No other task may hold a byte of the range.
    Exclusive,
}

/// A lock over the byte ranges of one device. It is fair: a request that overlaps an earlier one waits for the
/// earlier one.
#[derive(Clone, Default)]
pub struct RangeLock(Rc<RefCell<Queue>>);

#[derive(Default)]
struct Queue {
    // In order of arrival. Short: the requests in flight on one device.
    entries: Vec<Entry>,
    next: u64,
}

struct Entry {
    ticket: u64,
    range: ByteRange,
    mode: Mode,
    waiter: Waiter,
}

impl Queue {
    fn blocked(&self, at: usize) -> bool {
        let me = &self.entries[at];
        self.entries[..at].iter().any(|other| {
            other.range.overlaps(me.range)
                && (me.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
        })
    }

    fn find(&self, ticket: u64) -> usize {
        self.entries.binary_search_by_key(&ticket, |e| e.ticket).expect("a held lock is queued")
    }
}

impl RangeLock {
    /// Creates a range lock without holders.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a lock on `range` to the queue, and returns a future that waits for the lock. The position in the queue
    /// is that of this call, not of the future's first poll.
    pub fn lock(&self, range: ByteRange, mode: Mode) -> Locking {
        let mut queue = self.0.borrow_mut();
        let ticket = queue.next;
        queue.next += 1;
        queue.entries.push(Entry { ticket, range, mode, waiter: Waiter::default() });
        Locking(Some(Locked { lock: self.0.clone(), ticket }))
    }

    /// Locks `range` if no other task holds or awaits a conflicting lock on a part of it; returns `None` otherwise. A
    /// task that holds another range must use this method: a wait for both ranges could be a deadlock.
    pub fn try_lock(&self, range: ByteRange, mode: Mode) -> Option<Locked> {
        let locked = self.lock(range, mode).0.take()?;
        let queue = self.0.borrow();
        let blocked = queue.blocked(queue.find(locked.ticket));
        drop(queue);
        (!blocked).then_some(locked)
    }

    /// Whether a task holds or awaits a lock on a byte of `range`.
    pub fn is_wanted(&self, range: ByteRange) -> bool {
        self.0.borrow().entries.iter().any(|entry| entry.range.overlaps(range))
    }

    /// Returns the number of locks that tasks hold or await.
    pub fn len(&self) -> usize {
        self.0.borrow().entries.len()
    }

    /// Whether no task holds or awaits a lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A wait for the lock on a byte range.
#[must_use = "a range lock is held only after the wait for it"]
pub struct Locking(Option<Locked>);

/// A lock on a byte range, held until it is dropped.
#[must_use = "the range is unlocked when the guard is dropped"]
pub struct Locked {
    lock: Rc<RefCell<Queue>>,
    ticket: u64,
}

impl Future for Locking {
    type Output = Locked;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Locked> {
        let held = self.0.as_ref().expect("no wait is polled after the lock was granted");
        let queue = held.lock.borrow_mut();
        let at = queue.find(held.ticket);
        if queue.blocked(at) {
            queue.entries[at].waiter.wake_later(cx);
            return Poll::Pending;
        }
        drop(queue);
        Poll::Ready(self.0.take().expect("the wait was checked above"))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let mut queue = self.lock.borrow_mut();
        let at = queue.find(self.ticket);
        let gone = queue.entries.remove(at);
        for entry in queue.entries[at..].iter().filter(|e| e.range.overlaps(gone.range)) {
            entry.waiter.wake();
            if entry.mode == Mode::Exclusive && entry.range.contains(gone.range) {
                // This waiter blocks all later ones that overlap the released range.
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn range(start: u64, len: u64) -> ByteRange {
        ByteRange::new(start, len).unwrap()
    }

    fn ready(locking: Pin<&mut Locking>) -> Option<Locked> {
        match locking.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(locked) => Some(locked),
            Poll::Pending => None,
        }
    }

    #[test]
    fn range_lock_admits_waiters_of_overlapping_ranges_in_order() {
        let lock = RangeLock::new();
        let mut first = pin!(lock.lock(range(0, 10), Mode::Exclusive));
        let mut second = pin!(lock.lock(range(5, 10), Mode::Exclusive));
        let mut apart = pin!(lock.lock(range(20, 1), Mode::Exclusive));
        assert!(ready(second.as_mut()).is_none(), "its place is behind the first");
        let held = ready(first.as_mut()).unwrap();
        assert!(ready(apart.as_mut()).is_some());
        assert!(lock.is_wanted(range(14, 9)) && !lock.is_wanted(range(15, 5)));
        assert!(ready(second.as_mut()).is_none());
        drop(held);
        assert!(ready(second.as_mut()).is_some());
    }

    #[test]
    fn range_lock_wakes_only_next_exclusive_waiter_on_release() {
        let lock = RangeLock::new();
        let held = lock.try_lock(range(0, 8), Mode::Exclusive).unwrap();
        let shared = |start, len| Box::pin(lock.lock(range(start, len), Mode::Shared));
        let alone = |start, len| Box::pin(lock.lock(range(start, len), Mode::Exclusive));
        // All waiters behind the first one that covers the range must wait for it anyway.
        let mut waits = [shared(0, 4), alone(4, 8), alone(0, 8), shared(0, 8), alone(0, 8)];
        let counts = [(); 5].map(|()| Arc::new(Count::default()));
        for (waiting, count) in waits.iter_mut().zip(&counts) {
            let waker = Waker::from(count.clone());
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(held);
        assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [1, 1, 1, 0, 0]);
    }

    #[test]
    fn range_lock_shared_waiter_stays_behind_exclusive_waiter() {
        let lock = RangeLock::new();
        let mut read = pin!(lock.lock(range(0, 8), Mode::Shared));
        let held = ready(read.as_mut()).unwrap();
        let mut write = pin!(lock.lock(range(0, 8), Mode::Exclusive));
        let mut late = pin!(lock.lock(range(0, 8), Mode::Shared));
        assert!(ready(write.as_mut()).is_none());
        assert!(ready(late.as_mut()).is_none());
        drop(held);
        assert!(ready(late.as_mut()).is_none());
        drop(ready(write.as_mut()).unwrap());
        drop(ready(late.as_mut()).unwrap());
        assert!(lock.is_empty());
    }

    #[test]
    fn range_lock_try_lock_fails_while_overlapping_waiter_queues() {
        let lock = RangeLock::new();
        let held = lock.try_lock(range(0, 8), Mode::Exclusive).unwrap();
        let mut across = pin!(lock.lock(range(4, 8), Mode::Shared));
        assert!(ready(across.as_mut()).is_none());
        assert!(lock.try_lock(range(8, 8), Mode::Exclusive).is_none());
        assert!(lock.try_lock(range(12, 8), Mode::Exclusive).is_some());
        drop(held);
        drop(ready(across.as_mut()).unwrap());
        assert!(lock.is_empty());
    }

    #[test]
    fn range_lock_admits_second_waiter_when_first_wait_is_dropped() {
        let lock = RangeLock::new();
        let first = lock.lock(range(0, 8), Mode::Exclusive);
        let mut second = pin!(lock.lock(range(0, 8), Mode::Exclusive));
        assert!(ready(second.as_mut()).is_none());
        drop(first);
        assert!(ready(second.as_mut()).is_some());
    }
}
