//! Nodes on the device of a pool: reads through the cache, and the writes of passes, gathered into long ones.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::env::Mono;
use block::{Child, Env, Lower, Op, Result};

use super::room::Room;
use crate::Address;
use crate::map::{NODE_BYTES, Node, NodeCache, Place, Pointer, Store};

/// Most bytes of adjacent nodes that one write has.
const WRITE_NODES_MAX: usize = 64;

/// Most writes of nodes in flight.
const WRITES_MAX: usize = 4;

/// Longest work of a pass between two rests while clients wait, and otherwise.
const SLICE_BUSY: Duration = Duration::from_micros(25);
const SLICE_IDLE: Duration = Duration::from_micros(100);

/// The nodes of a pool.
pub struct Nodes {
    env: Env,
    lower: Lower,
    room: Rc<Room>,
    cache: RefCell<NodeCache>,
    /// Nodes that are not written yet, by address. Reads find them here.
    waiting: RefCell<BTreeMap<u64, Rc<Node>>>,
    /// The writes in flight, the oldest first.
    writes: RefCell<Vec<Child>>,
    /// Number of requests of clients that wait now.
    clients: Cell<u32>,
    slice: Cell<Mono>,
    reads: Cell<u64>,
    written: Cell<u64>,
}

/// The nodes as a lookup for clients uses them. Each use is noted in the cache.
#[derive(Clone)]
pub struct Lookups(pub Rc<Nodes>);

/// The nodes as merges and other passes use them. Their reads are not noted in the cache.
#[derive(Clone)]
pub struct Passes(pub Rc<Nodes>);

impl Nodes {
    /// Creates the nodes on `lower`, with a cache of at most `cache_nodes`.
    pub fn new(env: &Env, lower: &Lower, room: Rc<Room>, cache_nodes: usize) -> Rc<Self> {
        Rc::new(Self {
            env: env.clone(),
            lower: lower.clone(),
            room,
            cache: RefCell::new(NodeCache::new(cache_nodes)),
            waiting: RefCell::default(),
            writes: RefCell::default(),
            clients: Cell::new(0),
            slice: Cell::new(env.clock()),
            reads: Cell::new(0),
            written: Cell::new(0),
        })
    }

    /// Returns the number of nodes that were read from the device, and that were written to it.
    pub fn counts(&self) -> (u64, u64) {
        (self.reads.get(), self.written.get())
    }

    /// Notes that a request of a client begins (`1`) or ends (`-1`) to wait, for the length of slices.
    pub fn client(&self, by: i32) {
        self.clients.set(self.clients.get().wrapping_add_signed(by));
    }

    async fn read(&self, pointer: &Pointer, place: &Place, is_pass: bool) -> Result<Rc<Node>> {
        let known = {
            let mut cache = self.cache.borrow_mut();
            let cached = match is_pass {
                true => cache.peek(pointer.address),
                false => cache.get(pointer.address),
            };
            cached.or_else(|| self.waiting.borrow().get(&pointer.address.bits()).cloned())
        };
        if let Some(node) = known {
            node.check_head(pointer, place)?;
            return Ok(node);
        }
        let range = self.room.range(pointer.address, 1)?;
        let buf = self.lower.read(range, self.env.buf(NODE_BYTES)?).await?;
        self.reads.set(self.reads.get() + 1);
        let node = Node::open(&buf.read(), pointer, place)?;
        self.cache.borrow_mut().insert(pointer.address, node.clone());
        Ok(node)
    }

    /// Puts a node in line to be written.
    async fn write(&self, address: Address, node: Rc<Node>) -> Result<()> {
        self.cache.borrow_mut().insert(address, node.clone());
        let is_full = {
            let mut waiting = self.waiting.borrow_mut();
            waiting.insert(address.bits(), node);
            waiting.len() >= WRITE_NODES_MAX
        };
        if is_full { self.start_writes().await } else { Ok(()) }
    }

    /// Starts the writes of all nodes in line.
    async fn start_writes(&self) -> Result<()> {
        let waiting: Vec<(u64, Rc<Node>)> =
            self.waiting.borrow().iter().map(|(at, node)| (*at, node.clone())).collect();
        for run in waiting.chunk_by(|(before, _), (after, _)| before + 1 == *after) {
            let buf = self.env.buf(run.len() * NODE_BYTES)?;
            for ((_, node), part) in run.iter().zip(buf.write().chunks_exact_mut(NODE_BYTES)) {
                part.copy_from_slice(node.bytes());
            }
            let range = self.room.range(Address::from_bits(run[0].0), run.len() as u64)?;
            self.settle(WRITES_MAX - 1).await?;
            self.writes.borrow_mut().push(self.lower.start(Op::write(range, buf)));
            self.written.set(self.written.get() + run.len() as u64);
        }
        let mut all = self.waiting.borrow_mut();
        waiting.iter().for_each(|(at, _)| drop(all.remove(at)));
        Ok(())
    }

    /// Waits until at most `most` writes are in flight.
    async fn settle(&self, most: usize) -> Result<()> {
        while self.writes.borrow().len() > most {
            let oldest = self.writes.borrow_mut().remove(0);
            oldest.await.result?;
        }
        Ok(())
    }

    /// Waits until all nodes are written. They are durable after a flush.
    ///
    /// # Errors
    /// The first error of a write.
    pub async fn finish(&self) -> Result<()> {
        self.start_writes().await?;
        self.settle(0).await
    }

    /// Forgets the nodes in line and the writes in flight, after a pass has failed.
    pub fn drop_writes(&self) {
        self.waiting.take();
        self.writes.take();
    }

    /// Removes a freed node from the cache, before its address is given away.
    pub fn forget(&self, address: Address) {
        self.cache.borrow_mut().remove(address);
    }

    async fn rest(&self) {
        let most = if self.clients.get() > 0 { SLICE_BUSY } else { SLICE_IDLE };
        if self.env.clock().since(self.slice.get()) >= most {
            self.env.give_way().await;
            self.slice.set(self.env.clock());
        }
    }
}

impl Store for Lookups {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        self.0.read(pointer, place, false).await
    }

    fn allocate(&self) -> Result<Address> {
        panic!("a lookup writes no node")
    }

    async fn write(&self, _: Address, _: Rc<Node>) -> Result<()> {
        panic!("a lookup writes no node")
    }

    async fn rest(&self) {}
}

impl Store for Passes {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        self.0.read(pointer, place, true).await
    }

    fn allocate(&self) -> Result<Address> {
        self.0.room.take_node()
    }

    async fn write(&self, address: Address, node: Rc<Node>) -> Result<()> {
        self.0.write(address, node).await
    }

    async fn rest(&self) {
        self.0.rest().await;
    }
}
