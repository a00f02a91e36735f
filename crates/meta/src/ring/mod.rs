//! Rings of records for logs and journals, as in `docs/formats/log.md`: positions, records, and recovery.
//!
//! | file | holds |
//! | --- | --- |
//! | `record.rs` | the codec of a record |
//! | `item.rs` | the codec of the items in a record |
//! | `room.rs` | the free space of a ring, and the positions of new records |
//! | `survey.rs` | the search for records in the sectors of a ring |
//! | `verdict.rs` | the records that count, the end of the log, and damage |
//! | `recover.rs` | the I/O of a recovery |
//! | `log.rs` | the I/O of an open ring: new records, flushes |
//! | `read.rs` | reads of payload |

mod item;
mod log;
mod read;
mod record;
mod recover;
mod room;
mod survey;
mod verdict;

pub use item::{ITEM_HEADER_BYTES, Item, MustKnow, encode_item, items};
pub use log::{Appended, Log, Numbers};
pub use read::RingDevice;
pub use record::{Head, RECORD_HEADER_BYTES, RECORD_MAGIC, Wrong, record_checksum};
pub use recover::Recovered;
pub use room::{Full, Room};
pub use survey::Survey;
pub use verdict::{Damage, Verdict};

use crate::Uuid;

/// Bytes of a sector of a ring. Records begin at multiples of this.
pub const SECTOR_BYTES: usize = 4096;

/// Minimum length in bytes of a ring.
pub const RING_BYTES_MIN: u64 = 64 << 10;

/// Maximum length in bytes of a ring.
pub const RING_BYTES_MAX: u64 = 1 << 30;

/// Maximum length in bytes of one record with its padding and payload, however long the ring is.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Divisor of the length of a ring for its longest record: a few records always fit.
const RECORD_PARTS: u64 = 4;

/// Highest valid offset, number and opening: beyond any use, and far from overflow.
pub const COUNT_MAX: u64 = 1 << 56;

/// The part of Cairn that defines the items in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Owner {
    /// The log of an allocator of a pool.
    PoolLog = 1,
    /// A journal with payload.
    Journal = 2,
}

/// Identity and length of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    uuid: Uuid,
    bytes: u64,
    owner: Owner,
}

impl Ring {
    /// Creates the description of a ring.
    ///
    /// # Errors
    /// A description of the limit that `bytes` exceeds.
    pub fn new(uuid: Uuid, bytes: u64, owner: Owner) -> Result<Self, String> {
        let is_possible = (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes);
        if !is_possible || !bytes.is_multiple_of(SECTOR_BYTES as u64) {
            return Err(format!(
                "a log of {bytes} bytes; {RING_BYTES_MIN} to {RING_BYTES_MAX} are possible, in \
                 steps of {SECTOR_BYTES}"
            ));
        }
        Ok(Self { uuid, bytes, owner })
    }

    /// Returns the UUID of the ring.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the length of the ring in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the maximum length in bytes of a record with its padding and payload.
    pub fn record_bytes_max(&self) -> u64 {
        Self::record_bytes_max_of(self.bytes)
    }

    /// Returns the maximum length in bytes of a record in a ring of `bytes` bytes.
    pub(crate) fn record_bytes_max_of(bytes: u64) -> u64 {
        let part = bytes / RECORD_PARTS;
        RECORD_BYTES_MAX.min(part - part % SECTOR_BYTES as u64)
    }

    /// Returns the place in the ring of an offset, in bytes.
    pub fn place(&self, offset: u64) -> u64 {
        offset % self.bytes
    }

    /// Returns the places and lengths in bytes of the two parts of `len` bytes at `offset`. The second part has a
    /// length of 0, unless the bytes cross the end of the ring.
    ///
    /// # Panics
    /// If `len` is longer than the ring.
    pub fn parts(&self, offset: u64, len: u64) -> [(u64, u64); 2] {
        assert!(len <= self.bytes, "{len} bytes do not fit in a ring of {}", self.bytes);
        let place = self.place(offset);
        let first = len.min(self.bytes - place);
        [(place, first), (0, len - first)]
    }
}

/// Position of a record in a ring: of an existing one, or of the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Bytes from the time when the ring was made to the record. The place in the ring is this modulo its length.
    pub offset: u64,
    /// Number of the record.
    pub number: u64,
    /// Checksum of the record before it; 0 for none.
    pub previous: u64,
    /// Opening of the record; for the next record, the lowest opening that it may have.
    pub opening: u64,
}

/// The state of a ring that its owner keeps outside of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Position of the first record that is still needed; its number is 1 or more.
    pub tail: Position,
    /// The highest number of a record that was known to be flushed when the root was written.
    pub flushed: u64,
}
