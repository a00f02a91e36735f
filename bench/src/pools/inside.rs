//! A pool in this process, on a disk in memory: its own work is measured without sockets and without a real disk.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bench::ground::Ground;
use block::{Buf, Env, Result};
use meta::Uuid;
use pool::geometry::Geometry;
use pool::live::{FOLD_LEAVES, Options, Pool, Version};
use pool::name::{VdiskName, VersionName};

use crate::disk::{Disk, data_page};

/// Length in bytes of a block of a pool.
pub const BLOCK: u64 = 4096;

/// UUID of the pool.
const POOL: Uuid = Uuid([7; 16]);

/// Bytes of the cache of nodes that a pool has by default.
pub const CACHE_BYTES: u64 = 64 << 20;

/// An open pool in this process.
pub struct Inside<'g> {
    ground: &'g Ground,
    /// The disk of the pool.
    pub disk: Rc<Disk>,
    /// The pool.
    pub pool: Pool,
    geometry: Geometry,
    data: Buf,
    /// State of the random number generator.
    draw: std::cell::Cell<u64>,
}

impl<'g> Inside<'g> {
    /// Makes a pool on a new disk of `gib` GiB, and opens it with a cache of `cache_bytes` bytes.
    pub fn new(ground: &'g Ground, gib: u64, cache_bytes: u64) -> Result<Self, String> {
        let env = ground.core.env();
        let size = gib << 30;
        let disk = Disk::new(size);
        let made = ground.core.block_on(async {
            let geometry = Geometry::new(size)?;
            Pool::make(&env, &disk.lower(), POOL, geometry).await?;
            Ok(geometry)
        });
        let geometry = made.map_err(|error: block::Error| error.to_string())?;
        Self::open_on(ground, disk, geometry, cache_bytes)
    }

    /// Closes the pool, and opens it again with an empty cache.
    pub fn reopened(self, cache_bytes: u64) -> Result<Self, String> {
        let (ground, disk, geometry) = (self.ground, self.disk.clone(), self.geometry);
        drop(self);
        Self::open_on(ground, disk, geometry, cache_bytes)
    }

    /// Opens the pool from a copy of its disk at this moment, as after a kill. Returns the pool and the time of its
    /// opening.
    pub fn killed(self, cache_bytes: u64) -> Result<(Self, Duration), String> {
        let (ground, image, geometry) = (self.ground, self.disk.image(), self.geometry);
        drop(self);
        let begun = Instant::now();
        let opened = Self::open_on(ground, image, geometry, cache_bytes)?;
        Ok((opened, begun.elapsed()))
    }

    fn open_on(
        ground: &'g Ground,
        disk: Rc<Disk>,
        geometry: Geometry,
        cache_bytes: u64,
    ) -> Result<Self, String> {
        let env = ground.core.env();
        let opened = ground.core.block_on(async {
            let options = Options {
                cache_bytes,
                read_only: false,
                accept_loss: false,
                discard: false,
                fold_leaves: FOLD_LEAVES,
            };
            let (pool, _) = Pool::open(&env, &disk.lower(), POOL, geometry, options).await?;
            let data = env.buf(BLOCK as usize)?;
            data.write().copy_from_slice(&data_page());
            Ok::<_, block::Error>((pool, data))
        });
        let (pool, data) = opened.map_err(|error| error.to_string())?;
        Ok(Self { ground, disk, pool, geometry, data, draw: std::cell::Cell::new(1) })
    }

    /// Runs a measurement on the pool to its end.
    pub fn run<T>(&self, measured: impl Future<Output = Result<T>>) -> Result<T, String> {
        self.ground.core.block_on(measured).map_err(|error| error.to_string())
    }

    /// Returns the environment of the pool.
    pub fn env(&self) -> Env {
        self.ground.core.env()
    }

    /// Returns a random number from 0 to `most - 1`.
    pub fn draw(&self, most: u64) -> u64 {
        let state = self
            .draw
            .get()
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.draw.set(state);
        (state >> 20) % most
    }

    /// Makes a vdisk of `blocks` blocks, and opens it.
    pub async fn vdisk(&self, name: &VdiskName, blocks: u64) -> Result<Rc<Version>> {
        let id = self.pool.create(name, blocks * BLOCK).await?;
        self.pool.open_version(id).await
    }

    /// Takes a snapshot of a vdisk, and returns its name.
    pub async fn snapshot(&self, vdisk: &VdiskName) -> Result<VersionName> {
        let number = self.pool.snapshot(std::slice::from_ref(vdisk), None).await?[0];
        VersionName::parse(&format!("{vdisk}@{number}"))
    }

    /// Opens a version by its name.
    pub async fn open(&self, name: &str) -> Result<Rc<Version>> {
        let name = VersionName::parse(name)?;
        let id = self.pool.find(&name).await?;
        self.pool.open_version(id.ok_or_else(|| block::error!(NotFound, "no {name}"))?).await
    }

    /// Writes one block.
    pub async fn write(&self, version: &Version, block: u64) -> Result<()> {
        self.pool.write(version, block, self.data.clone()).await
    }

    /// Writes the blocks from `from` to `to` in pieces of 256 blocks.
    pub async fn fill(&self, version: &Version, from: u64, to: u64) -> Result<()> {
        const PIECE: u64 = 256;
        let page = data_page();
        let long = self.env().buf((PIECE * BLOCK) as usize)?;
        long.write().chunks_mut(page.len()).for_each(|block| block.copy_from_slice(&page));
        for at in (from..to).step_by(PIECE as usize) {
            if to - at >= PIECE {
                self.pool.write(version, at, long.clone()).await?;
            } else {
                for block in at..to {
                    self.write(version, block).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes `count` random blocks of the first `blocks`, with `depth` writes in flight.
    pub async fn write_random(
        &self,
        version: &Version,
        blocks: u64,
        count: u64,
        depth: usize,
    ) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let now = left.min(depth as u64);
            let writes = (0..now).map(|_| self.write(version, self.draw(blocks)));
            all(writes.collect()).await?;
            left -= now;
        }
        Ok(())
    }

    /// Returns the bytes of all nodes of the pool.
    pub fn node_bytes(&self) -> u64 {
        self.pool.usage().node_bytes
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Its tasks hold the pool, and so the memory of its disk.
        let _ = self.ground.core.block_on(self.pool.close());
    }
}

/// Waits for all futures, and returns their first error.
pub async fn all<F: Future<Output = Result<()>>>(futures: Vec<F>) -> Result<()> {
    let mut waiting: Vec<_> = futures.into_iter().map(|one| Some(Box::pin(one))).collect();
    std::future::poll_fn(|cx| {
        let mut is_done = true;
        for slot in &mut waiting {
            let Some(one) = slot else { continue };
            match one.as_mut().poll(cx) {
                std::task::Poll::Ready(result) => {
                    *slot = None;
                    if let Err(error) = result {
                        return std::task::Poll::Ready(Err(error));
                    }
                }
                std::task::Poll::Pending => is_done = false,
            }
        }
        if is_done { std::task::Poll::Ready(Ok(())) } else { std::task::Poll::Pending }
    })
    .await
}

/// Returns the name of a vdisk.
///
/// # Panics
/// If `text` cannot be a name.
pub fn name(text: &str) -> VdiskName {
    VdiskName::parse(text).expect("the name of a vdisk of a measurement")
}

/// Returns the time that a future takes, and its value.
pub async fn timed<T>(future: impl Future<Output = Result<T>>) -> Result<(Duration, T)> {
    let begun = Instant::now();
    let value = future.await?;
    Ok((begun.elapsed(), value))
}

/// Returns microseconds for each of `count` steps that took `time` together.
pub fn us_each(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}
