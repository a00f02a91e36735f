//! The engine of one core: it carries requests through nodes, owns every one of them until it is
//! done, and admits a request only with the slots that it may need in hand.

mod arena;
mod node;
mod ready;
mod slot;
mod split;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use block::{
    ChildId, Core, Done, Error, ErrorKind, Hooks, Info, Lower, Op, Request, Result, Table, check,
};

use arena::Arena;
use node::{Node, NodeCell, Power};
use ready::{Key, Ready};
use slot::Slot;
use split::Split;

pub use node::{Counters, NodeId};
pub use slot::AnyDevice;
pub use split::WINDOW;

/// The most nodes of one engine.
pub const NODES_MAX: usize = 65_536;

/// The most requests, children included, in flight in one engine.
pub const SLOTS_MAX: usize = 1 << 20;

/// Slots kept back for what devices do by themselves: resync, retirement, scrub.
pub const SLOTS_OWN: u32 = (SLOTS_MAX / 8) as u32;

/// Hooks that one request may pass between two devices.
pub const HOOKS_MAX: usize = 256;

/// Draws which of so many woken requests is next.
type Pick = Box<dyn FnMut(usize) -> usize>;

/// Who wants to know what became of a request.
pub trait Sink {
    /// The request with the token is done; its buffers are in it.
    fn done(&self, token: u64, request: Request, result: Result<()>);
}

/// Carries requests through the nodes of one core. A clone is a second handle.
#[derive(Clone)]
pub struct Engine(Rc<Inner>);

struct Inner {
    nodes: Arena<NodeCell>,
    nodes_made: Cell<usize>,
    slots: Arena<Entry>,
    free: RefCell<Vec<u32>>,
    ready: Rc<Ready>,
    pick: RefCell<Option<Pick>>,
    slots_left: Cell<u32>,
    waiting: RefCell<Vec<Waker>>,
    next_request: Cell<u64>,
    in_flight: Cell<u64>,
}

/// A slot and what the engine knows about the request in it.
struct Entry {
    slot: Slot,
    generation: Cell<u16>,
    owner: RefCell<Owner>,
    waiter: RefCell<Option<Waker>>,
    answer: RefCell<Option<Result<()>>>,
    node: RefCell<Option<Rc<Node>>>,
    start: Cell<u64>,
    frames: RefCell<Vec<Frame>>,
    need: Cell<u32>,
}

/// Who a request belongs to.
enum Owner {
    Nobody,
    Child,
    Abandoned,
    Client { sink: Rc<dyn Sink>, token: u64 },
}

/// A hook that wants to see the reply, and where the request stood in its address space.
struct Frame {
    node: Rc<Node>,
    saved: u64,
    start: u64,
}

impl Entry {
    fn new() -> Self {
        Self {
            slot: Slot::new(),
            generation: Cell::new(0),
            owner: RefCell::new(Owner::Nobody),
            waiter: RefCell::default(),
            answer: RefCell::default(),
            node: RefCell::default(),
            start: Cell::new(0),
            frames: RefCell::default(),
            need: Cell::new(0),
        }
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine {
    /// An engine without nodes. Something must drive it: spawn [`Engine::drive`], or call
    /// [`Engine::turn`].
    pub fn new() -> Self {
        Self(Rc::new(Inner {
            nodes: Arena::new(NODES_MAX, NodeCell::default),
            nodes_made: Cell::new(0),
            slots: Arena::new(SLOTS_MAX, Entry::new),
            free: RefCell::default(),
            ready: Ready::new(),
            pick: RefCell::default(),
            slots_left: Cell::new(SLOTS_MAX as u32 - SLOTS_OWN),
            waiting: RefCell::default(),
            next_request: Cell::new(1),
            in_flight: Cell::new(0),
        }))
    }

    /// Takes woken requests in the order that `pick` draws (given how many there are, which one is
    /// next), not in the order of waking: every order is legal, so a simulation should see them all.
    pub fn shuffle(&self, pick: impl FnMut(usize) -> usize + 'static) {
        *self.0.pick.borrow_mut() = Some(Box::new(pick));
    }

    fn add(&self, node: Node) -> Result<NodeId> {
        let id = self.0.nodes_made.get();
        if id == self.0.nodes.made() && self.0.nodes.grow().is_none() {
            return Err(Error::new(ErrorKind::Limit, format!("at most {NODES_MAX} nodes")));
        }
        self.0.nodes_made.set(id + 1);
        self.0.nodes.get(id).set(node);
        Ok(id)
    }

    /// Adds a device. `lowers` are the nodes that it was given handles to.
    ///
    /// # Errors
    /// `Limit` if one request through it could need more slots than there are.
    pub fn add_device(
        &self,
        name: &str,
        device: Rc<dyn AnyDevice>,
        lowers: &[NodeId],
    ) -> Result<NodeId> {
        let (need, scratch) = self.needs(name, &*device, lowers)?;
        let info = device.info().clone();
        let power = Power::Device(device);
        self.add(Node {
            name: name.into(),
            info,
            power,
            need,
            scratch,
            counters: Counters::default(),
        })
    }

    /// Adds a hook on the way to `next`.
    ///
    /// # Errors
    /// As [`Engine::add_device`].
    pub fn add_hooks(&self, name: &str, hooks: Rc<dyn Hooks>, next: NodeId) -> Result<NodeId> {
        let below = self.node(next);
        let (info, need, scratch) = (below.info.clone(), below.need, below.scratch);
        let power = Power::Hooks { hooks, next };
        self.add(Node {
            name: name.into(),
            info,
            power,
            need,
            scratch,
            counters: Counters::default(),
        })
    }

    /// Adds a table over `lowers`, one node for each of its ports.
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
        let split = Rc::new(Split::new(info.clone(), table.clone(), handles));
        let (need, scratch) = self.needs(name, &*split, lowers)?;
        let power = Power::Table { table, lowers: lowers.into(), split };
        self.add(Node {
            name: name.into(),
            info,
            power,
            need,
            scratch,
            counters: Counters::default(),
        })
    }

    fn needs(&self, name: &str, device: &dyn AnyDevice, lowers: &[NodeId]) -> Result<(u32, u32)> {
        let needs = device.needs();
        let most = |need: fn(&Node) -> u32| lowers.iter().map(|id| need(&self.node(*id))).max();
        let below = most(|node| node.need).unwrap_or(0);
        let need = needs.children.saturating_mul(below).saturating_add(1);
        if need > SLOTS_MAX as u32 / 64 {
            return Err(Error::new(
                ErrorKind::Limit,
                format!(
                    "one request through {name} may need {need} slots; at most {}. Next: fewer \
                     devices that fan out above each other",
                    SLOTS_MAX / 64
                ),
            ));
        }
        Ok((need, needs.scratch_copies.saturating_add(most(|node| node.scratch).unwrap_or(0))))
    }

    #[inline]
    fn node(&self, id: NodeId) -> Rc<Node> {
        self.0.nodes.get(id).get()
    }

    /// A handle for whoever stands above the node.
    pub fn lower(&self, id: NodeId) -> Lower {
        let node = self.node(id);
        let core: Rc<dyn Core> = self.0.clone();
        Lower::new(core, id, node.info.clone(), node.name.clone())
    }

    /// The facts of a node.
    pub fn info(&self, id: NodeId) -> Info {
        self.node(id).info.clone()
    }

    /// Looks at what a node has done.
    pub fn counters<R>(&self, id: NodeId, look: impl FnOnce(&Counters) -> R) -> R {
        look(&self.node(id).counters)
    }

    /// Requests of clients that are not yet answered.
    pub fn in_flight(&self) -> u64 {
        self.0.in_flight.get()
    }

    /// Begins a client's request. It completes exactly once, through `sink`, perhaps before this
    /// returns.
    ///
    /// # Errors
    /// The request itself, if its reserve is not to be had now: come back after
    /// [`Engine::room`].
    pub fn submit(&self, node: NodeId, op: Op, sink: Rc<dyn Sink>, token: u64) -> Result<(), Op> {
        let need = self.node(node).need;
        if self.0.slots_left.get() < need {
            return Err(op);
        }
        self.0.slots_left.set(self.0.slots_left.get() - need);
        self.0.in_flight.set(self.0.in_flight.get() + 1);
        let index = self.0.begin(op, Owner::Client { sink, token });
        self.0.slots.get(index).need.set(need);
        self.0.run(index, node);
        Ok(())
    }

    /// Waits until a request for `node` may be admitted.
    pub async fn room(&self, node: NodeId) {
        let need = self.node(node).need;
        poll_fn(|cx| {
            if self.0.slots_left.get() >= need {
                return Poll::Ready(());
            }
            self.0.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits until the next client's request is answered, whosever it is.
    pub async fn answered(&self) {
        let mut waited = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            self.0.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Drives requests that were woken; ends never. Spawn it on the core.
    pub async fn drive(self) {
        poll_fn(|cx| {
            self.0.ready.drive(cx.waker());
            self.turn();
            Poll::Pending
        })
        .await
    }

    /// Drives what is woken now, until nothing is.
    pub fn turn(&self) {
        while self.0.ready.len() > 0 {
            let n = match &mut *self.0.pick.borrow_mut() {
                Some(pick) => pick(self.0.ready.len()),
                None => 0,
            };
            if let Some(key) = self.0.ready.take(n) {
                self.0.resume(key);
            }
        }
    }
}

impl Inner {
    /// A slot for `op`, taken from the free ones.
    fn begin(&self, op: Op, owner: Owner) -> usize {
        let free = self.free.borrow_mut().pop();
        let index = free.unwrap_or_else(|| self.grow()) as usize;
        let entry = self.slots.get(index);
        let id = self.next_request.get();
        self.next_request.set(id + 1);
        entry.start.set(op.range().map_or(0, |range| range.start()));
        entry.slot.put(Request { op, id });
        *entry.owner.borrow_mut() = owner;
        index
    }

    #[cold]
    fn grow(&self) -> u32 {
        let new = self.slots.grow().expect("admission keeps the slots within their bound");
        let mut free = self.free.borrow_mut();
        free.extend(new.map(|index| index as u32).rev());
        free.pop().expect("growing makes some")
    }

    /// Takes the request in the slot down to the first device, and drives that.
    fn run(&self, index: usize, mut id: NodeId) {
        let entry = self.slots.get(index);
        loop {
            let node = self.nodes.get(id).get();
            match &node.power {
                Power::Device(device) => {
                    let device = device.clone();
                    return self.enter(index, node, device);
                }
                Power::Hooks { hooks, next } => match entry.slot.with(|r| hooks.push(r)) {
                    block::Push::Forward => id = *next,
                    block::Push::Watch(saved) => {
                        id = *next;
                        let start = entry.slot.with(|r| start_of(&r.op));
                        entry.frames.borrow_mut().push(Frame { node, saved, start });
                    }
                    block::Push::Done(result) => return self.finish(index, result),
                },
                Power::Table { table, lowers, split } => {
                    let port = entry.slot.with(|request| {
                        let port = forward(table, &mut request.op)?;
                        node.counters.pass(request);
                        Some(port)
                    });
                    match port {
                        Some(port) => id = lowers[port],
                        None => {
                            let split = split.clone();
                            return self.enter(index, node, split);
                        }
                    }
                }
            }
        }
    }

    /// Gives the request to a device and drives it until it first waits.
    fn enter(&self, index: usize, node: Rc<Node>, device: Rc<dyn AnyDevice>) {
        let entry = self.slots.get(index);
        entry.slot.with(|request| node.counters.begin(request));
        *entry.node.borrow_mut() = Some(node);
        entry.slot.begin(device);
        self.drive(index);
    }

    fn drive(&self, index: usize) {
        let entry = self.slots.get(index);
        let key = Key { index: index as u32, generation: entry.generation.get() };
        let waker = self.ready.waker(key);
        if let Poll::Ready(result) = entry.slot.poll(&mut Context::from_waker(&waker)) {
            if let Some(node) = entry.node.borrow_mut().take() {
                node.counters.end(result.is_ok());
            }
            self.finish(index, result);
        }
    }

    fn resume(&self, key: Key) {
        let entry = self.slots.get(key.index as usize);
        if entry.generation.get() == key.generation && entry.slot.is_running() {
            self.drive(key.index as usize);
        }
    }

    /// The way up: past the hooks that watch, to whoever owns the request.
    fn finish(&self, index: usize, mut result: Result<()>) {
        let entry = self.slots.get(index);
        loop {
            let Some(frame) = entry.frames.borrow_mut().pop() else { break };
            let Power::Hooks { hooks, .. } = &frame.node.power else {
                unreachable!("only hooks leave frames")
            };
            entry.slot.with(|request| {
                rebase(&mut request.op, frame.start);
                hooks.pop(frame.saved, request, &mut result);
            });
        }
        entry.slot.with(|request| rebase(&mut request.op, entry.start.get()));
        let owner = std::mem::replace(&mut *entry.owner.borrow_mut(), Owner::Nobody);
        match owner {
            Owner::Child => {
                *entry.owner.borrow_mut() = Owner::Child;
                *entry.answer.borrow_mut() = Some(result);
                if let Some(waiter) = entry.waiter.borrow_mut().take() {
                    waiter.wake();
                }
            }
            Owner::Abandoned => {
                self.release(index);
            }
            Owner::Client { sink, token } => {
                let need = entry.need.get();
                let request = self.release(index);
                self.slots_left.set(self.slots_left.get() + need);
                self.in_flight.set(self.in_flight.get() - 1);
                sink.done(token, request, result);
                if !self.waiting.borrow().is_empty() {
                    self.waiting.take().into_iter().for_each(Waker::wake);
                }
            }
            Owner::Nobody => unreachable!("a request has an owner until it is done"),
        }
    }

    /// Empties a slot in which nobody works and gives it back.
    fn release(&self, index: usize) -> Request {
        let entry = self.slots.get(index);
        entry.generation.set(entry.generation.get().wrapping_add(1));
        let request = entry.slot.take();
        self.free.borrow_mut().push(index as u32);
        request
    }
}

fn start_of(op: &Op) -> u64 {
    op.range().map_or(0, |range| range.start())
}

fn rebase(op: &mut Op, start: u64) {
    if let Some(range) = op.range()
        && range.start() != start
    {
        op.set_range(range.at(start));
    }
}

/// Moves `op` to where the table says, if that is one run. A flush goes on in place below a table
/// with one lower; a status answer might have to be cut, so it never does.
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

impl Core for Inner {
    fn start(&self, node: usize, op: Op) -> ChildId {
        let checked = check(&self.nodes.get(node).get().info, &op);
        let index = self.begin(op, Owner::Child);
        match checked {
            Ok(()) => self.run(index, node),
            Err(error) => self.finish(index, Err(error)),
        }
        ChildId(index as u64)
    }

    fn poll(&self, child: ChildId, cx: &mut Context<'_>) -> Poll<Done> {
        let entry = self.slots.get(child.0 as usize);
        let Some(result) = entry.answer.borrow_mut().take() else {
            *entry.waiter.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        };
        *entry.owner.borrow_mut() = Owner::Nobody;
        let request = self.release(child.0 as usize);
        Poll::Ready(Done { op: request.op, result })
    }

    fn abandon(&self, child: ChildId) {
        let entry = self.slots.get(child.0 as usize);
        entry.waiter.borrow_mut().take();
        if entry.answer.borrow_mut().take().is_some() {
            *entry.owner.borrow_mut() = Owner::Nobody;
            self.release(child.0 as usize);
        } else {
            *entry.owner.borrow_mut() = Owner::Abandoned;
        }
    }
}

#[cfg(test)]
mod tests;
