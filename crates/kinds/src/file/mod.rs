//! A disk on a file or a block device. Each byte of the disk is at the same offset in the file.

use std::any::Any;
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use block::env::{CacheMode, DiskIo, LocalFuture, Open, Storage, StorageFacts, Ticket};
use block::seeded::{self, Bug};
use block::units::format_exact;
use block::{
    Buf, ByteRange, Deadline, Device, EXTENTS_MAX, Env, Error, ErrorKind, Event, Extent,
    FlushFault, Handover, Health, Info, Op, Report, Request, Result, State, TaskTracker, error,
    push_extent,
};
use kind::{
    AnyDevice, Capabilities, DeviceConfig, DiskPlan, Effect, Fault, Kind, Lowers, Maker, MakerArgs,
    OptionSpec, Plan, Scope, ValueType, at_once,
};

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod watch;

use crate::path;

use watch::{Seen, Watch};

/// The kind `file`: a disk on a file.
pub const KIND: Kind = Kind {
    name: "file",
    summary: "a disk on a file",
    manual: include_str!("manual.md"),
    lowers: Lowers::None,
    options: &[PLACE, CREATE, SIZE, CACHE, READ_ONLY, TIMEOUT],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Disk {
        plan: |given, env| at_once(plan(given, env)),
        make: |making| at_once(make(making)),
    },
};

const PLACE: OptionSpec = OptionSpec {
    name: "file",
    value: ValueType::Path,
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Local,
    help: "path of the file",
};

const CREATE: OptionSpec = OptionSpec {
    name: "create",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Start,
    scope: Scope::Local,
    help: "create a sparse file of `size` if the file does not exist",
};

const SIZE: OptionSpec = OptionSpec {
    name: "size",
    value: ValueType::Size(512, 1 << 62),
    required: false,
    effect: Effect::Making,
    scope: Scope::Local,
    help: "size of the file in bytes; needed with `create`",
};

pub(crate) const CACHE: OptionSpec = OptionSpec {
    name: "cache",
    value: ValueType::Choice(&["direct", "buffered"]),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "\"direct\" (O_DIRECT, the default) or \"buffered\" (through the kernel's page cache)",
};

pub(crate) const READ_ONLY: OptionSpec = OptionSpec {
    name: "read_only",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "refuse writes, and let other processes read the disk",
};

pub(crate) const TIMEOUT: OptionSpec = OptionSpec {
    name: "timeout",
    value: ValueType::Duration(Duration::from_secs(600)),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "time without an answer after which the disk is out of service until the answer arrives; \
           30s if not set",
};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

fn open_of(given: &DeviceConfig) -> Open {
    let device = given.text(&path::PLACE).is_some();
    let path = given.text(&path::PLACE).or_else(|| given.text(&PLACE)).unwrap_or_default();
    Open {
        path: PathBuf::from(path),
        device,
        read_only: given.switch(&READ_ONLY),
        create: given.size(&SIZE).filter(|_| given.switch(&CREATE)),
        odd_size: true,
        cache: match given.text(&CACHE) {
            Some("buffered") => CacheMode::Buffered,
            _ => CacheMode::Direct,
        },
    }
}

fn info_of(facts: &StorageFacts, read_only: bool) -> Info {
    let size = facts.size.next_multiple_of(facts.block_size.into());
    Info {
        padding: (size - facts.size) as u32,
        read_only,
        native_zeroes: facts.zeroes,
        discard: facts.discard,
        discard_zeroes: facts.discard_zeroes,
        ..Info::disk(size, facts.block_size)
    }
}

fn plan(given: &DeviceConfig, env: &Env) -> Plan<DiskPlan> {
    let open = open_of(given);
    let key = if open.device { "path" } else { "file" };
    if given.switch(&CREATE) && open.create.is_none() {
        let fault = "create needs a size; add, for example, size = \"1GiB\"";
        return Err(vec![Fault::new("create", fault)]);
    }
    let facts = env.probe(&open).map_err(|error| {
        let next = match (error.kind(), key) {
            (ErrorKind::NotFound, "file") => "; add create = true and a size, or name another file",
            _ => "",
        };
        vec![Fault::new(key, format!("{error}{next}"))]
    })?;
    if let Some(wanted) = given.size(&SIZE)
        && wanted != facts.size
    {
        let next = match wanted > facts.size {
            // A file that is made longer reads as zeros where its data may have been.
            true => {
                "; the file was truncated, or made by another spec. Next: remove size, if the size \
                 of the file is right; cairn check, if the file had a label"
            }
            false => ". Next: remove size from the spec",
        };
        let fault = format!(
            "size {}, but {} has {}{next}",
            format_exact(wanted),
            open.path.display(),
            format_exact(facts.size)
        );
        return Err(vec![Fault::new("size", fault)]);
    }
    let info = info_of(&facts, open.read_only);
    if info.size == 0 {
        let fault = format!(
            "{} has {}; a disk has at least one block of {}",
            open.path.display(),
            format_exact(facts.size),
            facts.block_size
        );
        return Err(vec![Fault::new(key, fault)]);
    }
    let StorageFacts { created, identity, words, .. } = facts;
    Ok(DiskPlan { info, creates: created, identity, standing_bytes: 0, words })
}

/// An open file or block device with its state, both of which a disk takes over from the disk that it replaces.
struct Opened {
    /// Parameters with which the file was opened first.
    open: Open,
    storage: Rc<dyn Storage>,
    /// Whether operations bypass the page cache at present, as the disk that started the last operation required. Two
    /// disks share the open file while the one replaces the other.
    direct: Cell<bool>,
    flush_fault: FlushFault,
    /// Number of operations past their deadline that the kernel has not completed.
    late: Rc<Cell<u32>>,
    watch: Watch,
}

impl Opened {
    fn new(env: &Env, open: Open) -> Result<Self> {
        let storage = env.open(&open)?;
        let direct = Cell::new(storage.facts().direct);
        let watch = Watch::new(env.now());
        let (flush_fault, late) = Default::default();
        Ok(Self { open, storage, direct, flush_fault, late, watch })
    }

    /// Whether `open` names this open file or device: by the same path, or with the same identity.
    fn is_at(&self, env: &Env, open: &Open) -> bool {
        let has_identity = |facts: StorageFacts| facts.identity == self.storage.facts().identity;
        self.open.path == open.path || env.probe(open).is_ok_and(has_identity)
    }

    /// Probes the open file again for the disk that takes it over, with the parameters `open`, and returns its present
    /// facts.
    fn again(&self, env: &Env, open: &Open) -> Result<StorageFacts> {
        if self.open.read_only != open.read_only {
            return Err(error!(
                Unsupported,
                "{}: read_only cannot change while the disk is in use, because the lock of the \
                 file depends on read_only",
                open.path.display()
            )
            .next("stop the graph, and start it with the new spec"));
        }
        let facts = env.probe(open)?;
        self.storage.has_grown(facts.size);
        Ok(facts)
    }
}

/// Opens the disk. If an earlier disk has the same file open, takes over that open file instead, with the present size
/// of the file and the new options.
fn make(making: MakerArgs<'_>) -> Result<Rc<dyn AnyDevice>> {
    let MakerArgs { config: given, env, before, .. } = making;
    let open = open_of(given);
    let there = Open { create: None, ..open.clone() };
    let read_only = open.read_only;
    let before = before.and_then(|before| before.downcast::<Opened>().ok());
    let (opened, facts) = match before.filter(|before| before.is_at(env, &there)) {
        Some(opened) => {
            let facts = opened.again(env, &there)?;
            (opened, facts)
        }
        None => {
            let opened = Opened::new(env, open)?;
            let facts = opened.storage.facts().clone();
            (Rc::new(opened), facts)
        }
    };
    let timeout = given.duration(&TIMEOUT).unwrap_or(TIMEOUT_DEFAULT);
    Ok(Rc::new(Disk {
        info: info_of(&facts, read_only),
        facts,
        name: given.name.clone(),
        opened,
        deadline: Deadline::new(env, timeout),
        underway: TaskTracker::default(),
        errors: Cell::new(0),
        env: env.clone(),
    }))
}

struct Disk {
    info: Info,
    facts: StorageFacts,
    name: String,
    opened: Rc<Opened>,
    deadline: Deadline,
    underway: TaskTracker,
    errors: Cell<u64>,
    env: Env,
}

impl Disk {
    /// Carries out one operation on the file. After an operation has missed its deadline, the disk refuses all requests
    /// until the kernel has completed the operation: a late write might overwrite newer bytes.
    async fn carry_out(&self, io: DiskIo) -> Result<Option<Buf>> {
        if self.opened.late.get() > 0 {
            return Err(self.overdue());
        }
        self.watch(Some(&io))?;
        let outcome = match self.deadline.guard(self.start(io)?).await {
            Ok(outcome) => outcome,
            Err(late) => {
                self.wait_for_late(late);
                return Err(self.overdue());
            }
        };
        match outcome.result {
            Ok(_) => Ok(outcome.buf),
            Err(error) => {
                self.errors.set(self.errors.get() + 1);
                // A read may fail because the file was truncated: then the disk must write nothing more to the file.
                self.watch(None)?;
                Err(error.at(&self.name))
            }
        }
    }

    /// Checks the file for changes by other programs. Checks only the size before the first write of each reactor turn,
    /// and the path as well once a second or if `io` is `None`.
    fn watch(&self, io: Option<&DiskIo>) -> Result<()> {
        let Opened { storage, watch, .. } = &*self.opened;
        let now = self.env.now();
        let writes = matches!(io, Some(DiskIo::Write { .. } | DiskIo::Zero { .. }));
        let is_short = || writes && watch.is_new_turn(now) && storage.size_now() < self.facts.size;
        if io.is_none() || watch.is_due(now) || is_short() {
            for Seen { what, words } in watch.look(&**storage, self.facts.size, now) {
                let (device, member) = (self.name.clone(), None);
                self.env.emit(Event { what, device, member, words });
            }
        }
        watch.fault().map_or(Ok(()), |fault| Err(fault.at(&self.name)))
    }

    fn start(&self, io: DiskIo) -> Result<Ticket> {
        let Opened { storage, direct, .. } = &*self.opened;
        if direct.get() != self.facts.direct {
            storage.set_cache(&self.facts).map_err(|error| error.at(&self.name))?;
            direct.set(self.facts.direct);
        }
        Ok(storage.start(io))
    }

    fn wait_for_late(&self, ticket: Ticket) {
        self.errors.set(self.errors.get() + 1);
        self.opened.late.set(self.opened.late.get() + 1);
        let (late, one) = (self.opened.late.clone(), self.underway.begin());
        self.env.spawn("late disk operation", async move {
            let _one = one;
            let _ = ticket.await;
            late.set(late.get() - 1);
        });
    }

    fn overdue(&self) -> Error {
        error!(
            TimedOut,
            "no answer from the disk within {} s; it is out of service until it answers",
            self.deadline.limit().as_secs_f64()
        )
        .at(&self.name)
    }

    async fn flush(&self) -> Result<()> {
        let flush = async {
            let mut flushed = self.carry_out(DiskIo::Flush).await;
            if flushed.is_err() && seeded::on(Bug::FlushRetried) {
                flushed = self.carry_out(DiskIo::Flush).await;
            }
            flushed.map(drop)
        };
        self.opened.flush_fault.flush(&self.name, flush).await
    }

    async fn and_flush(&self, fua: bool) -> Result<()> {
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Returns the extents of `range`. Reports all bytes as data while an operation is past its deadline, because that
    /// operation may still change any of them. Checks the file first: a truncated file would seem to have holes.
    fn status(&self, range: ByteRange) -> Result<Vec<Extent>> {
        self.watch(None)?;
        let is_late = self.opened.late.get() > 0;
        let known =
            if is_late { None } else { self.opened.storage.extents(range, EXTENTS_MAX).ok() };
        Ok(known.unwrap_or_else(|| {
            let mut all = Vec::new();
            push_extent(&mut all, range.len(), State::Data);
            all
        }))
    }
}

impl Device for Disk {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { range, into, .. } => {
                let io = DiskIo::Read { offset: range.start(), into: into.clone() };
                if let Some(buf) = self.carry_out(io).await? {
                    *into = buf;
                }
                Ok(())
            }
            Op::Write { range, data, fua, .. } => {
                // The kernel reports the error of a write in its page cache only once: to a write with FUA, or to a
                // concurrent flush. So through the page cache every such error must come from a flush, and concurrent
                // flushes share the error.
                let (offset, fua, direct) = (range.start(), *fua, self.facts.direct);
                let io = DiskIo::Write { offset, data: data.clone(), fua: fua && direct };
                self.carry_out(io).await?;
                self.and_flush(fua && !direct).await
            }
            Op::WriteZeroes { range, unmap, fua } => {
                let (range, fua) = (*range, *fua);
                self.carry_out(DiskIo::Zero { range, unmap: *unmap }).await?;
                self.and_flush(fua).await
            }
            Op::Discard { range, fua } => {
                let (range, fua) = (*range, *fua);
                self.carry_out(DiskIo::Discard { range }).await?;
                self.and_flush(fua).await
            }
            Op::Flush => self.flush().await,
            Op::Status { range, extents } => {
                *extents = self.status(*range)?;
                Ok(())
            }
        }
    }

    fn report(&self) -> Report {
        let Opened { flush_fault, late, watch, .. } = &*self.opened;
        let (health, summary) = match flush_fault.error() {
            Some(error) => (Health::Failed, error.message().to_owned()),
            None if late.get() > 0 => (Health::Failed, self.overdue().message().to_owned()),
            None => watch.report(),
        };
        let counters =
            vec![("errors", self.errors.get()), ("late", u64::from(self.opened.late.get()))];
        Report { health, summary, counters, ..Report::default() }
    }

    fn share(&self) -> Handover {
        Some(self.opened.clone())
    }

    fn close(&self) -> LocalFuture<Handover> {
        let (opened, underway) = (self.opened.clone(), self.underway.clone());
        Box::pin(async move {
            underway.ended().await;
            Some(opened as Rc<dyn Any>)
        })
    }
}
