//! Nodes in memory. Every read decodes the bytes anew, and waits now and then.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::iter;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use block::{Result, error};
use pool::Address;
use pool::map::{NODE_BYTES, Node, Place, Pointer, Reads, Store};

/// Blocks of an extent in these tests. They are few, so that runs meet the ends of extents.
const EXTENT_BLOCKS: u64 = 64;

/// Nodes and blocks of data in memory.
#[derive(Default)]
pub struct TestStore {
    pub nodes: RefCell<BTreeMap<u64, Vec<u8>>>,
    next: Cell<u64>,
    pub reads: Cell<u64>,
    /// Whether nodes have second copies. Every second read is that of a second copy then.
    doubles: bool,
    polls: Cell<u64>,
}

/// Returns the address of the n-th block of the pool that is not the header of an extent.
pub fn nth(n: u64) -> Address {
    let (extent, offset) = (n / (EXTENT_BLOCKS - 1), n % (EXTENT_BLOCKS - 1) + 1);
    Address::new(extent, offset as u32).expect("a small number")
}

impl TestStore {
    /// Creates an empty store, with second copies of nodes or without.
    pub fn new(doubles: bool) -> Self {
        Self { doubles, ..Self::default() }
    }

    /// Returns the addresses of `blocks` new blocks, as runs.
    pub fn take(&self, blocks: u64) -> Vec<(Address, u64)> {
        let mut runs: Vec<(Address, u64)> = Vec::new();
        for _ in 0..blocks {
            let address = self.take_one();
            match runs.last_mut() {
                Some((first, length)) if first.bits() + *length == address.bits() => *length += 1,
                _ => runs.push((address, 1)),
            }
        }
        runs
    }

    fn take_one(&self) -> Address {
        self.next.set(self.next.get() + 1);
        nth(self.next.get())
    }

    /// Removes a node that was freed.
    pub fn free_node(&self, address: Address) {
        let found = self.nodes.borrow_mut().remove(&address.bits());
        assert!(found.is_some(), "the node at {address:?} is freed twice, or was never one");
    }

    /// Suspends every third call.
    async fn wait(&self) {
        self.polls.set(self.polls.get() + 1);
        if self.polls.get().is_multiple_of(3) {
            let mut is_ready = false;
            std::future::poll_fn(|_| match std::mem::replace(&mut is_ready, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        }
    }
}

impl Reads for TestStore {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        self.wait().await;
        self.reads.set(self.reads.get() + 1);
        let nodes = self.nodes.borrow();
        let second = pointer.second.filter(|_| self.reads.get().is_multiple_of(2));
        let address = second.unwrap_or(pointer.address);
        let Some(bytes) = nodes.get(&address.bits()) else {
            return Err(error!(Corrupt, "no node is at {address:?}"));
        };
        Node::open(bytes, pointer, place)
    }

    async fn rest(&self) {
        self.wait().await;
    }
}

impl Store for TestStore {
    fn allocate(&self) -> Result<Address> {
        Ok(self.take_one())
    }

    fn allocate_second(&self, _: Address) -> Option<Address> {
        self.doubles.then(|| self.take_one())
    }

    async fn write(&self, address: Address, second: Option<Address>, node: Rc<Node>) -> Result<()> {
        assert_eq!(node.bytes().len(), NODE_BYTES);
        for address in iter::once(address).chain(second) {
            let before = self.nodes.borrow_mut().insert(address.bits(), node.bytes().to_vec());
            assert!(before.is_none(), "a node at {address:?} is overwritten");
        }
        Ok(())
    }
}

/// Runs a future to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}
