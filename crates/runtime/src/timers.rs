//! The timers of a core, in the order of their times.

use std::collections::BTreeMap;
use std::task::Waker;

use block::Mono;
use block::env::TimerId;

/// The timers of a core that are set and not due yet.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<TimerId, Waker>,
    made: u64,
}

impl Timers {
    /// Sets a timer that wakes `waker` at the time `at`.
    pub(crate) fn set(&mut self, at: Mono, waker: Waker) -> TimerId {
        self.made += 1;
        let id = TimerId(at, self.made);
        self.waiting.insert(id, waker);
        id
    }

    /// Clears a timer, and returns its waker. The caller must drop the waker when it has no borrow of the timers.
    pub(crate) fn clear(&mut self, timer: TimerId) -> Option<Waker> {
        self.waiting.remove(&timer)
    }

    /// Returns the time of the next timer of the core.
    pub(crate) fn next(&self) -> Option<Mono> {
        self.waiting.first_key_value().map(|(id, _)| id.0)
    }

    /// Removes the first timer that is due at `now`, and returns its waker.
    pub(crate) fn due(&mut self, now: Mono) -> Option<Waker> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
