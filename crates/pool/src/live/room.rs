//! The space of a pool as its other parts use it: one owner, shared by requests and checkpoints.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{ByteRange, Result, error};

use crate::space::{Reading, Space, SpaceRows};
use crate::{Address, BLOCK_BYTES};

/// The space of a pool.
pub struct Room {
    space: RefCell<Space>,
    /// Whether a checkpoint writes the tables of space now.
    writes_rows: Cell<bool>,
    /// Number of blocks that were taken for nodes.
    nodes_taken: Cell<u64>,
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
        let (space, writes_rows, nodes_taken) =
            (RefCell::new(space), Cell::default(), Cell::default());
        Rc::new(Self { space, writes_rows, nodes_taken })
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

    /// Takes a block for a node.
    ///
    /// # Errors
    /// `NoSpace` if none is free.
    pub fn take_node(&self) -> Result<Address> {
        self.nodes_taken.set(self.nodes_taken.get() + 1);
        match self.writes_rows.get() {
            true => self.space.borrow_mut().take_space_node(),
            false => self.space.borrow_mut().take_node(),
        }
    }

    /// As [`Space::take_second`], and as [`Space::take_second_space_node`] during the writes of the tables of space.
    pub fn take_second(&self, first: Address) -> Option<Address> {
        let second = match self.writes_rows.get() {
            true => self.space.borrow_mut().take_second_space_node(first),
            false => self.space.borrow_mut().take_second(first),
        }?;
        self.nodes_taken.set(self.nodes_taken.get() + 1);
        Some(second)
    }

    /// Returns the rows of the running checkpoint. Until [`Room::end_rows`] all new nodes are those of the tables of
    /// space, of which at most `nodes` are needed, and as many second copies if `doubles`. They change no row.
    ///
    /// # Errors
    /// `NoSpace` if too few blocks are free.
    pub fn begin_rows(&self, nodes: u64, doubles: bool) -> Result<SpaceRows> {
        let mut space = self.space.borrow_mut();
        space.prepare_space_nodes(nodes, doubles)?;
        self.writes_rows.set(true);
        Ok(space.rows())
    }

    /// Ends the writes of the tables of space.
    pub fn end_rows(&self) {
        self.writes_rows.set(false);
    }

    /// Calls `each` with the space.
    pub fn with<T>(&self, each: impl FnOnce(&mut Space) -> T) -> T {
        each(&mut self.space.borrow_mut())
    }

    /// Returns the number of blocks that were taken for nodes since the opening.
    pub fn nodes_taken(&self) -> u64 {
        self.nodes_taken.get()
    }

    /// Returns the number of blocks that became ready since the opening.
    pub fn given(&self) -> u64 {
        self.space.borrow().given()
    }
}
