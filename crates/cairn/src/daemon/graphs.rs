//! The graphs of a daemon: this module starts, stops and replaces their workers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use api::{DaemonView, KeptGraph, Problem};
use supervisor::{
    Ended, Kept, Left, Phase, Record, SpareDescriptors, State, WorkerSpec, WorkerStatus,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::exit::{Exit, Failure, Result};
use crate::names;
use crate::registry::REGISTRY;
use crate::serve::{events, worker};
use crate::{log, out};

/// Longest wait until every graph is up or has failed once. After that the daemon reports itself as ready to the
/// service manager.
const READY: Duration = Duration::from_secs(60);

/// Longest wait, when a client brings a graph up, until a start of the graph in progress has ended.
const TRY: Duration = Duration::from_secs(10);

/// A graph of the state directory with its supervisor; or the fault of its record, if the record cannot be read.
type Graph = Result<Kept, Problem>;

/// All graphs of a daemon.
pub struct Graphs {
    state: State,
    /// The directory for the sockets and lock files of the workers.
    place: PathBuf,
    all: Mutex<BTreeMap<String, Graph>>,
    /// Descriptors that the service manager holds since the previous daemon, by the name of their graph.
    held: Mutex<BTreeMap<String, Vec<(String, OwnedFd)>>>,
    /// Lock that lets one request at a time bring graphs up or stop them.
    turn: tokio::sync::Mutex<()>,
    leaving: Notify,
    spare: SpareDescriptors,
    /// Whether requests for graphs are refused, because the daemon ends.
    ending: AtomicBool,
}

impl Graphs {
    /// Creates the graphs of a daemon, without any yet. `left` are the descriptors that this process has inherited.
    pub fn new(state: State, place: PathBuf, left: Vec<(String, OwnedFd)>) -> Self {
        let mut held = BTreeMap::<String, Vec<_>>::new();
        for (name, file) in left {
            match name.split_once('/') {
                Some((graph, name)) => {
                    held.entry(graph.to_owned()).or_default().push((name.to_owned(), file));
                }
                None => warn!("the inherited descriptor {name:?} has no graph, and is closed"),
            }
        }
        let (all, held) = (Mutex::default(), Mutex::new(held));
        let (turn, leaving) = (tokio::sync::Mutex::default(), Notify::new());
        let spare = SpareDescriptors::open();
        Self { state, place, all, held, turn, leaving, spare, ending: AtomicBool::new(false) }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Graph>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a worker for every graph of the state directory. The returned future ends when each graph is up or has
    /// failed once, or after [`READY`].
    pub async fn begin(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let starts = self.look().await;
        let held = std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        for (graph, files) in held {
            if self.all().contains_key(&graph) {
                // The graph's record cannot be read now, but a reload may read it later.
                self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(graph, files);
                continue;
            }
            // They belong to no known graph. Their clients get errors, and so notice it.
            let count = out::count(files.len() as u64, "descriptor");
            warn!("the daemon has no record of {graph}, and closes its {count}");
            for (name, _) in files {
                let _ = runtime::withdraw(&format!("{graph}/{name}"));
            }
        }
        async move {
            let _ = tokio::time::timeout(READY, starts.join_all()).await;
        }
    }

    /// Starts a worker for each new graph of the state directory, and for each known graph without a worker.
    pub async fn reload(self: Arc<Self>) {
        self.look().await.join_all().await;
    }

    async fn look(self: &Arc<Self>) -> JoinSet<()> {
        let _turn = self.turn.lock().await;
        let mut starts = JoinSet::new();
        let entries = match self.state.entries() {
            Ok(entries) => entries,
            Err(error) => {
                note!("error: {error}");
                return starts;
            }
        };
        for entry in entries {
            let known = self.all().get(&entry.name).cloned();
            let graph = match (known, entry.record) {
                (Some(Ok(kept)), _) => Ok(kept),
                (_, Ok(_)) => self.keep(&entry.name),
                (_, Err(error)) => Err(Failure::from(error)),
            };
            match graph {
                Ok(kept) => {
                    self.all().insert(entry.name.clone(), Ok(kept.clone()));
                    starts.spawn(async move {
                        // The log and the status report a failure.
                        let _ = kept.start(Vec::new()).await;
                    });
                }
                Err(failure) => {
                    log::note_of(&entry.name, &format!("error: {failure}"));
                    self.all().insert(entry.name, Err(failure.into()));
                }
            }
        }
        starts
    }

    /// Supervises the graph `name`, without starting a worker yet.
    fn keep(&self, name: &str) -> Result<Kept> {
        let (file, seat) = (self.state.file(name), self.place.join(format!("{name}.seat")));
        let command = move |words: &[String]| command(&file, &seat, words);
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        let (name, place, held) = (name.to_owned(), self.place.clone(), held.unwrap_or_default());
        let (note, run, command) = (log::note_of, events::run_noted, Box::new(command));
        let spare = self.spare.clone();
        let charge = WorkerSpec { name, place, held, command, note, run, spare };
        Ok(Kept::begin(charge)?)
    }

    /// Returns the number of graphs that the daemon keeps.
    pub fn count(&self) -> usize {
        self.all().len()
    }

    /// Returns the status of the daemon and of its graphs.
    pub fn describe(&self) -> DaemonView {
        let all = self.all();
        DaemonView {
            pid: std::process::id(),
            state: self.state.path().to_owned(),
            graphs: all.iter().map(|(name, graph)| describe(name, graph)).collect(),
        }
    }

    /// Returns the status of a graph.
    ///
    /// # Errors
    /// `NotFound` with the names of all graphs, if no graph has this name.
    pub fn one(&self, name: &str) -> Result<KeptGraph> {
        self.find(name).map(|graph| describe(name, &graph))
    }

    fn find(&self, name: &str) -> Result<Graph> {
        let all = self.all();
        all.get(name).cloned().ok_or_else(|| {
            let names = all.keys().map(String::as_str);
            let there = names::listed(names, "the daemon keeps no graph", "the daemon keeps");
            failure!(NotFound, "no graph {name:?}; {there}")
        })
    }

    /// Starts a graph with `record`, and supervises it from then on. If it cannot be started, a new graph is removed,
    /// and a known graph gets its previous record back. The request does not wait for an automatic start that is due
    /// after a failed one.
    ///
    /// # Errors
    /// The reason why the graph cannot be started; `InUse` if it runs.
    pub async fn bring_up(&self, record: Record, mut words: Vec<String>) -> Result<KeptGraph> {
        let _turn = self.turn.lock().await;
        let name = record.name.clone();
        let known = self.all().get(&name).cloned().and_then(Result::ok);
        if let Some(kept) = &known {
            kept.rest(TRY).await.map_err(|ended| not_at_rest(&name, &ended, &kept.status()))?;
        }
        let before = known.as_ref().and_then(|_| Record::read(&self.state.file(&name)).ok());
        if let Some(before) = &before {
            let spec = |record: &Record| worker::spec_of(&record.source, &name);
            let heard = spec(&record).start_options_as(&spec(before), REGISTRY).into_iter();
            words.extend(heard.flat_map(|name| ["--heard".to_owned(), name]));
        }
        let kept = match self.begin_anew(&record, known.clone()) {
            Ok(kept) => kept,
            Err(failure) => {
                if let Some(kept) = known {
                    kept.go_on().await;
                }
                return Err(failure);
            }
        };
        match kept.try_once(words).await {
            Ok(()) => self.one(&name),
            Err(ended) => {
                self.back(&name, &kept, before).await?;
                Err(failure(ended))
            }
        }
    }

    /// Writes the new record of a graph, and supervises the graph without starting a worker yet.
    fn begin_anew(&self, record: &Record, known: Option<Kept>) -> Result<Kept> {
        if self.ending.load(Ordering::Relaxed) {
            fail!(Other, "the daemon is stopping");
        }
        self.state.write(record)?;
        let name = &record.name;
        // A known graph keeps its descriptors.
        let kept = known.map_or_else(|| self.keep(name), Ok)?;
        self.all().insert(name.clone(), Ok(kept.clone()));
        Ok(kept)
    }

    /// Restores the state from before a failed start: the previous record, or no graph.
    async fn back(&self, name: &str, kept: &Kept, before: Option<Record>) -> Result<()> {
        match before {
            Some(before) => {
                let written = self.state.write(&before);
                kept.go_on().await;
                written?;
            }
            None => {
                let _ = kept.stop().await;
                self.all().remove(name);
                self.state.forget(name)?;
            }
        }
        Ok(())
    }

    /// Stops a graph in order, with all writes flushed and its labels closed, and removes it from the daemon.
    ///
    /// # Errors
    /// `Unflushed` if the graph could not be stopped in order. Then the daemon keeps the graph, and the client may
    /// stop it again.
    pub async fn stop(&self, name: &str) -> Result<KeptGraph> {
        let _turn = self.turn.lock().await;
        if let Ok(kept) = self.find(name)? {
            kept.stop().await.map_err(failure)?;
        }
        let stopped = self.one(name)?;
        self.state.forget(name)?;
        self.all().remove(name);
        Ok(stopped)
    }

    /// Replaces the worker of a graph by a new one.
    ///
    /// # Errors
    /// The reason why the old worker continues, or why the new worker does not start.
    pub async fn renew(&self, name: &str) -> Result<KeptGraph> {
        self.find(name)??.renew().await.map_err(failure)?;
        self.one(name)
    }

    /// Replaces the workers of all graphs, one after the other. A failure is logged.
    pub async fn renew_all(self: Arc<Self>) {
        for (name, kept) in self.kept() {
            if kept.status().phase == Phase::Up
                && let Err(ended) = kept.renew().await
            {
                log::note_of(&name, &format!("warning: the worker is not replaced: {}", ended.why));
            }
        }
    }

    fn kept(&self) -> Vec<(String, Kept)> {
        let all = self.all();
        all.iter().filter_map(|(name, graph)| Some((name.clone(), graph.clone().ok()?))).collect()
    }

    /// Stops all graphs in order, at the same time. Each time `impatient` is notified, all workers stop without
    /// waiting for a flush. The next daemon starts the graphs again.
    pub async fn stop_all(self: Arc<Self>, impatient: &Notify) -> Exit {
        // A start in progress fails, because its graph is stopped.
        self.ending.store(true, Ordering::Relaxed);
        let mut stops = JoinSet::new();
        for (name, kept) in self.kept() {
            stops.spawn(async move { (name, kept.stop().await) });
        }
        let mut exit = Exit::Ok;
        loop {
            tokio::select! {
                stopped = stops.join_next() => match stopped {
                    Some(Ok((_, Ok(())))) => {}
                    Some(Ok((name, Err(ended)))) => {
                        log::note_of(&name, &format!("error: {}", ended.why));
                        exit = Exit::Unflushed;
                    }
                    Some(Err(_)) => exit = Exit::Unflushed,
                    None => return exit,
                },
                () = impatient.notified() => {
                    for (_, kept) in self.kept() {
                        tokio::spawn(async move { kept.stop_at_once().await });
                    }
                }
            }
        }
    }

    /// Ends the supervision of all graphs for the next daemon, once no graph is being started or replaced. The
    /// workers continue. Returns the descriptors that the daemon holds for graphs; those of graphs without a worker
    /// are first, because no other process has them.
    ///
    /// # Errors
    /// `InUse` if a graph without a worker has descriptors, and the caller does not pass them to the next daemon
    /// (`passes_on`). Then the daemon supervises all graphs as before.
    pub async fn leave_all(&self, passes_on: bool) -> Result<Left> {
        let _turn = self.turn.lock().await;
        // Requests that wait for their turn are refused afterwards.
        self.ending.store(true, Ordering::Relaxed);
        let mut leaving = JoinSet::new();
        for (name, kept) in self.kept() {
            leaving.spawn(async move {
                let before = kept.status();
                (before, name, kept.leave(passes_on).await)
            });
        }
        let mut all = leaving.join_all().await;
        all.sort_by_key(|(before, ..)| before.pid.is_some());
        let (mut left, mut refused) = (Vec::new(), None);
        for (before, name, told) in all {
            match told {
                Ok(held) => left.push((before.phase, name, held)),
                Err(ended) => refused = Some(ended),
            }
        }
        if let Some(ended) = refused {
            left.into_iter().for_each(|(phase, name, held)| self.keep_again(phase, name, held));
            self.ending.store(false, Ordering::Relaxed);
            let pid = std::process::id();
            let next = format!(
                "Next: cairn status, and kill -HUP {pid} once the graph can start; or cairn stop that \
                 graph; or kill -USR2 {pid}, which restarts this daemon and keeps the descriptors"
            );
            return Err(Failure::of(ended.code, format!("{}. {next}", ended.why)));
        }
        let named = |graph: String| move |(name, file)| (format!("{graph}/{name}"), file);
        let all = left.into_iter();
        Ok(all.flat_map(|(_, graph, held)| held.into_iter().map(named(graph))).collect())
    }

    /// Supervises a graph again, after the hand-over to another daemon has failed for another graph. `phase` is the
    /// graph's phase before the hand-over.
    fn keep_again(&self, phase: Phase, name: String, held: Left) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), held);
        match self.keep(&name) {
            Ok(kept) => {
                self.all().insert(name, Ok(kept.clone()));
                if phase == Phase::Waiting {
                    tokio::spawn(async move { kept.start(Vec::new()).await });
                }
            }
            Err(failure) => log::note_of(&name, &format!("error: {failure}")),
        }
    }

    /// Makes this daemon end, because another one replaces it.
    pub fn goes(&self) {
        self.leaving.notify_one();
    }

    /// Waits until another daemon replaces this one.
    pub async fn left(&self) {
        self.leaving.notified().await;
    }
}

/// Returns the command that starts a worker, in the directory where relative paths of its graph begin. If the record
/// cannot be read, the worker reports the error.
fn command(file: &Path, seat: &Path, words: &[String]) -> Command {
    let directory =
        Record::read(file).map_or_else(|_| PathBuf::from("/"), |record| record.directory);
    let mut command = Command::new("/proc/self/exe");
    command.arg0(worker::NAME).arg(file).arg("--seat").arg(seat);
    command.args(log::arguments()).args(words);
    // Its control socket has all that its standard output would have.
    command.current_dir(directory).stdout(Stdio::null());
    command.env_remove("WATCHDOG_PID");
    command
}

fn describe(name: &str, graph: &Graph) -> KeptGraph {
    let kept = match graph {
        Ok(kept) => kept.status(),
        Err(problem) => {
            return KeptGraph {
                name: name.to_owned(),
                phase: api::Phase::Stopped,
                since_unix_s: 0,
                pid: None,
                starts: 0,
                held: 0,
                problem: Some(problem.clone()),
            };
        }
    };
    KeptGraph {
        name: name.to_owned(),
        phase: match kept.phase {
            Phase::Starting => api::Phase::Starting,
            Phase::Up => api::Phase::Up,
            Phase::Stopping => api::Phase::Stopping,
            Phase::Waiting => api::Phase::Waiting,
            Phase::GivenUp => api::Phase::GivenUp,
            Phase::Ended => api::Phase::Stopped,
        },
        since_unix_s: kept.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        pid: kept.pid,
        starts: kept.starts,
        held: kept.held,
        problem: kept.failure.map(|Ended { code, why }| Problem::new(code, why)),
    }
}

/// Returns the failure for a request to start a graph that runs, or that is being started.
fn not_at_rest(name: &str, ended: &Ended, status: &WorkerStatus) -> Failure {
    let last =
        status.failure.as_ref().map(|last| format!("; the previous worker ended: {}", last.why));
    let why = format!("{name} cannot be started now: {}{}", ended.why, last.unwrap_or_default());
    Failure::of(ended.code, why).next("cairn status")
}

fn failure(ended: Ended) -> Failure {
    Failure::of(ended.code, ended.why)
}
