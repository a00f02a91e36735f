//! `cairn daemon`: serves many graphs on one machine, each in a worker process of its own, which may end at any time.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the arguments, the main loop, the end of the daemon |
//! | `before.rs` | the end of the previous daemon, which has the state directory open |
//! | `graphs.rs` | the graphs of the daemon: starts, stops and replaces their workers |
//! | `asked.rs` | the requests of the control socket |
//!
//! The daemon opens no disk and sends no request to one. It runs on tokio, as all code of the control plane does.

mod asked;
mod before;
mod graphs;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use api::{ControlSocket, MetricsPort};
use clap::Args;
use rustix::process::{getpid, kill_process};
use supervisor::Left;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot};

use crate::exit::{Exit, Failure, Result};
use crate::log::{self, LogArgs};
use crate::out::{self, Form};
use crate::place;
use crate::serve::process;

pub use asked::handlers;
use graphs::Graphs;

/// Longest wait, when the daemon ends, until replies on the control socket are sent.
const LINGER: Duration = Duration::from_secs(1);

/// The argument of a daemon that replaces another one.
const REPLACE: &str = "--replace";

/// The argument of a daemon that receives descriptors through its standard input.
const LEFT: &str = "--left-at-stdin";

/// Arguments of `daemon`.
#[derive(Args)]
pub struct DaemonArgs {
    /// Directory for the local record of each graph
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Replace the running daemon, and the worker process of each graph
    #[arg(long)]
    replace: bool,
    /// Answer GET /metrics at this address of this machine: HOST:PORT, on loopback
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    log: LogArgs,
    /// Receive the descriptors held for graphs through standard input
    #[arg(long, hide = true)]
    left_at_stdin: bool,
}

/// Time in which a signal that has reached this process becomes known to its main loop.
const SIGNALLED: Duration = Duration::from_millis(1);

/// The action of a daemon after its main loop.
enum After {
    /// Exit with this code.
    End(Exit),
    /// Execute the program again, perhaps a newer version of it, and pass the descriptors that are held for graphs.
    Anew(Left),
}

impl DaemonArgs {
    /// Runs the daemon until a signal ends it.
    pub fn run(self, _: Form) -> Result {
        log::begin(self.log, false);
        process::raise_limits()?;
        if self.left_at_stdin {
            runtime::inherit_from(std::io::stdin())?;
        }
        let left = runtime::take_all();
        self.check_metrics()?;
        place::check_socket(&place::daemon(), "a shorter XDG_RUNTIME_DIR")?;
        place::make(&place::keeper())?;
        let path = self.state.clone().unwrap_or_else(place::state);
        let path =
            std::path::absolute(&path).map_err(|error| Failure::io(&error, path.display()))?;
        place::text(&path)?;
        let state = before::open(&path, self.replace)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::io(&error, "starting the daemon"))?;
        let graphs = Arc::new(Graphs::new(state, place::keeper(), left));
        match runtime.block_on(self.keep(graphs))? {
            After::End(exit) => Ok(exit),
            After::Anew(left) => {
                drop(runtime);
                Err(anew(&left))
            }
        }
    }

    /// Runs the main loop of the daemon, from the first start of graphs to the end.
    async fn keep(&self, graphs: Arc<Graphs>) -> Result<After> {
        let kind = |kind| {
            signal(kind).map_err(|error| Failure::io(&error, "installing the signal handlers"))
        };
        let mut ends =
            Ends { term: kind(SignalKind::terminate())?, int: kind(SignalKind::interrupt())? };
        let (mut reload, mut renew) =
            (kind(SignalKind::hangup())?, kind(SignalKind::user_defined2())?);
        // A signal may have waited while this program replaced another version of itself.
        runtime::release_signals();
        let socket = open_socket()?;
        let (close, closed) = oneshot::channel();
        let answers = tokio::spawn(socket.answer(handlers(), graphs.clone(), closed));
        if let Some(port) = self.open_metrics()? {
            tokio::spawn(port.answer(asked::figures(), graphs.clone()));
        }
        watch();
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        note!("the daemon of Cairn {version} starts, process {pid}");
        let beginning = graphs.begin().await;
        let mut begun = tokio::spawn(beginning);
        let mut is_ready = false;
        let after = loop {
            tokio::select! {
                _ = &mut begun, if !is_ready => {
                    is_ready = true;
                    note!("the daemon is ready: {}", out::count(graphs.count() as u64, "graph"));
                    process::notify_manager("READY=1");
                    if self.replace {
                        tokio::spawn(graphs.clone().renew_all());
                    }
                }
                () = ends.next() => break After::End(end(&graphs, &mut ends).await),
                () = graphs.left() => break After::End(Exit::Ok),
                _ = reload.recv() => { tokio::spawn(graphs.clone().reload()); }
                _ = renew.recv() => break After::Anew(leave(&graphs, &mut ends).await?),
            }
        };
        if let After::End(_) = after {
            note!("the daemon ends");
        }
        // Clients that wait for an answer get it.
        drop(close);
        let _ = tokio::time::timeout(LINGER, answers).await;
        Ok(after)
    }

    /// Checks the address for metrics, before another daemon is asked to end.
    fn check_metrics(&self) -> Result<()> {
        match self.metrics {
            Some(at) if !at.ip().is_loopback() => Err(failure!(
                Usage,
                "--metrics {at}: every host on the network could read the metrics"
            )
            .next(format!("a loopback address, such as 127.0.0.1:{}, behind a proxy", at.port()))),
            _ => Ok(()),
        }
    }

    /// Opens the port for metrics, if there is one in the arguments. If that fails in a daemon that has replaced
    /// another one, the daemon continues without the port.
    fn open_metrics(&self) -> Result<Option<MetricsPort>> {
        let Some(at) = self.metrics else { return Ok(None) };
        match MetricsPort::open(at) {
            Ok(port) => Ok(Some(port)),
            Err(error) if self.replace => {
                warn!("--metrics {at}: {error}; no metrics are served");
                Ok(None)
            }
            Err(error) => Err(Failure::io(&error, format_args!("--metrics {at}"))),
        }
    }
}

/// The signals that end a daemon.
struct Ends {
    term: Signal,
    int: Signal,
}

impl Ends {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Stops every graph in order, flushed and closed. After a second signal, graphs stop without waiting for the flush.
async fn end(graphs: &Arc<Graphs>, ends: &mut Ends) -> Exit {
    process::notify_manager("STOPPING=1");
    let impatient = Notify::new();
    let again = async {
        loop {
            ends.next().await;
            impatient.notify_one();
        }
    };
    tokio::select! {
        exit = graphs.clone().stop_all(&impatient) => exit,
        () = again => unreachable!("signals do not end"),
    }
}

/// Leaves all graphs for the next version of this program. A signal to end that comes meanwhile is for that program.
async fn leave(graphs: &Graphs, ends: &mut Ends) -> Result<Left> {
    runtime::hold_signals();
    let left = graphs.leave_all(true).await;
    // A signal may have reached this process before they were held.
    if tokio::time::timeout(SIGNALLED, ends.next()).await.is_ok() {
        // This process exists, so the signal can be sent.
        let _ = kill_process(getpid(), rustix::process::Signal::TERM);
    }
    if left.is_err() {
        runtime::release_signals();
    }
    left
}

fn open_socket() -> Result<ControlSocket> {
    let path = place::daemon();
    ControlSocket::open(&path).map_err(|error| {
        let shown = path.display();
        match error.kind() {
            ErrorKind::AddrInUse => {
                let why = format!("another daemon already listens at {shown}");
                Failure::new(Exit::InUse, why)
                    .next("--replace, to replace that daemon; or another XDG_RUNTIME_DIR")
            }
            ErrorKind::AlreadyExists => {
                failure!(InUse, "{shown} exists and is not a socket").next("remove that file")
            }
            _ => Failure::io(&error, format_args!("opening the control socket {shown}")),
        }
    })
}

/// Sends watchdog messages to the service manager while this process makes progress. They do not depend on workers:
/// this process kills and replaces workers that hang.
fn watch() {
    let Some(pause) = process::watchdog() else { return };
    tokio::spawn(async move {
        let mut beats = tokio::time::interval(pause);
        loop {
            beats.tick().await;
            process::beat();
        }
    });
}

/// Executes the program at its path again, with the descriptors `left`. The workers continue meanwhile, and hold
/// their own descriptors.
fn anew(left: &Left) -> Failure {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let mut words: Vec<_> = words.collect();
    for more in [REPLACE, LEFT] {
        if !words.iter().any(|word| word == more) {
            words.push(more.into());
        }
    }
    // Descriptors beyond the limit are not passed on here. Running workers supply theirs again.
    let told =
        left.iter().take(runtime::PASSED_FDS_MAX).map(|(name, file)| (name.as_str(), file.as_fd()));
    let stdin = runtime::pass_fds(told).or_else(|error| {
        warn!("{error}");
        runtime::pass_fds([])
    });
    let stdin = match stdin {
        Ok(socket) => socket,
        Err(error) => return error.into(),
    };
    let program = match std::env::current_exe() {
        Ok(path) => {
            // Linux appends this to the path of a file that was replaced.
            let text = path.to_string_lossy().into_owned();
            PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(&text))
        }
        Err(_) => PathBuf::from(&name),
    };
    note!("the daemon restarts as {}", program.display());
    let error = Command::new(&program).arg0(name).args(words).stdin(stdin).exec();
    Failure::io(&error, format_args!("restarting the daemon as {}", program.display()))
}
