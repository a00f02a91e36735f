//! `cairn serve`: serves one graph in the foreground, until a signal ends it.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the arguments; the steps from the plan to the last flush |
//! | `listen.rs` | the listening addresses, and the URIs of exports |
//! | `banner.rs` | the text that is printed at the start |
//! | `stop.rs` | the stop: begun requests, flushes, deadlines |
//! | `command.rs` | `--run` |
//! | `connections.rs` | the hand-over of connections to the next process |
//! | `live.rs` | the requests of the control socket |
//! | `apply.rs` | live changes to another spec |
//! | `disks.rs` | members that a command inserts, replaces or removes |
//! | `events.rs` | events of devices, and the program that is run for them |
//! | `jobs.rs` | long-running jobs, and the removal of finished migrations |
//! | `growth.rs` | growth of the file of a disk |
//! | `volumes.rs` | the volumes of devices, for the control socket |
//! | `vdisks.rs` | the commands to devices with volumes, each a route of the control socket |
//! | `remote.rs` | `cairn attach URI` |
//! | `process.rs` | limits, the pid file, messages to the service manager |
//! | `past.rs` | the check of labels, and the undo of changes |
//! | `worker.rs` | the worker process of a daemon |

mod apply;
mod banner;
mod command;
mod connections;
mod disks;
pub mod events;
mod growth;
mod jobs;
mod listen;
mod live;
mod past;
pub mod process;
mod remote;
mod stop;
mod vdisks;
mod volumes;
pub mod worker;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use api::{GraphSource, GraphView, UpRequest};
use block::Env;
use block::env::{Address, LISTENER, Listener};
use block::units::parse_duration;
use clap::Args;
use doctor::{Opening, Probe, refuse_labelled};
use engine::Engine;
use export::nbd::{CurrentTls, Export, Limits, Server};
use export::{ExportList, GraphCatalog};
use graph::live::RunningGraph;
use graph::spec::{Known, Listen, Planned, PlannedNode, Spec};
use runtime::{Config, Core, Signals};

use crate::attach::{Attachments, Kept};
use crate::certificates;
use crate::exit::{Exit, Failure, Result};
use crate::labels;
use crate::log::{self, LogArgs};
use crate::out::{self, Form};
use crate::place;
use crate::registry::REGISTRY;
use crate::source::Source;
use crate::view;

use command::Command;
use process::PidFile;
use stop::Ended;
use worker::OnFile;

pub use remote::attach_uri;

/// Longest time that the kernel takes to close the listening sockets of a killed process.
const CLOSING: Duration = Duration::from_millis(300);

/// Arguments of `serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// A spec (NAME.toml), or a file or block device to serve as it is
    #[arg(value_name = "SPEC|FILE")]
    target: PathBuf,
    /// Label a disk even if it is not empty: its content is lost
    #[arg(long, value_name = "DISK")]
    wipe: Vec<String>,
    #[command(flatten)]
    options: ServeOptions,
}

/// Options for serving a graph, from any source.
#[derive(Args, Default)]
pub struct ServeOptions {
    /// Refuse writes on every export
    #[arg(long)]
    read_only: bool,
    /// Start without missing labelled disks, if the other disks have all data
    #[arg(long)]
    degraded: bool,
    /// Open disks that another machine had open and did not close: that machine must never use them again
    #[arg(long)]
    take: bool,
    /// Go on without data that was durable and is missing, such as a damaged record in the log of a pool
    #[arg(long)]
    accept_loss: bool,
    /// Show the exports and addresses without serving or changing anything
    #[arg(long)]
    dry_run: bool,
    /// Run a shell command with $uri, $unixsocket and $size of the first export, and end with it
    #[arg(long, value_name = "CMD")]
    run: Option<String>,
    /// Listen at this address, not at the default socket: unix:PATH, tcp:HOST:PORT or tls://HOST:PORT; may be given more than once
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Allow --listen on TCP beyond loopback, unencrypted and open to every host that can reach it
    #[arg(long)]
    insecure: bool,
    /// Write the process id to this file once clients can connect
    #[arg(long, value_name = "FILE")]
    pidfile: Option<PathBuf>,
    /// Open the control socket at this path; live verbs then need --at
    #[arg(long, value_name = "SOCKET")]
    at: Option<PathBuf>,
    /// Longest wait, at the end, for begun requests and for flushes
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    stop_timeout: Duration,
    #[command(flatten)]
    log: LogArgs,
}

/// A graph with its spec and plan, before its disks are opened.
struct Prepared {
    engine: Engine,
    spec: Spec,
    probe: Option<Probe>,
    planned: Planned,
    listens: Vec<Listen>,
    tls: Option<CurrentTls>,
}

/// A graph that is served to clients.
pub struct Serving {
    env: Env,
    engine: Engine,
    event_log: events::EventLog,
    live: RunningGraph,
    /// The exports of the graph.
    exports: Rc<ExportList>,
    /// The exports, and the volumes of devices, by name.
    catalog: GraphCatalog,
    server: Server,
    attachments: Attachments,
    /// The addresses at which the server listens.
    listens: RefCell<Vec<Listen>>,
    /// The present spec of the graph.
    spec: RefCell<Spec>,
    /// Earlier specs of the graph in this process and their disks, the newest first. An undo needs them.
    before: RefCell<Vec<Known>>,
    /// Whether all exports refuse writes, even if the spec permits them.
    read_only: bool,
    /// Jobs in the order of their numbers: the name of the device, and a key of the job in the device.
    jobs: RefCell<Vec<(String, String)>>,
    /// Names of moving devices for which a task waits until the migration has ended.
    followed: RefCell<BTreeSet<String>>,
    /// The daemon's record of the graph; `None` if no daemon keeps the graph.
    record: Option<OnFile>,
    /// Whether the server has begun to stop, so that no change begins any more.
    stopping: Cell<bool>,
}

/// Guard that removes the files of disks that the start of a graph has created, if the start fails. It removes none if
/// a disk was there before: the label of that disk may name the new disks.
struct FirstStart {
    env: Env,
    is_armed: Cell<bool>,
}

impl FirstStart {
    fn begin(env: &Env, planned: &Planned) -> Self {
        let is_kept = |node: &&PlannedNode| node.place().is_some();
        let is_first = planned.nodes.iter().filter(is_kept).all(|node| node.created);
        Self { env: env.clone(), is_armed: Cell::new(is_first) }
    }

    /// Keeps the files from now on.
    fn succeeded(&self) {
        self.is_armed.set(false);
    }
}

impl Drop for FirstStart {
    fn drop(&mut self) {
        if self.is_armed.get() {
            self.env.remove_created();
        }
    }
}

impl Serving {
    /// Opens all disks and devices of the plan.
    async fn open(
        env: &Env,
        engine: &Engine,
        spec: Spec,
        planned: &Planned,
        probe: Option<Probe>,
    ) -> Result<Self> {
        let live = RunningGraph::open(env, engine, planned.clone(), probe)
            .await
            .map_err(apply::failure_of)?;
        let exports = Rc::<ExportList>::default();
        offer(env, engine, &live, &exports);
        let catalog = GraphCatalog::new(env, engine, &exports, live.volumes(), &planned.name);
        let attachments = Attachments::new(env, &catalog);
        let mut limits = Limits::default();
        if let Some(most) = planned.max_connections {
            limits.connections = most as usize;
        }
        let server = Server::new(env, Rc::new(catalog.clone()), limits, out::note);
        Ok(Self {
            env: env.clone(),
            engine: engine.clone(),
            event_log: events::EventLog::default(),
            live,
            exports,
            catalog,
            server,
            attachments,
            listens: RefCell::default(),
            spec: RefCell::new(spec),
            before: RefCell::default(),
            read_only: false,
            jobs: RefCell::default(),
            followed: RefCell::default(),
            record: None,
            stopping: Cell::default(),
        })
    }

    /// Opens the listeners at `listens`, and serves the clients that connect to them from then on.
    async fn listen(&self, listens: &[Listen], tls: Option<CurrentTls>) -> Result<()> {
        let mut listeners = Vec::new();
        for at in listens {
            listeners.push(self.listener(&at.address).await?);
        }
        let mut bound = self.listens.borrow_mut();
        let mut held = Ok(());
        if self.env.inherited().iter().any(|name| name == LISTENER) {
            // The listener of the previous process is not used here, so no client waits at it.
            held = self.env.fdstore_remove(LISTENER);
        }
        for (at, listener) in listens.iter().zip(listeners) {
            held = held.and_then(|()| listener.fdstore_put());
            bound.push(Listen { address: listener.address(), tls: at.tls });
            match &tls {
                Some(tls) if at.tls => self.server.serve_tls(listener, tls),
                _ => self.server.serve(listener),
            }
        }
        if let Err(error) = held {
            // The listeners work all the same, but end with this process.
            warn!("{error}");
        }
        Ok(())
    }

    /// Opens a listener at `at`. If the address is in use, tries again for [`CLOSING`], because the kernel may close
    /// the sockets of a killed process a moment after the process has ended.
    async fn listener(&self, at: &Address) -> block::Result<Rc<dyn Listener>> {
        let begun = self.env.now();
        loop {
            match self.env.listen(at) {
                Err(error)
                    if error.kind() == block::ErrorKind::InUse
                        && self.env.now().since(begun) < CLOSING =>
                {
                    self.env.sleep(CLOSING / 10).await;
                }
                listening => return listening,
            }
        }
    }

    /// Whether this process takes over listeners or attached devices of an earlier process. In such a process a
    /// failed new attach does not end the server.
    fn goes_on(&self) -> bool {
        self.env.inherited().iter().any(|name| name == LISTENER || Kept::is_meant(name))
    }

    /// Attaches the exports that the spec marks with `attach`. A failure ends a new server. If the process takes over
    /// state (`goes_on`), a failure is only a warning, because the device may have been missing in the earlier
    /// process too.
    async fn attach(&self, planned: &Planned, goes_on: bool) -> Result<()> {
        for export in planned.exports.iter().filter(|export| export.attach) {
            if self.attachments.of(&export.name).is_some() {
                continue;
            }
            match self.attachments.attach(&export.name, None, None, false).await {
                Ok(attached) => attached.notes.iter().for_each(|note| note!("note: {note}")),
                Err(failure) if goes_on => out::note(&no_device(&export.name, &failure)),
                Err(failure) => {
                    // Attached devices are taken away first. Only this failure is reported.
                    let _ = self.attachments.end(Duration::ZERO).await;
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Returns the plan of the graph, with the addresses at which the server listens.
    fn planned(&self) -> Planned {
        let mut planned = self.live.now().planned.clone();
        planned.listens.clone_from(&self.listens.borrow());
        planned
    }

    /// Returns the view of the graph for users, with URIs and attached devices.
    fn view(&self) -> GraphView {
        let planned = &self.planned();
        let pid = Some(std::process::id());
        let named = |name: &str| {
            planned.exports.iter().any(|export| export.name == name && export.clients.is_some())
        };
        let mut view = view::graph(planned, pid, |export| {
            listen::uris(&planned.listens, export, named(export))
        });
        self.attachments.show(&mut view);
        view
    }
}

/// Returns the warning for an export that could not be attached.
fn no_device(export: &str, failure: &Failure) -> String {
    format!("warning: the export {export} is not attached: {}", failure)
}

/// Puts the present exports of the graph into the server's catalogue. An export with an unchanged name stays the same
/// object, so its connections stay open.
fn offer(env: &Env, engine: &Engine, live: &RunningGraph, list: &ExportList) {
    let now = live.now();
    let offered = now.graph.exports().iter().map(|export| {
        let clients = export.clients.as_deref();
        if let Some(known) = list.get(&export.name) {
            known.let_in(clients);
            return known;
        }
        let portal = live.portal(&export.name).expect("each export has a portal");
        Export::for_clients(env, engine, &portal, &now.planned.name, clients)
    });
    list.set(offered.collect::<Vec<_>>());
}

impl ServeArgs {
    /// Serves the target until a signal ends the process, or until the command of `--run` ends.
    pub fn run(self, form: Form) -> Result {
        let Self { target, wipe, options } = self;
        options.serve(Source::of(&target)?, &wipe, form)
    }
}

impl ServeOptions {
    /// Returns the options for a graph that a daemon serves.
    pub fn of(degraded: bool, take: bool, dry_run: bool) -> Self {
        let options = supervisor::Options { degraded, ..supervisor::Options::default() };
        Self { dry_run, take, ..worker::options(&options) }
    }

    /// Whether a daemon can serve a graph with these options.
    pub fn suits_daemon(&self) -> bool {
        !self.dry_run && self.run.is_none() && self.pidfile.is_none() && self.at.is_none()
    }

    /// Returns the request that makes a daemon serve the graph `name` with the same options.
    pub fn up(&self, name: &str, source: GraphSource) -> Result<UpRequest> {
        Ok(UpRequest {
            name: name.to_owned(),
            directory: place::here()?,
            source,
            read_only: self.read_only,
            degraded: self.degraded,
            listen: self.listen.clone(),
            insecure: self.insecure,
            wipe: Vec::new(),
            trust: Vec::new(),
            take: self.take,
            accept_loss: self.accept_loss,
            keys: BTreeMap::new(),
        })
    }

    /// Serves the graph of `source`, until a signal ends the process, or until the command of `--run` ends.
    pub fn serve(self, source: Source, wipe: &[String], form: Form) -> Result {
        log::begin(self.log, false);
        let core = Core::new(Config { note: out::note, ..Config::default() })?;
        process::watch(&core.env());
        self.serve_on(core, None, source, wipe, form)
    }

    /// Serves the graph of `source` on the core `core`. In a worker of a daemon, `kept` has the signals and the
    /// daemon's record.
    fn serve_on(
        self,
        core: Core,
        kept: Option<(Signals, OnFile)>,
        source: Source,
        wipe: &[String],
        form: Form,
    ) -> Result {
        let env = core.env();
        let Prepared { engine, spec, probe, planned, listens, tls } =
            self.prepare(&core, &source, wipe)?;
        if self.dry_run {
            out::print(&banner::dry(&planned, &listens))?;
            core.block_on(refuse_labelled(&planned, None, &env, &engine))?;
            let Some(probe) = probe else { return Ok(Exit::Ok) };
            out::print(&labels::previews(&probe))?;
            return labels::judged(&probe.foreseen(&planned));
        }
        log::set_graph(&planned.name);
        // A daemon logs the stages of its workers itself.
        let stages = kept.is_none();
        let pidfile = self.pidfile.as_deref().map(PidFile::claim).transpose()?;
        process::raise_limits()?;
        log::debug(core.engine_words());
        // Signals are blocked before any thread is started, because threads inherit the mask.
        let (signals, record) = match kept {
            Some((signals, record)) => (signals, Some(record)),
            None if env.has_supervisor() && self.run.is_none() => (core.signals_of_keeper()?, None),
            None => (core.signals()?, None),
        };
        let first_start = FirstStart::begin(&env, &planned);
        let serving = core.block_on(Serving::open(&env, &engine, spec, &planned, probe))?;
        let serving = Rc::new(Serving { read_only: self.read_only, record, ..serving });
        serving.log_events();
        serving.notify_program();
        serving.take_out_deleted();
        let goes_on = serving.goes_on();
        // All disks are open, so no request of the previous process is still running.
        core.block_on(serving.attachments.resume());
        core.block_on(serving.take_connections());
        core.block_on(serving.listen(&listens, tls))?;
        let planned = serving.planned();
        let control = open_control(self.at.as_deref(), &serving)?;
        core.block_on(serving.attach(&planned, goes_on))?;
        if let Some(pidfile) = &pidfile {
            pidfile.write()?;
        }
        serving.follow_moves();
        first_start.succeeded();
        process::notify_manager("READY=1");
        if stages {
            let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
            log::stage(&format!("up, Cairn {version}, process {pid}"));
        }
        let ended = self.until_end(&core, &serving, signals, form)?;
        serving.log_rest();
        if stages {
            ended.words().into_iter().for_each(log::stage);
        }
        drop((control, pidfile));
        ended.finish(core)
    }

    /// Returns the options for opening labelled disks. The rest is that of `others`.
    fn opening(&self, wipe: &[String], others: Opening) -> Opening {
        let Self { degraded, take, accept_loss, .. } = *self;
        Opening { degraded, take, accept_loss, wipe: wipe.to_vec(), ..others }
    }

    /// Makes the plan of the graph, and all checks that need no open disks.
    fn prepare(&self, core: &Core, source: &Source, wipe: &[String]) -> Result<Prepared> {
        if let Some(at) = &self.at {
            place::check_socket(at, "a shorter --at")?;
        }
        let env = core.env();
        let spec = source.spec(self.read_only, &env)?;
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let doctor = labels::doctor(&env);
        let opening = self.opening(wipe, doctor.opening());
        let look = doctor.probe(&spec, &engine, opening, self.dry_run, None);
        let probe = core.block_on(look);
        self.judge(probe.as_ref(), wipe)?;
        let spec = goes_on(spec, probe.as_ref());
        let probed = probe.as_ref().map(Probe::facts).unwrap_or_default();
        let planned = core.block_on(source.plan(&spec, self.read_only, &env, &probed))?;
        let listens = self.addresses(source, &planned)?;
        for warning in &planned.warnings {
            out::note(&warning.to_string());
        }
        listen::warn(&listens);
        let tls = certificates::server(&env, &planned, &listens)?;
        Ok(Prepared { engine, spec, probe, planned, listens, tls })
    }

    /// Serves clients until a signal comes or the command of `--run` ends, and then stops.
    fn until_end(
        &self,
        core: &Core,
        serving: &Serving,
        mut signals: Signals,
        form: Form,
    ) -> Result<Ended> {
        let planned = serving.planned();
        if let Some(run) = &self.run {
            let command = Command::start(run, &planned, &signals)?;
            let ended = serving.until_command(command, &mut signals, self.stop_timeout);
            return Ok(core.block_on(ended));
        }
        // A daemon reports the start of its workers to its own client.
        if serving.record.is_none() {
            let text = || banner::text(&planned, &serving.attachments.views());
            if let Err(failure) = form.print(&serving.view(), text) {
                // The graph is served even if the banner cannot be printed.
                warn!("{}", failure);
            }
        }
        Ok(core.block_on(serving.until_signal(&mut signals, self.stop_timeout)))
    }

    /// Checks whether the labelled disks may be opened, before the plan is made. Fails with the reasons against it.
    fn judge(&self, probe: Option<&Probe>, wipe: &[String]) -> Result<()> {
        let Some(probe) = probe else {
            let needs = self.degraded || self.take || self.accept_loss;
            let what = match (needs, wipe.first()) {
                (true, _) => "--degraded, --take and --accept-loss need labelled disks",
                (_, Some(_)) => "--wipe needs labelled disks",
                _ => return Ok(()),
            };
            let next = "and this spec has none. Next: remove that option";
            fail!(Usage, "{what}, {next}");
        };
        probe.notices().iter().for_each(|notice| out::note(notice));
        if probe.refusals().is_empty() {
            return Ok(());
        }
        if self.dry_run {
            out::print(&labels::previews(probe))?;
        }
        let failure = Failure::because(probe.refusals().to_vec());
        Err(Failure { lasts: probe.refuses_for_good(), ..failure })
    }

    fn addresses(&self, source: &Source, planned: &Planned) -> Result<Vec<Listen>> {
        if !self.listen.is_empty() {
            return self.listen.iter().map(|text| listen::parse(text, self.insecure)).collect();
        }
        if !planned.listens.is_empty() {
            return Ok(planned.listens.clone());
        }
        let name = match source {
            Source::Spec(_) | Source::Labels(_) | Source::Kept(_) => planned.name.clone(),
            Source::Disk(_, path) => {
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
        };
        let directory = place::directory();
        if !self.dry_run {
            place::make(&directory)?;
        }
        let address = Address::Unix(directory.join(format!("{name}.sock")));
        Ok(vec![Listen { address, tls: false }])
    }
}

/// Adds to the spec the migrations that have begun and not ended, according to the labels.
fn goes_on(spec: Spec, probe: Option<&Probe>) -> Spec {
    let moves = probe.map(|probe| probe.spec_before().moves(REGISTRY)).unwrap_or_default();
    moves.iter().fold(spec, |spec, moving| {
        let here = spec.has(&moving.from) && spec.has(&moving.to) && !spec.has(&moving.name);
        if !here {
            return spec;
        }
        note!(
            "note: the bytes of {} continue to move to {}: cairn job watch {}",
            moving.from,
            moving.to,
            moving.name
        );
        spec.with_move(&spec, moving, REGISTRY)
    })
}

/// Opens the control socket, at `at` or at the path where live verbs look for it.
fn open_control(at: Option<&Path>, serving: &Rc<Serving>) -> Result<api::Server> {
    let path = match at {
        Some(path) => path.to_owned(),
        None => {
            place::make(&place::control())?;
            let name = &serving.live.now().planned.name;
            let path = place::control_of(name, std::process::id());
            place::check_socket(&path, "a shorter XDG_RUNTIME_DIR, or --at SOCKET")?;
            path
        }
    };
    let (bridge, answers) = api::bridge();
    let env = serving.env.clone();
    let spawn = move |task| env.spawn("an answer of the control socket", task);
    serving.env.spawn("the control socket", answers.run(serving.clone(), spawn));
    api::Server::start(&path, live::handlers(), bridge).map_err(|error| {
        let shown = path.display();
        let in_use = |why: &str| failure!(InUse, "{shown}: {why}").next("another --at");
        match error.kind() {
            ErrorKind::AddrInUse => in_use("another graph listens at this control socket"),
            ErrorKind::AlreadyExists => in_use("this path exists and is not a socket"),
            _ => Failure::io(&error, format_args!("opening the control socket {shown}")),
        }
    })
}
