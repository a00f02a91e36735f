//! Nodes: what a request meets on its way.

use std::alloc::Layout;
use std::cell::Cell;
use std::rc::Rc;

use block::{BUF_MAX_BYTES, Error, ErrorKind, Hooks, Info, Op, Table, Verb};

use super::slot::AnyDevice;

/// Which node; the number of a device, table or hook in its engine.
pub type NodeId = usize;

/// What a node does with a request.
pub(super) enum Power {
    /// Its future carries the request out.
    Device { device: Rc<dyn AnyDevice>, lowers: Box<[Rc<Node>]>, future: Layout },
    /// It looks on; the request goes to the next node.
    Hooks { hooks: Rc<dyn Hooks>, next: Rc<Node> },
    /// It is a lookup: the request goes on in place where it lies in one run, through `split`
    /// otherwise.
    Table { table: Rc<Table>, lowers: Box<[Rc<Node>]>, split: Rc<dyn AnyDevice>, future: Layout },
}

/// A node of the running graph.
pub(super) struct Node {
    pub name: Rc<str>,
    pub info: Info,
    pub power: Power,
    /// What one request takes at most from here down.
    pub reserve: Reserve,
    pub counters: Counters,
    /// Set when its graph has closed the device.
    pub closed: Cell<bool>,
}

impl Node {
    pub fn new(name: &str, info: Info, power: Power, reserve: Reserve) -> Self {
        let (name, counters) = (name.into(), Counters::default());
        Self { name, info, power, reserve, counters, closed: Cell::new(false) }
    }

    /// The answer to a request that comes after the device was closed.
    #[cold]
    pub fn refusal(&self) -> Error {
        let words = format!("{} was closed by a change of its graph, or by its end", self.name);
        Error::new(ErrorKind::Stopped, words)
    }
}

/// What is kept back for a request before it begins.
#[derive(Clone, Copy)]
pub(super) struct Reserve {
    /// Slots, its own included.
    pub slots: u32,
    /// Buffers beside its own, each as long as it is, to whole blocks.
    pub copies: u32,
    /// The largest block on its way: what a request may be widened to.
    pub block: u32,
}

impl Reserve {
    /// Bytes of the pool for a request of `len` bytes.
    #[inline]
    pub fn bytes(&self, len: u64) -> usize {
        if self.copies == 0 {
            return 0;
        }
        // A range that begins and ends inside blocks reaches into one more at either end.
        let wide = len as usize + 2 * self.block as usize;
        self.copies as usize * wide.min(BUF_MAX_BYTES).next_power_of_two()
    }

    /// Likewise, for `op`: what has no payload is worked on in pieces as long as one.
    #[inline]
    pub fn bytes_for(&self, op: &Op) -> usize {
        match op.range() {
            Some(range) if self.copies > 0 => self.bytes(range.len().min(BUF_MAX_BYTES as u64)),
            _ => 0,
        }
    }
}

/// What a node has done since it was made. Plain numbers of one core; read them as often as you like.
#[derive(Default, Debug)]
pub struct Counters {
    ops: [Cell<u64>; Verb::ALL.len()],
    bytes: [Cell<u64>; Verb::ALL.len()],
    errors: Cell<u64>,
    in_flight: Cell<u32>,
}

impl Counters {
    #[inline]
    pub(super) fn begin(&self, op: &Op) {
        self.pass(op);
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// One more request that went through in place.
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

    /// Requests begun, by verb.
    pub fn ops(&self, verb: Verb) -> u64 {
        self.ops[verb as usize].get()
    }

    /// Bytes that they were about, by verb.
    pub fn bytes(&self, verb: Verb) -> u64 {
        self.bytes[verb as usize].get()
    }

    /// Requests that failed.
    pub fn errors(&self) -> u64 {
        self.errors.get()
    }

    /// Requests begun and not yet answered.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }
}
