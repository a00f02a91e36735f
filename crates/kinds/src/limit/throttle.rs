//! Token buckets without a clock: the caller passes the time.

use std::time::Duration;

use block::Mono;

/// Number of parts of a token. The level of a bucket is counted in parts, so that one nanosecond adds an integral
/// number of parts at any rate.
const PARTS: u128 = 1_000_000_000;

/// A token bucket, which fills with `rate` tokens per second. A token permits one request or one byte.
///
/// In any time, requests take at most the tokens that flow into the bucket during that time, plus the tokens of a full
/// bucket or of the largest request, whichever is more.
#[derive(Debug)]
pub struct Bucket {
    rate: u64,
    /// Largest level, in parts, that the bucket reaches while no request takes tokens.
    full: u128,
    level: u128,
    /// Time at which `level`, the content of the bucket, was last updated.
    at: Mono,
}

impl Bucket {
    /// Returns a full bucket, which has room for the tokens of the duration `burst` and for at least one.
    pub fn new(now: Mono, rate: u64, burst: Duration) -> Self {
        let full = u128::from(rate).saturating_mul(burst.as_nanos()).max(PARTS);
        Self { rate, full, level: full, at: now }
    }

    /// Returns the earliest time at which a request can take `tokens` tokens, if no other request takes tokens before.
    /// For a request larger than the bucket the level may rise above `full`, so that no request waits for ever.
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

/// The token buckets for requests and for bytes. Every request takes tokens from both.
#[derive(Debug)]
pub struct Throttle {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Throttle {
    /// Returns a throttle with a token bucket for requests and one for bytes; `None` means no limit.
    pub fn new(requests: Option<Bucket>, bytes: Option<Bucket>) -> Self {
        Self { requests, bytes }
    }

    /// Takes the tokens of a request of `bytes` bytes, from every bucket or from none. If a bucket has too few tokens,
    /// returns the time at which to try again.
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
