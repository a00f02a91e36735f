//! The records of a journal that are still needed, and their payload.

use std::collections::VecDeque;

use block::{Buf, BufPool, Result};

use super::KEPT_BYTES_MAX;
use super::index::{Index, PartId};
use super::part::{Part, PartKind, data_checksum};
use crate::ring::{Head, Position, RingDevice};

/// A part of a record in the ring.
#[derive(Clone)]
pub struct Stored {
    pub part: Part,
    /// Offset of its data in the ring.
    pub offset: u64,
}

/// A record in the ring.
pub struct Record {
    pub number: u64,
    offset: u64,
    /// Position behind the record.
    pub end: Position,
    pub parts: Vec<Stored>,
    /// The bytes of the record as they are in the ring, if they are still in memory.
    pub bytes: Option<Buf>,
}

impl Record {
    pub fn new(head: &Head, parts: impl IntoIterator<Item = Part>, bytes: Option<Buf>) -> Self {
        let mut offset = head.at.offset + head.padded_bytes();
        let stored = |part: Part| {
            let own = offset;
            offset += part.payload_bytes();
            Stored { part, offset: own }
        };
        let parts = parts.into_iter().map(stored).collect();
        Self { number: head.at.number, offset: head.at.offset, end: head.next(), parts, bytes }
    }

    /// Returns the bytes of the parts among the items of the record.
    pub fn item_bytes(&self) -> usize {
        self.parts.iter().map(|stored| stored.part.item_bytes()).sum()
    }

    /// Returns the bytes of the buffer pool that the record takes.
    fn memory_bytes(&self) -> usize {
        self.bytes.as_ref().map_or(0, |bytes| bytes.len().next_power_of_two())
    }

    /// Returns the data of a part, if it has any and the bytes of the record are in memory.
    pub fn data(&self, stored: &Stored) -> Option<Buf> {
        if stored.part.kind != PartKind::Data {
            return None;
        }
        let from = (stored.offset - self.offset) as usize;
        let len = stored.part.range.len() as usize;
        self.bytes.as_ref().map(|bytes| bytes.slice(from..from + len))
    }
}

/// Reads the data of a part from the ring, and verifies them. A part without data has none. Returns `None` if no copy of the
/// ring has the right bytes. If it `heals`, writes the right bytes over copies that differ: no task may write the ring then.
///
/// # Errors
/// `Limit` if the pool has no buffer of this length.
pub async fn read_data(
    pool: &BufPool,
    ring: &RingDevice,
    stored: &Stored,
    heals: bool,
) -> Result<Option<Option<Buf>>> {
    let Stored { part, offset } = stored;
    if part.kind != PartKind::Data {
        return Ok(Some(None));
    }
    let (len, padded) = (part.range.len() as usize, part.payload_bytes() as usize);
    let into = pool.scratch(padded).await?;
    let is_right = |bytes: &[u8]| data_checksum(&bytes[..len]) == part.checksum;
    let has_right = match heals {
        true => ring.read_and_restore(*offset, &into, is_right).await,
        false => ring.read(*offset, &into, is_right).await,
    };
    Ok(has_right.then(|| Some(into.slice(0..len))))
}

/// The records behind the durable tail, without a gap, and the index of their parts.
#[derive(Default)]
pub struct Records {
    all: VecDeque<Record>,
    pub index: Index,
    /// Bytes of the items of all records.
    pub item_bytes: usize,
    /// Bytes of the written records that stay in memory.
    kept: usize,
}

impl Records {
    /// Adds a record, which has the next number.
    pub fn push(&mut self, record: Record) {
        self.item_bytes += record.item_bytes();
        self.all.push_back(record);
    }

    /// Makes the parts of a written record the newest ones of their ranges. Its bytes stay in memory if there is room.
    pub fn note_written(&mut self, number: u64) {
        let Some(at) = self.index_of(number) else { return };
        let bytes = self.all[at].memory_bytes();
        if self.kept + bytes <= KEPT_BYTES_MAX {
            self.kept += bytes;
        } else {
            self.all[at].bytes = None;
        }
        for (n, Stored { part, .. }) in (0..).zip(&self.all[at].parts) {
            self.index.insert(part.lower, part.range, PartId { record: number, part: n });
        }
    }

    /// Returns the record with a number; `None` if the durable tail has passed it.
    pub fn get(&self, number: u64) -> Option<&Record> {
        self.index_of(number).map(|at| &self.all[at])
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        let at = number.checked_sub(self.all.front()?.number)? as usize;
        (at < self.all.len()).then_some(at)
    }

    /// Removes the bytes of the records from memory that are in place: those from `first` to `last`.
    pub fn release(&mut self, first: u64, last: u64) {
        for number in first..=last {
            if let Some(at) = self.index_of(number) {
                self.kept -= self.all[at].memory_bytes();
                self.all[at].bytes = None;
            }
        }
    }

    /// Removes the bytes of all records from memory. Those of written records are in the ring.
    pub fn release_all(&mut self) {
        self.all.iter_mut().for_each(|record| record.bytes = None);
        self.kept = 0;
    }

    /// Returns the number of the last record with parts, up to record `last`.
    pub fn last_with_parts(&self, last: u64) -> Option<u64> {
        let upto = self.all.iter().rev().skip_while(|record| record.number > last);
        upto.map(|record| (record.number, record.parts.len())).find(|it| it.1 > 0).map(|it| it.0)
    }

    /// Removes the records before the durable tail.
    pub fn trim(&mut self, tail: u64) {
        while let Some(record) = self.all.pop_front_if(|record| record.number < tail) {
            self.item_bytes -= record.item_bytes();
            for Stored { part, .. } in &record.parts {
                self.index.remove(part.lower, part.range, record.number);
            }
        }
    }
}
