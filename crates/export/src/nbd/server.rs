//! The server: listeners, connections, and how it ends.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::Env;
use block::Waiters;
use block::env::{Listener, Socket};
use wire::nbd::{Exports, Session};
use wire::stream::Inbox;

use super::connection::{Connection, Peers};
use super::gate::Gate;
use super::handshake::{Door, Full, shake};
use super::log::Log;
use super::reader::read;
use super::writer::write;
use super::{Export, Limits, Orphan};

/// After an accept that failed, before the next: what fails once would fail at once again.
const REST: Duration = Duration::from_millis(100);

/// At the end, for the last answers to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// A running NBD server.
#[derive(Clone)]
pub struct Server(Rc<Inner>);

struct Inner {
    env: Env,
    exports: RefCell<Vec<Rc<Export>>>,
    limits: Limits,
    log: Log,
    listeners: RefCell<Vec<Rc<dyn Listener>>>,
    /// Of every connection, in its handshake or after it.
    gates: RefCell<Vec<Weak<Gate>>>,
    peers: Rc<Peers>,
    /// Connections, in their handshake or after it.
    connections: Cell<usize>,
    served: Cell<u64>,
    waiting: Waiters,
    stopping: Cell<bool>,
}

impl Server {
    /// A server of these exports; `log` gets a line for each connection that ends badly, as long as
    /// they are few.
    pub fn new(
        env: &Env,
        exports: Vec<Rc<Export>>,
        limits: Limits,
        log: impl Fn(&str) + 'static,
    ) -> Self {
        Self(Rc::new(Inner {
            env: env.clone(),
            exports: RefCell::new(exports),
            limits,
            log: Log::new(env, log),
            listeners: RefCell::default(),
            gates: RefCell::default(),
            peers: Rc::default(),
            connections: Cell::new(0),
            served: Cell::new(0),
            waiting: Waiters::default(),
            stopping: Cell::new(false),
        }))
    }

    /// Serves whoever connects to `listener`.
    pub fn serve(&self, listener: Rc<dyn Listener>) {
        self.listen(listener, None);
    }

    /// Serves whoever connects to `listener` and speaks TLS before anything else.
    pub fn serve_tls(&self, listener: Rc<dyn Listener>, tls: &Rc<tls::Server>) {
        self.listen(listener, Some(tls.clone()));
    }

    fn listen(&self, listener: Rc<dyn Listener>, tls: Option<Rc<tls::Server>>) {
        self.0.listeners.borrow_mut().push(listener.clone());
        let server = self.clone();
        self.0.env.spawn("an NBD listener", async move {
            loop {
                match listener.accept().await {
                    Ok(socket) => server.admit(socket, tls.clone()),
                    Err(_) if server.0.stopping.get() => return,
                    Err(error) => {
                        server.0.log.line(&format!("{}: {error}", listener.address()));
                        server.0.env.sleep(REST).await;
                    }
                }
            }
        });
    }

    /// Offers these exports from now on. Who is connected to another one stays.
    pub fn offer(&self, exports: Vec<Rc<Export>>) {
        *self.0.exports.borrow_mut() = exports;
    }

    /// What is offered now.
    pub fn exports(&self) -> Vec<Rc<Export>> {
        self.0.exports.borrow().clone()
    }

    /// Has all listeners held once more, by whoever holds them now.
    ///
    /// # Errors
    /// What the system says.
    pub fn entrust_again(&self) -> block::Result<()> {
        self.0.listeners.borrow().iter().try_for_each(|listener| listener.entrust())
    }

    /// Connections now to the export of that name.
    pub fn connections_to(&self, export: &str) -> usize {
        self.0.peers.all().iter().filter(|peer| peer.export.name() == export).count()
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.0.connections.get()
    }

    /// Connections since the start that were served, those of now included.
    pub fn served(&self) -> u64 {
        self.0.served.get()
    }

    /// Lets nobody in and begins nothing any more, and waits up to `limit` until every begun request
    /// is answered. Answers how many connections were closed, and whether all was answered.
    pub async fn stop(&self, limit: Duration) -> (usize, bool) {
        self.0.stopping.set(true);
        for listener in self.0.listeners.take() {
            listener.close();
        }
        let open = self.0.peers.all();
        for gate in self.0.gates.take() {
            if let Some(gate) = gate.upgrade() {
                gate.shut();
            }
        }
        let quiet = async {
            for connection in &open {
                connection.quiet().await;
            }
        };
        let answered = self.0.env.within(limit, quiet).await.is_some();
        if answered && self.0.env.within(FAREWELL, self.all_closed()).await.is_some() {
            return (open.len(), true);
        }
        open.iter().for_each(|connection| connection.close());
        let closed = self.0.env.within(FAREWELL, self.all_closed()).await;
        (open.len(), answered && closed.is_some())
    }

    /// Ends when there is no connection.
    pub async fn all_closed(&self) {
        self.0.waiting.until(|| self.0.connections.get() == 0).await;
    }

    fn admit(&self, mut socket: Rc<dyn Socket>, tls: Option<Rc<tls::Server>>) {
        let inner = &self.0;
        // As many again may wait to be told that there is no room; beyond that they are just closed.
        if inner.connections.get() >= 2 * inner.limits.connections {
            return socket.shutdown();
        }
        let full = inner.connections.get() >= inner.limits.connections;
        inner.connections.set(inner.connections.get() + 1);
        let gate = Rc::new(Gate::default());
        inner.gates.borrow_mut().retain(|gate| gate.strong_count() > 0);
        inner.gates.borrow_mut().push(Rc::downgrade(&gate));
        let server = self.clone();
        inner.env.spawn("an NBD connection", async move {
            let peer = socket.peer();
            if let Err(why) = server.connection(&mut socket, gate, full, tls.as_deref()).await {
                server.0.log.line(&format!("connection of {peer} closed: {why}"));
            }
            socket.shutdown();
            let inner = &server.0;
            inner.connections.set(inner.connections.get() - 1);
            inner.waiting.wake();
        });
    }

    async fn connection(
        &self,
        socket: &mut Rc<dyn Socket>,
        gate: Rc<Gate>,
        full: bool,
        tls: Option<&tls::Server>,
    ) -> Result<(), String> {
        let inner = &self.0;
        let exports = inner.exports.borrow().clone();
        let shaken = self.handshake(socket, &exports, &gate, full, tls).await?;
        let Some((session, inbox)) = shaken else {
            return Ok(());
        };
        let socket = socket.clone();
        let found = exports.iter().find(|export| export.name == session.facts.name);
        let export = found.expect("the codec found it among these").clone();
        if !inner.exports.borrow().iter().any(|offered| Rc::ptr_eq(offered, &export)) {
            return Err(format!("{} is not offered any more", export.name));
        }
        let (limits, peers) = (inner.limits, inner.peers.clone());
        let connection = Connection::new(export.clone(), socket, session, limits, gate, peers)
            .map_err(|error| error.to_string())?;
        inner.served.set(inner.served.get() + 1);
        inner.peers.add(&connection);
        inner.env.spawn("an NBD writer", write(connection.clone()));
        let ended = read(&connection, inbox).await;
        if connection.has_requests() {
            let orphan: Rc<dyn Orphan> = connection.clone();
            export.orphaned(Rc::downgrade(&orphan));
        }
        connection.quiet().await;
        // Whoever has left may still read its last answers, but not for ever.
        let _ = inner.env.within(limits.request, connection.written()).await;
        connection.close();
        if connection.was_cut() {
            return Err(format!(
                "it took none of its answers for {:?}, and others wait for memory",
                limits.request
            ));
        }
        ended
    }

    /// The handshake; `None` if the client left, or the server ends.
    async fn handshake(
        &self,
        socket: &mut Rc<dyn Socket>,
        exports: &[Rc<Export>],
        gate: &Gate,
        full: bool,
        tls: Option<&tls::Server>,
    ) -> Result<Option<(Session, Inbox)>, String> {
        let inner = &self.0;
        let full = full.then_some(inner.limits.connections);
        let door = Door { exports, full, tls };
        let shaking = async {
            let inbox = Inbox::new(inner.env.pool()).await;
            let mut inbox = inbox.map_err(|error| error.to_string())?;
            let session = shake(&inner.env, socket, &door, &mut inbox).await?;
            Ok(session.map(|session| (session, inbox)))
        };
        let limit = inner.limits.handshake;
        let Some(shaken) = gate.unless(inner.env.within(limit, shaking)).await else {
            return Ok(None);
        };
        match (full, shaken) {
            (Some(most), _) => Err(Full(most).refusal().expect("it refuses everybody")),
            (None, Some(shaken)) => shaken,
            (None, None) => Err(format!("no handshake within {limit:?}")),
        }
    }
}
