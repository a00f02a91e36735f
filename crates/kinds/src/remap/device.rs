//! Carries out the requests and commands of a remap device.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use block::control::state::{Check, Checked};
use block::control::{Command, Reply, Resolved, VerbInfo};
use block::env::LocalFuture;
use block::job::Job;
use block::{
    Below, Buf, ByteRange, Device, EXTENTS_MAX, Env, Error, Handover, Health, Info, Lower, Mutex,
    Notify, Op, RangeLock, Report, Request, Result, SpaceUse, State, TaskGroup, Throttle, first,
    push_extent,
};
use meta::alloc::Mapping;

use super::blocks::BATCH_BLOCKS;
use super::layout::Layout;
use super::opening::{Access, Map, Opening};
use super::packer::Packing;
use super::record::Record;
use super::releases::Releases;

/// Most blocks for which one block status request returns extents.
const STATUS_BLOCKS_MAX: u64 = 1 << 16;

/// A device that maps each block to a data block of its lower when the block is first written.
pub struct Remap {
    pub inner: Rc<Inner>,
}

/// State of a remap device, shared by requests and the packing task.
pub struct Inner {
    pub name: String,
    pub env: Env,
    pub info: Info,
    pub layout: Layout,
    pub data: Lower,
    /// Port of the lower that holds the data blocks.
    pub data_port: usize,
    pub opening: Opening,
    /// Lock of byte ranges: shared by requests that use mapped blocks, exclusive for changes of the map.
    pub lock: RangeLock,
    /// A buffer with one block of zeros.
    pub zeros: Buf,
    map: OnceCell<Map>,
    /// The error with which the opening of the map of blocks failed, if it failed.
    broken: RefCell<Option<Error>>,
    opened: Notify,
    /// Number of data blocks that are in use.
    pub taken: Cell<u64>,
    /// Number of times that data blocks were freed, by which a waiting write notices a change.
    pub frees: Cell<u64>,
    pub releases: Releases,
    /// Number of discards of freed data blocks that failed on the lower.
    pub undiscarded: Cell<u64>,
    /// Number of requests that wait for a free data block.
    pub held: Cell<u32>,
    /// Lock of the write that tries again to reserve data blocks, after it has waited for free data blocks.
    pub placing: Mutex,
    /// Whether the device moves blocks towards the front of the lower (packing).
    pub pack: bool,
    pub packing: Packing,
    pub pace: Throttle,
    pub tasks: TaskGroup,
}

/// The parts from which [`Remap::new`] makes a remap device.
pub struct Parts {
    pub name: String,
    pub info: Info,
    pub layout: Layout,
    pub data_port: usize,
    pub opening: Opening,
    pub pack: bool,
    pub speed: Option<u64>,
}

impl Remap {
    /// Returns a remap device whose map is not open yet.
    ///
    /// # Errors
    /// `Limit` if the pool has no buffer for a block of zeros.
    pub fn new(parts: Parts, paused: bool) -> Result<Self> {
        let Parts { name, info, layout, data_port, opening, pack, speed } = parts;
        let env = opening.env.clone();
        let zeros = env.buf(layout.block_bytes as usize)?;
        zeros.write().fill(0);
        let inner = Inner {
            name,
            info,
            layout,
            data: opening.data.clone(),
            data_port,
            lock: RangeLock::new(),
            zeros,
            map: OnceCell::new(),
            broken: RefCell::default(),
            opened: Notify::default(),
            taken: Cell::new(0),
            frees: Cell::new(0),
            releases: Releases::default(),
            undiscarded: Cell::new(0),
            held: Cell::new(0),
            placing: Mutex::new(),
            pack,
            packing: Packing::new(paused),
            pace: Throttle::new(&env, speed),
            tasks: TaskGroup::new(&env),
            env,
            opening,
        };
        Ok(Self { inner: Rc::new(inner) })
    }
}

impl Inner {
    /// Waits until the map of blocks is open, and returns the map.
    pub async fn map(&self) -> Result<&Map> {
        if self.map.get().is_none() {
            self.opened.until(|| self.map.get().is_some() || self.broken.borrow().is_some()).await;
        }
        self.map.get().ok_or_else(|| {
            let broken = self.broken.borrow();
            broken.clone().expect("the loop above ends with a map or a failure")
        })
    }

    /// Opens the vault with the map of blocks that `record` names, or creates a vault if `record` names none.
    ///
    /// # Errors
    /// Errors of opening or creating the vault, and of writing the state to labels.
    pub async fn open(self: &Rc<Self>, record: Record) -> Result<()> {
        let opened = self.try_open(record).await;
        if let Err(error) = &opened {
            *self.broken.borrow_mut() = Some(error.clone());
        }
        self.opened.wake();
        opened
    }

    async fn try_open(self: &Rc<Self>, record: Record) -> Result<()> {
        let uuid = match record.vault {
            Some(uuid) => uuid,
            None => {
                let uuid = self.opening.format(&record.layout).await?;
                let record = Record { vault: Some(uuid), ..record };
                self.opening.kept.keep(record.encode()).await?;
                uuid
            }
        };
        let map = self.opening.open(uuid, Access::Full).await?;
        self.taken.set(map.blocks.taken().await?);
        let first = self.map.set(map);
        assert!(first.is_ok(), "the map is opened once");
        if !self.info.read_only {
            self.begin_packing();
        }
        Ok(())
    }

    /// Checks that the vault that `record` names can be opened, and writes nothing. An error makes a change of the
    /// graph fail before its commit, so that the change is undone.
    ///
    /// # Errors
    /// As [`Inner::open`].
    pub async fn preview(&self, record: &Record) -> Result<()> {
        if let Some(uuid) = record.vault {
            let map = self.opening.open(uuid, Access::ReadOnly).await?;
            self.taken.set(map.blocks.taken().await?);
        }
        Ok(())
    }

    /// Spawns a task that opens the vault with the map of blocks after the live change that makes this device is
    /// committed. Before the commit the device may write nothing: opening a vault writes to its disks, the change may
    /// still be undone, and a mirror below may not be able to mark dirty regions yet.
    pub fn open_later(self: &Rc<Self>, record: Record) {
        let inner = self.clone();
        self.tasks.spawn("a map of blocks", async move {
            let gone = inner.tasks.changed().until(|| inner.tasks.is_closing());
            if first(inner.opening.kept.store().committed(), gone).await.is_ok() {
                // Requests wait for the map, and get the error.
                let _ = inner.open(record).await;
            }
        });
    }

    async fn flush(&self, map: &Map) -> Result<()> {
        match map.vault.failure() {
            Some(error) => Err(error.at(&self.name)),
            None => map.vault.sync_with_data().await,
        }
    }

    async fn status(&self, map: &Map, range: ByteRange) -> Result<Vec<block::Extent>> {
        let mut extents = Vec::new();
        let most = STATUS_BLOCKS_MAX * self.layout.block_bytes;
        let end = range.end().min(range.start() + most);
        let asked = ByteRange::between(range.start(), end).expect("a status request has bytes");
        for batch in self.batches(asked) {
            for (_, spot, part) in self.look(map, batch).await?.blocks(self) {
                let state = if spot == Mapping::Nowhere { State::Hole } else { State::Data };
                push_extent(&mut extents, part.len(), state);
            }
            if extents.len() >= EXTENTS_MAX {
                break;
            }
        }
        Ok(extents)
    }

    fn report(&self) -> Report {
        let (places, taken) = (self.layout.places, self.taken.get());
        let bytes = self.layout.block_bytes;
        let room = Some(SpaceUse { taken_bytes: taken * bytes, of_bytes: places * bytes });
        let counters = vec![("failed", self.packing.job.failed() + self.undiscarded.get())];
        let jobs = self.pack.then(|| Job::report(self)).into_iter().collect();
        let mut report = Report { counters, jobs, room, ..Report::default() };
        let failure = self.map.get().and_then(|map| map.vault.failure());
        if let Some(error) = failure.or_else(|| self.broken.borrow().clone()) {
            report.health = Health::Failed;
            report.summary = format!("the map of blocks cannot be changed any more: {error}");
            report.next = Some("stop and start the graph when its disks work again".to_owned());
        } else if places - taken < BATCH_BLOCKS.min(places / 4).max(1) {
            // A write of the greatest length may not fit any more.
            report.health = Health::Limited;
            report.summary = match places - taken {
                0 => "no physical block is free: writes to new blocks wait, then fail".to_owned(),
                1 => "1 physical block is free: longer writes wait, then fail".to_owned(),
                free => format!("{free} physical blocks are free: longer writes wait, then fail"),
            };
            report.next = Some("discard unused bytes".to_owned());
        }
        report
    }
}

impl Device for Remap {
    fn info(&self) -> &Info {
        &self.inner.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let inner = &self.inner;
        let map = inner.map().await?;
        let _asked = inner.pace.client();
        match &mut request.op {
            Op::Read { .. } => inner.read(map, &mut request.op).await,
            Op::Write { .. } => inner.write(map, &mut request.op).await,
            Op::WriteZeroes { range, fua, .. } => inner.free_range(map, *range, true, *fua).await,
            Op::Discard { range, fua } => inner.free_range(map, *range, false, *fua).await,
            Op::Flush => inner.flush(map).await,
            Op::Status { range, extents } => {
                *extents = inner.status(map, *range).await?;
                Ok(())
            }
        }
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        let inner = &self.inner;
        let map = inner.map().await?;
        let (mut all, mut upto) = (Vec::new(), range.start());
        let blocks = inner.layout.block_of(range.start())..=inner.layout.block_of(range.end() - 1);
        for block in blocks.take(EXTENTS_MAX) {
            let part = inner.layout.range(block, 1).intersect(range);
            let part = part.expect("the block is one of the range");
            upto = part.end();
            let Mapping::At(place) = map.blocks.spot(block).await? else {
                continue;
            };
            let range = inner.below(place, part);
            all.push(Below {
                lower: inner.data_port,
                above: part.start(),
                range,
                how: "placed".into(),
            });
        }
        Ok(Resolved::Places { all, upto, moves: true })
    }

    fn report(&self) -> Report {
        self.inner.report()
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        if self.inner.pack { super::VERBS } else { &super::VERBS[..1] }
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        if !command.is::<Check>() {
            return Job::control(&self.inner, &command);
        }
        Box::pin(async move { self.check().await.map(Reply::of::<Check>) })
    }

    fn close(&self) -> LocalFuture<Handover> {
        let inner = self.inner.clone();
        Box::pin(async move {
            if let Some(map) = inner.map.get().filter(|_| !inner.info.read_only) {
                // Freed blocks wait for this proof. An error ends the wait as well.
                let _ = map.vault.prove().await;
            }
            // If the close is abandoned, packing goes on.
            let closing = inner.tasks.close(|| inner.begin_packing()).await;
            if let Some(map) = inner.map.get().filter(|_| !inner.info.read_only) {
                // Pages that could not be written are in the log.
                let _ = map.vault.clone().close().await;
            }
            closing.done();
            None
        })
    }
}

impl Remap {
    /// Checks the vault with the map of blocks. The bytes of blocks cannot be checked, because the map records no
    /// checksums of them.
    async fn check(&self) -> Result<Checked> {
        let findings = self.inner.map().await?.vault.check().await?;
        let health = match (findings.count, findings.repairable) {
            (0, _) => Health::Ok,
            (_, true) => Health::Degraded,
            (_, false) => Health::Failed,
        };
        let summary = format!("{} pages of the map", findings.pages);
        Ok(Checked { health, summary, wrong: findings.wrong })
    }
}
