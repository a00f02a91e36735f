//! A daemon that keeps many graphs: its requests and its answers. Requests to a graph that is up go to the socket of
//! that graph.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use axum::Router;
use serde::{Deserialize, Serialize};

use crate::server::Handler;
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

    /// Answers requests with the handler until the future is dropped.
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
