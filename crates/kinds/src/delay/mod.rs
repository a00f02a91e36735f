//! Delays each request independently of other requests, so that a fast disk behaves like a slow disk.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block::control::Resolved;
use block::{ByteRange, Device, Env, Info, Lower, Needs, OpKind, Report, Request, Result};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, ValueType,
};

/// The kind `delay`: a device that delays requests to the lower device.
pub const KIND: Kind = Kind {
    name: "delay",
    summary: "delays requests to the lower device",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[TIME, READ, WRITE, FLUSH, JITTER],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Device { bytes: Bytes::Passthrough, plan, make },
};

const TIME: OptionSpec = OptionSpec {
    name: "time",
    value: ValueType::Duration(TIME_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "time that a request waits if the option for its type is not set; 0s if not set",
};

const READ: OptionSpec = OptionSpec {
    name: "read",
    value: ValueType::Duration(TIME_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "time that reads and status requests wait; `time` if not set",
};

const WRITE: OptionSpec = OptionSpec {
    name: "write",
    value: ValueType::Duration(TIME_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "time that writes, zeroes and discards wait; `time` if not set",
};

const FLUSH: OptionSpec = OptionSpec {
    name: "flush",
    value: ValueType::Duration(TIME_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "time that flushes wait; `time` if not set",
};

const JITTER: OptionSpec = OptionSpec {
    name: "jitter",
    value: ValueType::Duration(TIME_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "longest extra time, drawn at random for each request; 0s if not set",
};

const TIME_MAX: Duration = Duration::from_secs(600);

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    if given.options.is_empty() {
        let fault = "no time is set, so no request would wait; add, for example, time = \"5ms\"";
        return Err(vec![Fault::new("kind", fault)]);
    }
    Ok(DevicePlan { info: given.lowers[0].info.clone(), needs: Needs::children(1) })
}

fn make(making: MakerArgs<'_>) -> Result<Rc<dyn AnyDevice>> {
    let MakerArgs { config: given, env, lowers, .. } = making;
    let lower = lowers.into_iter().next().expect("the plan checked that the device has one lower");
    Ok(Rc::new(Delay {
        info: lower.info().clone(),
        times: OpKind::ALL.map(|verb| time(given, verb)),
        jitter_ns: given.duration(&JITTER).unwrap_or_default().as_nanos() as u64,
        lower,
        env: env.clone(),
        delayed: Cell::new(0),
    }))
}

fn time(given: &DeviceConfig, verb: OpKind) -> Duration {
    let option = match verb {
        OpKind::Read | OpKind::Status => &READ,
        OpKind::Write | OpKind::WriteZeroes | OpKind::Discard => &WRITE,
        OpKind::Flush => &FLUSH,
    };
    given.duration(option).or(given.duration(&TIME)).unwrap_or_default()
}

struct Delay {
    info: Info,
    lower: Lower,
    env: Env,
    /// The delay of each operation, such as a read, by the number of the operation.
    times: [Duration; OpKind::ALL.len()],
    jitter_ns: u64,
    delayed: Cell<u64>,
}

impl Delay {
    fn wait_of(&self, verb: OpKind) -> Duration {
        let jitter = match self.jitter_ns {
            0 => 0,
            most => self.env.random("delay") % (most + 1),
        };
        self.times[verb as usize] + Duration::from_nanos(jitter)
    }
}

impl Device for Delay {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let wait = self.wait_of(request.op.verb());
        if !wait.is_zero() {
            self.delayed.set(self.delayed.get() + 1);
            self.env.sleep(wait).await;
        }
        self.lower.forward(&mut request.op).await
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, ""))
    }

    fn report(&self) -> Report {
        let counters = vec![("delayed", self.delayed.get())];
        Report { counters, ..Report::default() }
    }
}
