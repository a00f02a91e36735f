//! Disks in memory that record all writes and flushes, so that a test can build every crash state of the disks.
//!
//! Their requests end at once. [`Strict`](crate::Strict) is a lower that uses every freedom of the contract.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use block::{ChildId, Core, Done, Error, ErrorKind, Info, Lower, Op, Result, Started};

/// Bytes of a sector, of which a power cut keeps all or none.
pub const SECTOR: usize = 512;

/// The recorded events on all disks of a test, in order.
#[derive(Clone, Default)]
pub struct Trace(Rc<RefCell<Vec<Event>>>);

/// An event on the disks of a test, or a step of the test.
#[derive(Clone)]
pub enum Event {
    /// A write.
    Write {
        /// Number of the disk.
        disk: usize,
        /// First byte on the disk.
        at: usize,
        /// The bytes that were written.
        data: Rc<[u8]>,
    },
    /// A flush.
    Flush {
        /// Number of the disk.
        disk: usize,
    },
    /// The step of the test with this number has begun.
    Begun(u64),
    /// The step of the test with this number has been acknowledged.
    Answered(u64),
}

impl Trace {
    /// Adds an event.
    pub fn note(&self, event: Event) {
        self.0.borrow_mut().push(event);
    }

    /// Returns the events so far, and forgets them.
    pub fn take(&self) -> Vec<Event> {
        self.0.take()
    }
}

/// The operations that fail on a disk of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fails {
    /// Number of writes that still succeed; all later writes fail. `None`: no write fails.
    pub writes_left: Option<u64>,
    /// Whether the disk has no space for writes.
    pub is_full: bool,
    /// Whether the disk has no space for zeros.
    pub zeroes_full: bool,
    /// Whether all flushes of the disk fail.
    pub flushes: bool,
    /// Whether all reads of the disk fail.
    pub reads: bool,
}

/// A disk in memory.
pub struct Disk {
    number: usize,
    /// The bytes that a read returns.
    pub bytes: RefCell<Vec<u8>>,
    /// The operations that fail.
    pub fails: Cell<Fails>,
    /// Number of flushes so far.
    pub flushes: Cell<u64>,
    /// Number of writes so far.
    pub writes: Cell<u64>,
    /// Number of reads so far.
    pub reads: Cell<u64>,
    /// Number of bytes in discards so far. A discarded byte is zero.
    pub discarded: Cell<u64>,
    trace: Trace,
}

impl Disk {
    /// Creates a disk with these bytes that records its events in `trace`.
    pub fn new(number: usize, bytes: Vec<u8>, trace: &Trace) -> Rc<Self> {
        Rc::new(Self {
            number,
            bytes: RefCell::new(bytes),
            fails: Cell::default(),
            flushes: Cell::default(),
            writes: Cell::default(),
            reads: Cell::default(),
            discarded: Cell::default(),
            trace: trace.clone(),
        })
    }

    /// Returns a handle to the disk, as a device has it.
    pub fn lower(self: &Rc<Self>) -> Lower {
        let info = Info::disk(self.bytes.borrow().len() as u64, 512);
        Lower::new(self.clone(), 0, info, format!("disk{}", self.number).into())
    }

    fn carry_out(&self, op: &mut Op) -> Result<()> {
        let failed = |what: &str| Err(Error::new(ErrorKind::Io, format!("{what} fails")));
        let mut fails = self.fails.get();
        match op {
            Op::Read { range, into, .. } => {
                self.reads.set(self.reads.get() + 1);
                if fails.reads {
                    return failed("a read");
                }
                let (from, to) = (range.start() as usize, range.end() as usize);
                into.write().copy_from_slice(&self.bytes.borrow()[from..to]);
            }
            Op::Write { .. } if fails.is_full => {
                return Err(Error::new(ErrorKind::NoSpace, "the disk is full"));
            }
            Op::WriteZeroes { .. } if fails.zeroes_full => {
                return Err(Error::new(ErrorKind::NoSpace, "the disk is full"));
            }
            Op::Write { .. } | Op::WriteZeroes { .. } if fails.writes_left == Some(0) => {
                return failed("a write");
            }
            Op::Write { range, data, .. } => {
                fails.writes_left = fails.writes_left.map(|left| left - 1);
                self.fails.set(fails);
                self.writes.set(self.writes.get() + 1);
                self.put(range.start() as usize, &data.read());
            }
            Op::WriteZeroes { range, .. } => {
                fails.writes_left = fails.writes_left.map(|left| left - 1);
                self.fails.set(fails);
                self.writes.set(self.writes.get() + 1);
                self.put(range.start() as usize, &vec![0; range.len() as usize]);
            }
            Op::Flush => {
                if fails.flushes {
                    return failed("a flush");
                }
                self.flushes.set(self.flushes.get() + 1);
                self.trace.note(Event::Flush { disk: self.number });
            }
            Op::Discard { range, .. } => {
                self.discarded.set(self.discarded.get() + range.len());
                self.put(range.start() as usize, &vec![0; range.len() as usize]);
            }
            Op::Status { .. } => unreachable!("no test asks for block status"),
        }
        Ok(())
    }

    fn put(&self, at: usize, data: &[u8]) {
        self.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
        self.trace.note(Event::Write { disk: self.number, at, data: Rc::from(data) });
    }
}

impl Core for Disk {
    fn start(&self, op: &mut Op) -> Started {
        Started::Done(self.carry_out(op))
    }

    fn poll(&self, _: ChildId, _: &mut Context<'_>) -> Poll<Done> {
        unreachable!("everything is done at once")
    }

    fn abandon(&self, _: ChildId) {}
}

/// A write to a disk that no flush has made durable yet.
#[derive(Clone)]
pub struct Pending {
    /// First byte on the disk.
    pub at: usize,
    /// The bytes that were written.
    pub data: Rc<[u8]>,
}

/// The state of a disk at one moment of a recording: durable bytes, and pending writes that a power cut may lose.
#[derive(Clone)]
pub struct Moment {
    /// Bytes that a flush has made durable.
    pub durable: Vec<u8>,
    /// Writes since the last flush, in order.
    pub pending: Vec<Pending>,
}

impl Moment {
    /// Creates the state of a disk with these durable bytes.
    pub fn new(durable: Vec<u8>) -> Self {
        Self { durable, pending: Vec::new() }
    }

    /// Changes the state by an event on the disk.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Write { at, data, .. } => {
                self.pending.push(Pending { at: *at, data: data.clone() });
            }
            Event::Flush { .. } => {
                for Pending { at, data } in self.pending.drain(..) {
                    self.durable[at..at + data.len()].copy_from_slice(&data);
                }
            }
            Event::Begun(_) | Event::Answered(_) => {}
        }
    }

    /// Returns the number of sectors of the pending writes.
    pub fn sectors(&self) -> usize {
        self.pending.iter().map(|write| write.data.len() / SECTOR).sum()
    }

    /// Returns the bytes of the disk after a power cut that keeps only some sectors of the pending writes. `kept` gets
    /// the number of a write and the number of a sector in the write.
    pub fn with(&self, kept: impl Fn(usize, usize) -> bool) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (n, Pending { at, data }) in self.pending.iter().enumerate() {
            for (sector, part) in data.chunks(SECTOR).enumerate().filter(|(s, _)| kept(n, *s)) {
                let at = at + sector * SECTOR;
                bytes[at..at + part.len()].copy_from_slice(part);
            }
        }
        bytes
    }

    /// Returns the bytes of the disk after a power cut that keeps only the writes for which `kept` returns true, and
    /// leaves garbage at the address of the write number `torn`.
    fn with_garbage(&self, torn: usize, kept: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut bytes = self.with(|n, _| kept(n));
        let Pending { at, data } = &self.pending[torn];
        bytes[*at..at + data.len()].fill(0xda);
        bytes
    }

    /// Calls `each` with the bytes of the disk in its crash states. With at most 8 pending sectors these have each
    /// subset of the sectors. Otherwise they have each subset of the writes (or some subsets of many writes), and
    /// several torn forms of each write. In both cases, each write is also replaced by garbage.
    pub fn cuts(&self, mut each: impl FnMut(Vec<u8>)) {
        for torn in 0..self.pending.len() {
            each(self.with_garbage(torn, |_| false));
            each(self.with_garbage(torn, |_| true));
            each(self.with_garbage(torn, |n| n < torn));
        }
        let sectors = self.sectors();
        if sectors <= 8 {
            let index = |n: usize, s: usize| {
                let before = &self.pending[..n];
                before.iter().map(|write| write.data.len() / SECTOR).sum::<usize>() + s
            };
            for subset in 0..1_u32 << sectors {
                each(self.with(|n, s| subset >> index(n, s) & 1 == 1));
            }
            return;
        }
        let writes = self.pending.len();
        let subsets: Vec<u64> = match writes {
            0..=6 => (0..1 << writes).collect(),
            _ => policies(writes),
        };
        for subset in &subsets {
            each(self.with(|n, _| subset >> n & 1 == 1));
        }
        for torn in 0..writes {
            for half in [0b1, 0b10, 0b0111_1111, 0b1111_1110, 0b0101_0101, 0b1000_0000] {
                for others in [0, u64::MAX, (1 << torn) - 1] {
                    each(self.with(|n, s| match n == torn {
                        true => half >> (s % 8) & 1 == 1,
                        false => others >> n & 1 == 1,
                    }));
                }
            }
        }
    }
}

/// Returns some subsets of the pending writes, as bit masks, for too many writes to try all subsets: none, all, all
/// before a write, all from a write on, one write alone, all but one.
fn policies(writes: usize) -> Vec<u64> {
    let all = u64::MAX >> (64 - writes.min(64));
    let mut subsets = vec![0, all];
    for n in 0..writes.min(64) {
        let one = 1_u64 << n;
        subsets.extend([one - 1, all & !(one - 1), one, all & !one]);
    }
    subsets.sort_unstable();
    subsets.dedup();
    subsets
}
