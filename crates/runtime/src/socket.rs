//! Listeners and connections: unix sockets and TCP.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use block::env::{Address, LISTENER, Listener, LocalFuture, Socket, Ticket, World, stopped};
use block::{Buf, Env, Error, ErrorKind, Result};

use crate::fdstore;
use crate::reactor::Reactor;
use crate::slab::{Held, Op};
use crate::sys::{self, Peer, UNIX_PATH_MAX};

const BACKLOG: i32 = 128;
const UNIX_BUFFER_BYTES: i32 = 1 << 20;

/// Keepalive of TCP connections: idle time before the first probe, pause between probes, and number of probes
/// before the connection counts as lost. 25 s in all.
const KEEPALIVE_IDLE_S: i32 = 10;
const KEEPALIVE_EVERY_S: i32 = 5;
const KEEPALIVE_PROBES: i32 = 3;

const ACCEPT_REST: Duration = Duration::from_millis(100);

struct Connection {
    side: Rc<Reactor>,
    file: Rc<OwnedFd>,
    name: Rc<str>,
}

impl Connection {
    fn start(&self, op: Op, buf: Option<Buf>, parts: Vec<Buf>) -> Ticket {
        let (file, name) = (self.file.clone(), Some(self.name.clone()));
        self.side.start(Held { op, file, disk: None, name, buf, peer: None }, parts, false)
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
        sys::shutdown(self.file.as_raw_fd());
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

    fn may_outlive(&self) -> bool {
        true
    }

    fn entrust(&self, name: &str) -> Result<bool> {
        fdstore::entrust(name, self.file.as_fd())
    }
}

/// Takes over a connection of the previous process. Its holder closes it first: the other end must notice
/// when this process closes it.
pub(crate) fn take(side: Rc<Reactor>, name: &str) -> Result<Rc<dyn Socket>> {
    let left = fdstore::take(|left| left.name == name).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("{name}: nobody has left it to this process"))
    })?;
    fdstore::take_from_manager(name)?;
    sys::set_nonblocking(left.file.as_raw_fd(), side.nonblocking())
        .map_err(|error| Error::io(&error, format_args!("{name}: O_NONBLOCK")))?;
    let name = describe(&left.file).into();
    Ok(Rc::new(Connection { side, file: Rc::new(left.file), name }))
}

/// Sets the options of both ends of a connection, as far as the kernel grants them.
fn tune(file: &OwnedFd, family: i32) {
    let fd = file.as_raw_fd();
    if family == libc::AF_UNIX {
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, UNIX_BUFFER_BYTES);
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, UNIX_BUFFER_BYTES);
    } else {
        let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        // A peer that vanished is detected even when no request is sent to it.
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
        let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
        let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
        let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_PROBES);
    }
}

fn unix_peer(path: &Path) -> Result<Peer> {
    Peer::unix(path).ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "unix:{}: a path of {} bytes; a socket's has 1 to {UNIX_PATH_MAX}: choose a \
                 shorter one",
                path.display(),
                path.as_os_str().len()
            ),
        )
    })
}

/// Connects to the first address of the host that accepts.
pub(crate) async fn connect(side: Rc<Reactor>, to: Address) -> Result<Rc<dyn Socket>> {
    let peers = match &to {
        Address::Unix(path) => vec![unix_peer(path)?],
        Address::Tcp(host, port) => {
            resolve(&side, host, *port).await?.into_iter().map(Peer::tcp).collect()
        }
    };
    let name: Rc<str> = to.to_string().into();
    let mut failed = None;
    for peer in peers {
        let family = peer.family();
        let file = sys::socket(family, side.nonblocking())
            .map_err(|error| Error::io(&error, format_args!("{to}: making a socket")))?;
        tune(&file, family);
        let file = Rc::new(file);
        let held = Held {
            op: Op::Connect,
            file: file.clone(),
            disk: None,
            name: Some(name.clone()),
            buf: None,
            peer: Some(Box::new(peer)),
        };
        match side.start(held, Vec::new(), false).await.result {
            Ok(_) => return Ok(Rc::new(Connection { side, file, name })),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("{to}: the host has no address"))
    }))
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
    addresses.expect("the job has run").map_err(|error| no_address(host, &error))
}

fn no_address(host: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::NotFound, format!("the host name {host}: {error}"))
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
    entrusted: Cell<bool>,
    // Accepts that their waiters gave up: the next waiter takes the connection that they find.
    left: RefCell<Vec<Ticket>>,
    // Whether the user was warned that connections wait for descriptors.
    told: Cell<bool>,
}

struct Handle(Rc<Listening>);

/// Listens at an address. Uses a socket left to this process if one is bound to that address.
pub(crate) fn listen(side: Rc<Reactor>, at: &Address) -> Result<Rc<dyn Listener>> {
    let failed = |what: &str, error: &io::Error| Error::io(error, format_args!("{at}: {what}"));
    if let Some(left) = fdstore::take(|left| is_bound_to(&left.file, at)) {
        sys::set_nonblocking(left.file.as_raw_fd(), side.nonblocking())
            .map_err(|error| failed("O_NONBLOCK", &error))?;
        // A socket of another name was passed by another owner, which keeps its file.
        return listening(side, left.file, at, left.name == LISTENER);
    }
    let (peer, mode) = match at {
        Address::Unix(path) => {
            let peer = unix_peer(path)?;
            clear_stale(path, &peer, at)?;
            (peer, Some(0o600))
        }
        Address::Tcp(host, port) => {
            let mut found = (host.as_str(), *port)
                .to_socket_addrs()
                .map_err(|error| no_address(host, &error))?;
            let first = found.next().ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("{at}: the host has no address"))
            })?;
            (Peer::tcp(first), None)
        }
    };
    let file = sys::socket(peer.family(), side.nonblocking())
        .map_err(|error| failed("making a socket", &error))?;
    let fd = file.as_raw_fd();
    if mode.is_none() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
            .map_err(|error| failed("SO_REUSEADDR", &error))?;
    }
    tune(&file, peer.family());
    sys::bind(&file, &peer, mode).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => Error::new(
            ErrorKind::InUse,
            format!("{at}: somebody listens there already; stop it or choose another address"),
        ),
        _ => failed("bind", &error),
    })?;
    listening(side, file, at, true)
}

/// Makes a listener of a socket that is bound to `at`. It removes the socket file at its end if it is ours.
fn listening(
    side: Rc<Reactor>,
    file: OwnedFd,
    at: &Address,
    ours: bool,
) -> Result<Rc<dyn Listener>> {
    let failed = |what: &str, error: &io::Error| Error::io(error, format_args!("{at}: {what}"));
    let fd = file.as_raw_fd();
    let made = match at {
        Address::Unix(path) if ours => {
            let found = std::fs::symlink_metadata(path).map_err(|error| failed("stat", &error))?;
            Some((path.clone(), found.dev(), found.ino()))
        }
        _ => None,
    };
    sys::listen(fd, BACKLOG).map_err(|error| failed("listen", &error))?;
    let address = match sys::name_of(fd, false).ok().and_then(|name| name.to_tcp()) {
        Some(bound) => Address::Tcp(bound.ip().to_string(), bound.port()),
        None => at.clone(),
    };
    let (file, closed, left) = (Rc::new(file), Cell::new(false), RefCell::default());
    let entrusted = Cell::new(false);
    let told = Cell::new(false);
    let listening = Listening { side, file, address, ours, made, closed, entrusted, left, told };
    Ok(Rc::new(Handle(Rc::new(listening))))
}

/// Whether a descriptor is a socket bound to `at`. If the kernel had to choose the port, any port matches.
fn is_bound_to(file: &OwnedFd, at: &Address) -> bool {
    let Ok(bound) = sys::name_of(file.as_raw_fd(), false) else { return false };
    match at {
        Address::Unix(path) => {
            let whole = |path: &Path| std::path::absolute(path).ok();
            // A socket without its file is out of reach.
            let is_there = std::fs::symlink_metadata(path);
            bound.to_path().is_some_and(|bound| whole(&bound) == whole(path))
                && is_there.is_ok_and(|found| found.file_type().is_socket())
        }
        Address::Tcp(host, port) => {
            let Some(bound) = bound.to_tcp() else { return false };
            let wanted = (host.as_str(), *port).to_socket_addrs().into_iter().flatten().next();
            wanted.is_some_and(|wanted| {
                wanted.ip() == bound.ip() && (*port == 0 || *port == bound.port())
            })
        }
    }
}

/// Removes the socket file of a listener that is gone.
fn clear_stale(path: &Path, peer: &Peer, at: &Address) -> Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let in_use = |words: &str| Error::new(ErrorKind::InUse, format!("{at}: {words}"));
    if !found.file_type().is_socket() {
        return Err(in_use("the path exists and is no socket; remove it or choose another"));
    }
    let probe = sys::socket(libc::AF_UNIX, true)
        .map_err(|error| Error::io(&error, format_args!("{at}: making a socket")))?;
    match sys::connect(probe.as_raw_fd(), peer).map_err(|error| error.raw_os_error()) {
        Err(Some(libc::ECONNREFUSED)) => std::fs::remove_file(path).map_err(|error| {
            Error::io(&error, format_args!("{at}: removing the socket of an ended process"))
        }),
        Err(Some(libc::ENOENT)) => Ok(()),
        // Connected, or the backlog is full: either way there is a listener.
        Ok(()) | Err(Some(libc::EAGAIN)) => {
            Err(in_use("somebody listens there already; stop it or choose another path"))
        }
        Err(errno) => Err(Error::os(
            errno.unwrap_or(libc::EIO),
            format_args!("{at}: asking whether somebody listens there"),
        )),
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

    fn entrust(&self) -> Result<()> {
        let listening = &self.0;
        if listening.ours {
            listening.entrusted.set(fdstore::entrust(LISTENER, listening.file.as_fd())?);
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
        if self.entrusted.get() {
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
        sys::shutdown(self.file.as_raw_fd());
    }

    fn begin(&self) -> Ticket {
        let name = Some(self.address.to_string().into());
        let file = self.file.clone();
        let held = Held { op: Op::Accept, file, disk: None, name, buf: None, peer: None };
        self.side.start(held, Vec::new(), false)
    }
}

/// A wait for a connection. If it is given up, the next waiter gets its connection.
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
            let ticket = accepting.ticket.as_mut().expect("taken after the outcome only");
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
                if let Ok(own) = sys::name_of(file.as_raw_fd(), false) {
                    tune(&file, own.family());
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
                        "warning: {error}; connections wait until others are closed. Next: ulimit -n, or \
                         LimitNOFILE= of the service (said once)"
                    ));
                }
                env.sleep(ACCEPT_REST).await;
            }
            _ => return Err(error),
        }
    }
    Err(stopped())
}

/// Returns a description of the other end.
fn describe(file: &OwnedFd) -> String {
    let fd = file.as_raw_fd();
    if let Some(address) = sys::name_of(fd, true).ok().and_then(|name| name.to_tcp()) {
        return format!("tcp:{address}");
    }
    match sys::credentials(fd) {
        Ok((pid, user)) => {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({}) of user {user}", comm.trim())
        }
        Err(_) => "somebody who has gone".to_owned(),
    }
}
