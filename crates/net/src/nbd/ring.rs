//! The ring of an NBD disk: a copy of its log of completed, unflushed changes, in memory that outlives the process. The
//! ring consists of records with checksums. `docs/formats/ring.md` describes the format.
//!
//! Before the disk completes a change for its client, the record of the change is in the ring, and the head counts the
//! record. The head counts only complete records. So an incomplete record that the head does not count belongs to a
//! change that was never completed. An incomplete record that the head counts is damage, and is reported.

use std::collections::VecDeque;
use std::rc::Rc;

use block::env::Lasting;
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Error, ErrorKind, Result, bail};
use crc_fast::{CrcAlgorithm, Digest, checksum};
use wire::nbd::{Command, CommandFlags};

use super::unflushed::Change;

const HEAD_MAGIC: &[u8; 8] = b"CairnRng";
const RECORD_MAGIC: u32 = 0x4361_5265;
const VERSION: u16 = 1;

/// Length in bytes of a head of the ring. The ring has two heads, which are written alternately.
const HEAD_BYTES: usize = 64;
const HEADS_BYTES: u64 = 2 * HEAD_BYTES as u64;

/// Length in bytes of a record in the ring, without its payload.
pub(super) const RECORD_BYTES: usize = 48;

/// Maximum length in bytes of the payload of a record.
const PAYLOAD_MAX_BYTES: u32 = wire::nbd::MAX_PAYLOAD_BYTES;

/// Maximum number of bytes of a payload that one step copies and adds to the checksum. A client may still write to the
/// buffer.
const COPY_BYTES: usize = 64 << 10;

/// Flag of a head: the ring lacks a completed change that no flush has covered.
const INCOMPLETE: u16 = 1;

/// Flag of a head: a flush has failed, or the disk is out of service. The ring has no records any more.
const GIVEN_UP: u16 = 2;

/// A position in the ring: the number of bytes and of records that were appended before it since the ring was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct RingPosition {
    bytes: u64,
    records: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Head {
    generation: u64,
    identity: u64,
    flags: u16,
    tail: RingPosition,
    next: RingPosition,
}

/// The ring of one NBD disk: records of completed, unflushed changes, in memory that outlives the process.
pub(super) struct Ring {
    memory: Rc<dyn Lasting>,
    capacity: u64,
    head: Head,
    /// Length in bytes of each record in the ring, from the oldest on.
    pub lengths: VecDeque<u64>,
}

/// The changes in the ring of an earlier process, and whether the ring is complete.
#[derive(Default)]
pub(super) struct Found {
    /// The changes that the server may not have flushed, in the order in which they were completed.
    pub changes: Vec<Change>,
    /// The reason why the next flush of the disk must fail; `None` if the ring is complete.
    pub lost: Option<&'static str>,
}

/// Returns the number of bytes of memory for a ring whose records may have `capacity` bytes.
pub(super) fn memory_bytes(capacity: u64) -> u64 {
    HEADS_BYTES + capacity
}

impl Ring {
    /// Creates an empty ring in `memory`, for the export with the identity `identity`.
    ///
    /// # Errors
    /// `Invalid` if `memory` has no room for a record; errors of the memory.
    pub fn new(memory: Rc<dyn Lasting>, identity: u64) -> Result<Self> {
        let capacity = memory.len().saturating_sub(HEADS_BYTES);
        if capacity < RECORD_BYTES as u64 {
            bail!(Invalid, "{} bytes are too few for the log of unflushed writes", memory.len());
        }
        let before = newest(&*memory)?.map_or(0, |head| head.generation);
        let head = Head { identity, generation: before, ..Head::default() };
        let mut ring = Self { memory, capacity, head, lengths: VecDeque::new() };
        // Both heads are written, so that old bytes in the memory are not taken for a head of this ring. In new memory,
        // the head at the front is written last.
        ring.write_head()?;
        ring.write_head()?;
        Ok(ring)
    }

    /// Opens the ring that an earlier process has left in `memory`. `buf` returns a buffer for a payload of the given
    /// length.
    ///
    /// # Errors
    /// `InUse` if the ring is of another export and is not empty; errors of the memory and of `buf`.
    pub fn open(
        memory: Rc<dyn Lasting>,
        identity: u64,
        mut buf: impl FnMut(usize) -> Result<Buf>,
    ) -> Result<(Self, Found)> {
        let Some(head) = newest(&*memory)? else {
            let lost = (!is_unmade(&*memory)?).then_some("the log of unflushed writes was damaged");
            return Ok((Self::new(memory, identity)?, Found { lost, ..Found::default() }));
        };
        let is_empty = head.tail == head.next && head.flags == 0;
        if head.identity != identity {
            if is_empty {
                return Ok((Self::new(memory, identity)?, Found::default()));
            }
            let words = "the unflushed writes of the previous process belong to another export";
            return Err(Error::new(ErrorKind::InUse, words).next(
                "start the graph with its old spec and stop it to flush these writes; or stop the \
                 graph now to drop the writes",
            ));
        }
        let capacity = memory.len().saturating_sub(HEADS_BYTES);
        let mut ring = Self { memory, capacity, head, lengths: VecDeque::new() };
        let mut found = Found {
            lost: match head.flags {
                flags if flags & GIVEN_UP != 0 => Some("a flush failed"),
                flags if flags & INCOMPLETE != 0 => {
                    Some("more unflushed bytes were outstanding than `replay` keeps")
                }
                _ => None,
            },
            ..Found::default()
        };
        if head.flags & GIVEN_UP == 0 && !ring.read_all(&mut found.changes, &mut buf)? {
            found.lost = Some("the log of unflushed writes was damaged");
        }
        Ok((ring, found))
    }

    /// Returns the maximum number of bytes that the records in the ring may have together.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Appends the record of a completed change to the ring. Only after this call, the disk may complete the change for
    /// its client.
    ///
    /// # Errors
    /// Errors of the ring's memory.
    ///
    /// # Panics
    /// If the ring has no room for the record. The log must ensure that it has.
    pub fn append(&mut self, change: &Change) -> Result<()> {
        let payload = change.data.as_ref().map_or(0, Buf::len);
        let len = (RECORD_BYTES + payload) as u64;
        let used = self.head.next.bytes - self.head.tail.bytes;
        assert!(
            used + len <= self.capacity,
            "the log has {used} bytes in use and no room for {len} more of {}",
            self.capacity
        );
        let header = record_header(self.head.next.records, change);
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&header);
        let mut at = self.head.next.bytes + RECORD_BYTES as u64;
        if let Some(data) = &change.data {
            for piece in data.read().chunks(COPY_BYTES) {
                digest.update(piece);
                self.put(at, piece)?;
                at += piece.len() as u64;
            }
        }
        let sum = (digest.finalize() as u32).to_be_bytes();
        self.put(self.head.next.bytes, &[&header[..], &sum].concat())?;
        self.head.next = RingPosition { bytes: at, records: self.head.next.records + 1 };
        self.lengths.push_back(len);
        if seeded::on(Bug::AnsweredUnrecorded) {
            return Ok(());
        }
        self.write_head()
    }

    /// Removes the oldest `count` records from the ring. With `is_whole`, also records that a flush has covered all
    /// completed changes that the ring lacked.
    ///
    /// # Errors
    /// Errors of the ring's memory.
    pub fn trim(&mut self, count: usize, is_whole: bool) -> Result<()> {
        let bytes: u64 = self.lengths.drain(..count).sum();
        let RingPosition { bytes: was, records } = self.head.tail;
        self.head.tail = RingPosition { bytes: was + bytes, records: records + count as u64 };
        if self.lengths.is_empty() {
            // The next record begins at the start of the memory again, so that a short log touches only few pages of
            // it.
            let next = self.head.next;
            let bytes = next.bytes.next_multiple_of(self.capacity);
            self.head.next = RingPosition { bytes, ..next };
            self.head.tail = self.head.next;
        }
        if is_whole {
            self.head.flags &= !INCOMPLETE;
        }
        self.write_head()
    }

    /// Records in the ring that the disk is about to complete a change whose record is not in the ring.
    ///
    /// # Errors
    /// Errors of the ring's memory.
    pub fn lacks(&mut self) -> Result<()> {
        self.head.flags |= INCOMPLETE;
        self.write_head()
    }

    /// Removes all records from the ring, and records that every further flush of the disk fails.
    ///
    /// # Errors
    /// Errors of the ring's memory.
    pub fn give_up(&mut self) -> Result<()> {
        self.head.flags |= GIVEN_UP;
        self.trim(self.lengths.len(), false)
    }

    fn write_head(&mut self) -> Result<()> {
        self.head.generation += 1;
        let at = self.head.generation % 2 * HEAD_BYTES as u64;
        self.memory.write(at, &head_bytes(&self.head))
    }

    /// Reads every record that the head counts into `changes`. Returns whether all of them are intact.
    fn read_all(
        &mut self,
        changes: &mut Vec<Change>,
        buf: &mut impl FnMut(usize) -> Result<Buf>,
    ) -> Result<bool> {
        let RingPosition { mut bytes, mut records } = self.head.tail;
        let end = self.head.next;
        while records < end.records {
            let Some((change, len)) = self.read_record(bytes, records, end.bytes, buf)? else {
                return Ok(false);
            };
            changes.push(change);
            self.lengths.push_back(len);
            (bytes, records) = (bytes + len, records + 1);
        }
        Ok(bytes == end.bytes)
    }

    fn read_record(
        &self,
        at: u64,
        number: u64,
        end: u64,
        buf: &mut impl FnMut(usize) -> Result<Buf>,
    ) -> Result<Option<(Change, u64)>> {
        let mut header = [0; RECORD_BYTES];
        if end.saturating_sub(at) < RECORD_BYTES as u64 {
            return Ok(None);
        }
        self.get(at, &mut header)?;
        let Some((mut change, payload, sum)) = parse_record(&header, number) else {
            return Ok(None);
        };
        let len = RECORD_BYTES as u64 + u64::from(payload);
        if end - at < len {
            return Ok(None);
        }
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&header[..RECORD_BYTES - 4]);
        if payload > 0 {
            let data = buf(payload as usize)?;
            let mut at = at + RECORD_BYTES as u64;
            for piece in data.write().chunks_mut(COPY_BYTES) {
                self.get(at, piece)?;
                digest.update(piece);
                at += piece.len() as u64;
            }
            change.data = Some(data);
        }
        Ok((digest.finalize() as u32 == sum).then_some((change, len)))
    }

    /// Returns the offset in the memory of the bytes at position `at`, and how many of `len` bytes fit before the end
    /// of the memory. The others are at the start of the ring.
    fn split(&self, at: u64, len: usize) -> (u64, usize) {
        let at = at % self.capacity;
        (HEADS_BYTES + at, len.min((self.capacity - at) as usize))
    }

    fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let (at, first) = self.split(at, bytes.len());
        self.memory.write(at, &bytes[..first])?;
        self.memory.write(HEADS_BYTES, &bytes[first..])
    }

    fn get(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let (at, first) = self.split(at, into.len());
        let (one, other) = into.split_at_mut(first);
        self.memory.read(at, one)?;
        self.memory.read(HEADS_BYTES, other)
    }
}

/// Returns the valid head with the highest generation; `None` if neither head is valid.
fn newest(memory: &dyn Lasting) -> Result<Option<Head>> {
    let mut both = [0; 2 * HEAD_BYTES];
    if memory.len() < HEADS_BYTES + RECORD_BYTES as u64 {
        return Ok(None);
    }
    memory.read(0, &mut both)?;
    let capacity = memory.len() - HEADS_BYTES;
    let heads = both.chunks_exact(HEAD_BYTES).filter_map(|bytes| parse_head(bytes, capacity));
    Ok(heads.max_by_key(|head| head.generation))
}

/// Whether the process that created the ring ended before it had written the head at the front. That process has
/// completed no change.
fn is_unmade(memory: &dyn Lasting) -> Result<bool> {
    let mut front = [0xff; HEAD_BYTES];
    if memory.len() >= HEADS_BYTES {
        memory.read(0, &mut front)?;
    }
    Ok(block::is_zero(&front))
}

fn head_bytes(head: &Head) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    out[..8].copy_from_slice(HEAD_MAGIC);
    out[8..10].copy_from_slice(&VERSION.to_be_bytes());
    out[10..12].copy_from_slice(&head.flags.to_be_bytes());
    let Head { generation, identity, tail, next, .. } = *head;
    let words = [generation, identity, tail.bytes, tail.records, next.bytes];
    for (word, to) in words.iter().zip(out[12..52].chunks_exact_mut(8)) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    out[52..60].copy_from_slice(&next.records.to_be_bytes());
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, &out[..60]) as u32;
    out[60..].copy_from_slice(&sum.to_be_bytes());
    out
}

fn parse_head(bytes: &[u8], capacity: u64) -> Option<Head> {
    let word = |at: usize| {
        u64::from_be_bytes(*bytes[at..].first_chunk().expect("the head of a ring has 64 bytes"))
    };
    let short = |at: usize| {
        u16::from_be_bytes(*bytes[at..].first_chunk().expect("the head of a ring has 64 bytes"))
    };
    let sum =
        u32::from_be_bytes(*bytes[60..].first_chunk().expect("the head of a ring has 64 bytes"));
    let good = bytes[..8] == *HEAD_MAGIC
        && short(8) == VERSION
        && sum == checksum(CrcAlgorithm::Crc32Iscsi, &bytes[..60]) as u32;
    let tail = RingPosition { bytes: word(28), records: word(36) };
    let next = RingPosition { bytes: word(44), records: word(52) };
    let fits = next.bytes.checked_sub(tail.bytes).is_some_and(|used| used <= capacity)
        && next.records.checked_sub(tail.records).is_some_and(|count| count <= capacity);
    let head = Head { generation: word(12), identity: word(20), flags: short(10), tail, next };
    (good && fits).then_some(head)
}

/// Encodes the record with the number `number` of a change, without its checksum and payload.
fn record_header(number: u64, change: &Change) -> [u8; RECORD_BYTES - 4] {
    let mut out = [0; RECORD_BYTES - 4];
    out[..4].copy_from_slice(&RECORD_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&change.command.to_wire().to_be_bytes());
    out[6..8].copy_from_slice(&change.flags.0.to_be_bytes());
    out[8..16].copy_from_slice(&number.to_be_bytes());
    out[16..24].copy_from_slice(&change.range.start().to_be_bytes());
    out[24..32].copy_from_slice(&change.range.len().to_be_bytes());
    let payload = change.data.as_ref().map_or(0, Buf::len) as u32;
    out[32..36].copy_from_slice(&payload.to_be_bytes());
    out
}

/// Parses the record with the number `number`. Returns its change without the payload, the length of the payload, and
/// the checksum.
fn parse_record(bytes: &[u8; RECORD_BYTES], number: u64) -> Option<(Change, u32, u32)> {
    let word = |at: usize| {
        u64::from_be_bytes(*bytes[at..].first_chunk().expect("the header of a record has 48 bytes"))
    };
    let int = |at: usize| {
        u32::from_be_bytes(*bytes[at..].first_chunk().expect("the header of a record has 48 bytes"))
    };
    let short = |at: usize| {
        u16::from_be_bytes(*bytes[at..].first_chunk().expect("the header of a record has 48 bytes"))
    };
    if int(0) != RECORD_MAGIC || word(8) != number || bytes[36..44] != [0; 8] {
        return None;
    }
    let command = Command::from_wire(short(4));
    let range = ByteRange::new(word(16), word(24))?;
    let payload = int(32);
    let agrees = match command {
        Command::Write => u64::from(payload) == range.len() && payload <= PAYLOAD_MAX_BYTES,
        Command::WriteZeroes | Command::Trim => payload == 0,
        _ => false,
    };
    let flags = CommandFlags(short(6));
    agrees.then_some((Change { command, flags, range, data: None }, payload, int(44)))
}

#[cfg(test)]
mod tests {
    use block::BufPool;

    use super::super::any_bytes_tests::{Plain, try_any_ring};
    use super::*;

    const CAPACITY: u64 = 1000;
    const EXPORT: u64 = 0x0102_0304_0506_0708;

    fn memory() -> Rc<Plain> {
        Rc::new(Plain(vec![0; memory_bytes(CAPACITY) as usize].into()))
    }

    fn write(pool: &BufPool, start: u64, bytes: &[u8]) -> Change {
        let data = pool.take(bytes.len()).unwrap();
        data.write().copy_from_slice(bytes);
        let range = ByteRange::new(start, bytes.len() as u64).unwrap();
        Change { command: Command::Write, flags: CommandFlags::NONE, range, data: Some(data) }
    }

    fn zeros(start: u64, len: u64) -> Change {
        let range = ByteRange::new(start, len).unwrap();
        Change { command: Command::WriteZeroes, flags: CommandFlags::NO_HOLE, range, data: None }
    }

    /// Returns the changes that the next process finds in the ring, and the reason why the ring is incomplete, if it
    /// is.
    fn found(memory: &Rc<Plain>, pool: &BufPool) -> (Vec<(u64, Vec<u8>)>, Option<&'static str>) {
        let memory: Rc<dyn Lasting> = Rc::new(Plain(memory.0.clone()));
        let (_, found) = Ring::open(memory, EXPORT, |len| pool.take(len)).unwrap();
        let bytes =
            |change: &Change| change.data.as_ref().map_or(vec![], |data| data.read().to_vec());
        let changes = found.changes.iter().map(|change| (change.range.start(), bytes(change)));
        (changes.collect(), found.lost)
    }

    #[test]
    fn unflushed_log_in_memory_matches_documented_bytes() {
        let (memory, pool) = (memory(), BufPool::new(1 << 20, 0));
        let mut ring = Ring::new(memory.clone(), EXPORT).unwrap();
        ring.append(&write(&pool, 0x200, b"abcd")).unwrap();
        ring.lacks().unwrap();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let bytes = memory.0.borrow();
        let head = "436169726e526e67 0001 0001 0000000000000004 0102030405060708
            0000000000000000 0000000000000000 0000000000000034 0000000000000001 ca5a836e";
        assert_eq!(hex(&bytes[..64]), head.split_whitespace().collect::<String>());
        assert_eq!(hex(&bytes[64..84]), "436169726e526e67000100000000000000000003");
        let record = "43615265 0001 0000 0000000000000000 0000000000000200 0000000000000004
            00000004 0000000000000000 8a09a71e 61626364";
        assert_eq!(hex(&bytes[128..][..52]), record.split_whitespace().collect::<String>());
    }

    #[test]
    fn unflushed_log_is_found_by_next_process() {
        let (memory, pool) = (memory(), BufPool::new(1 << 20, 0));
        let mut ring = Ring::new(memory.clone(), EXPORT).unwrap();
        assert_eq!(found(&memory, &pool), (vec![], None));
        // So often that records wrap around the end of the memory.
        for round in 0..50_u64 {
            let bytes = [round as u8; 300];
            ring.append(&write(&pool, round * 512, &bytes)).unwrap();
            ring.append(&zeros(round, 7)).unwrap();
            let all = vec![(round * 512, bytes.to_vec()), (round, vec![])];
            assert_eq!(found(&memory, &pool), (all.clone(), None));
            ring.trim(1, true).unwrap();
            assert_eq!(found(&memory, &pool), (all[1..].to_vec(), None));
            ring.append(&write(&pool, 9, &[9; 400])).unwrap();
            assert_eq!(found(&memory, &pool).0.len(), 2);
            ring.trim(if round % 3 == 0 { 2 } else { 1 }, true).unwrap();
            let left = ring.lengths.len();
            ring.trim(left, true).unwrap();
            assert_eq!(found(&memory, &pool), (vec![], None));
        }
    }

    #[test]
    fn unflushed_log_reports_damaged_or_missing_records() {
        let (memory, pool) = (memory(), BufPool::new(1 << 20, 0));
        let mut ring = Ring::new(memory.clone(), EXPORT).unwrap();
        ring.append(&write(&pool, 0, &[1; 100])).unwrap();
        ring.append(&write(&pool, 512, &[2; 100])).unwrap();
        let whole = memory.0.borrow().clone();
        for at in 128..128 + 2 * 148 {
            memory.0.borrow_mut()[at] ^= 1;
            let (changes, lost) = found(&memory, &pool);
            assert!(lost.is_some() && changes.len() < 2, "byte {at}");
            *memory.0.borrow_mut() = whole.clone();
        }
        // Part of a record that no head counts was not answered.
        memory.0.borrow_mut()[128 + 2 * 148..][..20].fill(0xff);
        assert_eq!(found(&memory, &pool).1, None);
        ring.lacks().unwrap();
        assert!(found(&memory, &pool).1.unwrap().contains("more unflushed"));
        ring.trim(2, true).unwrap();
        assert_eq!(found(&memory, &pool), (vec![], None));
        ring.append(&zeros(0, 512)).unwrap();
        ring.give_up().unwrap();
        assert!(found(&memory, &pool).1.unwrap().contains("a flush failed"));
    }

    #[test]
    fn unflushed_log_is_empty_when_kill_interrupts_creation() {
        let (made, pool) = (memory(), BufPool::new(1 << 20, 0));
        Ring::new(made.clone(), EXPORT).unwrap();
        // The head in front is written last: a kill leaves only a part of the other one.
        for len in 0..=HEAD_BYTES {
            let unmade = memory();
            let second = HEAD_BYTES..HEAD_BYTES + len;
            unmade.0.borrow_mut()[second.clone()].copy_from_slice(&made.0.borrow()[second]);
            assert_eq!(found(&unmade, &pool), (vec![], None), "{len} bytes");
        }
        made.0.borrow_mut()[0] ^= 1;
        made.0.borrow_mut()[HEAD_BYTES] ^= 1;
        assert!(found(&made, &pool).1.unwrap().contains("damaged"), "it was made");
    }

    #[test]
    fn unflushed_log_is_refused_for_other_export() {
        let (memory, pool) = (memory(), BufPool::new(1 << 20, 0));
        let mut ring = Ring::new(memory.clone(), EXPORT).unwrap();
        let other = || {
            let copy = Rc::new(Plain(memory.0.clone()));
            Ring::open(copy, EXPORT + 1, |len| pool.take(len)).map(|_| ())
        };
        other().unwrap();
        ring.append(&zeros(0, 512)).unwrap();
        let error = other().unwrap_err();
        assert!(error.kind() == ErrorKind::InUse && error.to_string().contains("Next:"), "{error}");
        let small = Rc::new(Plain(vec![0; 100].into()));
        assert!(Ring::new(small, EXPORT).is_err());
    }

    #[test]
    fn unflushed_log_never_panics_on_arbitrary_bytes() {
        let (memory, pool) = (memory(), BufPool::new(1 << 20, 0));
        let mut ring = Ring::new(memory.clone(), EXPORT).unwrap();
        ring.append(&write(&pool, 0, &[1; 100])).unwrap();
        ring.append(&zeros(512, 100)).unwrap();
        let bytes = memory.0.borrow().clone();
        assert_eq!(try_any_ring(&bytes), 2);
        for at in 0..bytes.len() {
            for bit in [1, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= bit;
                try_any_ring(&damaged);
                try_any_ring(&damaged[..at]);
            }
        }
    }
}
