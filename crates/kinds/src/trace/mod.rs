//! Records every request in a file.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind and its hook |
//! | `entry.rs` | the entries of a trace, as bytes and as text |
//! | `reader.rs` | iterating over the entries of a trace |
//! | `queue.rs` | the queue of recorded requests that are not yet in the file |
//! | `writer.rs` | the task that writes recorded requests to the file |
//! | `replay.rs` | sending the requests of a trace again |

mod entry;
mod queue;
mod reader;
mod replay;
#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod writer;

use std::rc::Rc;

use block::env::{CacheMode, Open};
use block::{Env, Hooks, Mono, Op, Push, Report, Request, Result, bail};
use kind::{
    Capabilities, DeviceConfig, Effect, Kind, Lowers, Maker, MakerArgs, OptionSpec, Plan, Scope,
    ValueType,
};

pub use entry::{Entry, Header, Malformed, Record, SLOT_BYTES};
pub use reader::Reader;
pub use replay::{IN_FLIGHT_MAX, Replayed, replay};

use queue::Queue;
use writer::{BLOCK_BYTES, Writer};

/// The kind `trace`: a hook that records every request in a file.
pub const KIND: Kind = Kind {
    name: "trace",
    summary: "records every request in a file",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[FILE, SIZE, QUEUE],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Hooks { plan, make },
};

const FILE: OptionSpec = OptionSpec {
    name: "file",
    value: ValueType::Path,
    required: true,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "path of the trace file; a missing one is created sparse, an existing one continued",
};

const SIZE: OptionSpec = OptionSpec {
    name: "size",
    value: ValueType::Size(BLOCK_BYTES, 1 << 44),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "size of a new trace file: 64 bytes for each request; 1GiB if not set",
};

const QUEUE: OptionSpec = OptionSpec {
    name: "queue",
    value: ValueType::Integer(1, 1 << 20),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "requests that may wait in memory to be recorded; further ones are counted but not \
           recorded; 65536 if not set",
};

const SIZE_DEFAULT: u64 = 1 << 30;
const QUEUE_DEFAULT: u64 = 65536;

fn plan(_: &DeviceConfig) -> Plan<()> {
    Ok(())
}

fn make(making: MakerArgs<'_>) -> Result<Rc<dyn Hooks>> {
    let MakerArgs { config: given, env, .. } = making;
    let path = given.text(&FILE).unwrap_or_default();
    let size = given.size(&SIZE).unwrap_or(SIZE_DEFAULT);
    let storage = env.open(&Open {
        path: path.into(),
        device: false,
        read_only: false,
        create: Some(size - size % BLOCK_BYTES),
        odd_size: false,
        cache: CacheMode::Buffered,
    })?;
    if storage.facts().size < BLOCK_BYTES {
        let size = storage.facts().size;
        bail!(Invalid, "trace file {path} has {size} bytes; at least {BLOCK_BYTES} are needed");
    }
    let queue = Rc::new(Queue::new(given.integer(&QUEUE).unwrap_or(QUEUE_DEFAULT) as usize));
    let writer = Writer::new(env, path, storage, queue.clone())?;
    env.spawn("a trace's writer", writer.run());
    Ok(Rc::new(Trace { queue, env: env.clone(), started: env.now() }))
}

/// The hook that records each request when its reply passes. When the hook is dropped, it closes the queue, and the
/// writer then writes the rest of the queue to the file.
struct Trace {
    queue: Rc<Queue>,
    env: Env,
    started: Mono,
}

impl Trace {
    fn now_ns(&self) -> u64 {
        self.env.now().since(self.started).as_nanos() as u64
    }
}

impl Hooks for Trace {
    fn push(&self, _: &Request) -> Push {
        Push::Watch(self.now_ns())
    }

    fn pop(&self, saved: u64, request: &Request, result: &mut Result<()>) {
        let op = &request.op;
        self.queue.push(Record {
            begin_ns: saved,
            end_ns: self.now_ns(),
            id: request.id,
            verb: op.verb(),
            range: op.range(),
            fua: op.fua(),
            unmap: matches!(op, Op::WriteZeroes { unmap: true, .. }),
            errno: result.as_ref().err().map_or(0, |error| error.errno() as u32),
        });
    }

    fn report(&self) -> Report {
        let summary = match self.queue.failure() {
            Some(error) => format!("the trace has stopped: {error}"),
            None => String::new(),
        };
        let counters = vec![
            ("written", self.queue.written()),
            ("queued", self.queue.waiting()),
            ("lost", self.queue.lost()),
        ];
        Report { summary, counters, ..Report::default() }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.queue.close();
    }
}
