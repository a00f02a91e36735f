//! The pause before a process that has died is started again.

use std::time::Duration;

/// Life of a process that did not die of its start.
const LONG_LIFE: Duration = Duration::from_secs(1);

/// The pause after the second quick death. It doubles after each further one.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest pause before a worker is restarted. Users of attached devices wait for the pause and the start, 5 s
/// together.
pub const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Quick deaths in a row after which the worker is not restarted automatically: about a minute of trying.
pub const GIVE_UP_AFTER: u32 = 24;

/// Counter of quick deaths of the workers of a graph, which determines the pause before a restart.
#[derive(Debug, Default)]
pub struct Pace {
    quick: u32,
}

impl Pace {
    /// Returns the pause before a restart, after a worker that lived for `lived`; `None` after too many quick deaths.
    /// After a long life the restart is immediate, because users of attached devices wait for it.
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

    /// Resets the number of quick deaths to zero.
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
