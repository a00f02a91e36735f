//! The first checksums of a lower that is not known to have zeros: a job with a durable progress.

use std::cell::Cell;

use block::seeded::{self, Bug};
use block::{ByteRange, Mode as LockMode, Result};
use meta::vault::Array;
use zerocopy::little_endian::U64;

use super::device::{Inner, Mode};
use super::objects::PROGRESS;
use super::sums::{BLOCK_BYTES, PIECE_BLOCKS, PIECE_BYTES, ZEROS, blocks_of};

/// The progress of the first checksums: blocks from `done` on have none.
pub struct Progress {
    facts: Array<U64>,
    done: Cell<u64>,
    blocks: u64,
}

impl Progress {
    /// Reads the progress of a device with so many blocks.
    pub async fn open(facts: Array<U64>, blocks: u64) -> Result<Self> {
        let done = facts.get(PROGRESS).await?.get();
        Ok(Self { facts, done: Cell::new(done.min(blocks)), blocks })
    }

    /// Whether a block has a checksum.
    pub fn has(&self, block: u64) -> bool {
        block < self.done.get()
    }

    /// Whether all blocks have checksums.
    pub fn is_complete(&self) -> bool {
        self.missing() == 0
    }

    /// Returns the number of blocks without a checksum.
    pub fn missing(&self) -> u64 {
        self.blocks - self.done.get()
    }
}

impl Inner {
    /// Makes the first checksums of all blocks. An error ends the job until the next opening.
    pub async fn make_sums(&self) {
        // Bytes of an earlier time are durable before their checksums are.
        if self.vault.sync_with_data().await.is_err() {
            return;
        }
        while !self.progress.is_complete() && !self.is_closing.get() {
            if self.make_piece().await.is_err() {
                break;
            }
        }
    }

    /// Makes the checksums of the next blocks. Their bytes may not be flushed, but then their regions are marked.
    async fn make_piece(&self) -> Result<()> {
        let start = self.progress.done.get() * BLOCK_BYTES;
        let end = self.info.size.min(start + PIECE_BYTES);
        let range = ByteRange::between(start, end).expect("blocks are missing");
        let room = self.env.pool().wait_for(range.len() as usize).await?;
        let _alone = self.lock.lock(range, LockMode::Exclusive).await;
        if let Mode::Journal(journal) = &self.mode {
            journal.until_in_place(0, range).await?;
        }
        let found = self.data.read(range, room).await?;
        let (first, count) = blocks_of(range);
        let mut sums = [ZEROS; PIECE_BLOCKS];
        let sums = &mut sums[..count];
        self.sums.compute(range, &found, sums);
        let done = first + count as u64;
        let mut transaction = self.vault.begin();
        self.progress.facts.set(&mut transaction, PROGRESS, &U64::new(done))?;
        if seeded::on(Bug::ProgressAhead) {
            self.vault.post(transaction).await?;
            transaction = self.vault.begin();
            self.progress.done.set(done);
        }
        self.sums.set(&mut transaction, first, sums)?;
        self.vault.post(transaction).await?;
        self.progress.done.set(done);
        self.doubts.remove(range);
        Ok(())
    }
}
