//! A small pool on a recorded disk.

use std::rc::Rc;

use block::{Buf, Env, Lower, Result};
use meta::Uuid;
use pool::BLOCK_BYTES;
use pool::geometry::Geometry;
use pool::live::{Checked, FOLD_LEAVES, Options, Pool, Version};
use pool::name::{Label, VdiskName, VersionName};
use sim::SimWorld;
use testkit::recorded::{Disk, Trace};

/// Bytes of the disk: the smallest pool.
pub const DISK_BYTES: usize = 16 << 20;

/// Blocks of the vdisks of the tests.
pub const BLOCKS: u64 = 64;

pub const OPTIONS: Options = Options {
    cache_bytes: 1 << 20,
    read_only: false,
    accept_loss: false,
    discard: true,
    fold_leaves: FOLD_LEAVES,
};

/// Returns a number from the environment, or a default one.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

pub fn block_on<T>(world: &SimWorld, future: impl Future<Output = T>) -> T {
    world.block_on(future).unwrap_or_else(|stuck| panic!("{stuck}"))
}

pub fn blank(trace: &Trace) -> Rc<Disk> {
    Disk::new(0, vec![0; DISK_BYTES], trace)
}

/// The UUID of the pool of the tests.
pub const POOL: Uuid = Uuid([7; 16]);

/// Returns the sizes and places in the labels of the pool of the tests.
pub fn geometry() -> Geometry {
    Geometry::new(DISK_BYTES as u64).unwrap()
}

pub async fn make(env: &Env, disk: &Rc<Disk>) {
    make_on(env, &disk.lower()).await;
}

pub async fn make_on(env: &Env, lower: &Lower) {
    let geometry = Geometry::new(lower.info().size).unwrap();
    Pool::make(env, lower, POOL, geometry).await.unwrap();
}

pub async fn open(env: &Env, disk: &Rc<Disk>) -> Result<Pool> {
    open_with(env, disk, OPTIONS).await
}

pub async fn open_with(env: &Env, disk: &Rc<Disk>, options: Options) -> Result<Pool> {
    let lower = disk.lower();
    let geometry = Geometry::new(lower.info().size)?;
    let (pool, lost) = Pool::open(env, &lower, POOL, geometry, options).await?;
    assert_eq!(lost, None, "a flushed record is missing");
    Ok(pool)
}

pub fn name(text: &str) -> VdiskName {
    VdiskName::parse(text).unwrap()
}

pub fn version(text: &str) -> VersionName {
    VersionName::parse(text).unwrap()
}

pub fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

/// Opens the version with this name.
pub async fn find(pool: &Pool, text: &str) -> Rc<Version> {
    let id = pool.find(&version(text)).await.unwrap().unwrap_or_else(|| panic!("no {text}"));
    let found = pool.open_version(id).await.unwrap();
    pool.close_version(id);
    found
}

/// Returns `blocks` blocks, each filled with a number of its own after `stamp`.
pub fn bytes(env: &Env, stamp: u64, blocks: u64) -> Buf {
    let buf = env.buf((blocks * u64::from(BLOCK_BYTES)) as usize).unwrap();
    for (n, block) in buf.write().chunks_exact_mut(BLOCK_BYTES as usize).enumerate() {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&(stamp + n as u64).to_le_bytes());
        }
    }
    buf
}

/// Returns the number in each block of a version; 0 for zeros.
pub async fn stamps(env: &Env, pool: &Pool, version: &Version, blocks: u64) -> Result<Vec<u64>> {
    let into = env.buf((blocks * u64::from(BLOCK_BYTES)) as usize)?;
    pool.read(version, 0, &into).await?;
    let all = into.read();
    let stamp = |block: &[u8]| {
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        let first = word(0);
        assert!((0..block.len()).step_by(8).all(|at| word(at) == first), "a block is torn");
        first
    };
    Ok(all.chunks_exact(BLOCK_BYTES as usize).map(stamp).collect())
}

/// Returns the names of all vdisks and snapshots, in their order.
pub async fn names(pool: &Pool) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for vdisk in pool.vdisks("", 10_000).await? {
        for snapshot in pool.snapshots(&name(&vdisk.name), 1, 10_000).await? {
            names.push(format!("{}@{}", vdisk.name, snapshot.number));
        }
        names.push(vdisk.name);
    }
    names.sort();
    Ok(names)
}

/// Checks that a check has found no damage, and no block that is lost or leaked.
pub fn assert_whole(checked: &Checked, when: &str) {
    let whole = Checked { vdisks: checked.vdisks, leaked: Some(Vec::new()), ..Checked::default() };
    assert_eq!(*checked, whole, "{when}");
}
