//! The parts of a pool that trees need: reads of nodes, addresses for new nodes, and rests.

use std::iter;
use std::rc::Rc;

use block::Result;
use block::seeded::{self, Bug};

use super::node::{Node, Place, Pointer};
use super::run::Number;
use crate::Address;

/// Reads nodes, usually through a cache.
pub trait Reads {
    /// Returns the node that `pointer` names, checked by [`Node::open`], or by [`Node::check_head`] if it is in memory.
    ///
    /// # Errors
    /// Those of these functions, and those of the disks.
    fn read(&self, pointer: &Pointer, place: &Place) -> impl Future<Output = Result<Rc<Node>>>;

    /// Gives way to clients if the caller has worked long enough. A caller calls this after each node, so after some
    /// ten microseconds of work.
    fn rest(&self) -> impl Future<Output = ()>;
}

/// Writes nodes.
pub trait Store: Reads {
    /// Returns a free address for a new node.
    ///
    /// # Errors
    /// `NoSpace` if there is none.
    fn allocate(&self) -> Result<Address>;

    /// Returns a free address for a second copy of the new node at `first`; `None` if nodes have one copy.
    fn allocate_second(&self, _first: Address) -> Option<Address> {
        None
    }

    /// Writes a new node to `address` and, if there is one, to `second`, or puts it in line to be written. From then on
    /// it can be read.
    ///
    /// # Errors
    /// Those of the disks.
    fn write(
        &self,
        address: Address,
        second: Option<Address>,
        node: Rc<Node>,
    ) -> impl Future<Output = Result<()>>;
}

/// Blocks that a merge found to be overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overwritten {
    /// Physical address of the first block.
    pub address: Address,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of the first snapshot that could see the blocks.
    pub birth: Number,
    /// Number of the next snapshot when the blocks were overwritten.
    pub death: Number,
}

/// A copy of a node that a merge replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// Physical address of the copy.
    pub address: Address,
    /// Number of the first snapshot that could see the node.
    pub birth: Number,
}

/// Takes the space that a merge finds to be no longer used by the tree.
pub trait Finds {
    /// Takes overwritten blocks.
    fn overwritten(&mut self, found: Overwritten);

    /// Takes a copy of a replaced node.
    fn replaced(&mut self, node: Replaced);

    /// Takes all copies of the replaced node that `pointer` names.
    fn replaced_at(&mut self, pointer: &Pointer) {
        let second = pointer.second.filter(|_| !seeded::on(Bug::SecondCopyStays));
        for address in iter::once(pointer.address).chain(second) {
            self.replaced(Replaced { address, birth: pointer.birth });
        }
    }
}

/// The space that a merge found, as lists.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// Overwritten blocks.
    pub blocks: Vec<Overwritten>,
    /// Copies of replaced nodes.
    pub nodes: Vec<Replaced>,
}

impl Finds for Found {
    fn overwritten(&mut self, found: Overwritten) {
        // Runs are often found in parts.
        if let Some(last) = self.blocks.last_mut() {
            let continues = last.address.bits() + last.blocks == found.address.bits()
                && last.address.extent() == found.address.extent()
                && (last.birth, last.death) == (found.birth, found.death);
            if continues {
                last.blocks += found.blocks;
                return;
            }
        }
        self.blocks.push(found);
    }

    fn replaced(&mut self, node: Replaced) {
        self.nodes.push(node);
    }
}
