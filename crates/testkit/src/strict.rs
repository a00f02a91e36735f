//! The strict lower: it uses every freedom of the contract, and tolerates no violation by the device above.
//!
//! The strict lower replies in a random order, holds unflushed writes in a volatile cache, and fills the buffer of a
//! read with junk before the reply. It sometimes replies with another buffer, sometimes reports less in a block
//! status than it could, and fails at injected requests. It records these violations by the device above: a request
//! that is out of range, misaligned or too long, a buffer for two reads at the same time, and a payload that changes
//! in flight.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use block::env::{DiskIo, Storage};
use block::{
    Buf, ByteRange, Device, Env, Error, ErrorKind, Info, Op, Request, Result, State, check,
    push_extent,
};
use sim::draw::Stream;

use crate::refusal::Broken;

/// Length in bytes of the longest read or write that a strict lower accepts by default. It is short, so that a device
/// which ignores the limit is found.
pub const MAX_TRANSFER: u32 = 16 << 10;

const JUNK: u8 = 0xee;

/// The requests to a lower that fail on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inject {
    /// Number of the first request to the strict lower that fails, counted from zero.
    pub at: u64,
    /// Whether all requests after the request number `at` fail too.
    pub sticky: bool,
}

/// Counters and controls of a strict lower. They outlive the lower, as its disk does.
#[derive(Default)]
pub struct Watch {
    /// Number of requests to the strict lower so far.
    pub calls: Cell<u64>,
    /// Number of flushes of the strict lower so far.
    pub flushes: Cell<u64>,
    /// The requests that the strict lower must fail; `None` for no requests.
    pub inject: Cell<Option<Inject>>,
    /// Number of requests that the strict lower has failed on purpose.
    pub injected: Cell<u64>,
    /// The first violation of the contract by the device above; `None` if there is none.
    pub offence: RefCell<Option<(Broken, String)>>,
}

impl Watch {
    fn accuse(&self, broken: Broken, words: String) {
        self.offence.borrow_mut().get_or_insert((broken, words));
    }

    /// Counts a request to the strict lower, and returns whether the request must fail.
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

/// A strict lower for a device under test: a simulated disk that uses every freedom of the contract of a lower.
pub struct Strict {
    info: Info,
    env: Env,
    storage: Rc<dyn Storage>,
    watch: Rc<Watch>,
    draw: Stream,
    reading: RefCell<Vec<Buf>>,
    flush_failed: Cell<bool>,
}

impl Strict {
    /// Creates a strict lower over an open disk.
    pub fn new(
        env: &Env,
        storage: Rc<dyn Storage>,
        max_transfer: u32,
        watch: &Rc<Watch>,
        draw: Stream,
    ) -> Self {
        let facts = storage.facts();
        let info = Info {
            max_transfer,
            discard_zeroes: facts.discard_zeroes,
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
        }
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

    /// Returns the block status of `range`: sometimes fewer extents than the disk reports, never other extents.
    fn status(&self, range: ByteRange) -> Result<Vec<block::Extent>> {
        let mut extents = self.storage.extents(range, 1 + self.draw.below(8) as usize)?;
        for extent in &mut extents {
            if self.draw.below(4) == 0 {
                extent.state = State::Data;
            }
        }
        Ok(extents)
    }

    /// Waits as long as other requests take, and returns the injected error.
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
        let fails = self.watch.strikes();
        if fails && !matches!(request.op, Op::Flush) {
            if let Op::Status { range, extents } = &mut request.op {
                push_extent(extents, u64::from(self.info.block_size).min(range.len()), State::Hole);
            }
            return self.fail(request.op.verb().name()).await;
        }
        match &mut request.op {
            Op::Read { range, into, .. } => self.read(*range, into).await,
            Op::Write { range, data, fua } => self.write(*range, data, *fua).await,
            Op::WriteZeroes { range, unmap, fua } => {
                let (range, unmap) = (*range, *unmap);
                self.without_payload(DiskIo::Zero { range, unmap }, *fua).await
            }
            Op::Discard { range, fua } => {
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
