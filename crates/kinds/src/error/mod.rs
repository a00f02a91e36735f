//! Makes chosen requests fail, to test how the devices above handle errors.

mod schedule;
#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::rc::Rc;

use block::units::format_exact;
use block::{
    ByteRange, Env, Error, ErrorKind, Health, Hooks, Op, OpKind, Push, Report, Request, Result,
};
use kind::{
    Capabilities, DeviceConfig, Effect, Fault, Kind, Lowers, Maker, MakerArgs, OptionSpec, Plan,
    Scope, ValueType,
};

use schedule::Schedule;

/// The kind `error`: a hook that makes chosen requests fail.
pub const KIND: Kind = Kind {
    name: "error",
    summary: "makes chosen requests fail",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[OP, START, SIZE, AFTER, SCHEDULE, RATE, COUNT, WITH, WHEN],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Hooks { plan, make },
};

const OP: OptionSpec = OptionSpec {
    name: "op",
    value: ValueType::Choices(&["read", "write", "zero", "discard", "flush", "status"]),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "operations that fail; read, write, zero and discard if not set",
};

const START: OptionSpec = OptionSpec {
    name: "start",
    value: ValueType::Size(0, u64::MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "first byte of the range in which requests fail; 0 if not set",
};

const SIZE: OptionSpec = OptionSpec {
    name: "size",
    value: ValueType::Size(1, u64::MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "bytes of the range in which requests fail, from `start` on; up to the end if not set",
};

const AFTER: OptionSpec = OptionSpec {
    name: "after",
    value: ValueType::Integer(0, u64::MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "number of matching requests that pass before the first failure; 0 if not set",
};

const SCHEDULE: OptionSpec = OptionSpec {
    name: "schedule",
    value: ValueType::Text,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "numbers of the matching requests that fail, counted from 1: \"every 4\", \"3,5,9-12\"; \
           all if not set",
};

const RATE: OptionSpec = OptionSpec {
    name: "rate",
    value: ValueType::Share,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "share of the matching requests that fails, drawn at random; 1 if not set",
};

const COUNT: OptionSpec = OptionSpec {
    name: "count",
    value: ValueType::Integer(0, u64::MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "largest number of failures; no limit if not set",
};

const WITH: OptionSpec = OptionSpec {
    name: "with",
    value: ValueType::Choice(&["io", "nospace", "corrupt", "timeout", "readonly", "unsupported"]),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "error of a failing request; io if not set",
};

const WHEN: OptionSpec = OptionSpec {
    name: "when",
    value: ValueType::Choice(&["before", "after"]),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "whether a request fails before or after the lower device carries it out; before if not set",
};

/// Operations that fail if the spec names none.
const VERBS_DEFAULT: [OpKind; 4] =
    [OpKind::Read, OpKind::Write, OpKind::WriteZeroes, OpKind::Discard];

/// Bits of the random number that is drawn for a request: as many as the mantissa of an `f64`, the type of the option
/// `rate`.
const DRAW_BITS: u32 = 53;

fn plan(given: &DeviceConfig) -> Plan<()> {
    let mut faults = Vec::new();
    if let Some(text) = given.text(&SCHEDULE)
        && let Err(why) = Schedule::parse(text)
    {
        faults.push(Fault::new("schedule", format!("schedule {text:?}: {why}")));
    }
    let lower = &given.lowers[0];
    let start = given.size(&START).unwrap_or(0);
    let end = start.saturating_add(given.size(&SIZE).unwrap_or(1));
    if end > lower.info.size {
        let option = if given.size(&SIZE).is_some() { "size" } else { "start" };
        let fault = format!(
            "byte {end} is past the end of {:?}, which has {}",
            lower.name,
            format_exact(lower.info.size)
        );
        faults.push(Fault::new(option, fault));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn make(making: MakerArgs<'_>) -> Result<Rc<dyn Hooks>> {
    let MakerArgs { config: given, env, .. } = making;
    let error = |kind, words: &str| Error::new(kind, words).at(&given.name);
    Ok(Rc::new(Injector {
        verbs: verbs(given.list(&OP)),
        range: range(given),
        after: given.integer(&AFTER).unwrap_or(0),
        schedule: schedule(given)?,
        chance: (given.share(&RATE).unwrap_or(1.0) * (1_u64 << DRAW_BITS) as f64) as u64,
        left: Cell::new(given.integer(&COUNT).unwrap_or(u64::MAX)),
        failure: error(failure(given.text(&WITH)), "the request failed on purpose, as specified"),
        flush_failure: error(ErrorKind::Faulted, "a flush failed on purpose, so every flush fails"),
        late: given.text(&WHEN) == Some("after"),
        env: env.clone(),
        seen: Cell::new(0),
        injected: Cell::new(0),
        flush_failed: Cell::new(false),
    }))
}

/// Returns a bitmap of the operations that fail, by operation number: those that `words` name, or the default ones.
fn verbs(words: &[String]) -> u8 {
    let chosen = |verb: &OpKind| match words {
        [] => VERBS_DEFAULT.contains(verb),
        words => words.iter().any(|word| word == verb.name()),
    };
    OpKind::ALL.into_iter().filter(chosen).fold(0, |set, verb| set | 1 << verb as u8)
}

fn range(given: &DeviceConfig) -> ByteRange {
    let start = given.size(&START).unwrap_or(0);
    let end = given.size(&SIZE).map_or(u64::MAX, |size| start.saturating_add(size));
    ByteRange::between(start, end).expect("the plan checked the range")
}

fn schedule(given: &DeviceConfig) -> Result<Schedule> {
    given.text(&SCHEDULE).map_or(Ok(Schedule::All), |text| {
        Schedule::parse(text).map_err(|why| Error::new(ErrorKind::Invalid, why))
    })
}

fn failure(word: Option<&str>) -> ErrorKind {
    match word {
        Some("nospace") => ErrorKind::NoSpace,
        Some("corrupt") => ErrorKind::Corrupt,
        Some("timeout") => ErrorKind::TimedOut,
        Some("readonly") => ErrorKind::ReadOnly,
        Some("unsupported") => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    }
}

/// A hook that fails the requests that meet all conditions in the spec.
struct Injector {
    verbs: u8,
    range: ByteRange,
    after: u64,
    schedule: Schedule,
    /// The option `rate` as a number of [`DRAW_BITS`] bits. A selected request fails if a random number of as many bits
    /// is below this value.
    chance: u64,
    /// Number of failures that may still be injected.
    left: Cell<u64>,
    failure: Error,
    flush_failure: Error,
    late: bool,
    env: Env,
    /// Number of requests so far with a matching operation and range.
    seen: Cell<u64>,
    injected: Cell<u64>,
    /// Whether the hook has failed a flush. Every later flush must fail too, as the contract of a device demands.
    flush_failed: Cell<bool>,
}

impl Injector {
    fn matches(&self, op: &Op) -> bool {
        let touches = op.range().is_none_or(|range| range.overlaps(self.range));
        self.verbs & 1 << op.verb() as u8 != 0 && touches
    }

    /// Whether the request `op` must fail. Counts the request in `seen` if its operation and range match.
    fn strikes(&self, op: &Op) -> bool {
        if !self.matches(op) {
            return false;
        }
        let number = self.seen.get() + 1;
        self.seen.set(number);
        number > self.after && self.schedule.has(number) && self.left.get() > 0 && self.draw()
    }

    fn draw(&self) -> bool {
        let all = 1 << DRAW_BITS;
        self.chance == all || self.env.random("error") % all < self.chance
    }

    /// Counts an injected failure of the request `op`, and returns the error for the request.
    fn inject(&self, op: &Op) -> Error {
        self.injected.set(self.injected.get() + 1);
        if matches!(op, Op::Flush) {
            self.flush_failed.set(true);
        }
        self.failure.clone()
    }
}

impl Hooks for Injector {
    fn push(&self, request: &Request) -> Push {
        if matches!(request.op, Op::Flush) && self.flush_failed.get() {
            return Push::Done(Err(self.flush_failure.clone()));
        }
        if !self.strikes(&request.op) {
            return Push::Forward;
        }
        self.left.set(self.left.get() - 1);
        if self.late { Push::Watch(0) } else { Push::Done(Err(self.inject(&request.op))) }
    }

    fn pop(&self, _: u64, request: &Request, result: &mut Result<()>) {
        match result {
            Ok(()) => *result = Err(self.inject(&request.op)),
            // The request failed below, so this failure was not needed.
            Err(_) => self.left.set(self.left.get() + 1),
        }
    }

    fn report(&self) -> Report {
        let (health, summary) = match self.flush_failed.get() {
            true => (Health::Failed, self.flush_failure.to_string()),
            false => (Health::Ok, String::new()),
        };
        let counters = vec![("seen", self.seen.get()), ("injected", self.injected.get())];
        Report { health, summary, counters, ..Report::default() }
    }
}
