//! A journal and the blocks that it protects, on one recorded disk. Each step of a test changes two blocks together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::env::LocalFuture;
use block::{Buf, ByteRange, Env, Lower, Op, Result, error};
use meta::Uuid;
use meta::journal::{InPlace, Journal, NewPart, Opened, Options, Part, PartKind, RING_START};
use sim::SimWorld;
use testkit::recorded::{Disk, Event, Trace};

/// Length of the ring in these tests: 16 sectors, with records of at most 4.
pub const RING_BYTES: u64 = 64 << 10;

/// First byte of the blocks, behind the journal.
pub const DATA_START: u64 = RING_START + RING_BYTES;

/// Bytes of a block: a sector, which a power cut never tears.
pub const BLOCK: u64 = 512;

/// Number of blocks.
pub const BLOCKS: u64 = 5;

pub const UUID: Uuid = Uuid([9; 16]);

/// The owner of the journal: writes on the blocks of a disk.
pub struct Target {
    env: Env,
    lower: Lower,
    /// First byte of lower 0 of the journal on the disk.
    start: u64,
    /// The parts that were written in place.
    pub placed: RefCell<Vec<Part>>,
    pub flushes: Cell<u64>,
    pub fails: Cell<bool>,
}

impl Target {
    pub fn new(env: &Env, lower: &Lower, start: u64) -> Rc<Self> {
        let (env, lower) = (env.clone(), lower.clone());
        let (placed, flushes, fails) = Default::default();
        Rc::new(Self { env, lower, start, placed, flushes, fails })
    }

    async fn write(&self, part: Part, data: Option<Buf>) -> Result<()> {
        if self.fails.get() {
            return Err(error!(Io, "a write in place fails"));
        }
        let range = part.range.at(self.start + part.range.start());
        let op = match part.kind {
            PartKind::Data => Op::write(range, data.expect("data")),
            PartKind::Zeroes => Op::write(range, zeros(&self.env, range.len())?),
            PartKind::Discard => Op::Discard { range, fua: false },
        };
        self.placed.borrow_mut().push(part);
        self.lower.call(op).await.result
    }
}

pub fn zeros(env: &Env, len: u64) -> Result<Buf> {
    let buf = env.buf(len as usize)?;
    buf.write().fill(0);
    Ok(buf)
}

impl InPlace for Target {
    fn place(self: Rc<Self>, part: Part, data: Option<Buf>) -> LocalFuture<Result<()>> {
        Box::pin(async move { self.write(part, data).await })
    }

    fn flush(self: Rc<Self>) -> LocalFuture<Result<()>> {
        self.flushes.set(self.flushes.get() + 1);
        Box::pin(async move {
            self.lower.flush().await?;
            // Callers of the journal go on meanwhile.
            self.env.sleep(Duration::from_micros(1)).await;
            Ok(())
        })
    }
}

pub fn block_on<T>(world: &SimWorld, future: impl Future<Output = T>) -> T {
    world.block_on(future).unwrap_or_else(|stuck| panic!("{stuck}"))
}

/// Creates a disk with a new journal and blocks of zeros.
pub fn formatted(world: &SimWorld, trace: &Trace) -> Rc<Disk> {
    let disk = Disk::new(0, vec![0; (DATA_START + BLOCKS * BLOCK) as usize], trace);
    let lower = disk.lower();
    block_on(world, Journal::format(&world.env(), &lower, 0, UUID, RING_BYTES, 1)).unwrap();
    disk
}

/// An open journal with its owner.
pub struct Scene {
    pub env: Env,
    pub lower: Lower,
    pub journal: Journal,
    pub target: Rc<Target>,
    pub opened: Opened,
}

impl Scene {
    pub async fn open(env: &Env, disk: &Rc<Disk>) -> Result<Self> {
        Self::open_with(env, disk, Options::default()).await
    }

    pub async fn open_with(env: &Env, disk: &Rc<Disk>, options: Options) -> Result<Self> {
        let lower = disk.lower();
        let target = Target::new(env, &lower, DATA_START);
        let (journal, opened) = Journal::open(env, &lower, 0, &options, target.clone()).await?;
        Ok(Self { env: env.clone(), lower, journal, target, opened })
    }

    pub fn buf(&self, bytes: &[u8]) -> Buf {
        let buf = self.env.buf(bytes.len()).unwrap();
        buf.write().copy_from_slice(bytes);
        buf
    }

    pub fn part(&self, block: u64, bytes: &[u8]) -> NewPart {
        NewPart::data(0, block * BLOCK, self.buf(bytes), &[])
    }

    /// Writes step `step` into the ring: it changes two blocks together.
    pub async fn step(&self, step: u64) -> Result<u64> {
        let parts = blocks_of(step).map(|block| self.part(block, &content(step)));
        self.journal.append(parts.into()).await
    }

    /// Makes step `step` beside the ring: it zeroes the block of the step. Earlier steps are flushed first, so that none of
    /// them is lost behind it.
    pub async fn beside(&self, step: u64) -> Result<()> {
        self.journal.sync().await?;
        let range = range_of(blocks_of(step)[0]);
        self.journal.until_in_place(0, range).await?;
        let data = zeros(&self.env, BLOCK)?;
        self.lower.write(range.at(DATA_START + range.start()), data).await
    }

    /// Reads a range through the journal.
    pub async fn read(&self, range: ByteRange) -> Result<Vec<u8>> {
        read_through(&self.env, &self.journal, &self.lower, DATA_START, range).await
    }

    /// Reads all blocks through the journal.
    pub async fn read_all(&self) -> Result<Vec<u8>> {
        self.read(ByteRange::new(0, BLOCKS * BLOCK).expect("there are blocks")).await
    }
}

/// Reads a range through a journal: each segment from its place.
pub async fn read_through(
    env: &Env,
    journal: &Journal,
    lower: &Lower,
    start: u64,
    range: ByteRange,
) -> Result<Vec<u8>> {
    'again: loop {
        let mut bytes = Vec::new();
        for segment in journal.find(0, range) {
            let own = segment.range;
            if segment.newest.is_none() {
                let into = env.buf(own.len() as usize)?;
                let read = lower.read(own.at(start + own.start()), into).await?;
                bytes.extend_from_slice(&read.read());
                continue;
            }
            let Some(content) = journal.read(&segment).await? else { continue 'again };
            match content.data {
                Some(data) => bytes.extend_from_slice(&data.read()),
                None => bytes.resize(bytes.len() + own.len() as usize, 0),
            }
        }
        assert_eq!(bytes.len() as u64, range.len());
        return Ok(bytes);
    }
}

pub fn range_of(block: u64) -> ByteRange {
    ByteRange::new(block * BLOCK, BLOCK).expect("a block has bytes")
}

/// Returns the two blocks that a step changes.
pub fn blocks_of(step: u64) -> [u64; 2] {
    let first = step * 3 % BLOCKS;
    [first, (first + 1 + step % 2) % BLOCKS]
}

/// Returns the content of the blocks of a step.
pub fn content(step: u64) -> Vec<u8> {
    (0..BLOCK).map(|n| (step * 31 + n * 7) as u8 | 1).collect()
}

/// A step of a test: a change through the ring, or beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Ring,
    Beside,
}

/// Returns the blocks after the first `steps` of a test.
pub fn expected(ways: &[Way], steps: u64) -> Vec<u8> {
    let mut all = vec![0; (BLOCKS * BLOCK) as usize];
    for (step, way) in (1..=steps).zip(ways) {
        let (blocks, bytes) = match way {
            Way::Ring => (blocks_of(step).to_vec(), content(step)),
            Way::Beside => (vec![blocks_of(step)[0]], vec![0; BLOCK as usize]),
        };
        for block in blocks {
            all[(block * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&bytes);
        }
    }
    all
}

/// Notes in a trace that a step is durable.
pub fn note_durable(trace: &Trace, step: u64) {
    trace.note(Event::Answered(step));
}
