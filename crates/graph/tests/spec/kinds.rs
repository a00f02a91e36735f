//! Kinds for tests of plans, whose devices cannot be built, and a simulated world of files that can only be probed.

use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use block::env::{
    Address, Listener, LocalFuture, Mono, Open, Socket, Storage, StorageFacts, TimerId, World,
};
use block::{BufPool, Env, Error, ErrorKind, Hooks, Info, Needs, Port, Result, Table, TableError};
use engine::AnyDevice;
use graph::spec::{Faults, Planned, Spec};
use kind::{
    Bytes, Capabilities, DeviceConfig, DevicePlan, DiskPlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Registry, Scope, TablePlan, ValueType, at_once,
};

const MADE: &str = "a plan makes nothing";

pub const REGISTRY: Registry = Registry(&[
    FILE,
    disk(
        "path",
        &[option("path", ValueType::Path, true), option("read_only", ValueType::Switch, false)],
        |given, env| at_once(plan_file(given, env)),
    ),
    disk("memory", &[option("memory", ValueType::Size(512, 1 << 46), true)], |given, env| {
        at_once(plan_memory(given, env))
    }),
    disk("null", &[option("null", ValueType::Size(512, 1 << 62), true)], |given, env| {
        at_once(plan_memory(given, env))
    }),
    table("linear", Lowers::One, &[START, option("size", SIZE, false)], plan_linear),
    table(
        "partition",
        Lowers::One,
        &[START, option("size", ValueType::SizeOrRest, true)],
        plan_partition,
    ),
    table("concat", Lowers::Many(1, 1024), &[], plan_concat),
    table(
        "stripe",
        Lowers::Many(2, 64),
        &[option("chunk", ValueType::Size(512, 1 << 30), false)],
        plan_stripe,
    ),
    hooks("pass", &[]),
    hooks("trace", &[option("file", ValueType::Path, false)]),
    hooks(
        "error",
        &[
            option("share", ValueType::Share, true),
            option("verbs", ValueType::Choices(&["read", "write", "flush"]), false),
            option("count", ValueType::Integer(1, 1000), false),
        ],
    ),
    device(
        "delay",
        Lowers::One,
        &[option("time", ValueType::Duration(Duration::from_secs(60)), true)],
        plan_same,
    ),
    device(
        "crypt",
        Lowers::One,
        &[
            option("key", ValueType::Text, true),
            option("plain", ValueType::Switch, false),
            option("unit", SIZE, false),
        ],
        plan_same,
    ),
    Kind {
        capabilities: Capabilities {
            can_lack: |lowers| lowers - 1,
            names_members: true,
            ..Capabilities::NONE
        },
        ..device(
            "mirror",
            Lowers::Many(2, 8),
            &[option("trust", ValueType::Member, false)],
            plan_mirror,
        )
    },
    device(
        "remap",
        Lowers::One,
        &[option("size", SIZE, true), option("pack", ValueType::Switch, false)],
        plan_remap,
    ),
    Kind {
        capabilities: Capabilities { verifies: true, ..Capabilities::NONE },
        ..device("sums", Lowers::One, &[], plan_same)
    },
    device("cache", Lowers::One, &[option("bytes", ValueType::Size(1, 1 << 30), true)], plan_cache),
    Kind {
        capabilities: Capabilities { holds_volumes: true, ..Capabilities::NONE },
        ..device("pool", Lowers::One, &[], plan_pool)
    },
    Kind {
        capabilities: Capabilities { holds_volumes: true, ..Capabilities::NONE },
        ..device("versioned", Lowers::One, &[option("size", SIZE, true)], plan_same)
    },
]);

const FILE: Kind = disk(
    "file",
    &[
        option("file", ValueType::Path, true),
        option("size", SIZE, false),
        option("create", ValueType::Switch, false),
        option("cache", ValueType::Choice(&["direct", "buffered"]), false),
        option("read_only", ValueType::Switch, false),
    ],
    |given, env| at_once(plan_file(given, env)),
);

const SIZE: ValueType = ValueType::Size(512, 1 << 62);
const START: OptionSpec = option("start", ValueType::Size(0, u64::MAX), false);

const fn option(name: &'static str, value: ValueType, required: bool) -> OptionSpec {
    let (scope, help) = (Scope::Graph, "as the test needs");
    OptionSpec { name, value, required, effect: Effect::Behaviour, scope, help }
}

/// Returns an option called `name`, with which a test looks up the option's value.
pub const fn named(name: &'static str) -> OptionSpec {
    option(name, ValueType::Text, false)
}

const fn kind(
    name: &'static str,
    lowers: Lowers,
    options: &'static [OptionSpec],
    maker: Maker,
) -> Kind {
    let capabilities = Capabilities::NONE;
    Kind { name, summary: "", manual: "", lowers, options, capabilities, verbs: &[], maker }
}

const fn disk(
    name: &'static str,
    options: &'static [OptionSpec],
    plan: fn(&DeviceConfig, &Env) -> LocalFuture<Plan<DiskPlan>>,
) -> Kind {
    kind(name, Lowers::None, options, Maker::Disk { plan, make: make_disk })
}

const fn table(
    name: &'static str,
    lowers: Lowers,
    options: &'static [OptionSpec],
    plan: fn(&DeviceConfig) -> Plan<TablePlan>,
) -> Kind {
    kind(name, lowers, options, Maker::Table(plan))
}

const fn hooks(name: &'static str, options: &'static [OptionSpec]) -> Kind {
    kind(name, Lowers::One, options, Maker::Hooks { plan: |_| Ok(()), make: make_hooks })
}

const fn device(
    name: &'static str,
    lowers: Lowers,
    options: &'static [OptionSpec],
    plan: fn(&DeviceConfig) -> Plan<DevicePlan>,
) -> Kind {
    kind(name, lowers, options, Maker::Device { bytes: Bytes::Private, plan, make: make_device })
}

fn make_disk(_: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    unreachable!("{MADE}")
}

fn make_hooks(_: MakerArgs<'_>) -> Result<Rc<dyn Hooks>> {
    unreachable!("{MADE}")
}

fn make_device(_: MakerArgs<'_>) -> Result<Rc<dyn AnyDevice>> {
    unreachable!("{MADE}")
}

fn plan_file(given: &DeviceConfig, env: &Env) -> Plan<DiskPlan> {
    let key = if given.text(&named("path")).is_some() { "path" } else { "file" };
    let path = given.text(&named(key)).unwrap_or_default();
    if given.switch(&named("create")) && given.size(&named("size")).is_none() {
        return Err(vec![Fault::new("create", "create needs a size; add size = \"1GiB\"")]);
    }
    let open = Open {
        path: path.into(),
        device: key == "path",
        read_only: given.switch(&named("read_only")),
        create: given.size(&named("size")).filter(|_| given.switch(&named("create"))),
        odd_size: false,
        cache: block::env::CacheMode::Direct,
    };
    let facts = env.probe(&open).map_err(|error| vec![Fault::new(key, error.to_string())])?;
    let size = given.size(&named("size")).unwrap_or(facts.size);
    let info = Info { read_only: open.read_only, ..Info::disk(size, facts.block_size) };
    let (identity, words) = (path.into(), facts.words);
    Ok(DiskPlan { info, creates: facts.created, identity, standing_bytes: 0, words })
}

fn plan_memory(given: &DeviceConfig, _: &Env) -> Plan<DiskPlan> {
    let size = given.size(&named("memory")).or(given.size(&named("null"))).unwrap_or(0);
    let info = Info::disk(size - size % 512, 512);
    let (identity, words) = (String::new(), "in memory".into());
    Ok(DiskPlan { info, creates: true, identity, standing_bytes: 0, words })
}

fn whole(option: &'static str, table: std::result::Result<Table, TableError>) -> Plan<TablePlan> {
    let table = table.map_err(|error| vec![Fault::new(option, error.to_string())])?;
    Ok(TablePlan { table, unused_bytes: 0 })
}

fn ports(given: &DeviceConfig) -> Vec<(Port, u64)> {
    (0..).map(Port).zip(given.lowers.iter().map(|lower| lower.info.size)).collect()
}

fn plan_linear(given: &DeviceConfig) -> Plan<TablePlan> {
    let lower = given.lowers[0].info.size;
    let start = given.size(&named("start")).unwrap_or(0);
    let size = given.size(&named("size")).unwrap_or_else(|| lower.saturating_sub(start));
    whole("start", Table::linear(Port(0), lower, start, size))
}

fn plan_partition(given: &DeviceConfig) -> Plan<TablePlan> {
    let lower = &given.lowers[0];
    let start = given.size(&named("start")).unwrap_or(lower.next_free);
    let rest = lower.info.size.saturating_sub(start);
    let size = given.size(&named("size")).unwrap_or(rest);
    if size > rest {
        let message = format!("size {size}, but {} leaves {rest}; at most \"{rest}\"", lower.name);
        return Err(vec![Fault::new("size", message)]);
    }
    whole("size", Table::linear(Port(0), lower.info.size, start, size))
}

fn plan_concat(given: &DeviceConfig) -> Plan<TablePlan> {
    whole("on", Table::concat(&ports(given)))
}

fn plan_stripe(given: &DeviceConfig) -> Plan<TablePlan> {
    let chunk = given.size(&named("chunk")).unwrap_or(64 << 10);
    let striped = Table::stripe(&ports(given), chunk as u32)
        .map_err(|error| vec![Fault::new("chunk", error.to_string())])?;
    Ok(TablePlan { table: striped.table, unused_bytes: striped.unused_bytes })
}

fn plan_same(given: &DeviceConfig) -> Plan<DevicePlan> {
    Ok(DevicePlan { info: given.lowers[0].info.clone(), needs: Needs::children(1) })
}

fn plan_remap(given: &DeviceConfig) -> Plan<DevicePlan> {
    Ok(DevicePlan { needs: Needs::children(8), ..plan_same(given)? })
}

/// Plans a device that holds `bytes` of the buffer pool permanently.
fn plan_cache(given: &DeviceConfig) -> Plan<DevicePlan> {
    let standing_bytes = given.size(&named("bytes")).unwrap_or(0) as u32;
    let planned = plan_same(given)?;
    Ok(DevicePlan { needs: Needs { standing_bytes, ..planned.needs }, ..planned })
}

/// Plans a device that has volumes and no bytes of its own.
fn plan_pool(given: &DeviceConfig) -> Plan<DevicePlan> {
    let planned = plan_same(given)?;
    Ok(DevicePlan { info: Info { size: 0, ..planned.info }, ..planned })
}

fn plan_mirror(given: &DeviceConfig) -> Plan<DevicePlan> {
    let old = given.lowers.iter().find(|lower| !lower.created);
    if let Some(old) = old.filter(|_| given.text(&named("trust")).is_none()) {
        let message = format!("{} was there before; add trust = {:?}", old.name, old.name);
        return Err(vec![Fault::new("kind", message)]);
    }
    let infos = || given.lowers.iter().map(|lower| &lower.info);
    let size = infos().map(|info| info.size).min().unwrap_or(0);
    let info = Info { size, ..Info::over(infos()).expect("a mirror has members") };
    Ok(DevicePlan { info, needs: Needs::children(given.lowers.len() as u32) })
}

/// A simulated world in which the name of a file decides its size: `missing` does not exist, `small` has 1 MiB, `empty`
/// has 0 bytes, and all other files have 1 GiB. Files with `.4k` in their names have blocks of 4096 bytes.
struct Looks(BufPool);

pub fn env() -> Env {
    Env::new(Rc::new(Looks(BufPool::new(256 << 20, 0))))
}

impl World for Looks {
    fn probe(&self, open: &Open) -> Result<StorageFacts> {
        let path = open.path.to_string_lossy();
        if path.contains("missing") && open.create.is_none() {
            let message = format!("{path} is not there; add create = true and a size");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        Ok(StorageFacts {
            size: match &*path {
                "small" | "/dev/small" => 1 << 20,
                "empty" => 0,
                _ => 1 << 30,
            },
            block_size: if path.ends_with(".4k") { 4096 } else { 512 },
            direct: true,
            zeroes: true,
            discard: true,
            discard_zeroes: true,
            created: open.create.is_some(),
            identity: path.to_string(),
            words: "O_DIRECT".into(),
        })
    }

    fn pool(&self) -> &BufPool {
        &self.0
    }

    fn now(&self) -> Mono {
        Mono(Duration::ZERO)
    }

    fn wall(&self) -> Duration {
        Duration::ZERO
    }

    fn set_timer(&self, _: Mono, _: &Waker) -> TimerId {
        unreachable!("{MADE}")
    }

    fn clear_timer(&self, _: TimerId) {
        unreachable!("{MADE}")
    }

    fn random(&self, _: &'static str) -> u64 {
        unreachable!("{MADE}")
    }

    fn spawn(&self, _: &'static str, _: LocalFuture<()>) {
        unreachable!("{MADE}")
    }

    fn work(&self, _: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        unreachable!("{MADE}")
    }

    fn open(&self, _: &Open) -> Result<Rc<dyn Storage>> {
        unreachable!("{MADE}")
    }

    fn listen(&self, _: &Address) -> Result<Rc<dyn Listener>> {
        unreachable!("{MADE}")
    }

    fn connect(&self, _: &Address) -> LocalFuture<Result<Rc<dyn Socket>>> {
        unreachable!("{MADE}")
    }
}

/// Plans a spec over the simulated files. Their probes end at once, so one poll of the future is enough.
pub fn plan(spec: &Spec) -> std::result::Result<Planned, Faults> {
    let env = env();
    let planning = std::pin::pin!(spec.plan(REGISTRY, &env));
    match planning.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(planned) => planned,
        std::task::Poll::Pending => unreachable!("these disks answer at once"),
    }
}
