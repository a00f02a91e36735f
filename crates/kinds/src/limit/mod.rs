//! Limits the requests and the bytes per second of a device.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind and its device: the throttle of each request, and the order of waiting requests |
//! | `throttle.rs` | token buckets, without a clock |

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod throttle;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::control::Resolved;
use block::{
    ByteRange, Device, Env, Health, Info, Lower, Mutex, Needs, Op, Report, Request, Result,
};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, ValueType,
};

use throttle::{Bucket, Throttle};

/// The kind `limit`: a device that limits requests and bytes per second.
pub const KIND: Kind = Kind {
    name: "limit",
    summary: "limits requests and bytes per second",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[TOGETHER[0], TOGETHER[1], READS[0], READS[1], WRITES[0], WRITES[1], BURST],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Device { bytes: Bytes::Passthrough, plan, make },
};

/// Options that limit reads and writes together: requests per second, and bytes per second.
const TOGETHER: [OptionSpec; 2] = [
    requests("iops", "reads, writes, zeroes and discards per second, together"),
    bytes("bytes", "bytes read and written per second, together"),
];

/// Options that limit reads: requests per second, and bytes per second.
const READS: [OptionSpec; 2] =
    [requests("read_iops", "reads per second"), bytes("read_bytes", "bytes read per second")];

/// Options that limit all operations that change bytes: requests per second, and bytes per second.
const WRITES: [OptionSpec; 2] = [
    requests("write_iops", "writes, zeroes and discards per second"),
    bytes("write_bytes", "bytes written per second"),
];

const BURST: OptionSpec = OptionSpec {
    name: "burst",
    value: ValueType::Duration(Duration::from_secs(3600)),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "time without requests whose unused share may be used at once; 100ms if not set",
};

const fn requests(name: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec {
        name,
        value: ValueType::Integer(1, 1 << 40),
        required: false,
        effect: Effect::Behaviour,
        scope: Scope::Graph,
        help,
    }
}

const fn bytes(name: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec {
        name,
        value: ValueType::Size(1, 1 << 50),
        required: false,
        effect: Effect::Behaviour,
        scope: Scope::Graph,
        help,
    }
}

/// Default of the option `burst`. With this burst, clients exceed a limit by at most a tenth within any second, and a
/// queue that a client fills once in a reactor turn loses no time.
const BURST_DEFAULT: Duration = Duration::from_millis(100);

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let set = |options: [OptionSpec; 2]| options.into_iter().find(|option| given.is_set(option));
    let fault = match (set(TOGETHER), set(READS).or(set(WRITES)).map(|option| option.name)) {
        (None, None) => {
            Fault::new("kind", "no limit is set; add iops = 1000 or bytes = \"100MiB\"")
        }
        (Some(_), Some(apart)) => Fault::new(
            apart,
            format!(
                "{apart} limits one direction, but iops and bytes limit both together; for both, \
                 put one limit device on another"
            ),
        ),
        _ => {
            let info = given.lowers[0].info.clone();
            return Ok(DevicePlan { info, needs: Needs::children(1) });
        }
    };
    Err(vec![fault])
}

fn make(making: MakerArgs<'_>) -> Result<Rc<dyn AnyDevice>> {
    let MakerArgs { config: given, env, lowers, .. } = making;
    let lower = lowers.into_iter().next().expect("the plan checked that the device has one lower");
    let burst = given.duration(&BURST).unwrap_or(BURST_DEFAULT);
    let gate = |[requests, bytes]: [OptionSpec; 2]| {
        let bucket = |rate| Bucket::new(env.now(), rate, burst);
        let requests = given.integer(&requests).map(bucket);
        Rc::new(Gate::new(Throttle::new(requests, given.size(&bytes).map(bucket))))
    };
    let together = TOGETHER.iter().any(|option| given.is_set(option));
    let reads = gate(if together { TOGETHER } else { READS });
    let writes = if together { reads.clone() } else { gate(WRITES) };
    Ok(Rc::new(Limit { info: lower.info().clone(), lower, env: env.clone(), reads, writes }))
}

struct Limit {
    info: Info,
    lower: Lower,
    env: Env,
    reads: Rc<Gate>,
    /// Gate of requests that change bytes; the same gate as `reads` if the limits are for reads and writes together.
    writes: Rc<Gate>,
}

/// A throttle, with the requests that wait for its tokens in order of arrival.
struct Gate {
    throttle: RefCell<Throttle>,
    /// Lock that the first waiting request holds, and for which the other requests wait.
    queue: Mutex,
    passed: Cell<u64>,
    held: Cell<u64>,
}

impl Gate {
    fn new(throttle: Throttle) -> Self {
        let (passed, held) = (Cell::new(0), Cell::new(0));
        Self { throttle: RefCell::new(throttle), queue: Mutex::new(), passed, held }
    }

    /// Waits until the throttle has the tokens for a request of `bytes` bytes, and takes them. Only the first waiting
    /// request has a timer.
    async fn pass(&self, env: &Env, bytes: u64) {
        let take = || self.throttle.borrow_mut().take(env.now(), bytes);
        if self.queue.wanted() > 0 || take().is_some() {
            self.held.set(self.held.get() + 1);
            let _first = self.queue.lock().await;
            while let Some(at) = take() {
                env.sleep_until(at).await;
            }
        }
        self.passed.set(self.passed.get() + 1);
    }
}

impl Limit {
    /// Returns the number of bytes that zeroes or a discard of `range` count. A device below that cannot zero writes
    /// zeros as data, and a mirror zeroes what it is to discard. `is_done` is whether a device below does anything.
    fn written(&self, range: ByteRange, is_done: bool) -> u64 {
        if self.info.native_zeroes || !is_done { 0 } else { range.len() }
    }
}

impl Device for Limit {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &request.op {
            Op::Read { range, .. } => self.reads.pass(&self.env, range.len()).await,
            Op::Write { range, .. } => self.writes.pass(&self.env, range.len()).await,
            Op::WriteZeroes { range, .. } => {
                self.writes.pass(&self.env, self.written(*range, true)).await
            }
            Op::Discard { range, .. } => {
                self.writes.pass(&self.env, self.written(*range, self.info.discard)).await
            }
            // Flushes and status requests move no data, so they do not wait.
            Op::Flush | Op::Status { .. } => {}
        }
        self.lower.forward(&mut request.op).await
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, ""))
    }

    fn report(&self) -> Report {
        let mut gates = vec![&self.reads];
        if !Rc::ptr_eq(&self.reads, &self.writes) {
            gates.push(&self.writes);
        }
        let sum = |count: fn(&Gate) -> u64| gates.iter().map(|gate| count(gate)).sum::<u64>();
        let waiting = sum(|gate| gate.queue.wanted() as u64);
        let counters = vec![
            ("passed", sum(|gate| gate.passed.get())),
            ("held", sum(|gate| gate.held.get())),
            ("waiting", waiting),
        ];
        let (health, summary) = match waiting {
            0 => (Health::Ok, String::new()),
            1 => (Health::Limited, "1 request waits for the limit".to_owned()),
            _ => (Health::Limited, format!("{waiting} requests wait for the limit")),
        };
        Report { health, summary, counters, ..Report::default() }
    }
}
