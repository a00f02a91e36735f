//! The open device: its parts, requests, numbers, and close.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::control::copies::Ranges;
use block::control::{Command, Reply};
use block::env::LocalFuture;
use block::job::Job;
use block::{
    Blocks, ByteRange, Copies, Env, Error, Event, Extent, Info, Lower, Needs, Notify, Op,
    RangeLock, Reservation, Result, State, TaskGroup, Throttle, What, bail, push_extent,
};
use meta::Uuid;
use meta::journal::Journal;
use meta::regions::Regions;
use meta::vault::Vault;

use super::doubts::Doubts;
use super::making::Progress;
use super::objects::Objects;
use super::sums::{BLOCK_BYTES, PIECE_BLOCKS, PIECE_BYTES, Sums, ZEROS, blocks_of};

/// Bytes of the buffers in which one task compares the copies of a block.
const COMPARE_BYTES: u32 = 2 * BLOCK_BYTES as u32;

/// Needs of a device, without its vault and its journal: for one request a request to the lower beside one for a page of the
/// vault, and buffers to compare the copies of a block; permanently the same buffers for the scan.
pub const NEEDS: Needs = Needs {
    children: 2,
    scratch_bytes: COMPARE_BYTES,
    standing_bytes: COMPARE_BYTES,
    ..Needs::LEAF
};

/// Most bytes for which one block status request returns extents.
const STATUS_BYTES: u64 = 16 << 20;

/// The place of redundancy in the graph of a checksum device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redundancy {
    /// There is none.
    None,
    /// The lower has copies.
    Below,
    /// A device above has copies, of which this device holds one.
    Above,
}

/// The way in which a device keeps data and checksums together over a crash.
pub enum Mode {
    /// Data and checksums are written in parallel, in marked regions.
    Regions(Regions),
    /// Data and checksums go through a journal, opened with a [`Target`](super::Target).
    Journal(Journal),
}

impl Mode {
    async fn close(&self) -> Result<()> {
        match self {
            Self::Regions(regions) => regions.close().await,
            Self::Journal(journal) => journal.close().await,
        }
    }
}

/// The parts from which [`Core::open`] makes a device.
pub struct Parts {
    /// Name of the device in the spec.
    pub name: String,
    /// Environment of the device.
    pub env: Env,
    /// The lower with the data.
    pub data: Lower,
    /// The vault of the device, opened with `data` as the lower with its data.
    pub vault: Vault,
    /// Objects of the device in the vault.
    pub objects: Objects,
    /// Regions or a journal.
    pub mode: Mode,
    /// UUID of the device, which its checksums cover.
    pub device: Uuid,
    /// Place of redundancy.
    pub redundancy: Redundancy,
    /// Most bytes per second of the scan and of the first checksums.
    pub speed: Option<u64>,
}

/// Numbers of a checksum device, since its opening where they count events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbers {
    /// Blocks that were accepted although they did not fit their checksums.
    pub accepted: u64,
    /// Blocks that differed from their checksums, where no copy was right.
    pub damaged: u64,
    /// Copies of blocks that were restored.
    pub repaired: u64,
    /// Bytes in regions marked at the opening that are not verified yet, and of blocks behind failed writes.
    pub unverified_bytes: u64,
    /// Bytes in which a crash now would permit unverified blocks: without redundancy, rot in them would be accepted.
    pub marked_bytes: u64,
    /// Bytes without checksums, behind the progress of the first checksums.
    pub unsummed_bytes: u64,
}

/// A device that verifies.
pub struct Core {
    pub(super) inner: Rc<Inner>,
    tasks: TaskGroup,
}

pub(super) struct Inner {
    pub name: String,
    pub env: Env,
    pub data: Lower,
    pub vault: Vault,
    pub sums: Sums,
    pub progress: Progress,
    pub mode: Mode,
    pub redundancy: Redundancy,
    pub info: Info,
    /// Lock of byte ranges: shared by reads, exclusive for changes, repair and acceptance.
    pub lock: RangeLock,
    pub doubts: Doubts,
    /// Blocks that the scan has left unverified: they could not be read, or a redundant device above must write them.
    pub left: RefCell<std::collections::BTreeSet<u64>>,
    /// Number of the times that blocks were added to `left`, and the tasks that wait for that.
    pub lefts: (Cell<u64>, Notify),
    /// The error with which the last scan has left a range.
    pub unscanned: RefCell<Option<Error>>,
    pub counts: Cell<Numbers>,
    /// The error with which the device refuses requests, if it has failed.
    pub failure: RefCell<Option<Error>>,
    pub is_closing: Cell<bool>,
    /// Rate of the scan and of the first checksums beside requests.
    pub pace: Throttle,
    /// The job of the first checksums, and its task.
    pub job: Job,
    pub tasks: TaskGroup,
    /// Buffers of the scan.
    _buffers: Reservation,
}

/// Returns the facts about a device over `lower`.
pub fn facts(lower: &Info) -> Info {
    let block = BLOCK_BYTES as u32;
    let most = lower.max_transfer.min(PIECE_BYTES as u32);
    Info {
        size: lower.data_bytes() - lower.data_bytes() % BLOCK_BYTES,
        block_size: block,
        padding: 0,
        native_zeroes: true,
        preferred_io: lower.preferred_io.max(block),
        max_transfer: most - most % block,
        volatile_cache: true,
        native_fua: false,
        // Bytes that a discard leaves undefined would fit no checksum.
        discard: lower.discard && lower.discard_zeroes,
        copies: 1,
        ..lower.clone()
    }
}

impl Core {
    /// Opens a device from its parts. Begins a scan of the regions marked at the opening, and of the ranges in which copies
    /// below may differ, and the job of the first checksums, as far as they have work. The scan begins again when there are
    /// more such ranges.
    ///
    /// # Errors
    /// `Unsupported` if the lower has blocks above 4096 bytes; `Invalid` if the objects are those of a smaller device;
    /// `Limit` if the pool has no buffers for the scan; errors of reading the vault.
    pub async fn open(parts: Parts) -> Result<Self> {
        let Parts { name, env, data, vault, objects, mode, device, redundancy, speed } = parts;
        let info = facts(data.info());
        if u64::from(data.info().block_size) > BLOCK_BYTES || info.max_transfer == 0 {
            bail!(
                Unsupported,
                "{} has blocks of {} bytes and requests of at most {} bytes; checksums need blocks of \
                 at most {BLOCK_BYTES}",
                data.name(),
                data.info().block_size,
                data.info().max_transfer
            );
        }
        let (blocks, found) = (info.size / BLOCK_BYTES, objects.sums.records()?);
        if found < blocks {
            bail!(Invalid, "there are {found} checksums for the {blocks} blocks of {name}");
        }
        let progress = match Progress::open(objects.facts, blocks).await {
            Ok(progress) => progress,
            Err(error) => {
                // The graph may go on without the device, and then open it again.
                let _ = mode.close().await;
                return Err(error);
            }
        };
        let sums = Sums::new(device, &vault, objects.sums);
        let (tasks, job, env_of) = (TaskGroup::new(&env), progress.job(), env.clone());
        let buffers = env.pool().reserve_until_drop(COMPARE_BYTES as usize)?;
        let inner = Inner {
            name,
            env,
            data,
            vault,
            sums,
            progress,
            mode,
            redundancy,
            info,
            lock: RangeLock::new(),
            doubts: Doubts::default(),
            left: RefCell::default(),
            lefts: Default::default(),
            unscanned: RefCell::default(),
            counts: Cell::default(),
            failure: RefCell::default(),
            is_closing: Cell::new(false),
            pace: Throttle::new(&env_of, speed),
            job,
            tasks: TaskGroup::new(&env_of),
            _buffers: buffers,
        };
        let core = Self { inner: Rc::new(inner), tasks };
        core.begin_background();
        Ok(core)
    }

    /// Begins the scan and the job of the first checksums.
    fn begin_background(&self) {
        self.inner.is_closing.set(false);
        if self.inner.info.read_only {
            return;
        }
        let (scanner, closed) = (self.inner.clone(), self.tasks.wait(|| false));
        self.tasks.spawn("a scan of checksums", async move { scanner.scan_always(closed).await });
        Job::resume_running(&self.inner);
    }

    /// Returns the error with which the device refuses requests, if it has failed.
    pub fn failure(&self) -> Option<Error> {
        let own = self.inner.failure.borrow().clone();
        own.or_else(|| match &self.inner.mode {
            Mode::Journal(journal) => journal.failure(),
            Mode::Regions(_) => None,
        })
    }

    /// Returns the error with which the last scan has left a range.
    pub fn scan_failure(&self) -> Option<Error> {
        self.inner.unscanned.borrow().clone()
    }

    /// Returns the way in which the device keeps data and checksums together over a crash.
    pub fn mode(&self) -> &Mode {
        &self.inner.mode
    }

    /// Returns the place of redundancy.
    pub fn redundancy(&self) -> Redundancy {
        self.inner.redundancy
    }

    /// Returns the facts about the device.
    pub fn info(&self) -> &Info {
        &self.inner.info
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// `Corrupt` if bytes do not fit their checksums, and no copy does; errors of the lower, the vault and the journal.
    pub async fn submit(&self, op: &mut Op) -> Result<()> {
        let inner = &self.inner;
        inner.check()?;
        let _asked = inner.pace.client();
        match op {
            Op::Read { range, into, avoid, last_resort } => {
                *avoid = avoid.or(Copies::first(1));
                inner.read(*range, into, *last_resort).await
            }
            // There is one copy, so a write that restores it is like any other.
            Op::Write { range, data, fua, .. } => {
                inner.write(*range, data).await?;
                inner.flush_if(*fua).await
            }
            Op::WriteZeroes { fua, .. } | Op::Discard { fua, .. } => {
                let fua = *fua;
                inner.zero(op).await?;
                inner.flush_if(fua).await
            }
            Op::Flush => inner.flush().await,
            Op::Status { range, extents } => {
                *extents = inner.status(*range).await?;
                Ok(())
            }
        }
    }

    /// Returns the numbers of the device. Visits each marked region.
    pub fn numbers(&self) -> Numbers {
        let inner = &self.inner;
        let regions = match &inner.mode {
            Mode::Regions(regions) => regions.report(),
            Mode::Journal(_) => Default::default(),
        };
        let in_doubt = inner.doubts.len() as u64 * BLOCK_BYTES;
        Numbers {
            unverified_bytes: regions.unverified_bytes + in_doubt,
            marked_bytes: regions.marked_bytes,
            unsummed_bytes: inner.progress.missing() * BLOCK_BYTES,
            ..inner.counts.get()
        }
    }

    /// Returns the parts of `range` that the scan has left unverified. With redundancy above, the device there must write
    /// them before they count as verified.
    pub fn unverified(&self, range: ByteRange) -> Ranges {
        let left = self.inner.left.borrow();
        let blocks = left.iter().map(|block| super::sums::range_of(*block));
        Ranges::of(blocks.filter_map(|block| block.intersect(range)).collect(), None)
    }

    /// Waits until the scan leaves more blocks unverified than at the call, or until the device closes.
    pub fn more_unverified(&self) -> impl Future<Output = ()> + 'static {
        let inner = self.inner.clone();
        let before = inner.lefts.0.get();
        async move {
            let is_over = || inner.is_closing.get() || inner.lefts.0.get() != before;
            inner.lefts.1.until(is_over).await;
        }
    }

    /// Returns the report of the job of the first checksums; `None` if it is done.
    pub fn job(&self) -> Option<block::Job> {
        let inner = &self.inner;
        (!inner.progress.is_complete()).then(|| Job::report(&**inner))
    }

    /// Carries out a command with one of [`Job::VERBS`].
    pub fn control_job(&self, command: &Command) -> LocalFuture<Result<Reply>> {
        Job::control(&self.inner, command)
    }

    /// Scans what an unclean stop has left, and the ranges in which copies below may differ.
    ///
    /// # Errors
    /// The first error of the lower and the vault, after the other ranges were scanned.
    pub async fn scan(&self) -> Result<()> {
        self.inner.scan().await
    }

    /// Ends all work of the device, and makes everything durable. The owner closes the vault afterwards. If the future is
    /// dropped, the background work begins again.
    ///
    /// # Errors
    /// Errors of the flush, the regions and the journal.
    pub async fn close(&self) -> Result<()> {
        let inner = &self.inner;
        inner.is_closing.set(true);
        inner.lefts.1.wake();
        let closing = self.tasks.close(|| self.begin_background()).await;
        let job_closing = inner.tasks.close(|| ()).await;
        let flushed = inner.flush().await;
        let ended = inner.mode.close().await;
        job_closing.done();
        closing.done();
        flushed.and(ended)
    }
}

impl Blocks for Core {
    fn info(&self) -> &Info {
        &self.inner.info
    }

    async fn carry_out(&self, op: &mut Op) -> Result<()> {
        self.submit(op).await
    }
}

impl Inner {
    /// Checks that the device has not failed.
    fn check(&self) -> Result<()> {
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Makes durable all changes that were acknowledged before.
    pub async fn flush(&self) -> Result<()> {
        match &self.mode {
            Mode::Regions(regions) => {
                let token = regions.before_flush();
                self.vault.failure().map_or(Ok(()), Err)?;
                self.vault.sync_with_data().await?;
                regions.flushed(token);
                Ok(())
            }
            Mode::Journal(journal) => {
                // The flush of the journal covers its ring alone.
                self.progress.sync(&self.vault).await?;
                journal.sync().await
            }
        }
    }

    async fn flush_if(&self, fua: bool) -> Result<()> {
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Returns the block status of the beginning of `range`: that of the lower, except that a range has zeros only if its
    /// checksums state that, too.
    async fn status(&self, range: ByteRange) -> Result<Vec<Extent>> {
        let end = range.end().min(range.start() + STATUS_BYTES);
        let asked = ByteRange::between(range.start(), end).expect("a status request has bytes");
        let _shared = self.lock.lock(asked, block::Mode::Shared).await;
        let done = self.data.call(Op::Status { range: asked, extents: Vec::new() }).await;
        done.result?;
        let Op::Status { extents: below, .. } = done.op else {
            unreachable!("a request returns with its own operation")
        };
        let mut extents = Vec::new();
        let mut at = asked.start();
        for extent in below {
            let end = asked.end().min(at.saturating_add(extent.len));
            let Some(part) = ByteRange::between(at, end) else { break };
            match extent.state {
                State::Data => push_extent(&mut extents, part.len(), State::Data),
                zero => self.status_of_zeros(part, zero, &mut extents).await?,
            }
            at = end;
        }
        if extents.is_empty() {
            push_extent(&mut extents, asked.len(), State::Data);
        }
        Ok(extents)
    }

    /// Appends the block status of a range that the lower reports as zeros.
    async fn status_of_zeros(
        &self,
        range: ByteRange,
        state: State,
        extents: &mut Vec<Extent>,
    ) -> Result<()> {
        let mut at = range.start();
        while at < range.end() {
            let first = at / BLOCK_BYTES;
            let last = (range.end() - 1) / BLOCK_BYTES;
            let count = (last - first + 1).min(PIECE_BLOCKS as u64);
            let mut sums = [ZEROS; PIECE_BLOCKS];
            let sums = &mut sums[..count as usize];
            self.sums.get(first, sums).await?;
            for (block, sum) in (first..).zip(sums) {
                let part = super::sums::range_of(block).intersect(range);
                let part = part.expect("the block is one of the range");
                let is_zero = *sum == ZEROS && self.is_settled(block);
                push_extent(extents, part.len(), if is_zero { state } else { State::Data });
                at = part.end();
            }
        }
        Ok(())
    }

    /// Whether the newest bytes of a block are on the lower, with a checksum that counts.
    fn is_settled(&self, block: u64) -> bool {
        let in_ring = match &self.mode {
            Mode::Regions(_) => false,
            Mode::Journal(journal) => {
                let found = journal.find(0, super::sums::range_of(block));
                found.iter().any(|segment| segment.newest.is_some())
            }
        };
        !in_ring && self.progress.has(block)
    }

    /// Whether a block may differ from its checksum without being damaged.
    pub fn is_unverified(&self, block: u64) -> bool {
        let is_marked = match &self.mode {
            Mode::Regions(regions) => regions.is_unverified(super::sums::range_of(block)),
            Mode::Journal(_) => block::seeded::on(block::seeded::Bug::AcceptedInJournal),
        };
        is_marked
            || self.doubts.has(block)
            || block::seeded::on(block::seeded::Bug::AcceptedUnmarked)
    }

    pub fn count(&self, add: impl FnOnce(&mut Numbers)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    pub fn emit(&self, what: What, words: String) {
        self.env.emit(Event { what, device: self.name.clone(), member: None, words });
    }

    /// Returns the blocks of `range` that have a checksum, as bits.
    pub fn summed(&self, range: ByteRange) -> super::sums::Blocks {
        let (first, count) = blocks_of(range);
        (0..count).filter(|n| self.progress.has(first + *n as u64)).fold(0, |all, n| all | 1 << n)
    }
}
