//! Rate control of background work, so that it hardly slows the requests of clients, and makes progress all the same.
//!
//! While clients are quiet, background work runs at full speed. While clients are busy, it gets a share of the rate
//! of the idle disks, in short steps. The throttle needs a timer only while background work waits for it.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use crate::{Env, Mono};

/// Divisor of the rate of idle disks: background work gets the quotient while clients are busy. The documented share
/// is a tenth, because a disk with requests of clients does not reach the rate of an idle disk.
pub const BUSY_SHARE: u64 = 6;

/// Divisor of the rate of idle disks: the rests between steps beside clients slow background work down to the
/// quotient at most. A rest lasts at most as long as the step before it. The documented share is a tenth.
const KEPT_SHARE: u64 = 7;

/// Divisor of the duration of a step beside clients: the rest after the step is at least as long as the quotient.
const REST_PART: u32 = 4;

/// Lowest rate of background work while clients are busy, in bytes a second. It applies to disks of any speed.
pub const LEAST_BYTES_PER_S: u64 = 1 << 20;

/// Length of the longest step of background work, in bytes.
pub const STEP_BYTES_MAX: u64 = 1 << 20;

/// Length of the shortest step of background work while clients are busy, in bytes. In shorter steps the cost of a
/// request exceeds that of its bytes.
pub const STEP_BYTES_MIN: u64 = 64 << 10;

/// Target duration of a step while clients are busy. A client's request that arrives at the beginning of a step waits
/// as long.
const BUSY_STEP: Duration = Duration::from_millis(1);

/// Time without a request, a reply or a waiting client after which clients count as quiet.
const QUIET: Duration = Duration::from_millis(50);

/// Divisor of the weight of one measured step in an average. A single step may be unusually fast or slow.
const SMOOTHING: u64 = 8;

/// Percentile of the durations of steps beside clients that is taken for the duration of a step on idle disks, if no
/// step on idle disks was measured.
const FASTEST_PERCENT: u64 = 10;

const MIB: u64 = 1 << 20;

const NS_PER_S: u64 = 1_000_000_000;

/// Rate control for all background work of one device or one graph. A clone refers to the same throttle.
#[derive(Clone)]
pub struct Throttle(Rc<Shared>);

struct Shared {
    env: Env,
    /// Number of requests and replies of clients so far. It wraps around.
    clients: Cell<u64>,
    /// Number of requests of clients that are not answered yet.
    waiting: Cell<u64>,
    gait: Cell<ThrottleState>,
}

/// The measurements from which a throttle computes the start and the length of the next step.
#[derive(Clone, Copy)]
struct ThrottleState {
    /// Highest rate of background work in bytes a second, also while clients are quiet.
    most: u64,
    /// Time that background work takes for a MiB on idle disks, in nanoseconds; 0 before the first step on idle
    /// disks.
    idle_ns: u64,
    /// Average time for a MiB in recent steps, in nanoseconds; 0 before the first step.
    recent_ns: u64,
    /// Time for a MiB in the fastest steps beside clients, in nanoseconds; 0 before the first such step.
    fastest_ns: u64,
    /// Value of [`Shared::clients`] at the last check.
    clients: u64,
    /// Time until which clients count as busy.
    busy_until: Mono,
    /// Earliest start of the next step.
    next: Mono,
}

impl Throttle {
    /// Creates a throttle for background work. If `most` is given, the rate is at most `most` bytes a second.
    pub fn new(env: &Env, most: Option<u64>) -> Self {
        let gait = Cell::new(ThrottleState::new(env.now(), most));
        let (clients, waiting) = (Cell::new(0), Cell::new(0));
        Self(Rc::new(Shared { env: env.clone(), clients, waiting, gait }))
    }

    /// Counts a request of a client, which is unanswered until the returned guard is dropped. The caller must call
    /// this method for each request of a client; it costs a few additions.
    #[inline]
    pub fn client(&self) -> ClientGuard<'_> {
        self.0.count();
        self.0.waiting.set(self.0.waiting.get() + 1);
        ClientGuard(&self.0)
    }

    /// Waits until the next step of background work may begin, and returns the step. Other background work on the
    /// throttle waits for the time that the throttle allots to this step.
    pub async fn step(&self) -> Step {
        self.begin(0..=STEP_BYTES_MAX).await
    }

    /// Waits until the next step of background work may begin, and returns the step, which has at most `most` bytes.
    pub async fn step_of(&self, most: u64) -> Step {
        self.begin(0..=most).await
    }

    /// Waits until a step of exactly `bytes` may begin, whether or not clients are busy. It is for work that has a
    /// high cost for each step besides its bytes.
    pub async fn whole_step(&self, bytes: u64) -> Step {
        self.begin(bytes..=bytes).await
    }

    async fn begin(&self, bytes: RangeInclusive<u64>) -> Step {
        loop {
            // Disks that answer from memory finish a step within one turn of the core.
            let now = self.0.env.clock();
            let mut gait = self.0.gait.get();
            let begun = gait.begin(now, self.0.look(), &bytes);
            self.0.gait.set(gait);
            match begun {
                Ok(bytes) => {
                    let clients = self.0.clients.get();
                    return Step { pace: self.clone(), bytes, begun: now, clients };
                }
                Err(at) => self.0.env.sleep_until(at).await,
            }
        }
    }
}

impl Shared {
    #[inline]
    fn count(&self) {
        self.clients.set(self.clients.get().wrapping_add(1));
    }

    /// Returns the number of requests and replies of clients. While a client waits for a reply, each call returns
    /// another number.
    fn look(&self) -> u64 {
        if self.waiting.get() > 0 {
            self.count();
        }
        self.clients.get()
    }
}

/// Guard of a request of a client. The caller must drop it when the request is answered.
#[must_use = "background work yields to the client while the guard is kept"]
pub struct ClientGuard<'p>(&'p Shared);

impl Drop for ClientGuard<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
        self.0.count();
    }
}

/// A step of background work that may begin now.
#[must_use = "the throttle learns the duration of a step when the step is dropped"]
pub struct Step {
    pace: Throttle,
    bytes: u64,
    begun: Mono,
    clients: u64,
}

impl Step {
    /// Returns the length in bytes that the step may have: the requested length, or a power of two from
    /// [`STEP_BYTES_MIN`] to [`STEP_BYTES_MAX`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reports to the throttle that the step has ended after `bytes`. The time of a step that is dropped without this
    /// call, because it failed, is not measured.
    pub fn done(self, bytes: u64) {
        let shared = &self.pace.0;
        let now = shared.env.clock();
        let mut gait = shared.gait.get();
        gait.end(now, now.since(self.begun), bytes, shared.look() != self.clients);
        shared.gait.set(gait);
    }
}

impl ThrottleState {
    fn new(now: Mono, most: Option<u64>) -> Self {
        let most = most.unwrap_or(u64::MAX).max(1);
        let busy_until = Mono(Duration::ZERO);
        Self { most, idle_ns: 0, recent_ns: 0, fastest_ns: 0, clients: 0, busy_until, next: now }
    }

    /// Begins a step with a length within `of`, and returns the length; or returns the time at which a step may
    /// begin.
    fn begin(&mut self, now: Mono, clients: u64, of: &RangeInclusive<u64>) -> Result<u64, Mono> {
        if clients != self.clients {
            (self.clients, self.busy_until) = (clients, now.after(QUIET));
        }
        if now < self.next {
            return Err(self.next);
        }
        let busy = now < self.busy_until;
        let bytes = if busy { self.busy_step() } else { STEP_BYTES_MAX };
        let bytes = bytes.clamp(*of.start(), *of.end());
        let rate = if busy { self.busy_rate() } else { u64::MAX };
        self.next = now.after(time_of(bytes, rate.min(self.most)));
        Ok(bytes)
    }

    /// Records the end of a step that took the time `took`. `disturbed` is whether clients sent requests during the
    /// step.
    fn end(&mut self, now: Mono, took: Duration, bytes: u64, disturbed: bool) {
        let took_ns =
            u128::from(took.as_nanos() as u64) * u128::from(MIB) / u128::from(bytes.max(1));
        let took_ns = (took_ns as u64).max(1);
        self.recent_ns = match self.recent_ns {
            0 => took_ns,
            recent => (recent - recent / SMOOTHING + took_ns / SMOOTHING).max(1),
        };
        if disturbed || now < self.busy_until {
            self.beside_clients(took_ns);
            self.next = self.next.max(now.after(self.rest(took, bytes)));
        } else {
            self.idle_ns = self.recent_ns;
        }
    }

    /// Returns the pause after a step beside clients. On disks where a seek costs more than the bytes of a step,
    /// steps at the permitted rate could otherwise take all of the time.
    fn rest(&self, took: Duration, bytes: u64) -> Duration {
        let kept = time_of(bytes, (self.idle_rate() / KEPT_SHARE).max(1)).saturating_sub(took);
        kept.clamp(took / REST_PART, took)
    }

    /// Updates the measurements after a step beside clients. Such a step is an upper bound of the time on an idle
    /// disk. The steps that waited least for clients are the best bound.
    fn beside_clients(&mut self, took_ns: u64) {
        let step = self.fastest_ns / SMOOTHING;
        self.fastest_ns = match self.fastest_ns {
            0 => took_ns,
            fastest if took_ns < fastest => fastest - step * (100 - FASTEST_PERCENT) / 100,
            fastest => (fastest + step * FASTEST_PERCENT / 100).min(took_ns),
        }
        .max(1);
        if self.idle_ns > 0 {
            self.idle_ns = self.idle_ns.min(self.recent_ns);
        }
    }

    /// Returns the rate of consecutive steps on idle disks, in bytes a second; 0 if it is not known.
    fn idle_rate(&self) -> u64 {
        let known_ns = if self.idle_ns > 0 { self.idle_ns } else { self.fastest_ns };
        (MIB * NS_PER_S).checked_div(known_ns).unwrap_or(0)
    }

    fn busy_rate(&self) -> u64 {
        (self.idle_rate() / BUSY_SHARE).max(LEAST_BYTES_PER_S)
    }

    fn busy_step(&self) -> u64 {
        let bytes = u128::from(self.idle_rate()) * BUSY_STEP.as_micros() / 1_000_000;
        let bytes = (bytes as u64).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
        1 << bytes.ilog2()
    }
}

fn time_of(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos((u128::from(bytes) * u128::from(NS_PER_S) / u128::from(rate)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: RangeInclusive<u64> = 0..=STEP_BYTES_MAX;

    /// Runs steps for a second on a disk that takes `ns_per_mib` for a MiB, with clients always or never busy.
    /// Returns the bytes, and the time of the longest step.
    fn second(
        gait: &mut ThrottleState,
        from: Mono,
        ns_per_mib: u64,
        busy: bool,
    ) -> (u64, Duration) {
        let (mut now, mut all, mut longest) = (from, 0, Duration::ZERO);
        let end = from.after(Duration::from_secs(1));
        let mut clients = gait.clients;
        while now < end {
            clients += u64::from(busy);
            match gait.begin(now, clients, &ANY) {
                Err(at) => now = at,
                Ok(bytes) => {
                    let took = Duration::from_nanos(bytes * ns_per_mib / MIB);
                    now = now.after(took);
                    longest = longest.max(took);
                    gait.end(now, took, bytes, busy);
                    all += bytes;
                }
            }
        }
        (all, longest)
    }

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    #[test]
    fn throttle_gives_background_work_sixth_of_busy_disk() {
        // From a disk of 50 MiB/s to one of 4 GiB/s.
        for ns_per_mib in [20_000_000, 5_000_000, 1_000_000, 250_000] {
            let mut gait = ThrottleState::new(at(0), None);
            let (idle, _) = second(&mut gait, at(1), ns_per_mib, false);
            assert!(idle * ns_per_mib / MIB >= 999_000_000, "{idle} bytes");
            let (busy, longest) = second(&mut gait, at(3), ns_per_mib, true);
            assert!((idle / 7..=idle / 5).contains(&busy), "{busy} of {idle} bytes");
            assert!(longest <= Duration::from_millis(2), "{longest:?}");
            let (again, _) = second(&mut gait, at(5), ns_per_mib, false);
            assert!(again >= idle * 9 / 10, "{again} of {idle} bytes");
        }
    }

    #[test]
    fn throttle_grants_share_of_disk_that_was_never_idle() {
        let mut gait = ThrottleState::new(at(0), None);
        second(&mut gait, at(1), 1_000_000, true);
        let (busy, _) = second(&mut gait, at(2), 1_000_000, true);
        assert!(busy > 110 * MIB, "{busy} of 1000 MiB");
    }

    /// Clients slow the steps down by a factor of four or five, in turn; one step in eight takes hardly longer.
    #[test]
    fn throttle_keeps_background_share_when_clients_slow_steps() {
        let mut gait = ThrottleState::new(at(0), None);
        let (mut now, mut all) = (at(1), 0);
        for step in 0.. {
            if now >= at(11) {
                break;
            }
            match gait.begin(now, step, &ANY) {
                Err(at) => now = at,
                Ok(bytes) => {
                    let slower = if step % 8 == 0 { 11 } else { 40 + 10 * (step % 2) };
                    let took = Duration::from_nanos(bytes * slower / 10);
                    now = now.after(took);
                    gait.end(now, took, bytes, true);
                    all += bytes;
                }
            }
        }
        // Without clients it would be one byte each nanosecond.
        assert!((1_350_000_000..=1_800_000_000).contains(&all), "{all} of 10^10 bytes");
    }

    #[test]
    fn throttle_keeps_tenth_of_rate_when_steps_take_sevenfold() {
        let mut gait = ThrottleState::new(at(0), None);
        let (idle, _) = second(&mut gait, at(1), 1_400_000, false);
        let (busy, _) = second(&mut gait, at(3), 7 * 1_400_000, true);
        assert!(busy > idle / 10, "{busy} of {idle} bytes");
    }

    #[test]
    fn throttle_limits_background_work_to_half_of_slow_disk() {
        // 64 KiB take 100 ms: the lowest rate of a throttle would exceed the disk's rate.
        let mut gait = ThrottleState::new(at(0), None);
        second(&mut gait, at(1), 1_600_000_000, false);
        let (busy, _) = second(&mut gait, at(5), 1_600_000_000, true);
        let time = Duration::from_nanos(busy * 1_600_000_000 / MIB);
        assert!(time <= Duration::from_millis(600), "{time:?} of a second");
        assert!(time >= Duration::from_millis(400), "{time:?} of a second");
    }

    #[test]
    fn throttle_keeps_configured_limit_on_idle_and_busy_disk() {
        let mut gait = ThrottleState::new(at(0), Some(20 * MIB));
        for busy in [false, true, false] {
            let from = gait.next.after(QUIET);
            let (all, _) = second(&mut gait, from, 1_000_000, busy);
            assert!((19 * MIB..=21 * MIB).contains(&all), "{all} bytes, busy {busy}");
        }
    }

    #[test]
    fn throttle_delays_second_user_until_first_step_is_due() {
        let mut gait = ThrottleState::new(at(0), Some(MIB));
        assert!(gait.begin(at(1), 0, &ANY).is_ok());
        assert_eq!(gait.begin(at(1), 0, &ANY), Err(at(2)), "the first has not even ended");
    }
}
