//! The strict lower of the battery: it uses every freedom of the contract, and records every violation by the device
//! above.
//!
//! The strict lower replies in a random order, holds unflushed writes in a volatile cache, and fills the buffer of a
//! read with junk before the reply. It sometimes replies with another buffer, sometimes reports less in a block
//! status than it could, and fails at injected requests. It records these violations by the device above: a request
//! that is out of range, misaligned or too long, a buffer for two reads at the same time, and a payload that changes
//! in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use block::env::{DiskIo, Storage};
use block::{
    Buf, ByteRange, Copies, Device, Env, Error, ErrorKind, Info, Op, Request, Result, State, check,
    push_extent,
};
use sim::draw::Stream;

use crate::refusal::Broken;

/// Length in bytes of the longest read or write that a strict lower accepts by default. It is short, so that the
/// battery finds a device that ignores the limit.
pub const MAX_TRANSFER: u32 = 16 << 10;

const JUNK: u8 = 0xee;

/// The requests to a strict lower that fail on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inject {
    /// Number of the first request that fails, counted from 0.
    pub at: u64,
    /// Whether all requests after the first failed request fail too.
    pub sticky: bool,
}

/// Counters and fault controls of a strict lower. They stay the same when the lower is created again at a restart.
#[derive(Default)]
pub struct Watch {
    /// Number of requests that the lower has got so far, from 0.
    pub calls: Cell<u64>,
    /// Number of flushes that the lower has got so far.
    pub flushes: Cell<u64>,
    /// Number of requests so far that change bytes: writes, write zeroes and discards.
    pub changes: Cell<u64>,
    /// Number of requests to the lower without a reply yet.
    pub in_flight: Cell<u64>,
    /// The requests that the lower must fail; `None` for no request.
    pub inject: Cell<Option<Inject>>,
    /// Number of requests that the lower has failed on purpose.
    pub injected: Cell<u64>,
    /// Whether the lower fails every read that is no last resort, as a verifier does that cannot verify the bytes.
    pub unverified: Cell<bool>,
    /// The first violation by the device above: the broken rule and its description; `None` without a violation.
    pub offence: RefCell<Option<(Broken, String)>>,
}

impl Watch {
    fn accuse(&self, broken: Broken, words: String) {
        self.offence.borrow_mut().get_or_insert((broken, words));
    }

    /// Counts a request to the lower. Returns whether the lower must fail the request.
    pub fn strikes(&self) -> bool {
        let call = self.calls.replace(self.calls.get() + 1);
        let strikes = self
            .inject
            .get()
            .is_some_and(|inject| call == inject.at || (inject.sticky && call > inject.at));
        self.injected.set(self.injected.get() + u64::from(strikes));
        strikes
    }
}

/// A lower for tests that uses every freedom of the contract, over a simulated disk.
pub struct Strict {
    info: Info,
    env: Env,
    storage: Rc<dyn Storage>,
    watch: Rc<Watch>,
    draw: Stream,
    reading: RefCell<Vec<Buf>>,
    flush_failed: Cell<bool>,
    /// The blocks of copy 1 that differ from copy 0, which is on the disk. Only writes that restore one copy make them
    /// differ.
    second: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl Strict {
    /// Creates a strict lower over the open disk `storage` with these limits: its longest transfer in bytes, and its number
    /// of copies, 1 or 2.
    pub fn new(
        env: &Env,
        storage: Rc<dyn Storage>,
        (max_transfer, copies): (u32, u32),
        watch: &Rc<Watch>,
        draw: Stream,
    ) -> Self {
        let facts = storage.facts();
        // Requests of a killed process have no end.
        watch.in_flight.set(0);
        let info = Info {
            max_transfer,
            discard_zeroes: facts.discard_zeroes,
            copies,
            ..Info::disk(facts.size, facts.block_size)
        };
        Self {
            info,
            env: env.clone(),
            storage,
            watch: watch.clone(),
            draw,
            reading: RefCell::default(),
            flush_failed: Cell::new(false),
            second: RefCell::default(),
        }
    }

    fn blocks(&self, range: ByteRange) -> impl Iterator<Item = u64> + use<> {
        let block = u64::from(self.info.block_size);
        range.start() / block..range.end() / block
    }

    /// Draws the copy that a read returns, and adds it to `avoid`. A copy to avoid is drawn only if there is no other.
    fn copy(&self, avoid: &mut Copies) -> usize {
        let all: Vec<_> = (0..self.info.copies as usize).collect();
        let left: Vec<_> = all.iter().copied().filter(|copy| !avoid.has(*copy)).collect();
        let copy = self.draw.pick(if left.is_empty() { &all[..] } else { &left[..] });
        *avoid = avoid.with(copy);
        copy
    }

    /// Replaces the blocks of `into`, which has the bytes of copy 0, by those of copy 1.
    fn overlay(&self, range: ByteRange, into: &Buf) {
        let second = self.second.borrow();
        for (number, bytes) in self.blocks(range).zip(into.write().chunks_mut(self.block())) {
            if let Some(other) = second.get(&number) {
                bytes.copy_from_slice(other);
            }
        }
    }

    fn block(&self) -> usize {
        self.info.block_size as usize
    }

    /// Makes both copies of a range equal again.
    fn make_equal(&self, range: ByteRange) {
        let mut second = self.second.borrow_mut();
        self.blocks(range).for_each(|number| drop(second.remove(&number)));
    }

    /// Carries out a write to the copies in `restores`, or to all copies if it is empty.
    async fn write_copies(
        &self,
        range: ByteRange,
        data: &Buf,
        fua: bool,
        restores: Copies,
    ) -> Result<()> {
        let only = |copy| self.info.copies == 2 && restores.has(copy) && !restores.has(1 - copy);
        if only(1) {
            self.keep_second(range, data);
            return Ok(());
        }
        if only(0) {
            let mut old = self.env.buf(data.len())?;
            self.read(range, &mut old).await?;
            self.overlay(range, &old);
            self.keep_second(range, &old);
            return self.write(range, data, fua).await;
        }
        self.write(range, data, fua).await?;
        self.make_equal(range);
        Ok(())
    }

    fn keep_second(&self, range: ByteRange, data: &Buf) {
        let bytes = data.read();
        let blocks = self.blocks(range).zip(bytes.chunks(self.block()).map(<[u8]>::to_vec));
        self.second.borrow_mut().extend(blocks);
    }

    async fn read(&self, range: ByteRange, into: &mut Buf) -> Result<()> {
        if self.reading.borrow().iter().any(|other| overlap(other, into)) {
            let words = format!("two reads in flight use the same buffer; one reads {range}");
            self.watch.accuse(Broken::Seam, words);
        }
        into.write().fill(JUNK);
        self.reading.borrow_mut().push(into.clone());
        let own = if self.draw.below(4) == 0 { self.env.buf(into.len()).ok() } else { None };
        let to = own.unwrap_or_else(|| into.clone());
        let outcome = self.storage.start(DiskIo::Read { offset: range.start(), into: to }).await;
        self.reading.borrow_mut().retain(|other| !other.same(into));
        outcome.result?;
        *into = outcome.buf.expect("a read returns its buffer");
        Ok(())
    }

    async fn write(&self, range: ByteRange, data: &Buf, fua: bool) -> Result<()> {
        let before = hash(data);
        let io = DiskIo::Write { offset: range.start(), data: data.clone(), fua };
        let outcome = self.storage.start(io).await;
        if hash(data) != before {
            let words = format!("the payload of the write of {range} changed in flight");
            self.watch.accuse(Broken::Payload, words);
        }
        outcome.result.map(drop)
    }

    async fn flush(&self, fails: bool) -> Result<()> {
        self.watch.flushes.set(self.watch.flushes.get() + 1);
        if fails {
            self.flush_failed.set(true);
        }
        if self.flush_failed.get() {
            return Err(injected("flush"));
        }
        self.storage.start(DiskIo::Flush).await.result.map(drop)
    }

    async fn without_payload(&self, io: DiskIo, fua: bool) -> Result<()> {
        self.storage.start(io).await.result?;
        if fua { self.flush(false).await } else { Ok(()) }
    }

    /// Returns the block status of `range`: never more holes and zeros than the disk reports, sometimes fewer, and
    /// sometimes for a shorter range.
    fn status(&self, range: ByteRange) -> Result<Vec<block::Extent>> {
        let mut extents = self.storage.extents(range, 1 + self.draw.below(8) as usize)?;
        for extent in &mut extents {
            if self.draw.below(4) == 0 {
                extent.state = State::Data;
            }
        }
        Ok(extents)
    }

    /// Waits up to 0.3 ms of virtual time, as other requests do, and returns the injected error.
    async fn fail(&self, verb: &str) -> Result<()> {
        let delay = std::time::Duration::from_nanos(self.draw.below(300_000));
        self.env.sleep(delay).await;
        Err(injected(verb))
    }
}

impl Device for Strict {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        if let Err(error) = check(&self.info, &request.op) {
            self.watch.accuse(Broken::Seam, error.to_string());
            return Err(error);
        }
        let Watch { changes, in_flight, .. } = &*self.watch;
        changes.set(changes.get() + u64::from(request.op.writes()));
        in_flight.set(in_flight.get() + 1);
        let answer = self.carry_out(request).await;
        in_flight.set(in_flight.get() - 1);
        answer
    }
}

impl Strict {
    async fn carry_out(&self, request: &mut Request) -> Result<()> {
        let fails = self.watch.strikes();
        if fails && !matches!(request.op, Op::Flush) {
            if let Op::Status { range, extents } = &mut request.op {
                push_extent(extents, u64::from(self.info.block_size).min(range.len()), State::Hole);
            }
            return self.fail(request.op.verb().name()).await;
        }
        match &mut request.op {
            Op::Read { last_resort: false, .. } if self.watch.unverified.get() => {
                self.fail("read").await
            }
            Op::Read { range, into, avoid, .. } => {
                let copy = self.copy(avoid);
                self.read(*range, into).await?;
                if copy == 1 {
                    self.overlay(*range, into);
                }
                Ok(())
            }
            Op::Write { range, data, fua, restores } => {
                self.write_copies(*range, data, *fua, *restores).await
            }
            Op::WriteZeroes { range, unmap, fua } => {
                let (range, unmap) = (*range, *unmap);
                self.make_equal(range);
                self.without_payload(DiskIo::Zero { range, unmap }, *fua).await
            }
            Op::Discard { range, fua } => {
                self.make_equal(*range);
                self.without_payload(DiskIo::Discard { range: *range }, *fua).await
            }
            Op::Flush => self.flush(fails).await,
            Op::Status { range, extents } => {
                extents.extend(self.status(*range)?);
                Ok(())
            }
        }
    }
}

fn injected(verb: &str) -> Error {
    Error::new(ErrorKind::Io, format!("{verb}: injected failure"))
}

fn overlap(one: &Buf, two: &Buf) -> bool {
    let span = |buf: &Buf| (buf.as_ptr().addr(), buf.as_ptr().addr() + buf.len());
    let ((from, to), (start, end)) = (span(one), span(two));
    from < end && start < to
}

fn hash(data: &Buf) -> u64 {
    let mut hasher = DefaultHasher::new();
    data.read().hash(&mut hasher);
    hasher.finish()
}
