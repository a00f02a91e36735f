//! A daemon that keeps many graphs: its requests, its answers, and the routes. Requests to a graph that is up go to
//! the socket of that graph.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::server::{answer, bind, page, refuse, routes};
use crate::{Health, Problem, Status};

/// A daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DaemonView {
    /// Process of the daemon.
    pub pid: u32,
    /// Its state directory.
    pub state: PathBuf,
    /// Its graphs, by name.
    pub graphs: Vec<KeptGraph>,
}

/// A graph that a daemon keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptGraph {
    /// Name of the graph.
    pub name: String,
    /// Its phase.
    pub phase: Phase,
    /// Begin of the phase, in seconds since 1970.
    pub since_unix_s: u64,
    /// Process that serves it.
    pub pid: Option<u32>,
    /// Number of processes started for it by this daemon.
    pub starts: u64,
    /// Number of listeners and mounts that are held for the next process.
    pub held: usize,
    /// Reason for the unexpected end of the last process.
    pub problem: Option<Problem>,
}

/// The phase of a graph that a daemon keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Its process opens the disks.
    Starting,
    /// Clients can connect.
    Up,
    /// It is being closed in order.
    Stopping,
    /// Its process has ended, and the next one is about to start.
    Waiting,
    /// Its processes have ended again and again, so none is started automatically.
    GivenUp,
    /// It was closed in order, or was never started.
    Stopped,
}

/// A graph to start, and to keep.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpRequest {
    /// Name of the graph.
    pub name: String,
    /// Directory of the client, to which paths are relative.
    pub directory: PathBuf,
    /// Source of its spec.
    pub source: GraphSource,
    /// Whether to refuse writes on every export.
    #[serde(default)]
    pub read_only: bool,
    /// Whether to start without labelled disks that are missing.
    #[serde(default)]
    pub degraded: bool,
    /// Addresses to listen on, instead of those of the spec.
    #[serde(default)]
    pub listen: Vec<String>,
    /// Whether `listen` may have TCP addresses beyond loopback, unencrypted.
    #[serde(default)]
    pub insecure: bool,
    /// Disks to label regardless of their content; this time only.
    #[serde(default)]
    pub wipe: Vec<String>,
    /// Members of mirrors whose bytes count where members may differ; this time only.
    #[serde(default)]
    pub trust: Vec<String>,
    /// Whether to open disks that another machine had open and did not close; this time only.
    #[serde(default)]
    pub take: bool,
    /// Files with keys that can be read only once, by device; this time only. The process of the graph hands the keys
    /// to the next process, until the graph is stopped.
    #[serde(default)]
    pub keys: BTreeMap<String, PathBuf>,
}

impl UpRequest {
    /// Returns a request for the source, with no further options.
    pub fn new(name: String, directory: PathBuf, source: GraphSource) -> Self {
        Self {
            name,
            directory,
            source,
            read_only: false,
            degraded: false,
            listen: Vec::new(),
            insecure: false,
            wipe: Vec::new(),
            trust: Vec::new(),
            take: false,
            keys: BTreeMap::new(),
        }
    }
}

/// The source of a graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphSource {
    /// A spec.
    Spec {
        /// File of the spec, as its name in messages.
        file: String,
        /// Text of the spec.
        text: String,
        /// Values of the variables in the spec, from the environment of the client.
        variables: BTreeMap<String, String>,
    },
    /// The labels of disks, and the options that labels do not keep.
    Labels {
        /// Text of the spec in the labels.
        text: String,
        /// The disks: for each, the word of its kind and its path.
        disks: BTreeMap<String, (String, String)>,
        /// Sources of the keys, by device.
        keys: BTreeMap<String, String>,
        /// Other options that labels do not keep, by device.
        #[serde(default)]
        options: BTreeMap<String, BTreeMap<String, String>>,
    },
}

/// The name of a graph of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptName {
    /// Name of the graph.
    pub name: String,
}

impl KeptGraph {
    /// Returns the status of the graph while it has no process that can answer.
    pub fn status(&self) -> Status {
        Status {
            graph: self.name.clone(),
            pid: self.pid.unwrap_or_default(),
            health: Health::Failed,
            kept: Some(self.clone()),
            ..Status::default()
        }
    }
}

/// An answer that takes time.
pub type Answering<T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send>>;

/// A daemon, as the server sees it.
pub trait Keeps: Send + Sync + 'static {
    /// Returns the daemon with all of its graphs.
    fn view(&self) -> DaemonView;
    /// Starts a graph and keeps it. Answers when clients can connect.
    fn up(self: Arc<Self>, request: UpRequest) -> Answering<KeptGraph>;
    /// Closes a graph in order, and drops it.
    fn stop(self: Arc<Self>, graph: KeptName) -> Answering<KeptGraph>;
    /// Replaces the process of a graph by a new one.
    fn renew(self: Arc<Self>, graph: KeptName) -> Answering<KeptGraph>;
    /// Returns the metrics of all graphs, for Prometheus.
    fn metrics(self: Arc<Self>) -> Answering<String>;
    /// Ends the daemon, and leaves all graphs to the daemon that asks.
    fn leave(self: Arc<Self>) -> Answering<DaemonView>;
}

/// The control socket of a daemon.
pub struct DaemonSocket {
    listener: tokio::net::UnixListener,
    file: SocketFile,
}

/// The file of the socket, which is removed when this value is dropped.
struct SocketFile(PathBuf);

impl DaemonSocket {
    /// Opens the socket at `path`, with mode 0600.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there, `AlreadyExists` if the file is no socket, or an error of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        Ok(Self { listener, file: SocketFile(path.to_owned()) })
    }

    /// Answers requests until `until` completes, and then completes the requests in progress.
    ///
    /// # Errors
    /// An error of the system.
    pub async fn answer(
        self,
        daemon: Arc<dyn Keeps>,
        until: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let Self { listener, file } = self;
        let until = async move {
            until.await;
            // No client may find the socket while the last answers are sent.
            drop(file);
        };
        axum::serve(listener, routes(table(), daemon)).with_graceful_shutdown(until).await
    }
}

/// A TCP port that serves the metrics, and nothing else.
pub struct MetricsPort(tokio::net::TcpListener);

impl MetricsPort {
    /// Opens the port. It has no authentication, so it must be a loopback address.
    ///
    /// # Errors
    /// `InvalidInput` beyond loopback, or an error of the system.
    pub fn open(at: SocketAddr) -> io::Result<Self> {
        if !at.ip().is_loopback() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(Self(tokio::net::TcpListener::from_std(listener)?))
    }

    /// Answers requests until the future is dropped.
    ///
    /// # Errors
    /// An error of the system.
    pub async fn answer(self, daemon: Arc<dyn Keeps>) -> io::Result<()> {
        let routes = Router::new().route("/metrics", get(figures)).with_state(daemon);
        axum::serve(self.0, routes).await
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If the file is gone already, there is nothing left to do.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the handler of each path. All paths are in `docs/api/openapi.json`.
pub(crate) fn table() -> Vec<(&'static str, MethodRouter<Arc<dyn Keeps>>)> {
    vec![
        ("/v1/daemon", get(async |State(daemon): Daemon| answer(Ok(daemon.view())))),
        ("/v1/daemon/up", asks(|daemon, request| daemon.up(request))),
        ("/v1/daemon/stop", asks(|daemon, request| daemon.stop(request))),
        ("/v1/daemon/renew", asks(|daemon, request| daemon.renew(request))),
        ("/v1/daemon/leave", post(async |State(daemon): Daemon| answer(daemon.leave().await))),
        ("/metrics", get(figures)),
    ]
}

/// Returns the handler of a request with a body.
fn asks<Q: DeserializeOwned + Send + 'static>(
    ask: fn(Arc<dyn Keeps>, Q) -> Answering<KeptGraph>,
) -> MethodRouter<Arc<dyn Keeps>> {
    post(async move |State(daemon): Daemon, Json(request): Json<Q>| {
        answer(ask(daemon, request).await)
    })
}

type Daemon = State<Arc<dyn Keeps>>;

async fn figures(State(daemon): Daemon) -> Response {
    match daemon.metrics().await {
        Ok(text) => page(text),
        Err(problem) => refuse(problem),
    }
}
