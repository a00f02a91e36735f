//! Nodes of an engine: the devices, tables and hooks of the running graphs.

use std::cell::Cell;
use std::rc::Rc;

use block::{Error, Hooks, Info, Op, OpKind, Table, error};

use super::pieces::Rewrites;
use super::reserve::Reserve;
use super::slot::AnyDevice;

/// The number of a node in its engine. A node is a device, a table or a hook.
pub type NodeId = usize;

/// The type of a node, with the parts that carry out its requests.
pub(super) enum Power {
    /// A device, whose future carries out each request.
    Device { device: Rc<dyn AnyDevice>, lowers: Box<[Rc<Node>]>, future_bytes: usize },
    /// A hook, which sees each request on its way to the node `next`.
    Hooks { hooks: Rc<dyn Hooks>, next: Rc<Node> },
    /// A table. A request that the table maps to one run, a contiguous range of one lower, passes to that lower; the
    /// device `split` carries out any other request.
    Table {
        table: Rc<Table>,
        lowers: Box<[Rc<Node>]>,
        split: Rc<dyn AnyDevice>,
        future_bytes: usize,
    },
}

/// A node of an engine: a device, a table or a hook of a running graph.
pub(super) struct Node {
    pub name: Rc<str>,
    pub info: Info,
    pub power: Power,
    /// The most slots and buffers that one request needs in this node and below it.
    pub reserve: Reserve,
    pub counters: Counters,
    /// Whether the device of the node was closed, so that the node refuses every request.
    pub closed: Cell<bool>,
    /// Blocks of the node that requests in pieces of clients rewrite now.
    pub rewrites: Rewrites,
}

impl Node {
    pub fn new(name: &str, info: Info, power: Power, reserve: Reserve) -> Self {
        let (name, counters) = (name.into(), Counters::default());
        let (closed, rewrites) = (Cell::new(false), Rewrites::default());
        Self { name, info, power, reserve, counters, closed, rewrites }
    }

    /// Returns a number that two nodes have in common if a flush of one is a flush of the other. A table over one lower, and
    /// a hook, pass a flush to the node below.
    pub fn flush_id(self: &Rc<Self>) -> usize {
        match &self.power {
            Power::Table { lowers, .. } if lowers.len() == 1 => lowers[0].flush_id(),
            Power::Hooks { next, .. } => next.flush_id(),
            _ => Rc::as_ptr(self).addr(),
        }
    }

    /// Returns the error for a request that arrives after the device of the node was closed.
    #[cold]
    pub fn refusal(&self) -> Error {
        error!(Stopped, "device {} was closed: its graph was changed or stopped", self.name)
    }
}

/// Counters of requests through a node since the node was made. They are plain numbers that one thread changes and
/// reads.
#[derive(Default, Debug)]
pub struct Counters {
    ops: [Cell<u64>; OpKind::ALL.len()],
    bytes: [Cell<u64>; OpKind::ALL.len()],
    errors: Cell<u64>,
    in_flight: Cell<u32>,
}

impl Counters {
    #[inline]
    pub(super) fn begin(&self, op: &Op) {
        self.pass(op);
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Counts a request and its bytes, but not as in flight. A table passes such a request to a lower without splitting
    /// it.
    #[inline]
    pub(super) fn pass(&self, op: &Op) {
        let verb = op.verb() as usize;
        self.ops[verb].set(self.ops[verb].get() + 1);
        if let Some(range) = op.range() {
            self.bytes[verb].set(self.bytes[verb].get() + range.len());
        }
    }

    #[inline]
    pub(super) fn end(&self, ok: bool) {
        self.in_flight.set(self.in_flight.get() - 1);
        if !ok {
            self.errors.set(self.errors.get() + 1);
        }
    }

    /// Returns the number of requests of type `verb` that the node has begun.
    pub fn ops(&self, verb: OpKind) -> u64 {
        self.ops[verb as usize].get()
    }

    /// Returns the number of bytes in the ranges of all requests of type `verb` that the node has begun.
    pub fn bytes(&self, verb: OpKind) -> u64 {
        self.bytes[verb as usize].get()
    }

    /// Returns the number of requests that the device or table of the node has completed with an error.
    pub fn errors(&self) -> u64 {
        self.errors.get()
    }

    /// Returns the number of requests that the node has begun and that are not done yet.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }
}
