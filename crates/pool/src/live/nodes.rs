//! Nodes on the device of a pool: reads through the cache, and the writes of passes, gathered into long ones.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter;
use std::rc::Rc;
use std::time::Duration;

use block::env::Mono;
use block::seeded::{self, Bug};
use block::{Child, Env, ErrorKind, Lower, Op, Patience, Result, bail};
use meta::io::step;

use super::copies::read_right;
use super::room::{ReadGuard, Room};
use crate::Address;
use crate::map::{NODE_BYTES, Node, NodeCache, Place, Pointer, Reads, Store};

/// Most bytes of adjacent nodes that one write has.
const WRITE_NODES_MAX: usize = 64;

/// Most writes of nodes in flight.
const WRITES_MAX: usize = 4;

/// Longest work of a pass between two rests, while clients may wait.
const SLICE: Duration = Duration::from_micros(25);

/// The nodes of a pool.
pub struct Nodes {
    env: Env,
    lower: Lower,
    room: Rc<Room>,
    cache: RefCell<NodeCache>,
    /// Nodes whose writes have not ended, by address. Reads find them here if they have left the cache.
    unwritten: RefCell<BTreeMap<u64, Rc<Node>>>,
    /// Addresses of the nodes in line to be written.
    line: RefCell<BTreeSet<u64>>,
    /// The writes in flight, the oldest first: first address and number of nodes.
    writes: RefCell<VecDeque<(Child, u64, usize)>>,
    /// Whether right bytes of another copy are written over wrong ones.
    heals: bool,
    /// Whether new nodes may have a second copy, because the device below keeps one copy.
    doubles: bool,
    /// Waits for space below for the writes of nodes.
    patience: Rc<Patience>,
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

/// The nodes as a check uses them: both copies of a node are read from the device.
pub struct BothCopies<'n> {
    nodes: &'n Nodes,
    wrong: RefCell<BTreeSet<String>>,
}

impl<'n> BothCopies<'n> {
    /// Begins a check without damaged copies.
    pub fn new(nodes: &'n Nodes) -> Self {
        Self { nodes, wrong: RefCell::default() }
    }

    /// Returns the errors of damaged copies beside right ones.
    pub fn into_wrong(self) -> BTreeSet<String> {
        self.wrong.into_inner()
    }
}

/// The nodes as a part of a checkpoint uses them that may fail. It remembers its new nodes.
pub struct Attempt<'p> {
    passes: &'p Passes,
    made: RefCell<Vec<Address>>,
}

impl<'p> Attempt<'p> {
    /// Begins an attempt without new nodes.
    pub fn new(passes: &'p Passes) -> Self {
        Self { passes, made: RefCell::default() }
    }

    /// Returns the addresses of the new nodes.
    pub fn made(&self) -> Vec<Address> {
        self.made.borrow().clone()
    }
}

impl Nodes {
    /// Creates the nodes on `lower`, with a cache of at most `cache_nodes`.
    pub fn new(
        env: &Env,
        lower: &Lower,
        room: Rc<Room>,
        cache_nodes: usize,
        heals: bool,
        doubles: bool,
        patience: Rc<Patience>,
    ) -> Rc<Self> {
        Rc::new(Self {
            env: env.clone(),
            lower: lower.clone(),
            room,
            cache: RefCell::new(NodeCache::new(cache_nodes)),
            unwritten: RefCell::default(),
            line: RefCell::default(),
            writes: RefCell::default(),
            heals,
            doubles,
            patience,
            slice: Cell::new(env.clock()),
            reads: Cell::new(0),
            written: Cell::new(0),
        })
    }

    /// Whether new nodes may have a second copy.
    pub fn doubles(&self) -> bool {
        self.doubles
    }

    /// Returns the number of nodes that were read from the device, and that were written to it.
    pub fn counts(&self) -> (u64, u64) {
        (self.reads.get(), self.written.get())
    }

    /// Begins a read of several nodes of one tree: none of their addresses is given away until the guard is dropped.
    pub fn reading(&self) -> ReadGuard {
        self.room.reading()
    }

    async fn read(&self, pointer: &Pointer, place: &Place, is_pass: bool) -> Result<Rc<Node>> {
        let known = {
            let mut cache = self.cache.borrow_mut();
            let cached = match is_pass {
                true => cache.peek(pointer.address),
                false => cache.get(pointer.address),
            };
            cached.or_else(|| self.unwritten.borrow().get(&pointer.address.bits()).cloned())
        };
        if let Some(node) = known {
            node.check_head(pointer, place)?;
            return Ok(node);
        }
        let mut read = self.read_copy(pointer.address, pointer, place, is_pass).await;
        if let (Err(_), Some(second)) = (&read, pointer.second)
            && !seeded::on(Bug::SecondCopyUnread)
            && let Ok(node) = self.read_copy(second, pointer, place, is_pass).await
        {
            self.heal(pointer.address, &node).await;
            read = Ok(node);
        }
        let node = read?;
        self.cache.borrow_mut().insert(pointer.address, node.clone());
        Ok(node)
    }

    /// Reads the copy of a node at `address`. If its bytes are wrong, other copies of it below are read.
    async fn read_copy(
        &self,
        address: Address,
        pointer: &Pointer,
        place: &Place,
        is_pass: bool,
    ) -> Result<Rc<Node>> {
        let range = self.room.range(address, 1)?;
        let into = self.env.pool().wait_for(NODE_BYTES).await?;
        let buf = match self.lower.read(range, into).await {
            // For a pass this is damage of one tree, like wrong bytes.
            Err(error) if is_pass => {
                bail!(Corrupt, "the node at {address:?} cannot be read: {error}")
            }
            read => read?,
        };
        self.reads.set(self.reads.get() + 1);
        let opened = Node::open(&buf.read(), pointer, place);
        match opened {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let is_right = |bytes: &[u8]| Node::open(bytes, pointer, place).is_ok();
                let right = read_right(&self.lower, range, buf, self.heals, is_right).await?;
                let Some(buf) = right else { return Err(error) };
                Node::open(&buf.read(), pointer, place)
            }
            opened => opened,
        }
    }

    /// Writes a node over its damaged copy. The next read tries again if this write fails.
    async fn heal(&self, address: Address, node: &Node) {
        let (Ok(range), true) = (self.room.range(address, 1), self.heals) else { return };
        if let Ok(buf) = self.env.pool().wait_for(NODE_BYTES).await {
            buf.write().copy_from_slice(node.bytes());
            let _ = self.lower.write(range, buf).await;
        }
    }

    /// Puts a node in line to be written. The cache has it under its first address alone.
    async fn write(&self, address: Address, second: Option<Address>, node: Rc<Node>) -> Result<()> {
        self.cache.borrow_mut().insert(address, node.clone());
        let is_full = {
            let mut line = self.line.borrow_mut();
            for copy in iter::once(address).chain(second) {
                self.unwritten.borrow_mut().insert(copy.bits(), node.clone());
                line.insert(copy.bits());
            }
            line.len() >= WRITE_NODES_MAX
        };
        if is_full { self.start_writes().await } else { Ok(()) }
    }

    /// Starts the writes of all nodes in line.
    async fn start_writes(&self) -> Result<()> {
        let line: Vec<u64> = self.line.take().into_iter().collect();
        let most = step(&self.lower) / NODE_BYTES;
        let runs = line.chunk_by(|before, after| before + 1 == *after);
        for run in runs.flat_map(|run| run.chunks(most)) {
            self.settle(WRITES_MAX - 1).await?;
            let buf = self.env.pool().take_reserved(run.len() * NODE_BYTES)?;
            for (at, part) in run.iter().zip(buf.write().chunks_exact_mut(NODE_BYTES)) {
                part.copy_from_slice(self.unwritten.borrow()[at].bytes());
            }
            let range = self.room.range(Address::from_bits(run[0]), run.len() as u64)?;
            let write = (self.lower.start(Op::write(range, buf)), run[0], run.len());
            self.writes.borrow_mut().push_back(write);
            self.written.set(self.written.get() + run.len() as u64);
        }
        Ok(())
    }

    /// Waits until at most `most` writes are in flight.
    async fn settle(&self, most: usize) -> Result<()> {
        while self.writes.borrow().len() > most {
            let oldest = self.writes.borrow_mut().pop_front();
            let (write, first, count) = oldest.expect("a write is in flight");
            self.patience.settle(write.await).await.result?;
            let mut unwritten = self.unwritten.borrow_mut();
            (first..first + count as u64).for_each(|at| drop(unwritten.remove(&at)));
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
        self.line.take();
        self.unwritten.take();
        self.writes.take();
    }

    /// Removes a freed node from the cache, before its address is given away.
    pub fn forget(&self, address: Address) {
        self.cache.borrow_mut().remove(address);
    }

    async fn rest(&self) {
        if self.env.clock().since(self.slice.get()) >= SLICE {
            self.env.give_way().await;
            self.slice.set(self.env.clock());
        }
    }
}

impl Reads for Lookups {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        self.0.read(pointer, place, false).await
    }

    async fn rest(&self) {}
}

impl Reads for BothCopies<'_> {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        let Some(second) = pointer.second else {
            return self.nodes.read(pointer, place, false).await;
        };
        let copies = [pointer.address, second];
        let mut read = Vec::new();
        for address in copies {
            read.push(self.nodes.read_copy(address, pointer, place, false).await);
        }
        let right = read.iter().find_map(|copy| copy.as_ref().ok()).cloned();
        for (address, copy) in copies.into_iter().zip(&read) {
            if let (Err(error), Some(right)) = (copy, &right) {
                let words = format!("a copy of a node: {error}");
                self.wrong.borrow_mut().insert(words);
                self.nodes.heal(address, right).await;
            }
        }
        right.map_or_else(|| read.swap_remove(0), Ok)
    }

    async fn rest(&self) {}
}

impl Reads for Passes {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        self.0.read(pointer, place, true).await
    }

    async fn rest(&self) {
        self.0.rest().await;
    }
}

impl Store for Passes {
    fn allocate(&self) -> Result<Address> {
        self.0.room.take_node()
    }

    fn allocate_second(&self, first: Address) -> Option<Address> {
        if self.0.doubles() { self.0.room.take_second(first) } else { None }
    }

    async fn write(&self, address: Address, second: Option<Address>, node: Rc<Node>) -> Result<()> {
        self.0.write(address, second, node).await
    }
}

impl Reads for Attempt<'_> {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        self.passes.read(pointer, place).await
    }

    async fn rest(&self) {
        self.passes.rest().await;
    }
}

impl Store for Attempt<'_> {
    fn allocate(&self) -> Result<Address> {
        let address = self.passes.allocate()?;
        self.made.borrow_mut().push(address);
        Ok(address)
    }

    fn allocate_second(&self, first: Address) -> Option<Address> {
        let second = self.passes.allocate_second(first);
        self.made.borrow_mut().extend(second);
        second
    }

    async fn write(&self, address: Address, second: Option<Address>, node: Rc<Node>) -> Result<()> {
        self.passes.write(address, second, node).await
    }
}
