//! The server of a control socket: the routes, on a thread of their own.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use rustix::fs::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::follow::follow;
use crate::metrics;
use crate::{Bridge, Later, Live, Problem};

/// An open control socket. It closes when this value is dropped.
pub struct Server {
    path: PathBuf,
    /// Stops the server when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    /// Closed after the last answer.
    stopped: std::sync::mpsc::Receiver<()>,
}

/// Limit for the text of the HTTP library about a request that it refuses. All of its texts are shorter.
const REFUSAL_MAX_BYTES: usize = 4096;

/// Time for the last answers to be sent when the process ends.
const LINGER: Duration = Duration::from_millis(250);

impl Server {
    /// Opens the socket at `path`, with mode 0600, and answers through `bridge`.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there, `AlreadyExists` if the file is no socket, or an error of the system.
    pub fn start(path: &Path, bridge: Bridge) -> io::Result<Self> {
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let (stop, until) = oneshot::channel::<()>();
        let (running, stopped) = std::sync::mpsc::channel();
        let server = Self { path: path.to_owned(), stop: Some(stop), stopped };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("cairn-control".to_owned()).spawn(move || {
            let serve = async {
                let listener = tokio::net::UnixListener::from_std(listener)?;
                let until = async move {
                    let _ = until.await;
                };
                axum::serve(listener, routes(table(), bridge)).with_graceful_shutdown(until).await
            };
            if let Err(error) = runtime.block_on(serve) {
                eprintln!("cairn: the control socket is closed: {error}");
            }
            drop(running);
        })?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // If the file is gone already, there is nothing left to do.
        let _ = std::fs::remove_file(&self.path);
        drop(self.stop.take());
        let _: Result<(), _> = self.stopped.recv_timeout(LINGER);
    }
}

/// The longest path of a control socket in bytes. The system allows 107, and the name has a leading dot at first.
pub const SOCKET_PATH_MAX_BYTES: usize = 106;

/// Binds a socket at `path`. Replaces a socket whose process is gone, and leaves any other file alone. The socket
/// listens before it appears at `path`: a client that looks for sockets would take one without a listener for dead,
/// and remove it.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    match UnixStream::connect(path).map_err(|error| error.kind()) {
        Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {}
        Err(kind) => return Err(kind.into()),
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
    }
    let early = early(path)?;
    match std::fs::remove_file(&early) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The umask sets the mode from the start. A later chmod would leave time for others to connect.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(&early);
    rustix::process::umask(before);
    let bound = bound?;
    std::fs::rename(&early, path)?;
    Ok(bound)
}

/// Whether a socket without a listener counts as dead. While a socket is being bound, its name begins with a dot.
pub fn is_heard(path: &Path) -> bool {
    path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
        && std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Returns the path of a socket until it listens. [`is_heard`] is false for it.
fn early(path: &Path) -> io::Result<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    Ok(path.with_file_name(name))
}

/// Returns the handler of each path. All paths are in `docs/api/openapi.json`.
pub(crate) fn table() -> Vec<(&'static str, MethodRouter<Bridge>)> {
    vec![
        ("/v1/graph", get(|State(bridge)| ask(bridge, |live| Ok(live.graph())))),
        ("/v1/spec", get(|State(bridge)| ask(bridge, |live| Ok(live.spec())))),
        ("/v1/status", get(|State(bridge)| ask(bridge, |live| Ok(live.status())))),
        ("/v1/top", get(|State(bridge)| ask(bridge, |live| Ok(live.top())))),
        ("/v1/locate", get(locate)),
        ("/v1/device/fail", asks(|live, request| live.fail(request))),
        ("/v1/device/resync", asks(|live, request| live.resync(request))),
        ("/v1/device/scrub", asks(|live, request| live.scrub(request))),
        ("/v1/device/disk", asks(|live, request| live.disk(request))),
        ("/v1/device/resize", asks(|live, request| live.resize(request))),
        ("/v1/events", get(events)),
        ("/v1/events/follow", get(follow_events)),
        ("/v1/jobs", get(|State(bridge)| ask(bridge, |live| Ok(live.jobs())))),
        ("/v1/job", asks(|live, request| live.job(request))),
        ("/v1/command", asks(|live, request| live.command(request))),
        ("/v1/attach", asks(|live, request| live.attach(request))),
        ("/v1/detach", asks(|live, request| live.detach(request))),
        ("/v1/apply", asks(|live, request| live.apply(request))),
        ("/v1/check", get(|State(bridge)| check(bridge, false))),
        ("/v1/repair", post(repair)),
        ("/v1/history", get(|State(bridge)| ask(bridge, |live| live.history()))),
        ("/v1/undo", asks(|live, request| live.undo(request))),
        ("/metrics", get(figures)),
    ]
}

/// Returns the handler of a request whose answer takes time.
fn asks<Q, A>(ask: fn(&dyn Live, Q) -> Later<Result<A, Problem>>) -> MethodRouter<Bridge>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    post(async move |State(bridge): State<Bridge>, Json(request): Json<Q>| {
        answer(bridge.ask_later(move |live| ask(live, request)).await.flatten())
    })
}

/// Returns the router of these handlers.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(
    table: Vec<(&'static str, MethodRouter<S>)>,
    state: S,
) -> Router {
    let routes = table.into_iter();
    let router = routes.fold(Router::new(), |router, (path, answer)| router.route(path, answer));
    worded(router.fallback(nothing).with_state(state))
}

/// Puts refusals of the HTTP library into the form of all others: JSON, with an exit code.
fn worded(router: Router) -> Router {
    router.layer(middleware::map_response(async |response: Response| {
        let status = response.status();
        let json = HeaderValue::from_static("application/json");
        let is_ours = response.headers().get(header::CONTENT_TYPE) == Some(&json);
        if is_ours || !(status.is_client_error() || status.is_server_error()) {
            return response;
        }
        let (mut parts, said) = response.into_parts();
        let said = to_bytes(said, REFUSAL_MAX_BYTES).await.unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let message = match said.trim() {
            "" => status.canonical_reason().unwrap_or_default().to_owned(),
            said => said.to_owned(),
        };
        let mut worded = (status, Json(Problem::new(2, message))).into_response();
        worded
            .headers_mut()
            .extend(parts.headers.remove(header::ALLOW).map(|it| (header::ALLOW, it)));
        worded
    }))
}

#[derive(Deserialize)]
struct Byte {
    export: String,
    offset: u64,
}

async fn locate(State(bridge): State<Bridge>, Query(byte): Query<Byte>) -> Response {
    let asked = bridge.ask_later(move |live| live.locate(&byte.export, byte.offset));
    answer(asked.await.flatten())
}

async fn figures(State(bridge): State<Bridge>) -> Response {
    let asked = bridge.ask(|live| metrics::Sample {
        graph: live.graph(),
        status: live.status(),
        top: live.top(),
    });
    match asked.await {
        Ok(sample) => page(metrics::page(&[sample], None)),
        Err(problem) => refuse(problem),
    }
}

/// Returns a response with the metrics, in the content type of Prometheus.
pub(crate) fn page(text: String) -> Response {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn events(State(bridge): State<Bridge>, Query(from): Query<After>) -> Response {
    ask(bridge, move |live| Ok(live.events(from.after))).await
}

async fn follow_events(State(bridge): State<Bridge>, Query(from): Query<After>) -> Response {
    follow(bridge, from.after)
}

async fn check(bridge: Bridge, repair: bool) -> Response {
    answer(bridge.ask_later(move |live| live.check(repair)).await.flatten())
}

/// A body without fields. A field would ask for something that the request does not offer.
type Nothing = Option<Json<Option<Map<String, Value>>>>;

async fn repair(State(bridge): State<Bridge>, said: Nothing) -> Response {
    let said = said.and_then(|Json(said)| said).unwrap_or_default();
    match said.keys().next() {
        None => check(bridge, true).await,
        Some(field) => {
            let message = format!("repair takes no {field:?}: it does all that it can");
            refuse(
                Problem::new(2, message)
                    .next("GET /v1/check, to see what is wrong; then without a body"),
            )
        }
    }
}

async fn nothing() -> Response {
    refuse(Problem::new(4, "there is nothing under that path".to_owned()))
}

async fn ask<T: Serialize + Send + 'static>(
    bridge: Bridge,
    ask: impl FnOnce(&dyn Live) -> Result<T, Problem> + Send + 'static,
) -> Response {
    answer(bridge.ask(ask).await.flatten())
}

pub(crate) fn answer<T: Serialize>(answer: Result<T, Problem>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(problem) => refuse(problem),
    }
}

pub(crate) fn refuse(problem: Problem) -> Response {
    let status = match problem.exit {
        2 | 3 => StatusCode::BAD_REQUEST,
        4 => StatusCode::NOT_FOUND,
        5 => StatusCode::CONFLICT,
        7 => StatusCode::FORBIDDEN,
        9 => StatusCode::NOT_IMPLEMENTED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, Json(problem)).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SOCKETS: usize = 400;

    /// A client that removes dead sockets must not find a socket that does not listen yet.
    #[test]
    fn bind_publishes_only_listening_sockets() {
        let dir = std::env::temp_dir().join(format!("cairn-bind-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = |n: usize| dir.join(format!("{n}.sock"));
        let (path, met) = (&path, &AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let looks = scope.spawn(move || {
                (0..SOCKETS).try_for_each(|n| {
                    let found = loop {
                        match UnixStream::connect(path(n)) {
                            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                            other => break other.map(drop),
                        }
                    };
                    met.store(n + 1, Ordering::Release);
                    found
                })
            });
            for n in 0..SOCKETS {
                let _heard = bind(&path(n)).unwrap();
                while met.load(Ordering::Acquire) <= n && !looks.is_finished() {
                    std::hint::spin_loop();
                }
            }
            looks.join().unwrap().unwrap();
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn bind_replaces_only_dead_sockets() {
        let dir = std::env::temp_dir().join(format!("cairn-room-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.sock");
        drop(bind(&path).unwrap());
        let heard = bind(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(heard);
        let file = dir.join("file");
        std::fs::write(&file, "mine").unwrap();
        assert_eq!(bind(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2, "nothing early is left");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
