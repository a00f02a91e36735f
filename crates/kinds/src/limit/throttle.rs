//! Token buckets, without a clock: each call is given the time.

use std::time::Duration;

use block::Mono;

/// Tokens are counted in parts of this many, so that a nanosecond's share of any rate is whole.
const PARTS: u128 = 1_000_000_000;

/// Fills with `rate` tokens a second.
///
/// From any moment to any later one it gives out at most `rate` times that time, and beside that
/// what it holds when full, or what the largest request of that time takes if that is more.
#[derive(Debug)]
pub struct Bucket {
    rate: u64,
    /// Parts that it saves up while nobody takes any.
    full: u128,
    level: u128,
    /// When the level was looked at last.
    at: Mono,
}

impl Bucket {
    /// A full bucket that saves what `burst` brings, and at least one token.
    pub fn new(now: Mono, rate: u64, burst: Duration) -> Self {
        let full = u128::from(rate).saturating_mul(burst.as_nanos()).max(PARTS);
        Self { rate, full, level: full, at: now }
    }

    /// When `tokens` can be taken, now or later, if nobody else takes any before. A request that is
    /// larger than the bucket is saved up for: nobody waits for ever.
    fn ready_at(&mut self, now: Mono, tokens: u64) -> Mono {
        let needed = u128::from(tokens) * PARTS;
        let flowed = u128::from(self.rate).saturating_mul(now.since(self.at).as_nanos());
        self.level = self.level.saturating_add(flowed).min(self.full.max(needed));
        self.at = now;
        let missing = needed.saturating_sub(self.level);
        let nanos = missing.div_ceil(u128::from(self.rate));
        now.after(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    fn take(&mut self, tokens: u64) {
        self.level -= u128::from(tokens) * PARTS;
    }
}

/// The buckets that every request takes from.
#[derive(Debug)]
pub struct Throttle {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Throttle {
    /// Creates a throttle of these buckets.
    pub fn new(requests: Option<Bucket>, bytes: Option<Bucket>) -> Self {
        Self { requests, bytes }
    }

    /// Takes what a request of so many bytes needs, from every bucket or from none. Returns when to try again, if there is
    /// not enough.
    pub fn take(&mut self, now: Mono, bytes: u64) -> Option<Mono> {
        let at = |bucket: &mut Option<Bucket>, tokens| {
            bucket.as_mut().map_or(now, |bucket| bucket.ready_at(now, tokens))
        };
        let at = at(&mut self.requests, 1).max(at(&mut self.bytes, bytes));
        if at > now {
            return Some(at);
        }
        self.requests.iter_mut().for_each(|bucket| bucket.take(1));
        self.bytes.iter_mut().for_each(|bucket| bucket.take(bytes));
        None
    }
}
