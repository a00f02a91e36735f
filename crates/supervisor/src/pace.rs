//! The pause before the next worker is started after one has ended unexpectedly.

use std::time::Duration;

/// Lifetime of a worker that did not end because of its start.
const LONG_LIFE: Duration = Duration::from_secs(1);

/// The pause after the second worker with a shorter lifetime. It doubles after each further one.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest pause before the next worker is started. Users of attached devices wait for the pause and the start, 5 s
/// together.
pub const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Number of consecutive workers with a short lifetime after which no further worker is started automatically: about
/// a minute of tries.
pub const GIVE_UP_AFTER: u32 = 24;

/// Counter of consecutive workers of a graph with a short lifetime, from which the pause before the next start
/// follows.
#[derive(Debug, Default)]
pub struct Pace {
    quick: u32,
}

impl Pace {
    /// Returns the pause before the next start, after a worker that lived for `lived`; `None` after too many workers
    /// with a short lifetime. After a longer lifetime there is no pause, because users of attached devices wait.
    pub fn after(&mut self, lived: Duration) -> Option<Duration> {
        if lived >= LONG_LIFE {
            self.quick = 0;
            return Some(Duration::ZERO);
        }
        self.quick += 1;
        match self.quick {
            1 => Some(Duration::ZERO),
            n if n < GIVE_UP_AFTER => Some(PAUSE.saturating_mul(1 << (n - 2)).min(PAUSE_MAX)),
            _ => None,
        }
    }

    /// Sets the number of consecutive workers with a short lifetime to zero.
    pub fn reset(&mut self) {
        self.quick = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest wait of attached devices after a process was killed.
    const PROMISED: Duration = Duration::from_secs(5);

    /// Longest duration of a start after a kill.
    const START_MAX: Duration = Duration::from_secs(2);

    #[test]
    fn worker_restart_stays_within_promised_time() {
        assert!(PAUSE_MAX + START_MAX <= PROMISED);
    }

    #[test]
    fn restart_pauses_grow_until_supervisor_ends_retries() {
        let mut pace = Pace::default();
        let quick = Duration::from_millis(999);
        let pauses: Vec<_> = std::iter::from_fn(|| pace.after(quick)).collect();
        assert_eq!(pauses.len(), GIVE_UP_AFTER as usize - 1);
        assert_eq!(pauses[..4], [0, 50, 100, 200].map(Duration::from_millis));
        assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= PAUSE_MAX));
        let all: Duration = pauses.iter().sum();
        assert!(all > Duration::from_secs(30) && all < Duration::from_secs(120), "{all:?}");
        assert_eq!(pace.after(quick), None, "it stays given up");
    }

    #[test]
    fn long_worker_life_resets_restart_pauses() {
        let mut pace = Pace::default();
        for _ in 0..3 * GIVE_UP_AFTER {
            assert!(pace.after(Duration::ZERO).is_some());
            assert_eq!(pace.after(LONG_LIFE), Some(Duration::ZERO));
        }
        while pace.after(Duration::ZERO).is_some() {}
        pace.reset();
        assert_eq!(pace.after(Duration::ZERO), Some(Duration::ZERO));
    }
}
