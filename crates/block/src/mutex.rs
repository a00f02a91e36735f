//! The mutex: one holder at a time, in the order of the calls.

use crate::{ByteRange, Locked, Locking, Mode, RangeLock};

/// A lock with one holder at a time, for tasks of one core. It is fair: a task gets the lock after all tasks that
/// called [`Mutex::lock`] before it. A clone refers to the same lock.
#[derive(Clone, Default)]
pub struct Mutex(RangeLock);

impl Mutex {
    /// Creates a mutex that no task holds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Queues for the mutex, and returns a future that waits for it. The mutex is held until the guard from the
    /// future is dropped. The position in the queue is that of this call, not of the future's first poll.
    pub fn lock(&self) -> Locking {
        self.0.lock(Self::all(), Mode::Exclusive)
    }

    /// Takes the mutex if no other task holds it or waits for it; returns `None` otherwise.
    pub fn try_lock(&self) -> Option<Locked> {
        self.0.try_lock(Self::all(), Mode::Exclusive)
    }

    fn all() -> ByteRange {
        ByteRange::new(0, u64::MAX).expect("all addresses are one byte range")
    }

    /// Returns the number of tasks that hold the mutex or wait for it.
    pub fn wanted(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn mutex_admits_waiters_in_order_of_lock_calls() {
        let mutex = Mutex::new();
        let mut cx = Context::from_waker(Waker::noop());
        let (mut first, mut second) = (pin!(mutex.lock()), pin!(mutex.clone().lock()));
        assert!(second.as_mut().poll(&mut cx).is_pending(), "its place is behind the first");
        let Poll::Ready(held) = first.as_mut().poll(&mut cx) else { panic!("nobody is before it") };
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(mutex.try_lock().is_none() && Mutex::new().try_lock().is_some());
        drop(held);
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn mutex_try_lock_fails_while_held_or_awaited() {
        let mutex = Mutex::new();
        let held = mutex.try_lock().expect("nobody holds it");
        assert!(mutex.try_lock().is_none() && mutex.wanted() == 1);
        let mut waiting = pin!(mutex.lock());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        drop(held);
        assert!(mutex.try_lock().is_none(), "the one that waits is before it");
    }
}
