//! The server of a control socket, which runs on a thread of its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use rustix::fs::Mode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::listen::{CONTROL_LIMITS, serve};
use crate::metrics;
use crate::routes::{REPAIR, Route};
use crate::{Bridge, Checked, Problem};

/// A control socket that is open for clients and not served yet.
pub struct ControlSocket {
    listener: tokio::net::UnixListener,
    file: Option<SocketFile>,
}

/// The file of a control socket. Dropping this value removes the file.
struct SocketFile(PathBuf);

/// A server of a control socket, on a thread of its own. Dropping this value ends the server.
pub struct Server {
    file: Option<SocketFile>,
    /// Ends the server's thread when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    /// Channel that closes when the server's thread has sent the last reply.
    stopped: std::sync::mpsc::Receiver<()>,
}

/// The path of a route, and the handler of its requests, in a server with state `S`.
pub type Handler<S> = (&'static str, MethodRouter<S>);

/// Maximum length in bytes of a message with which the HTTP library refuses a request. All its messages are shorter.
const REFUSAL_MAX_BYTES: usize = 4096;

/// Time for which dropping a [`Server`] waits until the last replies are sent.
const LINGER: Duration = Duration::from_millis(250);

impl ControlSocket {
    /// Opens the control socket at `path`, with mode 0600.
    ///
    /// # Errors
    /// `AddrInUse` if another process listens at `path`, `AlreadyExists` if the file is no socket, or an error of the
    /// system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        Ok(Self { listener, file: Some(SocketFile(path.to_owned())) })
    }

    /// Serves requests within [`CONTROL_LIMITS`] until `until` gets a message or loses its sender. Then completes the
    /// requests in progress.
    ///
    /// # Errors
    /// An error of the system.
    pub async fn answer<S: Clone + Send + Sync + 'static>(
        self,
        handlers: Vec<Handler<S>>,
        state: S,
        until: oneshot::Receiver<()>,
    ) -> io::Result<()> {
        let Self { listener, file } = self;
        let until = async move {
            let _ = until.await;
            // A client must not find the socket while the last replies are sent.
            drop(file);
        };
        serve(listener, routes(handlers, state), CONTROL_LIMITS, until).await
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If the file is gone already, there is nothing left to do.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Server {
    /// Opens the control socket at `path`, and serves its requests with `handlers` on a new thread.
    ///
    /// # Errors
    /// As [`ControlSocket::open`].
    pub fn start<S: Clone + Send + Sync + 'static>(
        path: &Path,
        handlers: Vec<Handler<S>>,
        state: S,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut socket = runtime.block_on(async { ControlSocket::open(path) })?;
        let file = socket.file.take();
        let (stop, until) = oneshot::channel();
        let (running, stopped) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("cairn-control".to_owned()).spawn(move || {
            if let Err(error) = runtime.block_on(socket.answer(handlers, state, until)) {
                eprintln!("cairn: the control socket is closed: {error}");
            }
            drop(running);
        })?;
        Ok(Self { file, stop: Some(stop), stopped })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.file.take());
        drop(self.stop.take());
        let _: Result<(), _> = self.stopped.recv_timeout(LINGER);
    }
}

/// Maximum length of a control socket's path in bytes: one less than the system permits, because a dot precedes the
/// name at first.
pub const SOCKET_PATH_MAX_BYTES: usize = 106;

/// Binds a socket to `path`. Replaces a socket whose process is gone, but no other file. The socket listens before it
/// appears at `path`: a client that searches for sockets would take one without a listener for dead, and remove it.
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
    // The umask sets the mode when the socket is created. A later chmod would let other users connect before it.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(&early);
    rustix::process::umask(before);
    let bound = bound?;
    std::fs::rename(&early, path)?;
    Ok(bound)
}

/// Whether a client may take the socket at `path` for dead if no process listens on it. A socket that is still being
/// bound, whose name begins with a dot, is excluded.
pub fn is_heard(path: &Path) -> bool {
    path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
        && std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Returns the path at which the socket for `path` is bound before it listens. [`is_heard`] is false for it.
fn early(path: &Path) -> io::Result<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    Ok(path.with_file_name(name))
}

impl<Q, A> Route<Q, A>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    /// Returns the handler that serves requests to this route with `work`.
    pub fn handler<S, F, E>(
        &self,
        work: impl Fn(S, Q) -> F + Clone + Send + Sync + 'static,
    ) -> Handler<S>
    where
        S: Clone + Send + Sync + 'static,
        F: Future<Output = Result<A, E>> + Send,
        E: Into<Problem>,
    {
        let handler = match self.is_get {
            true => get(async move |State(state), Query(asked)| answer(work(state, asked).await)),
            false => post(async move |State(state), Json(asked)| answer(work(state, asked).await)),
        };
        (self.path, handler)
    }

    /// Returns the handler that serves requests to this route with `work`, on the thread that owns the graph.
    pub fn on_core<G: 'static, E: Into<Problem>>(
        &self,
        work: impl AsyncFn(Rc<G>, Q) -> Result<A, E> + Copy + Send + Sync + 'static,
    ) -> Handler<Arc<Bridge<G>>> {
        self.handler(move |bridge: Arc<Bridge<G>>, asked| async move {
            let question = async move |graph| work(graph, asked).await.map_err(Into::into);
            bridge.ask(false, question).await.flatten()
        })
    }
}

impl<A: Serialize> Route<(), A> {
    /// Returns the handler that serves requests to this route with `work`, whatever their body contains.
    pub fn bare<S, F, E>(&self, work: impl Fn(S) -> F + Clone + Send + Sync + 'static) -> Handler<S>
    where
        S: Clone + Send + Sync + 'static,
        F: Future<Output = Result<A, E>> + Send,
        E: Into<Problem>,
    {
        (self.path, post(async move |State(state)| answer(work(state).await)))
    }
}

/// Returns the router with these handlers for a server with the state `state`.
fn routes<S: Clone + Send + Sync + 'static>(handlers: Vec<Handler<S>>, state: S) -> Router {
    let handlers = handlers.into_iter();
    let router = handlers.fold(Router::new(), |router, (path, answer)| router.route(path, answer));
    worded(router.fallback(nothing).with_state(state))
}

/// Changes error responses of the HTTP library to the form of all others: JSON, with an exit code.
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

/// Returns the handler of the metrics route. `figures` returns the page of metrics.
pub fn figures<S, F>(figures: impl Fn(S) -> F + Clone + Send + Sync + 'static) -> Handler<S>
where
    S: Clone + Send + Sync + 'static,
    F: Future<Output = Result<String, Problem>> + Send,
{
    let handler = get(async move |State(state)| match figures(state).await {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(problem) => refuse(problem),
    });
    ("/metrics", handler)
}

/// The body of a request that has no fields. A field in it would ask for an option that the request does not have.
type Fields = Option<Json<Option<Map<String, Value>>>>;

/// Returns the handler of [`REPAIR`], which calls `work` on the thread that owns the graph.
pub fn repair<G: 'static, E: Into<Problem>>(
    work: impl AsyncFn(Rc<G>) -> Result<Checked, E> + Copy + Send + Sync + 'static,
) -> Handler<Arc<Bridge<G>>> {
    let handler = async move |State(bridge): State<Arc<Bridge<G>>>, said: Fields| {
        let said = said.and_then(|Json(said)| said).unwrap_or_default();
        if let Some(field) = said.keys().next() {
            let message = format!("repair has no field {field:?}: it rewrites all labels");
            let next = "GET /v1/check, for the findings; then repair without a body";
            return refuse(Problem::new(2, message).next(next));
        }
        let question = async move |graph| work(graph).await.map_err(Into::into);
        answer(bridge.ask(false, question).await.flatten())
    };
    (REPAIR.path, post(handler))
}

async fn nothing() -> Response {
    refuse(Problem::new(4, "no resource has that path".to_owned()))
}

fn answer<A: Serialize>(answer: Result<A, impl Into<Problem>>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(problem) => refuse(problem.into()),
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
    fn control_socket_bind_publishes_only_listening_sockets() {
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
    fn control_socket_bind_replaces_only_dead_sockets() {
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
