//! A histogram of latencies in buckets that are 3 % wide, from a nanosecond to an hour.

use std::time::Duration;

const STEPS: u64 = 32;
const BUCKETS: usize = 64 * STEPS as usize;

/// A histogram of durations: for each bucket, the number of durations in it.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    all: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], all: 0, max_ns: 0 }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let magnitude = ns.ilog2() - STEPS.ilog2();
    ((u64::from(magnitude) + 1) * STEPS + ((ns >> magnitude) - STEPS)) as usize
}

/// Returns the shortest duration of a bucket, in nanoseconds.
fn least_of(bucket: usize) -> u64 {
    let (row, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    if row == 0 { step } else { (STEPS + step) << (row - 1) }
}

impl Histogram {
    /// Adds one duration to the histogram.
    pub fn add(&mut self, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.counts[bucket_of(ns).min(BUCKETS - 1)] += 1;
        self.all += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Returns the duration below which the part `share` (from 0 to 1) of all durations lies.
    pub fn percentile(&self, share: f64) -> Duration {
        let rank = (self.all as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return Duration::from_nanos(least_of(bucket).min(self.max_ns));
            }
        }
        Duration::from_nanos(self.max_ns)
    }

    /// Returns the longest duration that was added.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_least_value_and_are_narrow() {
        for ns in [0, 1, 31, 32, 33, 1000, 123_456, u64::from(u32::MAX), 1 << 40] {
            let least = least_of(bucket_of(ns));
            assert!(least <= ns && ns - least <= ns / STEPS, "{ns} in the bucket from {least}");
        }
    }

    #[test]
    fn percentile_finds_rank_among_hundred_values() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|n| histogram.add(Duration::from_nanos(n)));
        assert_eq!(histogram.percentile(0.5), Duration::from_nanos(50));
        assert_eq!(histogram.percentile(1.0), Duration::from_nanos(100));
        assert_eq!(histogram.max(), Duration::from_nanos(100));
    }
}
