//! Carries out the requests and commands of a remap device.

use std::cell::Cell;
use std::rc::Rc;

use block::control::{Command, Reply, Resolved, VerbInfo};
use block::env::LocalFuture;
use block::job::Job;
use block::{
    Below, Buf, ByteRange, Device, EXTENTS_MAX, Env, Handover, Health, Info, Lower, Mutex, Op,
    RangeLock, Report, Request, Result, SpaceUse, State, TaskGroup, Throttle, push_extent,
};
use kind::home::{Home, Opened};
use meta::alloc::{Allocator, Mapping, Policy};
use meta::vault::Vault;

use super::blocks::BATCH_BLOCKS;
use super::layout::Layout;
use super::packer::Packing;
use super::releases::Releases;

/// The own state in labels of a device whose packing is paused; any other state is that of a device that packs.
pub const PAUSED: [u8; 1] = [1];

/// Most blocks for which one block status request returns extents.
const STATUS_BLOCKS_MAX: u64 = 1 << 16;

/// The open map of blocks.
pub struct Map {
    pub vault: Vault,
    pub blocks: Allocator,
    /// Number of data blocks that are in use.
    pub taken: Cell<u64>,
}

impl Map {
    /// Opens the map in the vault of a remap device.
    ///
    /// # Errors
    /// Errors of reading the vault.
    pub async fn open(opened: Opened, policy: Policy) -> Result<Self> {
        let blocks = opened.allocator(0, policy)?;
        let taken = Cell::new(blocks.taken().await?);
        Ok(Self { vault: opened.vault, blocks, taken })
    }
}

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
    pub home: Home<Map>,
    /// Lock of byte ranges: shared by requests that use mapped blocks, exclusive for changes of the map.
    pub lock: RangeLock,
    /// A buffer with one block of zeros.
    pub zeros: Buf,
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
    pub env: Env,
    pub info: Info,
    pub layout: Layout,
    pub data: Lower,
    pub home: Home<Map>,
    pub pack: bool,
    pub speed: Option<u64>,
}

impl Remap {
    /// Returns a remap device, which packs as soon as its map is open.
    ///
    /// # Errors
    /// `Limit` if the pool has no buffer for a block of zeros.
    pub fn new(parts: Parts) -> Result<Self> {
        let Parts { name, env, info, layout, data, home, pack, speed } = parts;
        let zeros = env.buf(layout.block_bytes as usize)?;
        zeros.write().fill(0);
        let paused = home.own() == PAUSED;
        let inner = Rc::new(Inner {
            name,
            info,
            layout,
            data,
            home,
            lock: RangeLock::new(),
            zeros,
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
        });
        inner.begin_packing();
        Ok(Self { inner })
    }
}

impl Inner {
    /// Waits until the map of blocks is open, and returns the map.
    pub async fn map(&self) -> Result<&Map> {
        self.home.get().await
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
        let places = self.layout.places;
        let taken = self.home.now_for_reading().map_or(0, |map| map.taken.get());
        let bytes = self.layout.block_bytes;
        let room = Some(SpaceUse { taken_bytes: taken * bytes, of_bytes: places * bytes });
        let counters = vec![("failed", self.packing.job.failed() + self.undiscarded.get())];
        let jobs = self.pack.then(|| Job::report(self)).into_iter().collect();
        let mut report = Report { counters, jobs, room, ..Report::default() };
        if places - taken < BATCH_BLOCKS.min(places / 4).max(1) {
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
            Op::Flush => inner.home.sync().await,
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
            all.push(Below { lower: 0, above: part.start(), range, how: "placed".into() });
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
        Job::control(&self.inner, &command)
    }

    fn close(&self) -> LocalFuture<Handover> {
        let inner = self.inner.clone();
        Box::pin(async move {
            let map = inner.home.now().filter(|_| !inner.info.read_only);
            if let Some(map) = map {
                // Freed blocks wait for this proof. An error ends the wait as well.
                let _ = map.vault.prove().await;
            }
            // If the close is abandoned, packing goes on.
            let closing = inner.tasks.close(|| inner.begin_packing()).await;
            inner.home.close().await;
            closing.done();
            None
        })
    }
}
