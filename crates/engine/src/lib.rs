//! The engine of one reactor thread. The engine carries requests through the nodes of a graph, and owns each request
//! until it is done. The engine admits a client's request only when it can set aside the slots and buffers that the
//! request and its children may need.

mod admission;
mod arena;
mod below;
mod call;
mod control;
mod failures;
mod node;
mod pieces;
mod portal;
mod ready;
mod reserve;
mod share;
mod slot;
mod split;
mod volumes;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use block::{
    BufPool, ByteRange, Copies, Done, Hooks, Info, Lower, Needs, Notify, Op, Push, Request, Result,
    Table, Waiter, bail, check,
};

use arena::Arena;
use below::Below;
use failures::Failures;
use node::{Node, Power};
use ready::{Key, Ready};
use share::Need;
use slot::Slot;
use split::Split;

pub use admission::Suspended;
pub use control::PLACES_MAX;
pub use failures::Failure;
pub use node::{Counters, NodeId};
pub use portal::{Portal, Portals, Targets};
pub use reserve::Reserve;
pub use share::Share;
pub use slot::AnyDevice;
pub use split::WINDOW;
pub use volumes::{AnyVolumes, HeldVolume, Holder, OpenVolume, Opened, PausedVolumes, VolumeSet};

/// Most nodes of one engine: devices, tables and hooks.
pub const NODES_MAX: usize = 65_536;

/// Most requests in flight in one engine, children included.
pub const SLOTS_MAX: usize = 1 << 20;

/// Slots that clients' requests leave free for requests that devices start themselves, such as those of resync and
/// scrub.
pub const SLOTS_OWN: u32 = (SLOTS_MAX / 8) as u32;

/// Length in bytes of a request that must fit the buffer pool with its reserve; otherwise the engine refuses the
/// device.
const TRANSFER_MIN_BYTES: u32 = 1 << 20;

/// The most slots that one request and its children may need.
const REQUEST_SLOTS_MAX: u32 = (SLOTS_MAX / 64) as u32;

/// Most woken requests that the engine polls before the other tasks of the core run. A device that gives way between
/// two steps lets them run after at most so many steps of other requests.
const ROUND: usize = 8;

/// The index that marks the end of the list of free slots.
const NONE: u32 = u32::MAX;

/// The value of `Inner::current` while the engine polls no future. No request has this number.
const NOBODY: u64 = 0;

/// Function that draws which woken request the engine polls next: it gets the number of woken requests, and returns an
/// index.
type Pick = Box<dyn FnMut(usize) -> usize>;

/// The receiver of the results of clients' requests.
pub trait Sink {
    /// Receives the result of the request that was submitted with `token`, and the request itself with its buffers.
    fn done(&self, token: u64, request: Request, result: Result<()>);

    /// Returns the share of the client that sends the requests; `None` if they count for the export alone.
    fn share(&self) -> Option<&Share> {
        None
    }
}

/// The engine of one reactor thread, which carries requests through nodes. A clone is another handle to the same
/// engine.
#[derive(Clone)]
pub struct Engine(Rc<Inner>);

struct Inner {
    slots: Arena<Entry>,
    free: Cell<u32>,
    nodes: RefCell<Vec<Option<Rc<Node>>>>,
    /// Numbers of removed nodes, which new nodes get.
    forgotten: RefCell<Vec<NodeId>>,
    ready: Rc<Ready>,
    pick: RefCell<Option<Pick>>,
    /// Number of free slots for requests of clients; far below zero while the engine is suspended.
    slots_left: Cell<i64>,
    waiting: Notify,
    next_request: Cell<u64>,
    /// Number of the request whose future is being polled; [`NOBODY`] if none is. Children that the future starts get
    /// the same number.
    current: Cell<u64>,
    in_flight: Cell<u64>,
    failures: Failures,
    pool: BufPool,
}

/// A slot and the engine's state for the request in it.
#[derive(Default)]
struct Entry {
    slot: Slot,
    generation: Cell<u16>,
    owner: Cell<Owner>,
    /// Index of the next free slot, while this slot is free.
    next: Cell<u32>,
    /// The sink of a client's request. The next three fields are its token, its portal, and the slots and buffer bytes
    /// that are reserved for it.
    sink: Cell<Option<Rc<dyn Sink>>>,
    token: Cell<u64>,
    portal: Cell<Option<Portal>>,
    need: Cell<Need>,
    /// Whole blocks that a client's request changes; `None` for any other request.
    changes: Cell<Option<ByteRange>>,
    /// The task that waits for a child. The next field is the result of the child, until that task takes it.
    waiter: Waiter,
    answer: Cell<Option<Result<()>>>,
    /// The node of the device that carries out the request, while the future of the device waits.
    node: Cell<Option<Rc<Node>>>,
    /// Number of the request; a child has the number of its parent.
    id: Cell<u64>,
    /// First byte of the request in the address space of the node to which the request was sent.
    start: Cell<u64>,
    watched: Cell<bool>,
    frames: Cell<Vec<Frame>>,
}

/// The owner of a request in a slot, which gets its result.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Owner {
    /// No owner yet: the slot is free, or the first poll of the request runs inside `start`.
    #[default]
    Nobody,
    Child,
    Abandoned,
    Client,
}

/// A hook that must see the reply to a request, and the first byte of the request in the address space of the hook.
struct Frame {
    hooks: Rc<dyn Hooks>,
    saved: u64,
    start: u64,
}

impl Entry {
    fn new() -> Self {
        Self { next: Cell::new(NONE), ..Self::default() }
    }
}

impl Engine {
    /// Creates an engine without nodes. Its requests reserve their buffers in `pool`. The caller must drive the engine:
    /// spawn [`Engine::drive`], or call [`Engine::turn`].
    pub fn new(pool: &BufPool) -> Self {
        Self(Rc::new(Inner {
            slots: Arena::new(SLOTS_MAX, Entry::new),
            free: Cell::new(NONE),
            nodes: RefCell::default(),
            forgotten: RefCell::default(),
            ready: Ready::new(),
            pick: RefCell::default(),
            slots_left: Cell::new((SLOTS_MAX - SLOTS_OWN as usize) as i64),
            waiting: Notify::default(),
            next_request: Cell::new(1),
            current: Cell::new(NOBODY),
            in_flight: Cell::new(0),
            failures: Failures::default(),
            pool: pool.clone(),
        }))
    }

    /// Makes the engine take woken requests in the order that `pick` draws, not in the order of waking. `pick` gets the
    /// number of woken requests and returns the index of the request to poll next. Every order is permitted, so a
    /// simulation should try many orders.
    pub fn shuffle(&self, pick: impl FnMut(usize) -> usize + 'static) {
        *self.0.pick.borrow_mut() = Some(Box::new(pick));
    }

    fn add(&self, name: &str, info: Info, power: Power, reserve: Reserve) -> Result<NodeId> {
        let node = Rc::new(Node::new(name, info, power, reserve));
        let mut nodes = self.0.nodes.borrow_mut();
        if let Some(id) = self.0.forgotten.borrow_mut().pop() {
            nodes[id] = Some(node);
            return Ok(id);
        }
        if nodes.len() == NODES_MAX {
            bail!(Limit, "one process can have at most {NODES_MAX} devices");
        }
        nodes.push(Some(node));
        Ok(nodes.len() - 1)
    }

    /// Adds a node for a device in which one request needs at most `needs`. `lowers` are the nodes to which the device
    /// has handles.
    ///
    /// # Errors
    /// `Limit` if one request through the device may need too many slots or buffers, or if the engine has [`NODES_MAX`]
    /// nodes.
    pub fn add_device(
        &self,
        name: &str,
        device: Rc<dyn AnyDevice>,
        needs: Needs,
        lowers: &[NodeId],
    ) -> Result<NodeId> {
        let info = device.info();
        let reserve = Reserve::of_device(needs, info.block_size, &self.reserves(lowers));
        reserve.check(name, info.max_transfer, self.0.pool.limit_bytes())?;
        let (info, future_bytes) = (self.fitted(info, reserve, &[]), device.future_bytes());
        let lowers = lowers.iter().map(|id| self.node(*id)).collect();
        self.add(name, info, Power::Device { device, lowers, future_bytes }, reserve)
    }

    /// Adds a node for a hook, which sees every request before the node `next` gets the request.
    ///
    /// # Errors
    /// As [`Engine::add_device`].
    pub fn add_hooks(&self, name: &str, hooks: Rc<dyn Hooks>, next: NodeId) -> Result<NodeId> {
        let next = self.node(next);
        let (info, reserve) = (next.info.clone(), next.reserve);
        self.add(name, info, Power::Hooks { hooks, next }, reserve)
    }

    /// Adds a node for a table over the nodes `lowers`, one for each of the table's ports.
    ///
    /// # Errors
    /// As [`Engine::add_device`].
    pub fn add_table(
        &self,
        name: &str,
        info: Info,
        table: Rc<Table>,
        lowers: &[NodeId],
    ) -> Result<NodeId> {
        let handles = lowers.iter().map(|id| self.lower(*id)).collect();
        let split = Split { info: info.clone(), table: table.clone(), lowers: handles };
        let split: Rc<dyn AnyDevice> = Rc::new(split);
        let reserve = Reserve::of_table(&table, info.block_size, &self.reserves(lowers));
        reserve.check(name, info.max_transfer, self.0.pool.limit_bytes())?;
        let info = self.fitted(&info, reserve, lowers);
        let lowers = lowers.iter().map(|id| self.node(*id)).collect();
        let future_bytes = split.future_bytes();
        self.add(name, info, Power::Table { table, lowers, split, future_bytes }, reserve)
    }

    /// Returns the reserve that one request needs in the node `id` and below it.
    pub fn reserve(&self, id: NodeId) -> Reserve {
        self.node(id).reserve
    }

    fn reserves(&self, nodes: &[NodeId]) -> Vec<Reserve> {
        nodes.iter().map(|id| self.reserve(*id)).collect()
    }

    /// Returns `info` with a lower `max_transfer` if necessary: every node in `lowers`, to which a table passes
    /// requests unsplit, must accept requests of that length, and the buffer pool must have room for their `reserve`.
    /// Longer requests are split above the node.
    fn fitted(&self, info: &Info, reserve: Reserve, lowers: &[NodeId]) -> Info {
        let below = lowers.iter().map(|id| self.node(*id).info.max_transfer).min();
        let mut max_transfer = info.max_transfer.min(below.unwrap_or(u32::MAX));
        let most = Reserve::bytes_max(self.0.pool.limit_bytes());
        while reserve.bytes(u64::from(max_transfer)) > most {
            max_transfer /= 2;
            max_transfer -= max_transfer % info.block_size;
        }
        Info { max_transfer, ..info.clone() }
    }

    fn node(&self, id: NodeId) -> Rc<Node> {
        self.0.nodes.borrow()[id].clone().expect("a node in use is not forgotten")
    }

    /// Closes the device of the node: the node refuses every further request. So a handle to a replaced device cannot
    /// reach the devices below it.
    pub fn close(&self, id: NodeId) {
        self.node(id).closed.set(true);
    }

    /// Removes the node from the engine, which gives its number to a later node. Existing handles keep the removed node
    /// alive.
    ///
    /// # Panics
    /// If the node `id` was removed before.
    pub fn forget(&self, id: NodeId) {
        let node = self.0.nodes.borrow_mut()[id].take();
        drop(node.expect("a node is forgotten once"));
        self.0.forgotten.borrow_mut().push(id);
    }

    /// Returns a handle to the node for a device above. The handle keeps the node alive, but not the engine: a request
    /// that is started after the engine was dropped fails.
    pub fn lower(&self, id: NodeId) -> Lower {
        self.lower_of(&self.node(id))
    }

    fn lower_of(&self, node: &Rc<Node>) -> Lower {
        let below = Below { engine: Rc::downgrade(&self.0), node: node.clone() };
        Lower::new(Rc::new(below), node.flush_id(), node.info.clone(), node.name.clone())
    }

    /// Returns the facts about the device of the node `id`: size, block size and abilities.
    pub fn info(&self, id: NodeId) -> Info {
        self.node(id).info.clone()
    }

    /// Passes the counters of the node to `look`, and returns the result.
    pub fn counters<R>(&self, id: NodeId, look: impl FnOnce(&Counters) -> R) -> R {
        look(&self.node(id).counters)
    }

    /// Returns the number of clients' requests that the engine has admitted and that are not done yet.
    pub fn in_flight(&self) -> u64 {
        self.0.in_flight.get()
    }

    /// Begins a client's request, of any offset and length. `sink` gets the result of the request exactly once,
    /// possibly before this function returns.
    ///
    /// # Errors
    /// The operation `op`, if the reserve of the request is not free now, or if a request in pieces rewrites one of the
    /// blocks that it would change. The caller waits with [`Engine::wait_capacity`] and tries again.
    pub fn submit(
        &self,
        portal: &Portal,
        op: Op,
        sink: Rc<dyn Sink>,
        token: u64,
    ) -> Result<(), Op> {
        let (node, need, changes) = portal.route(&op);
        if !self.0.may_begin(need, portal, sink.share()) || portal.is_rewritten(&op) {
            return Err(op);
        }
        let checked = check(&node.info, &op);
        self.0.set_aside(need, portal, sink.share());
        let (index, entry) = self.0.begin(op);
        entry.changes.set(changes);
        entry.owner.set(Owner::Client);
        entry.sink.set(Some(sink));
        entry.token.set(token);
        entry.portal.set(Some(portal.clone()));
        entry.need.set(need);
        let polled = match checked {
            Ok(()) => self.0.run(index, entry, &node),
            Err(error) => Poll::Ready(Err(error)),
        };
        if let Poll::Ready(result) = polled {
            let result = self.0.ascend(entry, result);
            self.0.finish(index, entry, result);
        }
        Ok(())
    }

    /// Drops the sinks and returns the reserves of all requests in the engine, when the engine will not be driven again.
    /// A sink may hold a handle to the engine, so that engine and sink would keep each other alive for ever. The buffer
    /// pool may serve another engine.
    pub fn abandon(&self) {
        for entry in (0..self.0.slots.made()).map(|index| self.0.slots.get(index)) {
            if let Some(sink) = entry.sink.take() {
                self.0.give_back(entry, &*sink);
            }
        }
    }

    /// Polls woken requests whenever the engine has any. The future never ends; spawn it on the thread of the engine.
    pub async fn drive(self) {
        poll_fn(|cx| {
            self.0.ready.drive(cx.waker());
            for _ in 0..ROUND {
                if !self.step() {
                    return Poll::Pending;
                }
            }
            self.0.ready.wake_driver();
            Poll::Pending
        })
        .await
    }

    /// Polls woken requests until the engine has no woken request.
    pub fn turn(&self) {
        while self.step() {}
    }

    /// Polls one woken request. Returns whether there was any.
    fn step(&self) -> bool {
        let ready = self.0.ready.len();
        if ready == 0 {
            return false;
        }
        let n = self.0.pick.borrow_mut().as_mut().map_or(0, |pick| pick(ready));
        if let Some(key) = self.0.ready.take(n) {
            self.0.resume(key);
        }
        true
    }
}

impl Inner {
    /// Puts `op` into a free slot, and returns the index and the entry of the slot.
    #[inline(always)]
    fn begin(&self, op: Op) -> (usize, &Entry) {
        if self.free.get() == NONE {
            self.grow();
        }
        let index = self.free.get() as usize;
        let entry = self.slots.get(index);
        self.free.set(entry.next.get());
        let mut id = self.current.get();
        if id == NOBODY {
            id = self.next_request.get();
            self.next_request.set(id + 1);
        }
        entry.id.set(id);
        entry.start.set(start_of(&op));
        entry.slot.put(Request { op, id });
        (index, entry)
    }

    #[cold]
    fn grow(&self) {
        let new = self.slots.grow().expect("admission keeps the slots within their bound");
        for index in new.rev() {
            self.slots.get(index).next.set(self.free.replace(index as u32));
        }
    }

    /// Leads the request in the slot down to its first device, and polls the future of that device once.
    #[inline(always)]
    fn run(&self, index: usize, entry: &Entry, node: &Rc<Node>) -> Poll<Result<()>> {
        let node = match entry.slot.with(|request| descend(entry, request, node)) {
            Way::Device(node) => node,
            Way::Answered(result) => {
                if let Err(error) = &result {
                    self.failures.add_of_hook(entry, error);
                }
                return Poll::Ready(result);
            }
        };
        let (device, future_bytes) = match &node.power {
            Power::Device { device, future_bytes, .. } => (device, *future_bytes),
            Power::Table { split, future_bytes, .. } => (split, *future_bytes),
            Power::Hooks { .. } => unreachable!("hooks do not carry requests out"),
        };
        self.enter(index, entry, node, device, future_bytes)
    }

    /// Passes the request in the slot to a device, and polls the future of that device once.
    #[inline(always)]
    fn enter(
        &self,
        index: usize,
        entry: &Entry,
        node: &Rc<Node>,
        device: &Rc<dyn AnyDevice>,
        future_bytes: usize,
    ) -> Poll<Result<()>> {
        let polled = if node.closed.get() {
            Poll::Ready(Err(node.refusal()))
        } else if entry.slot.with(|request| request.op.restores_none_of(node.info.copies)) {
            Poll::Ready(Ok(()))
        } else {
            let waker = self.waker(index, entry);
            let outer = self.current.replace(entry.id.get());
            let polled = entry.slot.enter(device, future_bytes, &mut Context::from_waker(&waker));
            self.current.set(outer);
            polled
        };
        match &polled {
            Poll::Ready(result) => self.done(entry, node, result),
            Poll::Pending => entry.node.set(Some(node.clone())),
        }
        polled
    }

    /// Counts a request that the device of `node` has carried out. A read of a device with one copy has read copy 0, so
    /// the device need not report it.
    #[inline]
    fn done(&self, entry: &Entry, node: &Node, result: &Result<()>) {
        node.counters.end(result.is_ok());
        match result {
            Ok(()) if node.info.copies == 1 => {
                entry.slot.with(|request| request.op.add_copies(Copies::first(1)));
            }
            Ok(()) => {}
            Err(error) => self.failures.add_of_device(entry, node, error),
        }
    }

    /// Returns the waker of the slot. The waker is a number and needs no drop.
    #[inline]
    fn waker(&self, index: usize, entry: &Entry) -> ManuallyDrop<Waker> {
        let key = Key { index: index as u32, generation: entry.generation.get() };
        ManuallyDrop::new(self.ready.waker(key))
    }

    fn resume(&self, key: Key) {
        let index = key.index as usize;
        let entry = self.slots.get(index);
        if entry.generation.get() != key.generation || !entry.slot.is_running() {
            return;
        }
        let waker = self.waker(index, entry);
        let outer = self.current.replace(entry.id.get());
        let polled = entry.slot.poll(&mut Context::from_waker(&waker));
        self.current.set(outer);
        if let Poll::Ready(result) = polled {
            if let Some(node) = entry.node.take() {
                self.done(entry, &node, &result);
            }
            let result = self.ascend(entry, result);
            self.finish(index, entry, result);
        }
    }

    /// Leads the reply of a request up: passes it to the hooks that watch the request, and restores the address that
    /// the request had at its beginning.
    #[inline(always)]
    fn ascend(&self, entry: &Entry, mut result: Result<()>) -> Result<()> {
        let was_ok = result.is_ok();
        entry.slot.with(|request| {
            if entry.watched.replace(false) {
                let mut frames = entry.frames.take();
                for frame in frames.drain(..).rev() {
                    rebase(&mut request.op, frame.start);
                    frame.hooks.pop(frame.saved, request, &mut result);
                }
                entry.frames.set(frames);
            }
            rebase(&mut request.op, entry.start.get());
        });
        if let (true, Err(error)) = (was_ok, &result) {
            self.failures.add_of_hook(entry, error);
        }
        result
    }

    /// Passes the result of the request in the slot to the owner of the request.
    fn finish(&self, index: usize, entry: &Entry, result: Result<()>) {
        match entry.owner.get() {
            Owner::Child => {
                entry.answer.set(Some(result));
                entry.waiter.wake();
            }
            Owner::Abandoned => drop(self.release(index, entry)),
            Owner::Client => {
                let sink = entry.sink.take().expect("a client's request has its sink");
                let token = entry.token.get();
                let request = self.release(index, entry);
                self.give_back(entry, &*sink);
                sink.done(token, request, result);
                self.waiting.wake();
            }
            Owner::Nobody => unreachable!("a request in flight has an owner"),
        }
    }

    /// Frees a slot that holds no future, and returns the request that was in the slot.
    #[inline(always)]
    fn release(&self, index: usize, entry: &Entry) -> Request {
        entry.generation.set(entry.generation.get().wrapping_add(1));
        entry.owner.set(Owner::Nobody);
        entry.next.set(self.free.replace(index as u32));
        entry.slot.take()
    }

    fn poll_child(&self, index: usize, cx: &mut Context<'_>) -> Poll<Done> {
        let entry = self.slots.get(index);
        let Some(result) = entry.answer.take() else {
            entry.waiter.wake_later(cx);
            return Poll::Pending;
        };
        Poll::Ready(Done { op: self.release(index, entry).op, result })
    }

    fn abandon(&self, index: usize) {
        let entry = self.slots.get(index);
        entry.waiter.clear();
        if entry.answer.take().is_some() {
            self.release(index, entry);
        } else {
            entry.owner.set(Owner::Abandoned);
        }
    }
}

/// The result of leading a request down through hooks and tables.
enum Way<'n> {
    /// The request reached a device, or a table that must split it.
    Device(&'n Rc<Node>),
    /// A hook has completed the request with this result.
    Answered(Result<()>),
}

/// Leads a request down from `node`: through hooks, and through tables as long as a table maps the request to one
/// contiguous range.
#[inline]
fn descend<'n>(entry: &Entry, request: &mut Request, mut node: &'n Rc<Node>) -> Way<'n> {
    loop {
        match &node.power {
            Power::Device { .. } => break,
            Power::Hooks { .. } => match pass_hooks(entry, request, node) {
                Ok(next) => node = next,
                Err(answer) => return Way::Answered(answer),
            },
            Power::Table { table, lowers, .. } => {
                let Some(port) = forward(table, &mut request.op) else { break };
                node.counters.pass(&request.op);
                node = &lowers[port];
            }
        }
    }
    node.counters.begin(&request.op);
    Way::Device(node)
}

/// Leads a request through consecutive hooks. Returns the node below the hooks, or the result of the request if a hook
/// has completed it.
fn pass_hooks<'n>(
    entry: &Entry,
    request: &mut Request,
    mut node: &'n Rc<Node>,
) -> Result<&'n Rc<Node>, Result<()>> {
    let start = start_of(&request.op);
    let mut frames = entry.frames.take();
    let mut answer = None;
    while let Power::Hooks { hooks, next } = &node.power {
        match hooks.push(request) {
            Push::Forward => {}
            Push::Watch(saved) => frames.push(Frame { hooks: hooks.clone(), saved, start }),
            Push::Done(result) => {
                answer = Some(result);
                break;
            }
        }
        node = next;
    }
    entry.watched.set(!frames.is_empty());
    entry.frames.set(frames);
    answer.map_or(Ok(node), Err)
}

#[inline]
fn start_of(op: &Op) -> u64 {
    op.range().map_or(0, |range| range.start())
}

#[inline]
fn rebase(op: &mut Op, start: u64) {
    if let Some(range) = op.range()
        && range.start() != start
    {
        op.set_range(range.at(start));
    }
}

/// Changes the range of `op` to its range in a lower of the table, and returns the port of the lower, if the table maps
/// `op` to one contiguous range. A flush passes a table with one lower only.
#[inline]
fn forward(table: &Table, op: &mut Op) -> Option<usize> {
    match op {
        Op::Read { range, .. }
        | Op::Write { range, .. }
        | Op::WriteZeroes { range, .. }
        | Op::Discard { range, .. }
        | Op::Status { range, .. } => {
            let run = table.map_one(*range)?;
            *range = run.range;
            Some(usize::from(run.port.0))
        }
        Op::Flush => (table.port_count() == 1).then_some(0),
    }
}

#[cfg(test)]
mod tests;
