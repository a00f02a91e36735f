//! Packing: moves blocks to the front of the lower, so that the free data blocks behind them are contiguous.
//!
//! If `n` data blocks are in use, a block in data block `n` or later moves to the first free data block. Each move is
//! part of a transaction, which records the checksum of the moved block, changes the map, and frees the old data block.

use std::cell::Cell;
use std::rc::Rc;

use block::env::LocalFuture;
use block::job::{Cancel, Job, Outcome, Steps, Work};
use block::{ByteRange, Error, ErrorKind, Mode, Progress, Result, TaskGroup};
use meta::alloc::{Mapping, Places};
use meta::vault::Data;

use super::blocks::BATCH_BLOCKS;
use super::device::Inner;
use super::device::{Map, PAUSED};

/// The job that packs the blocks of a remap device, and its position.
pub struct Packing {
    pub job: Job,
    /// Number of the next block that packing examines.
    next: Cell<u64>,
    /// Whether packing has moved a block in its present pass over all blocks.
    has_moved: Cell<bool>,
}

impl Packing {
    /// Returns the packing job, which is paused or waits for [`Inner::begin_packing`].
    pub fn new(is_paused: bool) -> Self {
        Self { job: Job::new(is_paused), next: Cell::new(0), has_moved: Cell::new(false) }
    }
}

/// Each step commits its moves in a transaction and is durable when it returns, so packing holds no guard after a step.
impl Work for Inner {
    type Guard = ();
    type Run = ();
    const TASK: &'static str = "packing";

    fn job(&self) -> &Job {
        &self.packing.job
    }

    fn tasks(&self) -> &TaskGroup {
        &self.tasks
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn committed(&self) -> LocalFuture<()> {
        let home = self.home.clone();
        Box::pin(async move { home.committed().await })
    }

    fn begin(&self) {}

    async fn step(&self, steps: &mut Steps<'_, Self>) -> Result<Outcome<()>> {
        let map = self.map().await?;
        self.record().await?;
        let Packing { next, has_moved, .. } = &self.packing;
        if next.get() >= self.layout.blocks {
            next.set(0);
            if !has_moved.replace(false) {
                return Ok(Outcome::Done);
            }
        }
        let count = BATCH_BLOCKS.min(self.layout.blocks - next.get());
        let looked = self.look(map, self.layout.range(next.get(), count)).await?;
        let is_behind = |spot| matches!(spot, Mapping::At(place) if place >= map.taken.get());
        let behind = looked.blocks(self).find(|(_, spot, _)| is_behind(*spot));
        next.set(behind.map_or(next.get() + count, |(block, ..)| block));
        if let Some((block, ..)) = behind {
            self.move_blocks(map, steps, block).await?;
        }
        Ok(Outcome::Unchanged)
    }

    /// Writes to the labels whether packing is paused, if that has changed since the last write.
    async fn record(&self) -> Result<()> {
        self.map().await?;
        let own = if self.packing.job.is_pausing() { PAUSED } else { [0] };
        if (self.home.own() == PAUSED) == (own == PAUSED) {
            return Ok(());
        }
        self.home.keep_own(own.to_vec()).await
    }

    fn cancel(&self) -> Result<Cancel> {
        if self.packing.job.is_running() {
            return Ok(Cancel::End);
        }
        let words = "packing is not running, so nothing can be cancelled";
        Err(Error::new(ErrorKind::InUse, words).at(&self.name))
    }

    fn progress(&self) -> (String, Progress) {
        let all = self.layout.size();
        let done = match self.packing.job.is_done() {
            true => all,
            false => self.packing.next.get() * self.layout.block_bytes,
        };
        ("to the front".to_owned(), Progress { done_bytes: done, all_bytes: all, of_bytes: all })
    }
}

impl Inner {
    /// Begins to pack the blocks of the device, if it has the option `pack` and the job is not paused.
    pub fn begin_packing(self: &Rc<Self>) {
        if self.pack {
            Job::resume_running(self);
        }
    }

    /// Moves `block` and the blocks behind it, as many as the throttle permits in one step.
    async fn move_blocks(&self, map: &Map, steps: &mut Steps<'_, Self>, block: u64) -> Result<()> {
        let most = (BATCH_BLOCKS * self.layout.block_bytes).min(block::STEP_BYTES_MAX);
        let step = self.pace.step_of(most.max(self.layout.block_bytes));
        let Some(step) = steps.throttled(step).await? else { return Ok(()) };
        let count = (step.bytes() / self.layout.block_bytes).max(1);
        let count = count.min(BATCH_BLOCKS).min(self.layout.blocks - block);
        let range = self.layout.range(block, count);
        let moved = self.move_to_front(map, range).await?;
        self.packing.has_moved.set(self.packing.has_moved.get() || moved > 0);
        self.packing.next.set(block + count);
        step.done(moved * self.layout.block_bytes);
        Ok(())
    }

    /// Moves the blocks of `range` that are not in the first [`Map::taken`] data blocks to earlier free data blocks.
    /// Returns the number of moved blocks.
    async fn move_to_front(&self, map: &Map, range: ByteRange) -> Result<u64> {
        // Wait before the lock: requests that hold buffers may wait for the lock.
        let room = self.env.pool().wait_for(self.layout.block_bytes as usize).await?;
        let _alone = self.lock.lock(range, Mode::Exclusive).await;
        let looked = self.look(map, range).await?;
        let mut transaction = map.vault.begin();
        let mut moved = 0;
        for (block, spot, _) in looked.blocks(self) {
            let Mapping::At(old) = spot else { continue };
            if old < map.taken.get() {
                continue;
            }
            let mut new = map.blocks.take_before(&mut transaction, old).await?;
            if new.is_none() && self.release_freed(map).await? {
                new = map.blocks.take_before(&mut transaction, old).await?;
            }
            let Some(new) = new else { break };
            let (from, to) = (self.layout.places(old, 1), self.layout.places(new, 1));
            let bytes = self.data.read(from, room.clone()).await?;
            let checksum = meta::vault::page::checksum(&bytes.read());
            self.data.write(to, bytes).await?;
            let data = Data { range: to, checksum };
            map.blocks.put_written(&mut transaction, block, new, &data)?;
            let freed = map.blocks.free(&mut transaction, Places { first: old, count: 1 })?;
            transaction.keep_until_proven(freed);
            moved += 1;
        }
        map.vault.commit(transaction).await?;
        Ok(moved)
    }
}
