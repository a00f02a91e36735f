//! Token buckets and who waits at them, without a clock: whoever calls says what time it is.

use std::collections::VecDeque;
use std::task::Waker;
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

/// Buckets that every request takes from, and the requests that wait, first come first served.
#[derive(Debug)]
pub struct Throttle {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
    waiting: VecDeque<Waiting>,
    next: Ticket,
}

/// A place in the queue.
pub type Ticket = u64;

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    waker: Option<Waker>,
}

/// What a request in the queue may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Go on; it has left the queue.
    Go,
    /// It is the first: go on at that time.
    At(Mono),
    /// Others are before it.
    Behind,
}

impl Throttle {
    /// A queue at these buckets.
    pub fn new(requests: Option<Bucket>, bytes: Option<Bucket>) -> Self {
        Self { requests, bytes, waiting: VecDeque::new(), next: 0 }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A request of so many bytes arrives: `None` if it may go on, else its place in the queue.
    pub fn enter(&mut self, now: Mono, bytes: u64) -> Option<Ticket> {
        if self.waiting.is_empty() && self.take(now, bytes).is_none() {
            return None;
        }
        let ticket = self.next;
        self.next += 1;
        self.waiting.push_back(Waiting { ticket, waker: None });
        Some(ticket)
    }

    /// What a request in the queue, of so many bytes, may do now.
    pub fn turn(&mut self, ticket: Ticket, now: Mono, bytes: u64) -> Turn {
        if self.waiting.front().is_some_and(|first| first.ticket != ticket) {
            return Turn::Behind;
        }
        match self.take(now, bytes) {
            Some(at) => Turn::At(at),
            None => {
                self.waiting.pop_front();
                Turn::Go
            }
        }
    }

    /// Has `waker` woken when the request becomes the first.
    pub fn wait(&mut self, ticket: Ticket, waker: &Waker) {
        let at = self.waiting.partition_point(|waiting| waiting.ticket < ticket);
        if let Some(waiting) = self.waiting.get_mut(at) {
            waiting.waker = Some(waker.clone());
        }
    }

    /// A request goes without its turn, if it still waits for one.
    pub fn leave(&mut self, ticket: Ticket) {
        let at = self.waiting.partition_point(|waiting| waiting.ticket < ticket);
        if self.waiting.get(at).is_some_and(|waiting| waiting.ticket == ticket) {
            self.waiting.remove(at);
        }
    }

    /// Who is to be told that it is the first now.
    pub fn first(&mut self) -> Option<Waker> {
        self.waiting.front_mut()?.waker.take()
    }

    /// Takes what a request needs from every bucket, or from none; then says when.
    fn take(&mut self, now: Mono, bytes: u64) -> Option<Mono> {
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
