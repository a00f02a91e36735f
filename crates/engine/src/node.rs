//! Nodes of the running graph.

use std::cell::Cell;
use std::rc::Rc;

use block::{Error, ErrorKind, Hooks, Info, Op, OpKind, Table};

use super::reserve::Reserve;
use super::slot::AnyDevice;

/// The number of a device, table or hook in its engine.
pub type NodeId = usize;

/// The type of a node, with the parts that carry out its requests.
pub(super) enum Power {
    /// A device. Its future carries the request out.
    Device { device: Rc<dyn AnyDevice>, lowers: Box<[Rc<Node>]>, future_bytes: usize },
    /// A hook. It looks at the request, which goes on to the next node.
    Hooks { hooks: Rc<dyn Hooks>, next: Rc<Node> },
    /// A table. A request that lies in one run goes on in place, any other through the device `split`.
    Table {
        table: Rc<Table>,
        lowers: Box<[Rc<Node>]>,
        split: Rc<dyn AnyDevice>,
        future_bytes: usize,
    },
}

/// A node of the running graph.
pub(super) struct Node {
    pub name: Rc<str>,
    pub info: Info,
    pub power: Power,
    /// The most that one request needs from this node down.
    pub reserve: Reserve,
    pub counters: Counters,
    /// Whether the graph of the node has closed its device.
    pub closed: Cell<bool>,
}

impl Node {
    pub fn new(name: &str, info: Info, power: Power, reserve: Reserve) -> Self {
        let (name, counters) = (name.into(), Counters::default());
        Self { name, info, power, reserve, counters, closed: Cell::new(false) }
    }

    /// Returns the error for a request that arrives after the device of the node was closed.
    #[cold]
    pub fn refusal(&self) -> Error {
        let words = format!("device {} was closed: its graph was changed or stopped", self.name);
        Error::new(ErrorKind::Stopped, words)
    }
}

/// Counters of requests through a node since the node was made. They are plain numbers of one core and cheap to read.
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

    /// Counts a request that passed the node in place.
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

    /// Returns the number of requests that have failed at the node.
    pub fn errors(&self) -> u64 {
        self.errors.get()
    }

    /// Returns the number of requests that the node has begun and not answered yet.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }
}
