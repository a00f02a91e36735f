//! A bounded cache of nodes by physical address, with the replacement policy CLOCK.

use std::rc::Rc;

use super::node::Node;
use crate::Address;

/// Largest number of nodes in a cache: 16 GiB.
pub const CACHE_NODES_MAX: usize = 4 << 20;

struct Slot {
    address: u64,
    node: Option<Rc<Node>>,
    /// Whether the node was used since the hand passed it.
    is_used: bool,
}

/// Nodes by physical address.
///
/// A full cache replaces the first node behind its hand that was not used since the hand passed it. A new node counts as
/// not used. So the leaves that a merge reads once leave first, and inner nodes stay.
pub struct NodeCache {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Hash table with linear probing: number of the slot + 1, or 0.
    table: Vec<u32>,
    nodes_max: usize,
    nodes: usize,
    hand: usize,
}

impl NodeCache {
    /// An empty cache of at most `nodes_max` nodes.
    ///
    /// # Panics
    /// If `nodes_max` is 0, or above [`CACHE_NODES_MAX`].
    pub fn new(nodes_max: usize) -> Self {
        assert!((1..=CACHE_NODES_MAX).contains(&nodes_max), "a cache of {nodes_max} nodes");
        let table = vec![0; (nodes_max * 2).next_power_of_two()];
        Self { slots: Vec::new(), free: Vec::new(), table, nodes_max, nodes: 0, hand: 0 }
    }

    /// Number of nodes in the cache.
    pub fn len(&self) -> usize {
        self.nodes
    }

    /// Whether the cache has no node.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// Position in the table at which the search for an address begins.
    fn home(&self, address: u64) -> usize {
        let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.table.len() - 1)
    }

    /// Returns the position in the table of an address, or of the empty place where its search ends.
    fn position(&self, address: u64) -> usize {
        let mut at = self.home(address);
        while let Some(slot) = (self.table[at] as usize).checked_sub(1) {
            if self.slots[slot].address == address {
                break;
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        at
    }

    fn slot(&self, address: Address) -> Option<usize> {
        (self.table[self.position(address.bits())] as usize).checked_sub(1)
    }

    /// Returns a node, and notes its use.
    pub fn get(&mut self, address: Address) -> Option<Rc<Node>> {
        let slot = self.slot(address)?;
        self.slots[slot].is_used = true;
        self.slots[slot].node.clone()
    }

    /// Returns a node without noting its use, for merges and other passes.
    pub fn peek(&self, address: Address) -> Option<Rc<Node>> {
        self.slots[self.slot(address)?].node.clone()
    }

    /// Adds a node, or replaces the one with this address.
    pub fn insert(&mut self, address: Address, node: Rc<Node>) {
        if let Some(slot) = self.slot(address) {
            self.slots[slot].node = Some(node);
            return;
        }
        if self.nodes == self.nodes_max {
            self.evict();
        }
        let new = Slot { address: address.bits(), node: Some(node), is_used: false };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot as usize
            }
            None => {
                self.slots.push(new);
                self.slots.len() - 1
            }
        };
        let at = self.position(address.bits());
        self.table[at] = slot as u32 + 1;
        self.nodes += 1;
    }

    /// Removes a node. A pool does this before it gives away the address of a freed node.
    pub fn remove(&mut self, address: Address) {
        if let Some(slot) = self.slot(address) {
            self.take(slot);
        }
    }

    fn evict(&mut self) {
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if slot.node.is_some() && !std::mem::take(&mut slot.is_used) {
                return self.take(self.hand);
            }
        }
    }

    /// Empties a slot, and closes the gap in the table.
    fn take(&mut self, slot: usize) {
        let mask = self.table.len() - 1;
        let mut gap = self.position(self.slots[slot].address);
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let Some(next) = (self.table[at] as usize).checked_sub(1) else { break };
            // An entry moves into the gap if its search passes the gap.
            let home = self.home(self.slots[next].address);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.table[gap] = self.table[at];
                gap = at;
            }
        }
        self.table[gap] = 0;
        self.slots[slot].node = None;
        self.slots[slot].is_used = false;
        self.free.push(slot as u32);
        self.nodes -= 1;
    }
}
