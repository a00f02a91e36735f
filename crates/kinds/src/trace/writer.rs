//! The task that writes recorded requests to the trace file.

use std::rc::Rc;
use std::time::Duration;

use block::env::{DiskIo, Storage};
use block::units::format_size;
use block::{Buf, Env, Result, bail, error};

use super::entry::{Entry, Header, SLOT_BYTES, Slot};
use super::queue::Queue;

/// Bytes of a block of the trace file. The task fills and writes the file block by block.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// Number of slots of a block of the trace file.
const SLOTS: usize = BLOCK_BYTES as usize / SLOT_BYTES;

/// Longest time that a recorded request waits until it is written together with later requests.
const GATHER: Duration = Duration::from_secs(1);

/// A writer that appends to a trace file, block by block. The writer writes the used part of a block that is not yet
/// full within a second, and writes the block again when it has more entries.
pub struct Writer {
    env: Env,
    path: String,
    storage: Rc<dyn Storage>,
    queue: Rc<Queue>,
    /// The block of the file that is being filled, with zeros behind its used slots.
    block: Buf,
    number: u64,
    used: usize,
    /// Number of used slots of the block that are in the file.
    written: usize,
}

impl Writer {
    /// Returns a writer of the entries in `queue` to the open trace file `storage`.
    ///
    /// # Errors
    /// `Limit` if the pool has no buffer for a block.
    pub fn new(env: &Env, path: &str, storage: Rc<dyn Storage>, queue: Rc<Queue>) -> Result<Self> {
        let block = env.buf(BLOCK_BYTES as usize)?;
        block.write().fill(0);
        let (env, path) = (env.clone(), path.to_owned());
        Ok(Self { env, path, storage, queue, block, number: 0, used: 0, written: 0 })
    }

    /// Writes entries to the trace file until the queue is closed or a write fails.
    pub async fn run(mut self) {
        if let Err(error) = self.write_all().await {
            self.queue.fail(error);
        }
    }

    /// Writes entries to the trace file until the queue is closed. Sleeps without a timer while the queue is empty.
    async fn write_all(&mut self) -> Result<()> {
        self.begin().await?;
        while !self.queue.is_done() {
            self.queue.has(1).await;
            self.env.within(GATHER, self.queue.has(SLOTS)).await;
            while let Some(entry) = self.queue.pop() {
                self.put(&entry.encode()).await?;
            }
            self.write_out().await?;
        }
        Ok(())
    }

    /// Writes the header of a new file, or finds the end of an existing trace; then writes the start entry.
    async fn begin(&mut self) -> Result<()> {
        if self.storage.facts().created {
            self.put(&Header.encode()).await?;
        } else {
            self.find_end().await?;
        }
        let wall_ns = self.env.wall().as_nanos() as u64;
        self.put(&Entry::Start { wall_ns }.encode()).await?;
        self.write_out().await
    }

    /// Finds the end of an existing trace. Blocks are filled in order, so a binary search finds the last used block.
    async fn find_end(&mut self) -> Result<()> {
        self.load(0).await?;
        Header::parse(&self.slot(0)).map_err(|why| {
            error!(InUse, "{} is no trace file, so it is not changed: {why}", self.path)
        })?;
        let (mut begun, mut blank) = (0, self.blocks());
        while blank - begun > 1 {
            let middle = begun + (blank - begun) / 2;
            self.load(middle).await?;
            *(if self.is_used(0) { &mut begun } else { &mut blank }) = middle;
        }
        self.load(begun).await?;
        self.used = (0..SLOTS).find(|slot| !self.is_used(*slot)).unwrap_or(SLOTS);
        self.written = self.used;
        if self.used == SLOTS {
            self.next_block();
        }
        Ok(())
    }

    fn blocks(&self) -> u64 {
        self.storage.facts().size / BLOCK_BYTES
    }

    fn slot(&self, slot: usize) -> Slot {
        let from = slot * SLOT_BYTES;
        self.block.read()[from..from + SLOT_BYTES].try_into().expect("a slot's bytes")
    }

    fn is_used(&self, slot: usize) -> bool {
        self.slot(slot) != [0; SLOT_BYTES]
    }

    async fn load(&mut self, number: u64) -> Result<()> {
        let io = DiskIo::Read { offset: number * BLOCK_BYTES, into: self.block.clone() };
        let outcome = self.storage.start(io).await;
        outcome.result?;
        self.block = outcome.buf.unwrap_or_else(|| self.block.clone());
        self.number = number;
        Ok(())
    }

    /// Adds a slot to the block, and writes the block to the file if it is full.
    async fn put(&mut self, slot: &Slot) -> Result<()> {
        if self.number == self.blocks() {
            let size = format_size(self.storage.facts().size);
            bail!(NoSpace, "trace file {} is full at its size of {size}", self.path);
        }
        let from = self.used * SLOT_BYTES;
        self.block.write()[from..from + SLOT_BYTES].copy_from_slice(slot);
        self.used += 1;
        if self.used == SLOTS {
            self.write_out().await?;
            self.next_block();
        }
        Ok(())
    }

    fn next_block(&mut self) {
        self.block.write().fill(0);
        self.number += 1;
        self.used = 0;
        self.written = 0;
    }

    /// Writes the used slots of the block that are not in the file yet, rounded out to complete sectors of the file.
    async fn write_out(&mut self) -> Result<()> {
        if self.written == self.used {
            return Ok(());
        }
        let unit = self.storage.facts().block_size as usize;
        let from = self.written * SLOT_BYTES / unit * unit;
        let to = (self.used * SLOT_BYTES).next_multiple_of(unit);
        let (offset, data) = (self.number * BLOCK_BYTES + from as u64, self.block.slice(from..to));
        self.storage.start(DiskIo::Write { offset, data, fua: false }).await.result?;
        self.written = self.used;
        self.queue.wrote();
        Ok(())
    }
}
