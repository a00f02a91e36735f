//! The free space of a ring, and the positions of new records.

use super::{Head, Position, Ring, SECTOR_BYTES};

/// The free space of a ring, and the position of the next record.
#[derive(Clone, Debug)]
pub struct Room {
    ring: Ring,
    tail: u64,
    next: Position,
}

/// The ring has too little free space for a record. It waits until the tail has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    /// Bytes of the record.
    pub needed: u64,
    /// Bytes of the ring that are free.
    pub free: u64,
}

impl Room {
    /// Creates the state of a ring with the durable tail at offset `tail`, in which `next` is the position of the next
    /// record.
    ///
    /// # Panics
    /// If the tail is behind the next record, or more than the length of the ring before it.
    pub fn new(ring: Ring, tail: u64, next: Position) -> Self {
        let used = next.offset.checked_sub(tail);
        assert!(used.is_some_and(|used| used <= ring.bytes), "tail {tail}, next {next:?}");
        Self { ring, tail, next }
    }

    /// Returns the position of the next record.
    pub fn next(&self) -> Position {
        self.next
    }

    /// Returns the offset of the durable tail.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the number of free bytes.
    pub fn free(&self) -> u64 {
        self.ring.bytes - (self.next.offset - self.tail)
    }

    /// Checks whether a record of `bytes` bytes, with its padding and payload, fits behind the last one.
    ///
    /// # Errors
    /// [`Full`] if the free space is smaller.
    pub fn fits(&self, bytes: u64) -> Result<(), Full> {
        let needed = bytes.next_multiple_of(SECTOR_BYTES as u64);
        match self.free() {
            free if needed <= free => Ok(()),
            free => Err(Full { needed, free }),
        }
    }

    /// Takes the space of an encoded record.
    ///
    /// # Panics
    /// If the record is not at the next position, or does not fit.
    pub fn take(&mut self, head: &Head) {
        assert_eq!(head.at, self.next, "the record is at the next position");
        assert_eq!(self.fits(head.bytes()), Ok(()), "the record fits");
        self.next = head.next();
    }

    /// Frees the space before the offset `tail`, after a root or record with this tail was flushed.
    ///
    /// # Panics
    /// If the offset is before the tail, or behind the last record.
    pub fn trim(&mut self, tail: u64) {
        assert!((self.tail..=self.next.offset).contains(&tail), "tail {tail} of {self:?}");
        self.tail = tail;
    }
}
