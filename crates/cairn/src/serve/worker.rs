//! The worker of `cairn daemon`, a process that serves one graph. It serves as `cairn serve` does, but gets its spec
//! and its signals from the daemon. `docs/formats/keeper.md` defines the protocol.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use block::Mono;
use clap::Parser;
use doctor::Probe;
use engine::Engine;
use graph::spec::{Local, Spec};
use runtime::{Config, Core};
use supervisor::{LASTING, NotifyMessage, RENEWED, Record, Source as Kept, WorkerLock};

use super::stop::Ended;
use super::{ServeOptions, Serving, process};
use crate::exit::{Exit, Failure, Result};
use crate::labels;
use crate::log::{self, LogArgs};
use crate::out::{self, Form};
use crate::registry::REGISTRY;
use crate::source::Source;

/// The program name (`argv[0]`) under which this program runs as a worker.
pub const NAME: &str = "cairn-worker";

/// Longest wait, when a worker stops, for begun requests, for flushes, and for users of attached devices.
const STOP: Duration = Duration::from_secs(30);

/// Longest wait, before a hand-over, until begun requests are answered and flushed. After a longer wait this process
/// continues to serve.
const HAND_OVER: Duration = Duration::from_secs(10);

/// Longest wait for a daemon that replaces another one during the hand-over of a worker.
const DAEMON_BACK: Duration = Duration::from_secs(30);

/// Interval of the tries to reach that daemon.
const DAEMON_LOOK: Duration = Duration::from_millis(50);

/// Arguments of a worker, from its daemon.
#[derive(Parser)]
#[command(name = NAME)]
struct WorkerArgs {
    /// The local record of the graph
    file: PathBuf,
    /// The lock file of its worker
    #[arg(long)]
    seat: PathBuf,
    /// Create the disks of the spec; at later starts an absent disk is missing
    #[arg(long)]
    first: bool,
    /// A disk or device for which an earlier start has used the options for a first start
    #[arg(long)]
    heard: Vec<String>,
    /// Label a disk even if it is not empty
    #[arg(long)]
    wipe: Vec<String>,
    /// The authoritative member of a mirror if members may differ
    #[arg(long)]
    trust: Vec<String>,
    /// Open disks that another machine had open and did not close
    #[arg(long)]
    take: bool,
    /// Go on without data that was durable and is missing
    #[arg(long)]
    accept_loss: bool,
    /// A key that can be read only once: GRAPH/DEVICE=FILE
    #[arg(long)]
    key: Vec<String>,
    #[command(flatten)]
    log: LogArgs,
}

/// Whether `name`, the program name of this process, is that of a worker.
pub fn is_meant(name: &OsStr) -> bool {
    name == NAME
}

/// Runs a worker process from its start to its end.
pub fn main() -> ExitCode {
    process::take_name();
    let args = WorkerArgs::parse();
    let graph = args.file.parent().and_then(Path::file_name).map(OsStr::to_string_lossy);
    log::begin(args.log, true);
    if let Some(graph) = graph {
        log::set_graph(&graph);
    }
    let ended = args.run();
    let failure = ended.map_or_else(|failure| failure, Failure::printed);
    let (code, lasts, why) = (failure.code, failure.lasts, failure.to_string());
    if !why.is_empty() {
        note!("error: {why}");
    }
    let lasting = if lasts { format!("{LASTING}=1\n") } else { String::new() };
    process::notify_manager(&format!("{lasting}{}", NotifyMessage::last(code, &why)));
    ExitCode::from(code)
}

impl WorkerArgs {
    fn run(self) -> Result {
        // The filter is set before any thread is started, because threads inherit it.
        if let Err(error) = runtime::confine() {
            warn!("the worker runs without a filter of system calls: {error}");
        }
        // Without a session of its own, the worker would get the Ctrl-C of the terminal. Only the daemon may get it,
        // and then ends its workers in order. Also, the worker must not ask at that terminal.
        rustix::process::setsid().map_err(|error| Failure::io(&error.into(), "a new session"))?;
        process::raise_limits()?;
        runtime::inherit_from(std::io::stdin())?;
        let core = Core::new(Config { note: out::note, by_hand: false, ..Config::default() })?;
        // From here on, signals of the daemon stay pending until they are handled.
        let signals = core.signals_of_keeper()?;
        // The lock comes before the first message to the daemon, which finds this process by it.
        let _seat = WorkerLock::take(&self.seat)?;
        process::watch(&core.env());
        for key in &self.key {
            let (full_name, path) = key.split_once('=').unwrap_or((key, ""));
            runtime::give_key(full_name, Path::new(path))?;
        }
        let file = OnFile::read(self.file)?;
        let record = file.record();
        let (take, accept_loss) = (self.take, self.accept_loss);
        let options = ServeOptions { take, accept_loss, ..options(&record.options) };
        let mut spec = file.choose(&core, &options, &self.wipe)?;
        let has_heard = |name: &str| !self.first || self.heard.iter().any(|heard| heard == name);
        spec.forget_start_options(REGISTRY, has_heard);
        trust(&mut spec, &self.trust)?;
        options.serve_on(
            core,
            Some((signals, file)),
            Source::Kept(Box::new(spec)),
            &self.wipe,
            Form::Text,
        )
    }
}

/// Returns the options for serving a graph, from the options in a daemon's record.
pub fn options(kept: &supervisor::Options) -> ServeOptions {
    let supervisor::Options { read_only, degraded, insecure, listen } = kept.clone();
    ServeOptions {
        read_only,
        degraded,
        listen,
        insecure,
        stop_timeout: STOP,
        ..ServeOptions::default()
    }
}

/// The daemon's record of a graph on disk, which the worker updates during a live change.
pub struct OnFile {
    path: PathBuf,
    record: RefCell<Record>,
}

impl OnFile {
    fn read(path: PathBuf) -> Result<Self> {
        let record = RefCell::new(Record::read(&path)?);
        Ok(Self { path, record })
    }

    fn record(&self) -> Record {
        self.record.borrow().clone()
    }

    /// Returns the spec to serve. If the previous process ended during a live change, the labels decide whether the
    /// change is complete, because they refuse a spec that they do not record.
    fn choose(&self, core: &Core, options: &ServeOptions, wipe: &[String]) -> Result<Spec> {
        let record = self.record();
        let name = &record.name;
        let spec = spec_of(&record.source, name);
        if spec.name() != name {
            fail!(Spec, "the record of the graph {name:?} holds a spec of {:?}", spec.name());
        }
        let Some(next) = record.next else { return Ok(spec) };
        let next_spec = spec_of(&next, name);
        let look = |spec: &Spec| core.block_on(look(core, spec, options, wipe));
        let (now, then) = (look(&spec), look(&next_spec));
        if then > now {
            note!("the previous worker completed a change before it ended");
            let record = self.record();
            self.write(Record { source: next, next: None, ..record })?;
            return Ok(next_spec);
        }
        if now != Prospect::OnDisks && then != Prospect::Refused {
            warn!(
                "{name}: the previous worker ended during a change, and no label shows whether \
                 the change was complete; the graph has the earlier spec. Next: apply the new spec again"
            );
        }
        Ok(spec)
    }

    /// Records durably that a live change to the spec `next` begins.
    ///
    /// # Errors
    /// Errors of the system. After an error the change must not begin.
    pub fn begin(&self, next: Kept) -> Result<()> {
        let record = self.record();
        self.write(Record { next: Some(next), ..record })
    }

    /// Records durably that the live change has ended, and whether it `happened`.
    ///
    /// # Errors
    /// Errors of the system. After an error the next process decides by the labels.
    pub fn settle(&self, happened: bool) -> Result<()> {
        let mut record = self.record();
        if let Some(next) = record.next.take().filter(|_| happened) {
            record.source = next;
        }
        self.write(record)
    }

    fn write(&self, record: Record) -> Result<()> {
        record.write(&self.path)?;
        *self.record.borrow_mut() = record;
        Ok(())
    }
}

/// Marks `members` of mirrors as trusted: at this start their bytes count if members may differ.
///
/// # Errors
/// `Usage` for a name that is not a member of a mirror.
pub fn trust(spec: &mut Spec, members: &[String]) -> Result<()> {
    members
        .iter()
        .try_for_each(|member| spec.trust(member, REGISTRY))
        .map_err(|why| failure!(Usage, "--trust {why}").next("use one of these names"))
}

/// Returns the spec that a daemon's record contains.
pub fn spec_of(source: &Kept, name: &str) -> Spec {
    match source {
        Kept::Spec { file, text, variables } => {
            Spec::parse(text, file, &|name| variables.get(name).cloned())
        }
        Kept::Labels { text, disks, keys, options } => {
            let names: Vec<_> = disks.keys().map(String::as_str).collect();
            let file = format!("label of {}", names.join(", "));
            let (disks, keys, options) = (disks.clone(), keys.clone(), options.clone());
            let local = Local { disks, keys, options };
            Spec::of_label(text, &file, name, REGISTRY, &local)
        }
    }
}

/// The result of a dry run of a start with a spec, from worst to best.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Prospect {
    /// The labels or the plan refuse the spec.
    Refused,
    /// The disks can be opened with the spec.
    Opens,
    /// The labels record this spec as that of the graph.
    OnDisks,
}

/// Returns the result of a dry run of a start with `spec`.
async fn look(core: &Core, spec: &Spec, options: &ServeOptions, wipe: &[String]) -> Prospect {
    let env = core.env();
    let doctor = labels::doctor(&env);
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let opening = options.opening(wipe, doctor.opening());
    let probe = doctor.probe(spec, &engine, opening, true, None).await;
    if probe.as_ref().is_some_and(|probe| !probe.refusals().is_empty()) {
        return Prospect::Refused;
    }
    let probed = probe.as_ref().map(Probe::facts).unwrap_or_default();
    match (spec.plan_over(REGISTRY, &env, &probed).await, probe) {
        (Err(_), _) => Prospect::Refused,
        (Ok(planned), Some(probe)) if probe.hold_spec_of(&planned) => Prospect::OnDisks,
        (Ok(_), _) => Prospect::Opens,
    }
}

impl Serving {
    /// Reports this process as ready to a daemon that has replaced another one, and passes all held state to that
    /// daemon.
    pub(super) fn notify_again(&self) {
        self.fdstore_put_again();
        process::notify_manager("READY=1");
    }

    /// Passes all state that a supervisor holds for the next process to the present supervisor again.
    pub(super) fn fdstore_put_again(&self) {
        if let Err(failure) = self.entrust_all() {
            warn!("{}", failure);
        }
    }

    fn entrust_all(&self) -> Result<()> {
        self.server.fdstore_put_again()?;
        self.attachments.fdstore_put_again()?;
        Ok(self.env.fdstore_put_memory()?)
    }

    /// Passes all state to the supervisor before the end of this process. Tries again until a deadline, because
    /// another daemon may be about to replace the present one.
    async fn entrust_to_the_end(&self) {
        let deadline = self.env.now().after(DAEMON_BACK);
        while let Err(failure) = self.entrust_all() {
            if self.env.now() >= deadline {
                warn!("{}", failure);
                break;
            }
            self.env.sleep(DAEMON_LOOK).await;
        }
        self.leave_connections();
    }

    /// Hands the graph over to another process. Returns `None` if that is not possible; then this process continues
    /// to serve.
    pub(super) async fn hand_over(&self) -> Option<Ended> {
        match self.left_in_order().await {
            Ok(()) => Some(Ended::HandedOver),
            Err(why) => {
                note!("the graph is not handed over to a new process: {why}");
                let why = serde_json::to_string(&why).expect("a string is JSON");
                process::notify_manager(&format!("{}={why}", supervisor::FAILURE));
                None
            }
        }
    }

    async fn left_in_order(&self) -> Result<(), String> {
        if let Some(path) = self.attachments.mortal() {
            return Err(format!("{path} does not outlive this process. Next: cairn detach {path}"));
        }
        let exports = [self.exports.all(), self.catalog.open_volumes()].concat();
        if let Some(export) = exports.iter().find(|export| !export.info().survives_process) {
            let name = export.name();
            return Err(format!("the bytes of {name} are only in the memory of this process"));
        }
        let deadline = self.env.now().after(HAND_OVER);
        let Some(turn) = self.within(deadline, self.live.turn()).await else {
            return Err("a change of the graph is in progress".to_owned());
        };
        if let Err(why) = self.quiet_and_flushed(deadline).await {
            self.server.go_on();
            return Err(why);
        }
        self.entrust_to_the_end().await;
        std::mem::forget(turn);
        Ok(())
    }

    /// Waits until begun requests are answered and flushed. After that no request begins in this process.
    async fn quiet_and_flushed(&self, deadline: Mono) -> Result<(), String> {
        if !self.server.pause(deadline.since(self.env.now())).await {
            return Err(self.overdue(HAND_OVER));
        }
        let held = self.engine.suspend();
        match self.within(deadline, self.flush()).await {
            Some(flushed) => flushed?,
            None => return Err(self.overdue(HAND_OVER)),
        }
        self.close(deadline).await;
        std::mem::forget(held);
        Ok(())
    }

    async fn within<F: Future>(&self, deadline: Mono, future: F) -> Option<F::Output> {
        self.env.within(deadline.since(self.env.now()), future).await
    }
}

/// Ends a process that has handed its graph over. Listeners and mounts are not closed in order, because that would
/// also end them in the next process.
pub fn leave() -> ! {
    process::notify_manager(&format!("{RENEWED}=1\n{}", NotifyMessage::last(Exit::Ok.code(), "")));
    std::process::exit(i32::from(Exit::Ok.code()));
}
