//! The server: listeners, connections, and how it ends.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use block::Env;
use block::env::{Listener, Socket};
use wire::nbd::{ExportEntry, ExportFacts, Exports};
use wire::stream::Inbox;

use super::connection::Connection;
use super::handshake::{Offer, shake};
use super::reader::read;
use super::writer::write;
use super::{Export, Limits};

/// After an accept that failed, before the next: what fails once would fail at once again.
const REST: Duration = Duration::from_millis(100);

/// A running NBD server.
#[derive(Clone)]
pub struct Server(Rc<Inner>);

struct Inner {
    env: Env,
    exports: Vec<Rc<Export>>,
    limits: Limits,
    log: Box<dyn Fn(&str)>,
    listeners: RefCell<Vec<Rc<dyn Listener>>>,
    sockets: RefCell<Vec<Weak<dyn Socket>>>,
    open: RefCell<Vec<Weak<Connection>>>,
    /// Connections, in their handshake or after it.
    connections: Cell<usize>,
    served: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
    stopping: Cell<bool>,
}

/// Answers whoever is one too many.
struct Full(usize);

impl Exports for Full {
    fn list(&self) -> Vec<ExportEntry> {
        let description = format!("the server has its {} connections; try again later", self.0);
        vec![ExportEntry { name: "busy".to_owned(), description }]
    }

    fn find(&self, _: &str) -> Option<ExportFacts> {
        None
    }
}

impl Server {
    /// A server of these exports; `log` gets a line for each connection that ends badly.
    pub fn new(
        env: &Env,
        exports: Vec<Rc<Export>>,
        limits: Limits,
        log: impl Fn(&str) + 'static,
    ) -> Self {
        Self(Rc::new(Inner {
            env: env.clone(),
            exports,
            limits,
            log: Box::new(log),
            listeners: RefCell::default(),
            sockets: RefCell::default(),
            open: RefCell::default(),
            connections: Cell::new(0),
            served: Cell::new(0),
            waiting: RefCell::default(),
            stopping: Cell::new(false),
        }))
    }

    /// Serves whoever connects to `listener`.
    pub fn serve(&self, listener: Rc<dyn Listener>) {
        self.0.listeners.borrow_mut().push(listener.clone());
        let server = self.clone();
        self.0.env.spawn("an NBD listener", async move {
            loop {
                match listener.accept().await {
                    Ok(socket) => server.admit(socket),
                    Err(_) if server.0.stopping.get() => return,
                    Err(error) => {
                        (server.0.log)(&format!("{}: {error}", listener.address()));
                        server.0.env.sleep(REST).await;
                    }
                }
            }
        });
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.0.connections.get()
    }

    /// Connections since the start that were served, those of now included.
    pub fn served(&self) -> u64 {
        self.0.served.get()
    }

    /// Lets nobody in any more, and waits up to `limit` until every begun request is answered.
    /// Answers how many connections were closed, and whether all was answered.
    pub async fn stop(&self, limit: Duration) -> (usize, bool) {
        self.0.stopping.set(true);
        for listener in self.0.listeners.take() {
            listener.close();
        }
        let open: Vec<_> = self.0.open.take().iter().filter_map(Weak::upgrade).collect();
        let count = open.len();
        let quiet = async {
            for connection in &open {
                connection.quiet().await;
            }
        };
        let answered = self.0.env.within(limit, quiet).await.is_some();
        for socket in self.0.sockets.take() {
            if let Some(socket) = socket.upgrade() {
                socket.shutdown();
            }
        }
        let closed = self.0.env.within(Duration::from_secs(1), self.all_closed()).await;
        (count, answered && closed.is_some())
    }

    async fn all_closed(&self) {
        poll_fn(|cx| {
            if self.0.connections.get() == 0 {
                return Poll::Ready(());
            }
            self.0.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn admit(&self, socket: Rc<dyn Socket>) {
        let inner = &self.0;
        // As many again may wait to be told that there is no room; beyond that they are just closed.
        if inner.connections.get() >= 2 * inner.limits.connections {
            return socket.shutdown();
        }
        let full = inner.connections.get() >= inner.limits.connections;
        inner.connections.set(inner.connections.get() + 1);
        inner.sockets.borrow_mut().retain(|socket| socket.strong_count() > 0);
        inner.sockets.borrow_mut().push(Rc::downgrade(&socket));
        let server = self.clone();
        inner.env.spawn("an NBD connection", async move {
            let peer = socket.peer();
            if let Err(why) = server.connection(socket.clone(), full).await {
                (server.0.log)(&format!("connection of {peer} closed: {why}"));
            }
            socket.shutdown();
            let inner = &server.0;
            inner.connections.set(inner.connections.get() - 1);
            inner.waiting.take().into_iter().for_each(Waker::wake);
        });
    }

    async fn connection(&self, socket: Rc<dyn Socket>, full: bool) -> Result<(), String> {
        let inner = &self.0;
        let mut inbox = Inbox::new(inner.env.pool()).await.map_err(|error| error.to_string())?;
        let (offer, none) = (Offer(&inner.exports), Full(inner.limits.connections));
        let exports: &dyn Exports = if full { &none } else { &offer };
        let shaking = shake(&inner.env, &*socket, exports, &mut inbox);
        let limit = inner.limits.handshake;
        let Some(shaken) = inner.env.within(limit, shaking).await else {
            return Err(format!("no handshake within {} s", limit.as_secs()));
        };
        if full {
            return Err(format!("at most {} connections", inner.limits.connections));
        }
        let Some(session) = shaken? else { return Ok(()) };
        let found = inner.exports.iter().find(|export| export.name == session.facts.name);
        let export = found.expect("the codec found it among these").clone();
        let connection = Connection::new(export.clone(), socket, session, inner.limits)
            .map_err(|error| error.to_string())?;
        inner.served.set(inner.served.get() + 1);
        inner.open.borrow_mut().retain(|open| open.strong_count() > 0);
        inner.open.borrow_mut().push(Rc::downgrade(&connection));
        inner.env.spawn("an NBD writer", write(connection.clone()));
        let ended = read(connection.clone(), inbox).await;
        if connection.has_requests() {
            export.orphans.borrow_mut().push(Rc::downgrade(&connection));
        }
        connection.quiet().await;
        ended
    }
}
