//! The NBD server: devices behind portals, for any number of clients, on one core.
//!
//! A connection has two tasks. The reader receives all bytes that have arrived, and begins every request in them. The
//! writer sends all available replies with one system call. Between the reader and the writer a request belongs to
//! the engine. So a client that sends several requests together costs two system calls for all of them, not for each.

mod cancel;
mod command;
mod connection;
mod handshake;
mod living;
mod log;
mod pause;
mod reader;
mod server;
mod writer;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::seeded::{self, Bug};
use block::{ByteRange, Env, Info, Notify};
use engine::{Engine, OpenVolume, Portal};
use wire::nbd::{BlockSizes, ExportFacts, TransmissionFlags, handed};

use crate::pieces::PIECE_BYTES;
use crate::{Listed, Looked};

use connection::Connection;
use living::Living;
pub use server::{CurrentTls, Server};

/// Limits on the resources of an NBD server that its clients may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections of one server. A client above the limit gets an error that names the limit, and its
    /// connection is closed.
    pub connections: usize,
    /// Most requests of one connection that have begun and are not answered.
    pub requests: u32,
    /// Most bytes of payloads of requests and replies that one connection may have in memory. One request is always
    /// allowed.
    pub held_bytes: usize,
    /// Longest duration of the whole handshake with a client.
    pub handshake: Duration,
    /// Longest time from the first byte of a request to its last. Also the longest wait for a client that has left to
    /// read its last replies.
    pub request: Duration,
    /// Time in which a client must read 64 KiB of its replies while replies wait. Otherwise the connection is closed.
    pub slow: Duration,
    /// Length in bytes of the longest piece of a trim or a write of zeroes that is submitted to the engine.
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
            slow: Duration::from_secs(10),
            piece_bytes: PIECE_BYTES,
        }
    }
}

/// A closed connection or mount of a client, which may have requests in flight.
pub(crate) trait Orphan {
    /// Whether the closed connection has requests in flight.
    fn has_requests(&self) -> bool;
    /// Whether a request in flight of the closed connection changes a byte of `range`. `None` stands for a flush,
    /// which concerns all requests that change bytes.
    fn is_about(&self, range: Option<ByteRange>) -> bool;
}

/// A volume that clients find by its name. A portal leads from the export to a device.
pub struct Export {
    listed: RefCell<Listed>,
    pub(crate) env: Env,
    pub(crate) engine: Engine,
    pub(crate) portal: Portal,
    /// The volume that the export keeps open, if its device holds volumes.
    volume: Option<Rc<OpenVolume>>,
    /// Open connections to the export.
    pub(crate) connections: Living<Connection>,
    /// Closed connections that may have requests in flight. New requests that overlap these requests wait for them.
    orphans: RefCell<Vec<Weak<dyn Orphan>>>,
    /// Wakes requests that wait for requests of closed connections.
    fenced: Notify,
}

impl Export {
    /// Creates an export of the device behind `portal`, under the portal's name. Every client may use the export.
    pub fn new(env: &Env, engine: &Engine, portal: &Portal, description: &str) -> Rc<Self> {
        Self::for_clients(env, engine, portal, description, None)
    }

    /// Creates an export as [`Export::new`] does. Only a client whose certificate has one of the names in `clients`,
    /// as common name or as alternative name, may use it. Other clients, and clients without TLS, cannot see the
    /// export.
    pub fn for_clients(
        env: &Env,
        engine: &Engine,
        portal: &Portal,
        description: &str,
        clients: Option<&[String]>,
    ) -> Rc<Self> {
        let clients = clients.map(<[String]>::to_vec);
        Rc::new(Self::made(env, engine, portal, description, clients))
    }

    /// Creates the export of an open volume, under the volume's name. Every client may use the export. The volume stays
    /// open until the export is dropped.
    pub fn of_volume(
        env: &Env,
        engine: &Engine,
        volume: Rc<OpenVolume>,
        description: &str,
    ) -> Rc<Self> {
        let made = Self::made(env, engine, volume.portal(), description, None);
        Rc::new(Self { volume: Some(volume), ..made })
    }

    fn made(
        env: &Env,
        engine: &Engine,
        portal: &Portal,
        description: &str,
        clients: Option<Vec<String>>,
    ) -> Self {
        let (name, description) = (portal.name().to_owned(), description.to_owned());
        Self {
            listed: RefCell::new(Listed { name, description, clients }),
            env: env.clone(),
            engine: engine.clone(),
            portal: portal.clone(),
            volume: None,
            connections: Living::default(),
            orphans: RefCell::default(),
            fenced: Notify::default(),
        }
    }

    /// Returns the number that identifies the bytes of the export, in a graph whose devices have the number `graph`.
    pub(crate) fn identity(&self, graph: u64) -> u64 {
        match &self.volume {
            Some(volume) if !seeded::on(Bug::VolumeByName) => {
                handed::identity_of_volume(graph, &volume.id().0)
            }
            _ => graph,
        }
    }

    /// Whether no other export has bytes of this one. Two exports may show one device, but an open volume has one export.
    /// So a new client of one of many volumes does not wait for those of the others.
    pub(crate) fn is_alone(&self) -> bool {
        self.volume.is_some()
    }

    /// Returns the facts about the export for clients that do not open it.
    pub(crate) fn looked(&self) -> Looked {
        Looked { listed: self.listed(), info: self.info() }
    }

    /// Returns the name of the export.
    pub fn name(&self) -> &str {
        self.portal.name()
    }

    /// Returns the name, description and admitted clients of the export, for a list.
    pub fn listed(&self) -> Listed {
        self.listed.borrow().clone()
    }

    /// Replaces the clients that may use the export, from now on: those whose certificates have one of the names, or
    /// every client. [`Server::close_barred`] closes the connections of clients that are not admitted any more.
    pub fn let_in(&self, clients: Option<&[String]>) {
        self.listed.borrow_mut().clients = clients.map(<[String]>::to_vec);
    }

    /// Returns the present facts about the device behind the export. A live change may lead the portal to another
    /// device later.
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
        facts(&self.looked())
    }

    /// Adds a closed connection to the export. New requests that overlap requests of this connection wait for them.
    pub(crate) fn orphaned(&self, orphan: Weak<dyn Orphan>) {
        self.orphans.borrow_mut().push(orphan);
    }

    /// Waits until no closed connection has a request in flight that changes a byte of `range`.
    pub(crate) async fn unfenced(&self, range: Option<ByteRange>) {
        self.fenced.until(|| !self.is_fenced(range)).await;
    }

    /// Wakes requests that wait for requests of a closed connection, after such a request has ended.
    pub(crate) fn wake_fenced(&self) {
        self.fenced.wake();
    }

    /// Whether a new request on `range` must wait for a request of a closed connection.
    pub(crate) fn is_fenced(&self, range: Option<ByteRange>) -> bool {
        let mut orphans = self.orphans.borrow_mut();
        if orphans.is_empty() {
            return false;
        }
        orphans.retain(|orphan| orphan.upgrade().is_some_and(|orphan| orphan.has_requests()));
        orphans.iter().filter_map(Weak::upgrade).any(|orphan| orphan.is_about(range))
    }
}

/// Returns the facts about a volume of a catalogue, as the protocol announces them.
fn facts(looked: &Looked) -> ExportFacts {
    let Looked { listed, info } = looked;
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
    // The engine rewrites the blocks of unaligned requests, so a request may have any offset and length.
    let blocks = BlockSizes::new(1, preferred, info.max_transfer)
        .expect("a device's block size is a power of two from 512 to 64 KiB");
    ExportFacts {
        name: listed.name.clone(),
        description: listed.description.clone(),
        size_bytes: info.data_bytes(),
        flags,
        blocks,
        contexts: vec![wire::nbd::BASE_ALLOCATION.to_owned()],
    }
}
