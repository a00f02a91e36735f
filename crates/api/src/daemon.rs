//! Types of the requests and replies of a daemon, which keeps many graphs. Requests about a graph that is served go to
//! the control socket of that graph's worker instead.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use serde::{Deserialize, Serialize};

use crate::listen::{METRICS_LIMITS, serve};
use crate::server::{Handler, refuse};
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
    /// Whether devices may go on without data that was durable and is missing (`--accept-loss`); at this start only.
    #[serde(default)]
    pub accept_loss: bool,
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

    /// Serves requests to the port with the handler, within [`METRICS_LIMITS`], until the future is dropped. Refuses
    /// requests for other hosts: a web page could read the metrics after its name was redirected to this machine.
    ///
    /// # Errors
    /// An error of the system.
    pub async fn answer<S>(self, (path, handler): Handler<S>, state: S) -> io::Result<()>
    where
        S: Clone + Send + Sync + 'static,
    {
        let router = Router::new().route(path, handler).with_state(state);
        let router = router.layer(middleware::from_fn(refuse_other_hosts));
        serve(self.0, router, METRICS_LIMITS, std::future::pending()).await
    }
}

async fn refuse_other_hosts(request: Request, next: Next) -> Response {
    let is_other = |host: &HeaderValue| !host.to_str().is_ok_and(is_this_host);
    if request.headers().get(header::HOST).is_some_and(is_other) {
        let message = "metrics are for this machine only: the header Host names another one";
        return refuse(Problem::new(7, message.to_owned()).next("http://127.0.0.1, with the port"));
    }
    next.run(request).await
}

/// Whether the value of a header `Host` is a loopback address or `localhost`, with or without a port.
fn is_this_host(host: &str) -> bool {
    let is_loopback = |text: &str| text.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(ip, _)| is_loopback(ip));
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost") || is_loopback(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_port_serves_loopback_hosts_only() {
        for host in
            ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.0.0.1:9000", "[::1]", "[::1]:9"]
        {
            assert!(is_this_host(host), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:9000", "127.0.0.1.evil.example", "[::2]:9", "[::1"]
        {
            assert!(!is_this_host(host), "{host}");
        }
    }
}
