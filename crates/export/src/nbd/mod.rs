//! The NBD server: one device, any number of clients, one core.
//!
//! A connection is two tasks. The reader takes all bytes that have arrived and begins every request in them. The writer
//! sends all available replies with one system call. In between, a request belongs to the engine. So a client that
//! pipelines pays for two system calls per batch, not per request.

mod cancel;
mod command;
mod connection;
mod handshake;
mod log;
mod pause;
mod reader;
mod server;
mod writer;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::{ByteRange, Env, Info, Notify};
use engine::{Engine, Portal};
use wire::nbd::{BlockSizes, ExportFacts, TransmissionFlags};

use crate::Listed;
use crate::pieces::PIECE_BYTES;

pub use server::{CurrentTls, Server};

/// Limits of the resources of an NBD server that clients may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections of one server. A client beyond them gets a reply that gives this reason, and is closed.
    pub connections: usize,
    /// Most requests of one connection that are begun and not answered.
    pub requests: u32,
    /// Most bytes of requests and replies that one connection may hold in memory; at least one request fits.
    pub held_bytes: usize,
    /// Time limit of the whole handshake with a client.
    pub handshake: Duration,
    /// Time limit for receiving one request, from its first byte to its last. Also, while other clients wait for
    /// memory, the time in which a client must read some of its replies.
    pub request: Duration,
    /// Bytes of the longest part of a trim or a write of zeroes that is submitted at once.
    pub piece_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 100,
            requests: 256,
            held_bytes: 64 << 20,
            handshake: Duration::from_secs(10),
            request: Duration::from_secs(60),
            piece_bytes: PIECE_BYTES,
        }
    }
}

/// A closed connection of a client that may have requests in flight.
pub(crate) trait Orphan {
    /// Whether the closed connection has requests in flight.
    fn has_requests(&self) -> bool;
    /// Whether a request of the closed connection changes `range`. A flush (`None`) overlaps all requests that change
    /// bytes.
    fn is_about(&self, range: Option<ByteRange>) -> bool;
}

/// A volume that clients find by its name: a device behind a portal.
pub struct Export {
    listed: RefCell<Listed>,
    pub(crate) env: Env,
    pub(crate) engine: Engine,
    pub(crate) portal: Portal,
    /// Closed connections with requests in flight. Overlapping requests wait for these.
    orphans: RefCell<Vec<Weak<dyn Orphan>>>,
    /// Wakes requests that wait for orphans.
    fenced: Notify,
}

impl Export {
    /// Creates an export of the device behind `portal`, under the portal's name, for every client.
    pub fn new(env: &Env, engine: &Engine, portal: &Portal, description: &str) -> Rc<Self> {
        Self::for_clients(env, engine, portal, description, None)
    }

    /// Creates an export like [`Export::new`] for clients with a certificate that has one of the names in `clients`, as
    /// common name or as alternative name. Other clients do not see the export, nor do clients without TLS.
    pub fn for_clients(
        env: &Env,
        engine: &Engine,
        portal: &Portal,
        description: &str,
        clients: Option<&[String]>,
    ) -> Rc<Self> {
        let (name, description) = (portal.name().to_owned(), description.to_owned());
        let clients = clients.map(<[String]>::to_vec);
        Rc::new(Self {
            listed: RefCell::new(Listed { name, description, clients }),
            env: env.clone(),
            engine: engine.clone(),
            portal: portal.clone(),
            orphans: RefCell::default(),
            fenced: Notify::default(),
        })
    }

    /// Returns the name of the export.
    pub fn name(&self) -> &str {
        self.portal.name()
    }

    /// Returns the export's entry in the list of a catalogue.
    pub fn listed(&self) -> Listed {
        self.listed.borrow().clone()
    }

    /// Admits to the export the clients with these names in their certificates from now on, or every client.
    /// [`Server::close_barred`] closes the connections of others.
    pub fn let_in(&self, clients: Option<&[String]>) {
        self.listed.borrow_mut().clients = clients.map(<[String]>::to_vec);
    }

    /// Returns the present facts about the device behind the export. The portal may lead to another device later.
    pub fn info(&self) -> Info {
        self.portal.info()
    }

    /// Whether clients without a certificate may use the export.
    pub fn is_for_all(&self) -> bool {
        self.listed.borrow().clients.is_none()
    }

    pub(crate) fn is_for(&self, names: &[String]) -> bool {
        self.listed.borrow().is_for(names)
    }

    fn facts(&self) -> ExportFacts {
        let info = self.info();
        let mut flags = TransmissionFlags::FLUSH
            | TransmissionFlags::FUA
            | TransmissionFlags::WRITE_ZEROES
            | TransmissionFlags::FAST_ZERO
            | TransmissionFlags::DF
            | TransmissionFlags::CACHE
            | TransmissionFlags::MULTI_CONN;
        if info.read_only {
            flags |= TransmissionFlags::READ_ONLY;
        }
        if info.discard {
            flags |= TransmissionFlags::TRIM;
        }
        let preferred = info.preferred_io.max(info.block_size).max(4096).next_power_of_two();
        let blocks = BlockSizes::new(info.block_size, preferred, info.max_transfer)
            .expect("a device's block size is a power of two from 512 to 64 KiB");
        ExportFacts {
            name: self.name().to_owned(),
            description: self.listed.borrow().description.clone(),
            size_bytes: info.size,
            flags,
            blocks,
            contexts: vec![wire::nbd::BASE_ALLOCATION.to_owned()],
        }
    }

    /// Adds a closed connection to the export. Overlapping requests wait until that connection's requests have ended.
    pub(crate) fn orphaned(&self, orphan: Weak<dyn Orphan>) {
        self.orphans.borrow_mut().push(orphan);
    }

    /// Waits until no closed connection of the export has a request in flight that touches `range`.
    pub(crate) async fn unfenced(&self, range: Option<ByteRange>) {
        self.fenced.until(|| !self.is_fenced(range)).await;
    }

    /// Wakes requests to the export that wait for a closed connection, after this has ended a request.
    pub(crate) fn wake_fenced(&self) {
        self.fenced.wake();
    }

    /// Whether a request on `range` of the export must wait for a request of a closed connection.
    pub(crate) fn is_fenced(&self, range: Option<ByteRange>) -> bool {
        let mut orphans = self.orphans.borrow_mut();
        if orphans.is_empty() {
            return false;
        }
        orphans.retain(|orphan| orphan.upgrade().is_some_and(|orphan| orphan.has_requests()));
        orphans.iter().filter_map(Weak::upgrade).any(|orphan| orphan.is_about(range))
    }
}
