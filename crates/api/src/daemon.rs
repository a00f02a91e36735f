//! A daemon that keeps many graphs: what it is asked, what it answers, and the routes. What concerns one
//! graph that is up is asked at the socket of that graph.

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
use serde::{Deserialize, Serialize};

use crate::server::{answer, bind, page, refuse};
use crate::{Health, Problem, Status};

/// A daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DaemonView {
    /// Its process.
    pub pid: u32,
    /// Where it keeps what is local.
    pub state: PathBuf,
    /// What it keeps, by name.
    pub graphs: Vec<KeptGraph>,
}

/// A graph that a daemon keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptGraph {
    /// Its name.
    pub name: String,
    /// What it is at.
    pub phase: Phase,
    /// Since then, in seconds since 1970.
    pub since_unix_s: u64,
    /// The process that serves it.
    pub pid: Option<u32>,
    /// How often a process was started for it, since the daemon was.
    pub starts: u64,
    /// Listeners and mounts that are held for the next process.
    pub held: usize,
    /// Why the last process has ended, if it should not have.
    pub problem: Option<Problem>,
}

/// What a graph that is kept is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// A process opens its disks.
    Starting,
    /// Clients can connect.
    Up,
    /// It is closed in order.
    Stopping,
    /// Its process has ended, and the next one is about to be started.
    Waiting,
    /// Processes have ended again and again: none is started by itself.
    GivenUp,
    /// It was closed in order, or was never started.
    Stopped,
}

/// A graph to bring up, and to keep.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpRequest {
    /// Its name.
    pub name: String,
    /// The directory of whoever asks: relative paths begin there.
    pub directory: PathBuf,
    /// What it is made from.
    pub source: GraphSource,
    /// Refuse writes on every export.
    #[serde(default)]
    pub read_only: bool,
    /// Come up without labelled disks that are missing.
    #[serde(default)]
    pub degraded: bool,
    /// Listen here, not where the spec says.
    #[serde(default)]
    pub listen: Vec<String>,
    /// Allow `listen` on TCP beyond loopback, unencrypted.
    #[serde(default)]
    pub insecure: bool,
    /// Disks that are labelled whatever is on them; this time only.
    #[serde(default)]
    pub wipe: Vec<String>,
    /// Members of mirrors whose bytes count where those of the members may differ; this time only.
    #[serde(default)]
    pub trust: Vec<String>,
    /// Open disks that another machine had open and did not close; this time only.
    #[serde(default)]
    pub take: bool,
    /// Files where keys lie that nobody can read a second time, by device; this time only. The graph's
    /// process keeps them for the one after it, until the graph is stopped.
    #[serde(default)]
    pub keys: BTreeMap<String, PathBuf>,
}

impl UpRequest {
    /// As the source says, and nothing else allowed.
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

/// What a graph is made from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphSource {
    /// A spec.
    Spec {
        /// What to call it in messages: its file.
        file: String,
        /// As it stands in the file.
        text: String,
        /// The variables in it that whoever asks has in its environment.
        variables: BTreeMap<String, String>,
    },
    /// What labels keep, and what they do not.
    Labels {
        /// The spec that they keep.
        text: String,
        /// Where each disk is: the word of its kind, and its place.
        disks: BTreeMap<String, (String, String)>,
        /// Where keys of devices come from.
        keys: BTreeMap<String, String>,
        /// Other options that labels do not keep, by device.
        #[serde(default)]
        options: BTreeMap<String, BTreeMap<String, String>>,
    },
}

/// One graph of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptName {
    /// Its name.
    pub name: String,
}

impl KeptGraph {
    /// As the status of a graph that nobody can ask.
    pub fn status(&self) -> Status {
        Status {
            graph: self.name.clone(),
            pid: self.pid.unwrap_or_default(),
            health: Health::Failed,
            connections: 0,
            served: 0,
            devices: Vec::new(),
            attached: Vec::new(),
            kept: Some(self.clone()),
        }
    }
}

/// What takes time.
pub type Answering<T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send>>;

/// Somebody who keeps graphs.
pub trait Keeps: Send + Sync + 'static {
    /// All of them.
    fn view(&self) -> DaemonView;
    /// Brings a graph up, and keeps it; answers when clients can connect.
    fn up(self: Arc<Self>, request: UpRequest) -> Answering<KeptGraph>;
    /// Closes a graph in order, and forgets it.
    fn stop(self: Arc<Self>, graph: KeptName) -> Answering<KeptGraph>;
    /// Has the process of a graph replaced by a new one.
    fn renew(self: Arc<Self>, graph: KeptName) -> Answering<KeptGraph>;
    /// Figures of all of them, for Prometheus.
    fn metrics(self: Arc<Self>) -> Answering<String>;
    /// Ends, and leaves all graphs to the daemon that asks.
    fn leave(self: Arc<Self>) -> Answering<DaemonView>;
}

/// The control socket of a daemon.
pub struct DaemonSocket {
    listener: tokio::net::UnixListener,
    file: SocketFile,
}

/// Removed with this value.
struct SocketFile(PathBuf);

impl DaemonSocket {
    /// Opens it at `path`, with mode 0600.
    ///
    /// # Errors
    /// `AddrInUse` if somebody listens there, `AlreadyExists` if it is no socket; what the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        Ok(Self { listener, file: SocketFile(path.to_owned()) })
    }

    /// Answers until that has come; what was begun is answered then.
    ///
    /// # Errors
    /// What the system says.
    pub async fn answer(
        self,
        daemon: Arc<dyn Keeps>,
        until: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let Self { listener, file } = self;
        let until = async move {
            until.await;
            // Nobody is to find it while the last answers leave.
            drop(file);
        };
        axum::serve(listener, routes(daemon)).with_graceful_shutdown(until).await
    }
}

/// A port where figures are, and nothing else.
pub struct MetricsPort(tokio::net::TcpListener);

impl MetricsPort {
    /// Opens it. Nobody is asked who they are, so it is for this machine only.
    ///
    /// # Errors
    /// `InvalidInput` beyond loopback; what the system says.
    pub fn open(at: SocketAddr) -> io::Result<Self> {
        if !at.ip().is_loopback() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(Self(tokio::net::TcpListener::from_std(listener)?))
    }

    /// Answers for as long as it is waited for.
    ///
    /// # Errors
    /// What the system says.
    pub async fn answer(self, daemon: Arc<dyn Keeps>) -> io::Result<()> {
        let routes = Router::new().route("/metrics", get(figures)).with_state(daemon);
        axum::serve(self.0, routes).await
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If somebody was quicker there is nothing left to do.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Who answers under a path. All are in `docs/api/openapi.json`.
pub(crate) fn table() -> Vec<(&'static str, MethodRouter<Arc<dyn Keeps>>)> {
    vec![
        ("/v1/daemon", get(view)),
        ("/v1/daemon/up", post(up)),
        ("/v1/daemon/stop", post(stop)),
        ("/v1/daemon/renew", post(renew)),
        ("/v1/daemon/leave", post(leave)),
        ("/metrics", get(figures)),
    ]
}

fn routes(daemon: Arc<dyn Keeps>) -> Router {
    let routes = table().into_iter();
    let router = routes.fold(Router::new(), |router, (path, answer)| router.route(path, answer));
    crate::server::worded(router.fallback(crate::server::nothing).with_state(daemon))
}

type Daemon = State<Arc<dyn Keeps>>;

async fn view(State(daemon): Daemon) -> Response {
    answer(Ok(daemon.view()))
}

async fn figures(State(daemon): Daemon) -> Response {
    match daemon.metrics().await {
        Ok(text) => page(text),
        Err(problem) => refuse(problem),
    }
}

async fn up(State(daemon): Daemon, Json(request): Json<UpRequest>) -> Response {
    answer(daemon.up(request).await)
}

async fn stop(State(daemon): Daemon, Json(graph): Json<KeptName>) -> Response {
    answer(daemon.stop(graph).await)
}

async fn renew(State(daemon): Daemon, Json(graph): Json<KeptName>) -> Response {
    answer(daemon.renew(graph).await)
}

async fn leave(State(daemon): Daemon) -> Response {
    answer(daemon.leave().await)
}
