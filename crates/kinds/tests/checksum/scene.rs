//! A checksum device on one recorded disk: its vault, its journal if it has one, and its data behind them.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use block::{
    Buf, ByteRange, ChildId, Copies, Done, Env, Extent, Info, Lower, Op, Result, Started, State,
    push_extent,
};
use kinds::checksum::{BLOCK_BYTES, Core, Mode, Objects, Parts, Redundancy, Target};
use meta::Uuid;
use meta::journal::{Journal, Options as JournalOptions, RING_START};
use meta::regions::{Division, Regions};
use meta::vault::{Array, Options, Shape, Spec, Vault};
use sim::SimWorld;
use testkit::recorded::{Disk, Trace};
use zerocopy::little_endian::U64;

pub const VAULT_BYTES: u64 = 320 << 10;
pub const RING_BYTES: u64 = 64 << 10;
pub const JOURNAL_BYTES: u64 = RING_START + RING_BYTES;
pub const BLOCKS: u64 = 8;
pub const DATA_BYTES: u64 = BLOCKS * BLOCK_BYTES;
pub const DATA_START: u64 = VAULT_BYTES + JOURNAL_BYTES;
pub const DISK_BYTES: u64 = DATA_START + DATA_BYTES;

/// Bytes of a region: those of two blocks.
pub const REGION: u64 = 2 * BLOCK_BYTES;
pub const CLEAR_DELAY: Duration = Duration::from_millis(100);

pub const DEVICE: Uuid = Uuid([7; 16]);
pub const OWNER: &str = "sums";

/// The option `crash` of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    Regions,
    Journal,
}

/// A part of a disk.
struct Slice {
    disk: Rc<Disk>,
    start: u64,
}

impl Slice {
    /// Reports blocks of zeros as such.
    fn status(&self, range: ByteRange, extents: &mut Vec<Extent>) {
        let from = (self.start + range.start()) as usize;
        let bytes = self.disk.bytes.borrow();
        for block in bytes[from..from + range.len() as usize].chunks(BLOCK_BYTES as usize) {
            let state = if block::is_zero(block) { State::Zero } else { State::Data };
            push_extent(extents, block.len() as u64, state);
        }
    }
}

impl block::Core for Slice {
    fn start(&self, op: &mut Op) -> Started {
        let range = op.range();
        if let Op::Status { range, extents } = op {
            self.status(*range, extents);
            return Started::Done(Ok(()));
        }
        if let Some(range) = range {
            op.set_range(range.at(self.start + range.start()));
        }
        let started = self.disk.start(op);
        if let Some(range) = range {
            op.set_range(range);
        }
        started
    }

    fn poll(&self, _: ChildId, _: &mut Context<'_>) -> Poll<Done> {
        unreachable!("everything is done at once")
    }

    fn abandon(&self, _: ChildId) {}
}

/// Returns a handle to a part of a disk.
pub fn slice(disk: &Rc<Disk>, node: usize, start: u64, size: u64) -> Lower {
    let info = Info { discard_zeroes: true, ..Info::disk(size, 512) };
    Lower::new(Rc::new(Slice { disk: disk.clone(), start }), node, info, "disk".into())
}

pub fn data_of(disk: &Rc<Disk>) -> Lower {
    slice(disk, 2, DATA_START, DATA_BYTES)
}

pub fn division(size: u64) -> Division {
    Division::new(size, REGION).unwrap()
}

pub fn block_on<T>(world: &SimWorld, future: impl Future<Output = T>) -> T {
    world.block_on(future).unwrap_or_else(|stuck| panic!("{stuck}"))
}

/// Makes the vault of a device on `lower`.
pub async fn format_vault(env: &Env, lower: &Lower, data: &Lower, has_zeros: bool) {
    format_with_log(env, lower, data, has_zeros, 64 << 10).await;
}

/// Makes the vault of a device on `lower`, with a log of `log_bytes` bytes.
pub async fn format_with_log(
    env: &Env,
    lower: &Lower,
    data: &Lower,
    has_zeros: bool,
    log_bytes: u64,
) {
    let shape = Shape { log_bytes: Some(log_bytes), objects: 8, bytes: None };
    Vault::format(env, std::slice::from_ref(lower), shape).await.unwrap();
    let vault = open_vault(env, lower, data).await.unwrap();
    let mut transaction = vault.begin();
    let size = data.info().size;
    let blocks = size / BLOCK_BYTES;
    // The roles and lengths are those of `docs/formats/checksum.md`.
    transaction.create(&Spec::array::<U64>(OWNER, 0, blocks)).unwrap();
    let facts = transaction.create(&Spec::array::<U64>(OWNER, 1, 3)).unwrap();
    if has_zeros {
        let facts = Array::<U64>::new(&vault, facts);
        facts.set(&mut transaction, 0, &U64::new(blocks)).unwrap();
    }
    Regions::create(&mut transaction, OWNER, Objects::REGIONS, division(size)).unwrap();
    vault.commit(transaction).await.unwrap();
    vault.close().await.unwrap();
}

pub async fn open_vault(env: &Env, lower: &Lower, data: &Lower) -> Result<Vault> {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    Vault::open_with_data(env, vec![Some(lower.clone())], data.clone(), &options).await
}

/// Opens the regions of a device.
pub async fn open_regions(env: &Env, vault: &Vault, size: u64) -> Result<Regions> {
    let object = (OWNER, Objects::REGIONS);
    Regions::open(env, vault, object, division(size), CLEAR_DELAY).await
}

/// Opens a device over `data`, with its vault and its journal on these lowers.
pub async fn open_core(
    env: &Env,
    (vault, journal, data): (&Lower, &Lower, Lower),
    crash: Crash,
    redundancy: Redundancy,
) -> Result<(Core, Vault)> {
    let vault = open_vault(env, vault, &data).await?;
    let mode = match crash {
        Crash::Regions => Mode::Regions(open_regions(env, &vault, data.info().size).await?),
        Crash::Journal => {
            let target = Target::new(&data, &vault, OWNER, DEVICE)?;
            let options = JournalOptions::default();
            Mode::Journal(Journal::open(env, journal, 0, &options, target).await?.0)
        }
    };
    let objects = Objects::open(&vault, OWNER)?;
    let parts = Parts {
        name: "sums".into(),
        env: env.clone(),
        data,
        vault: vault.clone(),
        objects,
        mode,
        device: DEVICE,
        redundancy,
        speed: None,
    };
    Ok((Core::open(parts).await?, vault))
}

/// An open device on a recorded disk.
pub struct Scene {
    pub env: Env,
    pub disk: Rc<Disk>,
    pub core: Core,
    pub vault: Vault,
    pub crash: Crash,
    pub redundancy: Redundancy,
}

/// Creates a disk with a new device.
pub async fn formatted(env: &Env, trace: &Trace, has_zeros: bool) -> Rc<Disk> {
    let disk = Disk::new(0, vec![0; DISK_BYTES as usize], trace);
    let data = data_of(&disk);
    format_vault(env, &slice(&disk, 0, 0, VAULT_BYTES), &data, has_zeros).await;
    let journal = slice(&disk, 1, VAULT_BYTES, JOURNAL_BYTES);
    Journal::format(env, &journal, 0, Uuid([9; 16]), RING_BYTES, 1).await.unwrap();
    disk
}

impl Scene {
    pub async fn open(
        env: &Env,
        disk: &Rc<Disk>,
        crash: Crash,
        redundancy: Redundancy,
    ) -> Result<Self> {
        let (vault, journal) =
            (slice(disk, 0, 0, VAULT_BYTES), slice(disk, 1, VAULT_BYTES, JOURNAL_BYTES));
        let lowers = (&vault, &journal, data_of(disk));
        let (core, vault) = open_core(env, lowers, crash, redundancy).await?;
        Ok(Self { env: env.clone(), disk: disk.clone(), core, vault, crash, redundancy })
    }

    pub async fn new(env: &Env, crash: Crash) -> Self {
        let disk = formatted(env, &Trace::default(), true).await;
        Self::open(env, &disk, crash, Redundancy::None).await.unwrap()
    }

    /// Opens the device again, as after the death of the process.
    pub async fn reopen(self) -> Self {
        let Self { env, disk, crash, redundancy, core, vault } = self;
        drop((core, vault));
        Self::open(&env, &disk, crash, redundancy).await.unwrap()
    }

    pub async fn submit(&self, mut op: Op) -> Result<Op> {
        self.core.submit(&mut op).await.map(|()| op)
    }

    pub async fn write(&self, first: u64, bytes: &[u8]) -> Result<()> {
        let buf = self.env.buf(bytes.len()).unwrap();
        buf.write().copy_from_slice(bytes);
        let range = ByteRange::new(first * BLOCK_BYTES, bytes.len() as u64).unwrap();
        self.submit(Op::write(range, buf)).await.map(drop)
    }

    pub async fn zero(&self, first: u64, count: u64) -> Result<()> {
        let range = run(first, count);
        self.submit(Op::WriteZeroes { range, unmap: false, fua: false }).await.map(drop)
    }

    pub async fn flush(&self) -> Result<()> {
        self.submit(Op::Flush).await.map(drop)
    }

    pub async fn read(&self, first: u64, count: u64) -> Result<Vec<u8>> {
        read(&self.env, &self.core, run(first, count), false).await
    }

    pub async fn last_resort(&self, block: u64) -> Result<Vec<u8>> {
        read(&self.env, &self.core, run(block, 1), true).await
    }

    /// Waits until background work has ended.
    pub async fn quiet(&self) {
        self.env.sleep(4 * CLEAR_DELAY).await;
    }

    /// Flips a bit of a block on the disk.
    pub fn rot(&self, block: u64) {
        self.disk.bytes.borrow_mut()[(DATA_START + block * BLOCK_BYTES) as usize + 700] ^= 4;
    }

    /// Replaces a block on the disk.
    pub fn put(&self, block: u64, bytes: &[u8]) {
        let at = (DATA_START + block * BLOCK_BYTES) as usize;
        self.disk.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the bytes of a block on the disk.
    pub fn on_disk(&self, block: u64) -> Vec<u8> {
        let at = (DATA_START + block * BLOCK_BYTES) as usize;
        self.disk.bytes.borrow()[at..at + BLOCK_BYTES as usize].to_vec()
    }
}

pub fn run(first: u64, count: u64) -> ByteRange {
    ByteRange::new(first * BLOCK_BYTES, count * BLOCK_BYTES).unwrap()
}

pub async fn read(env: &Env, core: &Core, range: ByteRange, last_resort: bool) -> Result<Vec<u8>> {
    let into: Buf = env.buf(range.len() as usize)?;
    let mut op = Op::Read { range, into, avoid: Copies::NONE, last_resort };
    core.submit(&mut op).await?;
    let Op::Read { into, .. } = op else { unreachable!("it stays a read") };
    let bytes = into.read().to_vec();
    Ok(bytes)
}

/// Returns the content of version `version` of a block; version 0 is zeros. Each sector names itself.
pub fn content(block: u64, version: u64) -> Vec<u8> {
    let sector = |n: u64| {
        let word = if version == 0 { 0 } else { version << 32 | block << 16 | n << 8 | 1 };
        word.to_le_bytes().repeat(64)
    };
    (0..8).flat_map(sector).collect()
}

pub fn in_world(test: impl AsyncFnOnce(&Env)) {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, test(&env));
}
