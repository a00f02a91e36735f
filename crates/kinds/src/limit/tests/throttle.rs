//! Properties of the throttle of the `limit` device, tested on random requests.

use std::time::Duration;

use block::Mono;
use proptest::prelude::*;

use crate::limit::throttle::{Bucket, Throttle};

const SECOND: u128 = 1_000_000_000;

/// A request at the throttle: nanoseconds since the request before, and length in bytes.
type Arrival = (u64, u64);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let gap = prop_oneof![Just(0), 0..1_000_u64, 0..50_000_000_u64, 0..3_000_000_000_u64];
    let bytes = prop_oneof![Just(0), 1..100_u64, 1..100_000_u64];
    proptest::collection::vec((gap, bytes), 1..60)
}

fn nanos(at: Mono) -> u128 {
    at.0.as_nanos()
}

/// Sends the requests through the throttle in order. Returns the time at which each request passes, and its bytes.
fn passages(throttle: &mut Throttle, arrivals: &[Arrival], start: Mono) -> Vec<(Mono, u64)> {
    let (mut gone, mut arrives, mut now) = (Vec::new(), start, start);
    for (gap, bytes) in arrivals {
        arrives = arrives.after(Duration::from_nanos(*gap));
        now = now.max(arrives);
        if let Some(at) = throttle.take(now, *bytes) {
            assert!(at > now);
            now = at;
            assert_eq!(throttle.take(now, *bytes), None, "it was given this time");
        }
        gone.push((now, *bytes));
    }
    gone
}

/// Checks that in every span of time no more requests pass than `rate` tokens per second allow, plus the burst or the
/// largest request of the span. `tokens` returns the tokens of a request from its bytes.
fn check_windows(gone: &[(Mono, u64)], rate: u64, burst: Duration, tokens: impl Fn(u64) -> u64) {
    for first in 0..gone.len() {
        let (mut sum, mut largest) = (0, 1);
        for (at, bytes) in &gone[first..] {
            sum += u128::from(tokens(*bytes));
            largest = tokens(*bytes).max(largest);
            let time = nanos(*at) - nanos(gone[first].0);
            let saved = (u128::from(rate) * burst.as_nanos()).max(u128::from(largest) * SECOND);
            assert!(
                sum * SECOND <= u128::from(rate) * time + saved,
                "{sum} tokens in {time} ns at {rate}/s with a burst of {burst:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn throttle_never_exceeds_rates_and_never_stalls(
        arrivals in arrivals(),
        iops in proptest::option::of(1..2_000_u64),
        bytes in proptest::option::of(1..1_000_000_u64),
        burst_ms in 0..2_000_u64,
        start_s in 0..100_u64,
    ) {
        let start = Mono(Duration::from_secs(start_s));
        let burst = Duration::from_millis(burst_ms);
        let bucket = |rate: Option<u64>| rate.map(|rate| Bucket::new(start, rate, burst));
        let mut throttle = Throttle::new(bucket(iops), bucket(bytes));
        let gone = passages(&mut throttle, &arrivals, start);
        if let Some(rate) = iops {
            check_windows(&gone, rate, burst, |_| 1);
        }
        if let Some(rate) = bytes {
            check_windows(&gone, rate, burst, |bytes| bytes);
        }
        if (iops, bytes) == (None, None) {
            let last: u64 = arrivals.iter().map(|(gap, _)| gap).sum();
            prop_assert_eq!(gone.last().unwrap().0, start.after(Duration::from_nanos(last)));
        }
    }

    /// If a request is always waiting, the throttle passes requests at exactly the rate, not below.
    #[test]
    fn throttle_reaches_rate_if_requests_always_wait(
        sizes in proptest::collection::vec(1..100_000_u64, 1..60),
        rate in 1..1_000_000_u64,
    ) {
        let start = Mono(Duration::from_secs(1));
        let burst = Duration::ZERO;
        let mut throttle = Throttle::new(None, Some(Bucket::new(start, rate, burst)));
        let arrivals: Vec<Arrival> = sizes.iter().map(|bytes| (0, *bytes)).collect();
        let gone = passages(&mut throttle, &arrivals, start);
        // The bucket begins with one token, and each wait is rounded up to a whole nanosecond.
        let needed = u128::from(sizes.iter().sum::<u64>() - 1) * SECOND / u128::from(rate);
        let took = nanos(gone.last().unwrap().0) - nanos(start);
        prop_assert!(needed <= took && took <= needed + sizes.len() as u128, "{took} ns instead of {needed}");
    }
}

#[test]
fn throttle_with_full_bucket_passes_burst_then_keeps_rate() {
    let start = Mono(Duration::from_secs(1));
    let burst = Duration::from_millis(30);
    let mut throttle = Throttle::new(Some(Bucket::new(start, 100, burst)), None);
    let gone = passages(&mut throttle, &[(0, 0); 6], start);
    let millis: Vec<u128> = gone.iter().map(|(at, _)| nanos(*at) / 1_000_000 - 1000).collect();
    assert_eq!(millis, [0, 0, 0, 10, 20, 30]);
}

#[test]
fn throttle_does_not_overflow_at_largest_rates_and_requests() {
    let start = Mono(Duration::ZERO);
    let long = Duration::from_secs(u64::MAX >> 20);
    let mut throttle = Throttle::new(None, Some(Bucket::new(start, u64::MAX, long)));
    let late = start.after(long);
    assert_eq!(throttle.take(late, u64::MAX), None);
    let mut slow = Throttle::new(None, Some(Bucket::new(start, 1, Duration::ZERO)));
    assert!(slow.take(late, u64::MAX).is_some_and(|at| at > late));
}
