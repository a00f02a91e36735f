//! Types of the requests and replies of a daemon, which keeps many graphs. Requests about a graph that is served go to
//! the control socket of that graph's worker instead.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use axum::Router;
use serde::{Deserialize, Serialize};

use crate::server::Handler;
use crate::{Health, Problem, Status};

/// The state of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DaemonView {
    /// Process id of the daemon.
    pub pid: u32,
    /// State directory of the daemon.
    pub state: PathBuf,
    /// The graphs that the daemon keeps, sorted by name.
    pub graphs: Vec<KeptGraph>,
}

/// A graph that a daemon keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptGraph {
    /// Name of the graph.
    pub name: String,
    /// Phase of the graph.
    pub phase: Phase,
    /// Time at which the phase began, in seconds since 1970.
    pub since_unix_s: u64,
    /// Process id of the worker that serves the graph; `None` without a worker.
    pub pid: Option<u32>,
    /// Number of workers that this daemon has started for the graph.
    pub starts: u64,
    /// Number of descriptors (listeners, mounts) that the daemon holds for the next worker of the graph.
    pub held: usize,
    /// The reason why the last worker of the graph ended unexpectedly; `None` if no worker did.
    pub problem: Option<Problem>,
}

/// Phase of a graph that a daemon keeps: whether it is being served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The graph has a worker, which is opening the disks.
    Starting,
    /// The graph is served, and clients can connect.
    Up,
    /// The graph is being closed in order.
    Stopping,
    /// The last worker of the graph has ended, and the daemon is about to start the next one.
    Waiting,
    /// The workers of the graph have failed repeatedly, so the daemon starts no more of them.
    GivenUp,
    /// The graph was closed in order, or was never started.
    Stopped,
}

/// A request to a daemon: start a graph, and keep it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpRequest {
    /// Name of the graph.
    pub name: String,
    /// Working directory of the client, to which paths in the request are relative.
    pub directory: PathBuf,
    /// The source of the graph's spec.
    pub source: GraphSource,
    /// Whether the graph refuses writes on every export.
    #[serde(default)]
    pub read_only: bool,
    /// Whether the graph may start without missing labelled disks (`--degraded`).
    #[serde(default)]
    pub degraded: bool,
    /// Addresses at which the graph accepts NBD clients, instead of those in its spec.
    #[serde(default)]
    pub listen: Vec<String>,
    /// Whether `listen` may have TCP addresses beyond loopback without TLS.
    #[serde(default)]
    pub insecure: bool,
    /// Names of the disks that get a new label whatever they contain; at this start only.
    #[serde(default)]
    pub wipe: Vec<String>,
    /// Names of the members of mirrors whose bytes count where members may differ; at this start only.
    #[serde(default)]
    pub trust: Vec<String>,
    /// Whether to open disks that another machine had open and did not close (`--take`); at this start only.
    #[serde(default)]
    pub take: bool,
    /// Files with keys that can be read only once, by name of the device; at this start only. Each worker of the graph
    /// passes the keys to the next worker, until the graph is stopped.
    #[serde(default)]
    pub keys: BTreeMap<String, PathBuf>,
}

/// The source of the spec of a graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphSource {
    /// A spec that the client sends.
    Spec {
        /// Name of the spec's file, for messages.
        file: String,
        /// Text of the spec.
        text: String,
        /// Values of the variables in the spec, from the environment of the client.
        variables: BTreeMap<String, String>,
    },
    /// The labels of disks, and the settings that labels do not contain.
    Labels {
        /// Text of the spec in the labels.
        text: String,
        /// The disks of the graph, by name: for each, the name of its kind and its path.
        disks: BTreeMap<String, (String, String)>,
        /// Sources of the keys of devices, by name of the device.
        keys: BTreeMap<String, String>,
        /// Other options that labels do not contain, by name of the device and of the option.
        #[serde(default)]
        options: BTreeMap<String, BTreeMap<String, String>>,
    },
}

/// The name of a graph that a daemon keeps, as a request about that graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptName {
    /// Name of the graph.
    pub name: String,
}

impl KeptGraph {
    /// Returns the status of the graph while the graph has no worker that could report it.
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

/// A TCP port that serves only the metrics of a daemon or graph.
pub struct MetricsPort(tokio::net::TcpListener);

impl MetricsPort {
    /// Opens the port at the address `at`. Clients of the port need no authentication, so it must be a loopback
    /// address.
    ///
    /// # Errors
    /// `InvalidInput` for an address beyond loopback, or an error of the system.
    pub fn open(at: SocketAddr) -> io::Result<Self> {
        if !at.ip().is_loopback() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(Self(tokio::net::TcpListener::from_std(listener)?))
    }

    /// Serves requests to the port with the handler until the future is dropped.
    ///
    /// # Errors
    /// An error of the system.
    pub async fn answer<S>(self, (path, handler): Handler<S>, state: S) -> io::Result<()>
    where
        S: Clone + Send + Sync + 'static,
    {
        axum::serve(self.0, Router::new().route(path, handler).with_state(state)).await
    }
}
