//! Listeners and connections: unix sockets and TCP.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use block::env::{Address, LISTENER, Listener, LocalFuture, Socket, Ticket, World, stopped};
use block::{Buf, Env, Error, Result, error};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind,
    getpeername, getsockname, socket_with, sockopt,
};

use crate::fdstore;
use crate::reactor::Reactor;
use crate::slab::{Held, Op};
use crate::sys;

const BACKLOG: i32 = 128;
const UNIX_BUFFER_BYTES: usize = 1 << 20;

/// Length in bytes of the longest path of a unix socket.
const UNIX_PATH_MAX: usize = 107;

/// Keepalive of TCP connections: idle time before the first probe, time between two probes, and number of probes
/// without a reply after which the connection is lost. The loss of a peer is detected after 25 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

const ACCEPT_REST: Duration = Duration::from_millis(100);

struct Connection {
    side: Rc<Reactor>,
    file: Rc<OwnedFd>,
    name: Rc<str>,
}

impl Connection {
    fn start(&self, op: Op, buf: Option<Buf>, parts: Vec<Buf>) -> Ticket {
        let held = Held::new(op, self.file.clone(), Some(self.name.clone()));
        self.side.start(Held { buf, ..held }, parts, false)
    }
}

impl Socket for Connection {
    fn recv(&self, into: Buf) -> Ticket {
        self.start(Op::Recv, Some(into), Vec::new())
    }

    fn send(&self, parts: Vec<Buf>) -> Ticket {
        self.start(Op::Send, None, parts)
    }

    fn shutdown(&self) {
        shutdown(&self.file);
    }

    fn peer(&self) -> String {
        self.name.to_string()
    }

    fn call_off(&self) {
        self.side.call_off(|held| held.op == Op::Recv && Rc::ptr_eq(&held.file, &self.file));
    }

    fn is_gone(&self) -> bool {
        sys::is_hung_up(self.file.as_raw_fd())
    }

    fn unreceived_bytes(&self) -> u64 {
        sys::unreceived_bytes(self.file.as_raw_fd())
    }

    fn may_outlive(&self) -> bool {
        true
    }

    fn fdstore_put(&self, name: &str) -> Result<bool> {
        fdstore::fdstore_put(name, self.file.as_fd())
    }
}

/// Takes over the connection that the previous process passed to the supervisor under `name`. The supervisor closes
/// its descriptor first, so that the peer notices when this process closes the connection.
pub(crate) fn take(side: Rc<Reactor>, name: &str) -> Result<Rc<dyn Socket>> {
    let left = fdstore::take_named(name)?;
    fdstore::take_from_manager(name)?;
    sys::set_nonblocking(left.file.as_raw_fd(), side.nonblocking())
        .map_err(|error| Error::io(&error, format_args!("{name}: setting O_NONBLOCK")))?;
    let name = describe(&left.file).into();
    Ok(Rc::new(Connection { side, file: Rc::new(left.file), name }))
}

/// Sets the options of a connection's socket. An option that the kernel refuses is left out.
fn tune(file: &OwnedFd, family: AddressFamily) {
    if family == AddressFamily::UNIX {
        let _ = sockopt::set_socket_send_buffer_size(file, UNIX_BUFFER_BYTES);
        let _ = sockopt::set_socket_recv_buffer_size(file, UNIX_BUFFER_BYTES);
    } else {
        let _ = sockopt::set_tcp_nodelay(file, true);
        // A peer that vanished is detected even when no request is sent to it.
        let _ = sockopt::set_socket_keepalive(file, true);
        let _ = sockopt::set_tcp_keepidle(file, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(file, KEEPALIVE_EVERY);
        let _ = sockopt::set_tcp_keepcnt(file, KEEPALIVE_PROBES);
    }
}

/// Creates a stream socket.
fn stream(family: AddressFamily, nonblocking: bool, at: &Address) -> Result<OwnedFd> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    socket_with(family, SocketType::STREAM, flags, None)
        .map_err(|error| failed(at, "creating a socket", error))
}

/// Ends both directions of a socket, if they have not ended already.
fn shutdown(file: &OwnedFd) {
    let _ = rustix::net::shutdown(file, Shutdown::Both);
}

fn failed(at: &Address, what: &str, error: impl Into<io::Error>) -> Error {
    Error::io(&error.into(), format_args!("{at}: {what}"))
}

fn unix_peer(path: &Path) -> Result<SocketAddrAny> {
    let len = path.as_os_str().len();
    let peer = SocketAddrUnix::new(path).ok().filter(|_| (1..=UNIX_PATH_MAX).contains(&len));
    peer.map(Into::into).ok_or_else(|| {
        error!(
            Invalid,
            "unix:{}: the socket path has {len} bytes, the limit is {UNIX_PATH_MAX}; choose a \
             shorter path",
            path.display()
        )
    })
}

/// Connects to the first address of the host `to` that accepts the connection.
pub(crate) async fn connect(side: Rc<Reactor>, to: Address) -> Result<Rc<dyn Socket>> {
    let peers: Vec<SocketAddrAny> = match &to {
        Address::Unix(path) => vec![unix_peer(path)?],
        Address::Tcp(host, port) => {
            resolve(&side, host, *port).await?.into_iter().map(Into::into).collect()
        }
    };
    let name: Rc<str> = to.to_string().into();
    let mut failed = None;
    for peer in peers {
        let file = stream(peer.address_family(), side.nonblocking(), &to)?;
        tune(&file, peer.address_family());
        let file = Rc::new(file);
        let held = Held::new(Op::Connect, file.clone(), Some(name.clone()));
        let held = Held { peer: Some(Box::new(peer)), ..held };
        match side.start(held, Vec::new(), false).await.result {
            Ok(_) => return Ok(Rc::new(Connection { side, file, name })),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| error!(NotFound, "{to}: the name has no address")))
}

async fn resolve(side: &Rc<Reactor>, host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    // A name lookup may take seconds, and the library's function blocks.
    let found = Arc::new(Mutex::new(None));
    let (answer, asked) = (found.clone(), host.to_owned());
    side.work(Box::new(move || {
        let addresses = (asked.as_str(), port).to_socket_addrs().map(Iterator::collect);
        *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(addresses);
    }))
    .await;
    let addresses: Option<io::Result<Vec<SocketAddr>>> =
        found.lock().unwrap_or_else(PoisonError::into_inner).take();
    addresses.expect("the name lookup has run").map_err(|error| no_address(host, &error))
}

fn no_address(host: &str, error: &io::Error) -> Error {
    error!(NotFound, "cannot resolve the host name {host}: {error}")
}

struct Listening {
    side: Rc<Reactor>,
    file: Rc<OwnedFd>,
    address: Address,
    // Whether this program made it, now or in an earlier process.
    ours: bool,
    // The socket file that this listener made: path, device, inode.
    made: Option<(PathBuf, u64, u64)>,
    closed: Cell<bool>,
    // Whether the descriptor store holds it.
    fdstore_name: Cell<bool>,
    // Accepts that their waiters gave up: the next waiter takes the connection that they find.
    left: RefCell<Vec<Ticket>>,
    // Whether the user was warned that connections wait for descriptors.
    told: Cell<bool>,
}

struct Handle(Rc<Listening>);

/// Listens at the address `at`. If an earlier process left a socket that is bound to this address, that socket is
/// used.
pub(crate) fn listen(side: Rc<Reactor>, at: &Address) -> Result<Rc<dyn Listener>> {
    if let Some(left) = fdstore::take(|left| is_bound_to(&left.file, at)) {
        sys::set_nonblocking(left.file.as_raw_fd(), side.nonblocking())
            .map_err(|error| failed(at, "setting O_NONBLOCK", error))?;
        // A socket of another name was passed by another owner, which keeps its file.
        return listening(side, left.file, at, left.name == LISTENER);
    }
    let peer: SocketAddrAny = match at {
        Address::Unix(path) => {
            let peer = unix_peer(path)?;
            clear_stale(path, &peer, at)?;
            peer
        }
        Address::Tcp(host, port) => {
            let mut found = (host.as_str(), *port)
                .to_socket_addrs()
                .map_err(|error| no_address(host, &error))?;
            let first =
                found.next().ok_or_else(|| error!(NotFound, "{at}: the name has no address"))?;
            first.into()
        }
    };
    let family = peer.address_family();
    let file = stream(family, side.nonblocking(), at)?;
    if family != AddressFamily::UNIX {
        sockopt::set_socket_reuseaddr(&file, true)
            .map_err(|error| failed(at, "SO_REUSEADDR", error))?;
    }
    tune(&file, family);
    let bound = match family {
        // The path that bind makes takes the mode of the socket.
        AddressFamily::UNIX => fchmod(&file, Mode::RUSR | Mode::WUSR),
        _ => Ok(()),
    };
    bound.and_then(|()| bind(&file, &peer)).map_err(|error| match error {
        Errno::ADDRINUSE => {
            error!(InUse, "{at}: another process listens here; stop it or choose another address")
        }
        _ => failed(at, "bind", error),
    })?;
    listening(side, file, at, true)
}

/// Creates a listener from a socket that is bound to `at`. If `ours`, the listener removes the socket file when it is
/// closed.
fn listening(
    side: Rc<Reactor>,
    file: OwnedFd,
    at: &Address,
    ours: bool,
) -> Result<Rc<dyn Listener>> {
    let made = match at {
        Address::Unix(path) if ours => {
            let found =
                std::fs::symlink_metadata(path).map_err(|error| failed(at, "stat", error))?;
            Some((path.clone(), found.dev(), found.ino()))
        }
        _ => None,
    };
    rustix::net::listen(&file, BACKLOG).map_err(|error| failed(at, "listen", error))?;
    let address = match own_tcp(&file) {
        Some(bound) => Address::Tcp(bound.ip().to_string(), bound.port()),
        None => at.clone(),
    };
    let (file, closed, left) = (Rc::new(file), Cell::new(false), RefCell::default());
    let fdstore_name = Cell::new(false);
    let told = Cell::new(false);
    let listening = Listening { side, file, address, ours, made, closed, fdstore_name, left, told };
    Ok(Rc::new(Handle(Rc::new(listening))))
}

/// Returns the internet address to which a socket is bound; `None` for other sockets.
fn own_tcp(file: &OwnedFd) -> Option<SocketAddr> {
    getsockname(file).ok()?.try_into().ok()
}

/// Returns the path to which a unix socket is bound; `None` for other sockets.
fn own_path(file: &OwnedFd) -> Option<PathBuf> {
    let socket = UnixListener::from(file.try_clone().ok()?);
    Some(socket.local_addr().ok()?.as_pathname()?.to_owned())
}

/// Whether `file` is a socket that is bound to `at`. If `at` lets the kernel choose the port, any port matches.
fn is_bound_to(file: &OwnedFd, at: &Address) -> bool {
    match at {
        Address::Unix(path) => {
            let whole = |path: &Path| std::path::absolute(path).ok();
            // A socket without its file is out of reach.
            let is_there = std::fs::symlink_metadata(path);
            own_path(file).is_some_and(|bound| whole(&bound) == whole(path))
                && is_there.is_ok_and(|found| found.file_type().is_socket())
        }
        Address::Tcp(host, port) => {
            let Some(bound) = own_tcp(file) else { return false };
            let wanted = (host.as_str(), *port).to_socket_addrs().into_iter().flatten().next();
            wanted.is_some_and(|wanted| {
                wanted.ip() == bound.ip() && (*port == 0 || *port == bound.port())
            })
        }
    }
}

/// Removes the socket file at `path` if no process listens there any more.
fn clear_stale(path: &Path, peer: &SocketAddrAny, at: &Address) -> Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let in_use = |words: &str| error!(InUse, "{at}: {words}");
    if !found.file_type().is_socket() {
        return Err(in_use("the path exists and is no socket; remove it or choose another path"));
    }
    let probe = stream(AddressFamily::UNIX, true, at)?;
    match rustix::net::connect(&probe, peer) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path)
            .map_err(|error| failed(at, "removing the socket file of an ended process", error)),
        Err(Errno::NOENT) => Ok(()),
        // Connected, or the backlog is full: either way there is a listener.
        Ok(()) | Err(Errno::AGAIN) => Err(in_use(
            "another process listens at this path; stop that process or choose another path",
        )),
        Err(error) => Err(failed(at, "checking for another listener at this path", error)),
    }
}

impl Listener for Handle {
    fn accept(&self) -> LocalFuture<Result<Rc<dyn Socket>>> {
        Box::pin(accept(self.0.clone()))
    }

    fn address(&self) -> Address {
        self.0.address.clone()
    }

    fn close(&self) {
        self.0.close();
    }

    fn call_off(&self) {
        let Listening { side, file, .. } = &*self.0;
        side.call_off(|held| held.op == Op::Accept && Rc::ptr_eq(&held.file, file));
    }

    fn fdstore_put(&self) -> Result<()> {
        let listening = &self.0;
        if listening.ours {
            listening.fdstore_name.set(fdstore::fdstore_put(LISTENER, listening.file.as_fd())?);
        }
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Listening {
    fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        if self.fdstore_name.get() {
            // This removes all stored listeners: they are closed together. If it fails, the stored one is
            // shut down all the same.
            let _ = fdstore::withdraw(LISTENER);
        }
        if let Some((path, device, inode)) = &self.made
            && std::fs::symlink_metadata(path)
                .is_ok_and(|found| (found.dev(), found.ino()) == (*device, *inode))
        {
            // Another process may have removed it already.
            let _ = std::fs::remove_file(path);
        }
        // Waiting accepts fail with EINVAL.
        shutdown(&self.file);
    }

    fn begin(&self) -> Ticket {
        let name = Some(self.address.to_string().into());
        self.side.start(Held::new(Op::Accept, self.file.clone(), name), Vec::new(), false)
    }
}

/// A wait for the next connection. If the wait is dropped, the next wait gets the connection.
struct Accepting<'a> {
    listening: &'a Listening,
    ticket: Option<Ticket>,
}

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && !self.listening.closed.get()
        {
            self.listening.left.borrow_mut().push(ticket);
        }
    }
}

async fn accept(listening: Rc<Listening>) -> Result<Rc<dyn Socket>> {
    let env = Env::new(listening.side.clone());
    while !listening.closed.get() {
        let left = listening.left.borrow_mut().pop();
        let ticket = Some(left.unwrap_or_else(|| listening.begin()));
        let mut accepting = Accepting { listening: &listening, ticket };
        let outcome = poll_fn(|cx| {
            let ticket = accepting.ticket.as_mut().expect("an accept has a ticket");
            Pin::new(ticket).poll(cx)
        })
        .await;
        accepting.ticket = None;
        drop(accepting);
        let error = match outcome.result {
            Ok(fd) => {
                let file = sys::accepted(fd as i32);
                if listening.closed.get() {
                    break;
                }
                let name = describe(&file);
                if let Ok(own) = getsockname(&file) {
                    tune(&file, own.address_family());
                }
                let (side, file, name) = (listening.side.clone(), Rc::new(file), name.into());
                return Ok(Rc::new(Connection { side, file, name }));
            }
            Err(error) => error,
        };
        match error.os_code() {
            _ if listening.closed.get() => break,
            // The other end has closed already.
            Some(libc::ECONNABORTED | libc::EPROTO) => {}
            // Descriptors or memory are short: an immediate retry would only burn the core.
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                if !listening.told.replace(true) {
                    listening.side.note(&format!(
                        "warning: {error}; new connections wait until others close (logged once). \
                         Next: raise ulimit -n, or LimitNOFILE= of the service"
                    ));
                }
                env.sleep(ACCEPT_REST).await;
            }
            _ => return Err(error),
        }
    }
    Err(stopped())
}

/// Returns a description of the peer of a connection.
fn describe(file: &OwnedFd) -> String {
    let peer = getpeername(file).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok());
    if let Some(peer) = peer {
        return format!("tcp:{}", SocketAddr::from((peer.ip(), peer.port())));
    }
    match sys::credentials(file.as_raw_fd()) {
        Ok((pid, user)) => {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({}) of user {user}", comm.trim())
        }
        Err(_) => "a process that has ended".to_owned(),
    }
}
