//! The space of a pool as its other parts use it: one owner, shared by requests and checkpoints.

use std::cell::RefCell;
use std::rc::Rc;

use block::{ByteRange, Result, error};

use crate::rows::ExtentRow;
use crate::space::{Counts, Reading, Space, SpaceRows};
use crate::{Address, BLOCK_BYTES};

/// The space of a pool.
pub struct Room {
    space: RefCell<Space>,
    /// Blocks for the nodes of the tables of space, while a checkpoint writes these tables.
    aside: RefCell<Option<Vec<Address>>>,
}

/// Guard of a read of a client. No address that is freed later is given away until it is dropped.
pub struct ReadGuard {
    room: Rc<Room>,
    reading: Reading,
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        self.room.space.borrow_mut().end_read(self.reading);
    }
}

impl Room {
    /// Shares a space.
    pub fn new(space: Space) -> Rc<Self> {
        Rc::new(Self { space: RefCell::new(space), aside: RefCell::default() })
    }

    /// Returns the bytes on the device of adjacent blocks.
    ///
    /// # Errors
    /// `Corrupt` if the address is outside of the pool.
    pub fn range(&self, address: Address, blocks: u64) -> Result<ByteRange> {
        let start = self.space.borrow().byte_of(address);
        let range = start.and_then(|start| ByteRange::new(start, blocks * u64::from(BLOCK_BYTES)));
        range.ok_or_else(|| error!(Corrupt, "the address {address:?} is outside of the pool"))
    }

    /// Begins a read of a client.
    pub fn reading(self: &Rc<Self>) -> ReadGuard {
        ReadGuard { room: self.clone(), reading: self.space.borrow_mut().begin_read() }
    }

    /// As [`Space::take_data`].
    ///
    /// # Errors
    /// As there.
    pub fn take_data(&self, most: u64) -> Result<(Address, u64)> {
        let taken = self.space.borrow_mut().take_data(most)?;
        Ok((taken.address, taken.blocks))
    }

    /// Takes a block for a node: one that was set aside, or any free one.
    ///
    /// # Errors
    /// `NoSpace` if none is free.
    pub fn take_node(&self) -> Result<Address> {
        match &mut *self.aside.borrow_mut() {
            None => self.space.borrow_mut().take_node(),
            // Another block would not be in the rows that are being written.
            Some(aside) => aside.pop().ok_or_else(|| {
                error!(NoSpace, "the tables of free space need more nodes than were set aside")
            }),
        }
    }

    /// Sets blocks aside for the tables of space. Returns the rows of the checkpoint, which show them as used.
    ///
    /// # Errors
    /// `NoSpace` if too few are free.
    pub fn begin_rows(&self, nodes: usize) -> Result<SpaceRows> {
        let mut aside = Vec::with_capacity(nodes);
        for _ in 0..nodes {
            aside.push(self.space.borrow_mut().take_node()?);
        }
        *self.aside.borrow_mut() = Some(aside);
        Ok(self.space.borrow_mut().rows())
    }

    /// Frees the blocks that were set aside and not used, and the replaced nodes of the tables of space. The rows of
    /// the next checkpoint have them.
    pub fn end_rows(&self, replaced: impl IntoIterator<Item = Address>) {
        let aside = self.aside.take().unwrap_or_default();
        let mut space = self.space.borrow_mut();
        for (address, blocks) in Space::runs_of(aside.into_iter().chain(replaced).collect()) {
            space.free_later(address, blocks);
        }
    }

    /// Calls `each` with the space.
    pub fn with<T>(&self, each: impl FnOnce(&mut Space) -> T) -> T {
        each(&mut self.space.borrow_mut())
    }

    /// Returns the extents that were claimed since the last call.
    pub fn take_claimed(&self) -> Vec<ExtentRow> {
        self.space.borrow_mut().take_claimed()
    }

    /// Returns the numbers of blocks in use.
    pub fn counts(&self) -> Counts {
        self.space.borrow().counts()
    }
}
