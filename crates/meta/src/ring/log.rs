//! The I/O of an open ring: appending of records, flushes, and the proof of flushed numbers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use block::env::Mono;
use block::seeded::{self, Bug};
use block::{Buf, Child, Env, Error, Lower, Mutex, Notify, Patience, Result, all, error};

use super::{Full, Head, Position, RECORD_HEADER_BYTES, Ring, Room, Root, SECTOR_BYTES};
use crate::io::write_all;

/// The records of a ring, which begins at a byte of a device.
pub struct Log {
    env: Env,
    lower: Lower,
    base: u64,
    ring: Ring,
    state: RefCell<State>,
    changed: Notify,
    /// Lock of the flush that runs. A flush that waits for it may find that the one before covers it.
    flushing: Mutex,
    /// Waits for space below for the parts of a record.
    patience: Rc<Patience>,
}

struct State {
    room: Room,
    /// Number of the tail that records state.
    tail: u64,
    /// Number of the durable tail: at most `tail`.
    durable: u64,
    /// The tail, if no record states it yet.
    unstated: Option<Position>,
    /// Records that state a later tail than the record before them: their number, and that tail.
    tails: VecDeque<(u64, Position)>,
    /// The highest number of a record that is written, with its data and all records before it.
    written: u64,
    /// The highest number that a completed flush covers.
    flushed: u64,
    /// The highest number that a flushed record or root states as flushed.
    proven: u64,
    /// Records that state a higher flushed number than the record before them: their number, and that number.
    stating: VecDeque<(u64, u64)>,
    /// Flushed number in the last record.
    stated: u64,
    /// Time of the first acknowledgement that no flush covers.
    unflushed_since: Option<Mono>,
    failure: Option<Error>,
    /// Memory for the bytes of the next record.
    scratch: Vec<u8>,
}

/// A record that is being written.
pub struct Appended {
    head: Head,
    /// The record as it is in the ring, with its padding and payload.
    bytes: Buf,
    parts: Vec<Child>,
}

impl Appended {
    /// Returns the header of the record.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the bytes of the record, with its padding and payload.
    pub fn bytes(&self) -> &Buf {
        &self.bytes
    }
}

impl Log {
    /// Creates the log of an opening. Its owner has a reserve in the buffer pool for the records in flight. Its first record is at the tail of `root`, which is flushed before that record is
    /// written.
    pub fn new(
        env: &Env,
        lower: &Lower,
        base: u64,
        ring: Ring,
        root: Root,
        patience: Rc<Patience>,
    ) -> Self {
        let state = State {
            room: Room::new(ring, root.tail.offset, root.tail),
            tail: root.tail.number,
            durable: root.tail.number,
            unstated: None,
            tails: VecDeque::new(),
            written: root.tail.number - 1,
            flushed: root.flushed,
            proven: root.flushed,
            stating: VecDeque::new(),
            stated: root.flushed,
            unflushed_since: None,
            failure: None,
            scratch: Vec::new(),
        };
        let (env, lower, state) = (env.clone(), lower.clone(), RefCell::new(state));
        let (changed, flushing) = (Notify::default(), Mutex::new());
        Self { env, lower, base, ring, state, changed, flushing, patience }
    }

    /// Returns the most bytes of the items of one record.
    pub fn items_max(&self) -> usize {
        self.ring.record_bytes_max() as usize - RECORD_HEADER_BYTES
    }

    /// Whether more than half of the ring is in use, so that the owner must move the tail soon.
    pub fn is_half_full(&self) -> bool {
        self.state.borrow().room.free() < self.ring.bytes() / 2
    }

    /// Waits until the ring has room for the longest record, or the log has failed.
    pub async fn room(&self) {
        let longest = self.ring.record_bytes_max();
        let has_room = || {
            let state = self.state.borrow();
            state.failure.is_some() || state.room.fits(longest) == Ok(())
        };
        self.changed.until(has_room).await;
    }

    /// Whether a record of `bytes` bytes, with its padding and payload, fits.
    pub fn fits(&self, bytes: u64) -> bool {
        self.state.borrow().room.fits(bytes) == Ok(())
    }

    /// Begins to write a record of `count` items, beside the writes of its data. It has the next number.
    ///
    /// # Errors
    /// The error of an earlier write; `NoSpace` if the ring is full.
    ///
    /// # Panics
    /// If the items exceed [`Log::items_max`].
    pub fn append(&self, items: &[u8], count: u32, data: Vec<Child>) -> Result<Appended> {
        self.append_with(items, count, &[], data)
    }

    /// Begins to write a record of `count` items with a payload. Each part of the payload begins at a multiple of
    /// [`SECTOR_BYTES`] behind the items.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// # Panics
    /// If the record exceeds the limit of the ring.
    pub fn append_payload(&self, items: &[u8], count: u32, payload: &[Buf]) -> Result<Appended> {
        self.append_with(items, count, payload, Vec::new())
    }

    fn append_with(
        &self,
        items: &[u8],
        count: u32,
        payload: &[Buf],
        data: Vec<Child>,
    ) -> Result<Appended> {
        let padded = |len: usize| len.next_multiple_of(SECTOR_BYTES);
        let payload_bytes: usize = payload.iter().map(|part| padded(part.len())).sum();
        let mut state = self.state.borrow_mut();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let needed = (padded(RECORD_HEADER_BYTES + items.len()) + payload_bytes) as u64;
        state.room.fits(needed).map_err(|Full { needed, free }| {
            error!(NoSpace, "the log has {free} bytes free, and a record needs {needed}")
        })?;
        let at = state.room.next();
        let empty = Head::empty(at, state.tail, state.flushed);
        let head = Head { items: count, payload: payload_bytes as u32, ..empty };
        let mut encoded = std::mem::take(&mut state.scratch);
        encoded.clear();
        let head = head.encode(&self.ring, items, &mut encoded);
        state.room.take(&head);
        if head.flushed > state.stated {
            state.stated = head.flushed;
            state.stating.push_back((at.number, head.flushed));
        }
        if let Some(tail) = state.unstated.take() {
            state.tails.push_back((at.number, tail));
        }
        drop(state);
        let bytes = self.env.pool().take_reserved(head.bytes() as usize);
        let bytes = bytes.inspect_err(|error| self.fail(error))?;
        fill(&bytes, &encoded, payload);
        self.state.borrow_mut().scratch = encoded;
        let mut parts = data;
        let mut from = 0;
        for (place, len) in self.ring.parts(at.offset, head.bytes()) {
            let to = from + len as usize;
            if from < to {
                parts.extend(write_all(&self.lower, self.base + place, &bytes.slice(from..to)));
            }
            from = to;
        }
        Ok(Appended { head, bytes, parts })
    }

    /// Waits until a record, all records before it, and their data are written. Returns the position behind it.
    ///
    /// # Errors
    /// The first error of a write, of this record or of an earlier one; `NoSpace` after a wait for space below. Then the
    /// log takes no further records.
    pub async fn acknowledged(&self, appended: Appended) -> Result<Position> {
        let Appended { head, parts, .. } = appended;
        for done in all(parts).await {
            let settled = self.patience.settle(done).await;
            settled.result.inspect_err(|error| self.fail(error))?;
        }
        let number = head.at.number;
        let is_next = || {
            let state = self.state.borrow();
            state.failure.is_some() || state.written == number - 1
        };
        self.changed.until(is_next).await;
        let mut state = self.state.borrow_mut();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.written = number;
        state.unflushed_since.get_or_insert(self.env.now());
        drop(state);
        self.changed.wake();
        Ok(head.next())
    }

    fn fail(&self, error: &Error) {
        self.state.borrow_mut().failure.get_or_insert_with(|| error.clone());
        self.changed.wake();
    }

    /// Makes all records durable that are acknowledged now.
    ///
    /// # Errors
    /// The error of the flush, or of an earlier write. Then the log takes no further records.
    pub async fn flush(&self) -> Result<()> {
        let wanted = self.state.borrow().written;
        let _turn = self.flushing.lock().await;
        let covers = {
            let state = self.state.borrow();
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.flushed >= wanted {
                return Ok(());
            }
            state.written
        };
        self.flush_up_to(covers).await
    }

    /// Flushes the device, also if all records are flushed: for data that no record names yet.
    ///
    /// # Errors
    /// As [`Log::flush`].
    pub async fn flush_device(&self) -> Result<()> {
        let _turn = self.flushing.lock().await;
        let covers = self.state.borrow().written;
        self.flush_up_to(covers).await
    }

    async fn flush_up_to(&self, covers: u64) -> Result<()> {
        let since = self.state.borrow_mut().unflushed_since.take();
        if let Err(error) = self.lower.flush().await {
            self.state.borrow_mut().unflushed_since = since;
            self.fail(&error);
            return Err(error);
        }
        let mut state = self.state.borrow_mut();
        state.flushed = state.flushed.max(covers);
        if state.written > covers {
            state.unflushed_since.get_or_insert(self.env.now());
        }
        while let Some((number, stated)) = state.stating.front().copied()
            && number <= covers
        {
            state.proven = state.proven.max(stated);
            state.stating.pop_front();
        }
        while let Some((number, tail)) = state.tails.front().copied()
            && number <= covers
        {
            state.room.trim(tail.offset);
            state.durable = tail.number;
            state.tails.pop_front();
        }
        drop(state);
        self.changed.wake();
        Ok(())
    }

    /// Returns the highest number of a record that is written, the highest flushed and the highest proven number, and the
    /// durable tail.
    pub fn numbers(&self) -> Numbers {
        let state = self.state.borrow();
        let State { written, flushed, proven, durable, .. } = *state;
        Numbers { written, flushed, proven, tail: durable }
    }

    /// Returns the time of the first acknowledgement that no flush covers.
    pub fn unflushed_since(&self) -> Option<Mono> {
        self.state.borrow().unflushed_since
    }

    /// Returns the state that a root contains: the tail, and the highest flushed number.
    pub fn root(&self, tail: Position) -> Root {
        Root { tail, flushed: self.state.borrow().flushed.max(tail.number - 1) }
    }

    /// Moves the tail, after a root with it counts. The flushed number in the root is proven then.
    pub fn trim(&self, root: Root) {
        let mut state = self.state.borrow_mut();
        state.room.trim(root.tail.offset);
        state.tail = root.tail.number;
        state.durable = root.tail.number;
        state.proven = state.proven.max(root.flushed);
        drop(state);
        self.changed.wake();
    }

    /// Moves the tail by a record, for an owner whose records move it: the records from now on state it. It is durable when
    /// a flush covers the first of them.
    pub fn advance(&self, tail: Position) {
        let mut state = self.state.borrow_mut();
        state.tail = tail.number;
        state.unstated = Some(tail);
        if seeded::on(Bug::SpaceBeforeTail) {
            state.room.trim(tail.offset);
        }
    }
}

/// Fills `bytes` with the header and items of a record, and with its payload.
fn fill(bytes: &Buf, encoded: &[u8], payload: &[Buf]) {
    let mut bytes = bytes.write();
    let (front, mut rest) = bytes.split_at_mut(encoded.len());
    front.copy_from_slice(encoded);
    for part in payload {
        let (own, behind) = rest.split_at_mut(part.len().next_multiple_of(SECTOR_BYTES));
        own[..part.len()].copy_from_slice(&part.read());
        own[part.len()..].fill(0);
        rest = behind;
    }
}

/// The progress of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// The highest number of a record that is written, with all before it.
    pub written: u64,
    /// The highest number that a completed flush covers.
    pub flushed: u64,
    /// The highest number that a flushed record or root states as flushed.
    pub proven: u64,
    /// Number of the durable tail. No record before it is needed any more, and their space is free.
    pub tail: u64,
}
