//! Timers: wakers in the order of their times.

use std::collections::BTreeMap;
use std::task::Waker;

use block::Mono;
use block::env::TimerId;

/// The timers of one core.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<TimerId, Waker>,
    made: u64,
}

impl Timers {
    /// Sets a timer that wakes `waker` at `at`.
    pub(crate) fn set(&mut self, at: Mono, waker: Waker) -> TimerId {
        self.made += 1;
        let id = TimerId(at, self.made);
        self.waiting.insert(id, waker);
        id
    }

    /// Removes a timer of the core, and returns its waker, which must be dropped without a borrow.
    pub(crate) fn clear(&mut self, timer: TimerId) -> Option<Waker> {
        self.waiting.remove(&timer)
    }

    /// Returns the time of the core's next timer.
    pub(crate) fn next(&self) -> Option<Mono> {
        self.waiting.first_key_value().map(|(id, _)| id.0)
    }

    /// Takes the first timer of the core that is due at `now`, and returns its waker.
    pub(crate) fn due(&mut self, now: Mono) -> Option<Waker> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
