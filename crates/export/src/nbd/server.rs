//! The NBD server: its listeners, its connections, and its stop.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::env::{Listener, Socket};
use block::{Env, Notify, OpenMode};
use wire::nbd::Session;
use wire::stream::Inbox;

use super::cancel::CancelToken;
use super::connection::{Connection, Peers, READ_MIN_BYTES};
use super::handshake::{ListenerPolicy, negotiate};
use super::living::Living;
use super::log::Log;
use super::reader::read;
use super::writer::write;
use super::{Export, Limits};
use crate::Catalog;

/// Pause after a failed accept, because the next accept is likely to fail as well.
const REST: Duration = Duration::from_millis(100);

/// Time in which clients may read their last replies when the server stops.
const LINGER: Duration = Duration::from_secs(1);

/// The reason in the log when the server closes a connection whose certificate was removed from the clients of the
/// export.
const NOT_ADMITTED: &str = "the client's certificate is no longer admitted to the export";

/// Function that returns the server's present side of TLS. The server calls it for each handshake, so a new
/// certificate applies at once.
pub type CurrentTls = Rc<dyn Fn() -> Rc<tls::Server>>;

/// A running NBD server.
#[derive(Clone)]
pub struct Server(pub(super) Rc<Inner>);

pub(super) struct Inner {
    pub(super) env: Env,
    pub(super) catalog: Rc<dyn Catalog>,
    limits: Limits,
    pub(super) log: Log,
    pub(super) listeners: RefCell<Vec<Rc<dyn Listener>>>,
    /// Tokens of all connections, in their handshake or after it. A cancelled token ends the requests of its
    /// connection.
    pub(super) cancels: Living<CancelToken>,
    pub(super) peers: Rc<Peers>,
    /// Number of open connections, in their handshake or after it.
    connections: Cell<usize>,
    served: Cell<u64>,
    /// Number of connections of the server in their handshake.
    pub(super) shaking: Cell<usize>,
    pub(super) waiting: Notify,
    stopping: Cell<bool>,
    /// Whether the server is paused: it accepts no client and begins no request until [`Server::go_on`].
    pub(super) pausing: Cell<bool>,
    pub(super) paused: RefCell<Vec<Paused>>,
}

/// A connection between two requests: after its handshake, or while its server is paused.
pub(super) struct Paused {
    pub(super) export: Rc<Export>,
    pub(super) socket: Rc<dyn Socket>,
    pub(super) session: Session,
    /// Names in the certificate of the connection's client.
    pub(super) names: Vec<String>,
    /// Bytes that have arrived on the connection and belong to no begun request.
    pub(super) unread: Vec<u8>,
}

impl Server {
    /// Creates a server of the volumes in `catalog`. `log` is called with a line for each connection that ends with
    /// an error, unless there are too many.
    pub fn new(
        env: &Env,
        catalog: Rc<dyn Catalog>,
        limits: Limits,
        log: impl Fn(&str) + 'static,
    ) -> Self {
        Self(Rc::new(Inner {
            env: env.clone(),
            catalog,
            limits,
            log: Log::new(env, log),
            listeners: RefCell::default(),
            cancels: Living::default(),
            peers: Rc::default(),
            connections: Cell::new(0),
            served: Cell::new(0),
            shaking: Cell::new(0),
            waiting: Notify::default(),
            stopping: Cell::new(false),
            pausing: Cell::new(false),
            paused: RefCell::default(),
        }))
    }

    /// Serves the clients that connect to `listener`.
    pub fn serve(&self, listener: Rc<dyn Listener>) {
        self.listen(listener, None);
    }

    /// Serves the clients that connect to `listener` and begin TLS. Clients that do not begin TLS are refused.
    pub fn serve_tls(&self, listener: Rc<dyn Listener>, tls: &CurrentTls) {
        self.listen(listener, Some(tls.clone()));
    }

    fn listen(&self, listener: Rc<dyn Listener>, tls: Option<CurrentTls>) {
        self.0.listeners.borrow_mut().push(listener.clone());
        let server = self.clone();
        self.0.env.spawn("an NBD listener", async move {
            loop {
                match listener.accept().await {
                    Ok(socket) => server.admit(socket, tls.clone()),
                    Err(_) if server.0.stopping.get() => return,
                    Err(_) if server.0.pausing.get() => {
                        let inner = &server.0;
                        inner.waiting.until(|| !inner.pausing.get()).await;
                    }
                    Err(error) => {
                        server.0.log.line(&format!("{}: {error}", listener.address()));
                        server.0.env.sleep(REST).await;
                    }
                }
            }
        });
    }

    /// Closes the connection of each client whose certificate its volume does not admit any more. Other connections
    /// stay open, even if their volume was removed from the catalogue.
    pub fn close_barred(&self) {
        self.0.peers.close_barred();
    }

    /// Passes all listeners of the server to the present supervisor again. The supervisor holds them open while no
    /// process serves.
    ///
    /// # Errors
    /// The error of the system.
    pub fn fdstore_put_again(&self) -> block::Result<()> {
        self.0.listeners.borrow().iter().try_for_each(|listener| listener.fdstore_put())
    }

    /// Returns the number of open connections to the export called `export`.
    pub fn connections_to(&self, export: &str) -> usize {
        self.0.peers.all().iter().filter(|peer| peer.export.name() == export).count()
    }

    /// Returns the number of the server's open connections.
    pub fn connections(&self) -> usize {
        self.0.connections.get()
    }

    /// Returns the number of connections that the server has served since its start, including open ones.
    pub fn served(&self) -> u64 {
        self.0.served.get()
    }

    /// Makes the server accept no more clients and begin no more requests, and waits up to `limit` until every begun
    /// request is answered. Then closes all connections. Returns the number of connections, and whether all requests
    /// were answered.
    pub async fn stop(&self, limit: Duration) -> (usize, bool) {
        self.0.stopping.set(true);
        for listener in self.0.listeners.take() {
            listener.close();
        }
        let open = self.0.peers.all();
        self.0.cancels.all().iter().for_each(|cancel| cancel.cancel());
        let answered = self.all_quiet(&open, limit).await;
        if answered && self.0.env.within(LINGER, self.all_closed()).await.is_some() {
            return (open.len(), true);
        }
        open.iter().for_each(|connection| connection.close());
        let closed = self.0.env.within(LINGER, self.all_closed()).await;
        (open.len(), answered && closed.is_some())
    }

    /// Waits up to `limit` until every begun request of the connections `open` is answered. Returns whether all
    /// requests are answered.
    pub(super) async fn all_quiet(&self, open: &[Rc<Connection>], limit: Duration) -> bool {
        let quiet = async {
            for connection in open {
                connection.quiet().await;
            }
        };
        self.0.env.within(limit, quiet).await.is_some()
    }

    /// Waits until the server has no connection.
    pub async fn all_closed(&self) {
        self.0.waiting.until(|| self.0.connections.get() == 0).await;
    }

    fn admit(&self, mut socket: Rc<dyn Socket>, tls: Option<CurrentTls>) {
        let inner = &self.0;
        // Up to as many further clients get a reply that the server is full; beyond that they are just closed.
        if inner.connections.get() >= 2 * inner.limits.connections {
            return socket.shutdown();
        }
        let full = inner.connections.get() >= inner.limits.connections;
        let cancel = self.count();
        inner.shaking.set(inner.shaking.get() + 1);
        let server = self.clone();
        inner.env.spawn("an NBD connection", async move {
            let peer = socket.peer();
            let tls = tls.map(|current| current());
            let ended = server.shake_and_serve(&mut socket, cancel, full, tls.as_deref()).await;
            server.ended(&*socket, &peer, ended);
        });
    }

    /// Counts one more connection of the server. Returns the token that ends the requests of the connection.
    pub(super) fn count(&self) -> Rc<CancelToken> {
        let inner = &self.0;
        inner.connections.set(inner.connections.get() + 1);
        let cancel = Rc::new(CancelToken::default());
        inner.cancels.add(Rc::downgrade(&cancel));
        cancel
    }

    /// Counts one connection less. A paused connection stays open for the next server; any other is closed.
    pub(super) fn ended(
        &self,
        socket: &dyn Socket,
        peer: &str,
        ended: Result<Option<Paused>, String>,
    ) {
        let inner = &self.0;
        match ended {
            Ok(Some(paused)) => inner.paused.borrow_mut().push(paused),
            Ok(None) => socket.shutdown(),
            Err(why) => {
                inner.log.line(&format!("connection of {peer} closed: {why}"));
                socket.shutdown();
            }
        }
        inner.connections.set(inner.connections.get() - 1);
        inner.waiting.wake();
        if !inner.pausing.get() {
            self.go_on();
        }
    }

    async fn shake_and_serve(
        &self,
        socket: &mut Rc<dyn Socket>,
        cancel: Rc<CancelToken>,
        full: bool,
        tls: Option<&tls::Server>,
    ) -> Result<Option<Paused>, String> {
        let inner = &self.0;
        let negotiated = self.handshake(socket, &cancel, full, tls).await;
        inner.shaking.set(inner.shaking.get() - 1);
        inner.waiting.wake();
        let Some((begin, inbox)) = negotiated? else { return Ok(None) };
        let closing = inner.peers.close_gone(&inner.env, &begin.export, inner.limits.request);
        cancel.unless(closing).await;
        self.transmit(begin, inbox, cancel).await
    }

    /// Serves the requests of a connection until the client ends it, or until the server is paused.
    pub(super) async fn transmit(
        &self,
        begin: Paused,
        inbox: Inbox,
        cancel: Rc<CancelToken>,
    ) -> Result<Option<Paused>, String> {
        let Paused { export, socket, session, names, unread } = begin;
        let inner = &self.0;
        if !export.is_for(&names) {
            return Err(NOT_ADMITTED.to_owned());
        }
        let (limits, peers) = (inner.limits, inner.peers.clone());
        let connection =
            Connection::new(export.clone(), socket, session, names, limits, cancel, peers);
        inner.served.set(inner.served.get() + 1);
        inner.peers.add(&connection);
        if inner.pausing.get() {
            connection.leave();
        }
        inner.env.spawn("an NBD writer", write(connection.clone()));
        let mut ended = read(&connection, inbox, unread).await;
        connection.fence();
        connection.quiet().await;
        // A client that has left may still read its last replies, but not for ever.
        let written = inner.env.within(limits.request, connection.written()).await.is_some();
        if let Ok(Some(unread)) = ended {
            if written && connection.is_leaving() {
                connection.let_go();
                let (socket, session) = (connection.socket.clone(), connection.session.clone());
                let unread = [connection.unanswered.take(), unread].concat();
                let names = connection.names.clone();
                return Ok(Some(Paused { export, socket, session, names, unread }));
            }
            ended = Ok(None);
        }
        connection.close();
        if !export.is_for(&connection.names) {
            return Err(NOT_ADMITTED.to_owned());
        }
        if connection.cut.get() {
            return Err(format!(
                "the client read fewer than {READ_MIN_BYTES} bytes of its replies in {:?}",
                limits.slow
            ));
        }
        ended.map(|_| None)
    }

    /// Carries out the handshake with a client. Returns `None` if the client ended the handshake, or the server
    /// stops.
    async fn handshake(
        &self,
        socket: &mut Rc<dyn Socket>,
        cancel: &CancelToken,
        full: bool,
        tls: Option<&tls::Server>,
    ) -> Result<Option<(Paused, Inbox)>, String> {
        let inner = &self.0;
        let full = full.then_some(inner.limits.connections);
        let policy = ListenerPolicy { catalog: &*inner.catalog, full, tls };
        // Boxed, because a connection keeps its future until its end: with the handshake in it, in each of the futures
        // around it too, an idle connection took 88 KiB.
        let shaking = Box::pin(async {
            let inbox = Inbox::small(inner.env.pool()).await;
            let mut inbox = inbox.map_err(|error| error.to_string())?;
            let Some(negotiated) = negotiate(&inner.env, socket, &policy, &mut inbox).await? else {
                return Ok(None);
            };
            // The catalogue may have changed between the options of the client.
            let name = negotiated.export.name();
            let now = inner.catalog.find(name, OpenMode::Existing).await;
            let now = now.map_err(|error| error.to_string())?;
            if !now.is_some_and(|now| Rc::ptr_eq(&now, &negotiated.export)) {
                return Err(format!("the export {name} no longer exists"));
            }
            Ok(Some((negotiated, inbox)))
        });
        let limit = inner.limits.handshake;
        let Some(negotiated) = cancel.unless(inner.env.within(limit, shaking)).await else {
            return Ok(None);
        };
        match (policy.refusal(), negotiated) {
            (Some(why), _) => Err(why),
            (None, Some(negotiated)) => negotiated,
            (None, None) => {
                Err(format!("the client did not complete the handshake within {limit:?}"))
            }
        }
    }
}
