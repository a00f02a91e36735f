//! Nodes: what a request meets on its way.

use std::alloc::Layout;
use std::cell::Cell;
use std::rc::Rc;

use block::{Hooks, Info, Op, Table, Verb};

use super::slot::AnyDevice;

/// Which node; the number of a device, table, hook or export in its engine.
pub type NodeId = usize;

/// What a node does with a request.
pub(super) enum Power {
    /// Its future carries the request out.
    Device { device: Rc<dyn AnyDevice>, future: Layout },
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
    /// Slots that one request takes at most from here down.
    pub need: u32,
    /// Buffers beside its own that one request takes at most from here down, in its length.
    pub scratch: u32,
    pub counters: Counters,
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
