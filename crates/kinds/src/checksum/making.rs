//! The first checksums of a lower that is not known to have zeros: a job with a durable progress.

use std::cell::Cell;
use std::time::Duration;

use block::env::LocalFuture;
use block::job::{Cancel, Job, Outcome, Steps, Work};
use block::seeded::{self, Bug};
use block::{ByteRange, Error, Mode as LockMode, Progress as Done, Result, TaskGroup, bail};
use meta::vault::{Array, Vault};
use zerocopy::little_endian::U64;

use super::device::{Inner, Mode};
use super::objects::{PAUSED, PROGRESS};
use super::sums::{BLOCK_BYTES, PIECE_BLOCKS, PIECE_BYTES, ZEROS, blocks_of};
use super::write::ZERO_BYTES;

/// Time after which a job that an error has stopped begins again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The progress of the first checksums: blocks from `done` on have none.
pub struct Progress {
    facts: Array<U64>,
    done: Cell<u64>,
    /// The durable part of `done`.
    durable: Cell<u64>,
    blocks: u64,
    /// Whether the vault has the job as paused.
    is_paused: Cell<bool>,
}

impl Progress {
    /// Reads the progress of a device with so many blocks.
    pub async fn open(facts: Array<U64>, blocks: u64) -> Result<Self> {
        let done = facts.get(PROGRESS).await?.get();
        let is_paused = facts.get(PAUSED).await?.get() != 0;
        let (done, is_paused) = (Cell::new(done.min(blocks)), Cell::new(is_paused));
        Ok(Self { facts, durable: done.clone(), done, blocks, is_paused })
    }

    /// Returns the job of the first checksums. It has not begun.
    pub fn job(&self) -> Job {
        match self.is_complete() {
            true => Job::done(),
            false => Job::new(self.is_paused.get()),
        }
    }

    /// Whether a block has a checksum.
    pub fn has(&self, block: u64) -> bool {
        block < self.done.get()
    }

    /// Whether all blocks have checksums.
    pub fn is_complete(&self) -> bool {
        self.missing() == 0
    }

    /// Makes the progress and its checksums durable. Otherwise a power cut would permit other bytes where reads have verified
    /// the blocks.
    pub async fn sync(&self, vault: &Vault) -> Result<()> {
        let done = self.done.get();
        if done > self.durable.get() && !seeded::on(Bug::FirstSumsUnflushed) {
            vault.sync_with_data().await?;
            self.durable.set(done.max(self.durable.get()));
        }
        Ok(())
    }

    /// Returns the number of blocks without a checksum.
    pub fn missing(&self) -> u64 {
        self.blocks - self.done.get()
    }
}

/// Each step posts its checksums together with the progress, so the job holds no guard after a step.
impl Work for Inner {
    type Guard = ();
    /// Whether the run has flushed the bytes of an earlier time.
    type Run = bool;
    const TASK: &'static str = "checksums";
    const WHEN_DONE: Option<&'static str> = Some("all blocks have checksums");

    fn job(&self) -> &Job {
        &self.job
    }

    fn tasks(&self) -> &TaskGroup {
        &self.tasks
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn committed(&self) -> LocalFuture<()> {
        // A device with an open vault is committed.
        Box::pin(std::future::ready(()))
    }

    fn begin(&self) -> bool {
        false
    }

    async fn step(&self, steps: &mut Steps<'_, Self>) -> Result<Outcome<()>> {
        if self.progress.is_complete() {
            return Ok(Outcome::Done);
        }
        if !*steps.run {
            // Bytes of an earlier time are durable before their checksums are.
            self.vault.sync_with_data().await?;
            self.record().await?;
            *steps.run = true;
        }
        if self.skip_zeros().await? {
            return Ok(Outcome::Unchanged);
        }
        let Some(step) = steps.throttled(self.pace.step_of(PIECE_BYTES)).await? else {
            return Ok(Outcome::Unchanged);
        };
        let bytes = self.make_piece(step.bytes()).await?;
        step.done(bytes);
        Ok(Outcome::Unchanged)
    }

    /// Stores whether the job is paused, if that has changed.
    async fn record(&self) -> Result<()> {
        let is_paused = self.job.is_pausing();
        if self.progress.is_paused.get() == is_paused {
            return Ok(());
        }
        let mut transaction = self.vault.begin();
        self.progress.facts.set(&mut transaction, PAUSED, &U64::new(is_paused.into()))?;
        self.vault.commit(transaction).await?;
        self.progress.is_paused.set(is_paused);
        Ok(())
    }

    fn retry_after(&self, _: &Error) -> Option<Duration> {
        Some(RETRY_AFTER)
    }

    fn cancel(&self) -> Result<Cancel> {
        bail!(
            InUse,
            "bytes without checksums are not verified; pause the job, or remove the device"
        )
    }

    fn progress(&self) -> (String, Done) {
        let (all, left) = (self.info.size, self.progress.missing() * BLOCK_BYTES);
        let done = Done { done_bytes: all - left, all_bytes: all, of_bytes: all };
        ("of bytes that had none".to_owned(), done)
    }
}

impl Inner {
    /// Returns the next bytes without checksums, at most `most`.
    fn next_without(&self, most: u64) -> ByteRange {
        let start = self.progress.done.get() * BLOCK_BYTES;
        let bytes = (most - most % BLOCK_BYTES).max(BLOCK_BYTES);
        let end = self.info.size.min(start + bytes);
        ByteRange::between(start, end).expect("blocks are missing")
    }

    /// Waits until the changes of a locked range are in place.
    async fn until_in_place(&self, range: ByteRange) -> Result<()> {
        match &self.mode {
            Mode::Journal(journal) => journal.until_in_place(0, range).await,
            Mode::Regions(_) => Ok(()),
        }
    }

    /// Stores checksums of zeros for the next blocks, if the lower reports them as zeros. Returns whether it does.
    async fn skip_zeros(&self) -> Result<bool> {
        let range = self.next_without(ZERO_BYTES);
        let _alone = self.lock.lock(range, LockMode::Exclusive).await;
        self.until_in_place(range).await?;
        if !self.data.is_zero(range).await? {
            return Ok(false);
        }
        let (first, count) = blocks_of(range);
        let (done, mut transaction) = (first + count as u64, self.vault.begin());
        // A write whose bytes a power cut has lost may have left its checksum.
        self.sums.zero(&mut transaction, first, count as u64)?;
        self.note_done(transaction, done).await?;
        self.doubts.remove(range);
        Ok(true)
    }

    /// Makes the checksums of the next blocks, of `most` bytes at most. Their bytes may not be flushed, but then their regions
    /// are marked. Returns the number of bytes.
    async fn make_piece(&self, most: u64) -> Result<u64> {
        let range = self.next_without(most.min(PIECE_BYTES));
        let room = self.env.pool().wait_for(range.len() as usize).await?;
        let _alone = self.lock.lock(range, LockMode::Exclusive).await;
        self.until_in_place(range).await?;
        let found = self.data.read(range, room).await?;
        let (first, count) = blocks_of(range);
        let mut sums = [ZEROS; PIECE_BLOCKS];
        let sums = &mut sums[..count];
        self.sums.compute(range, &found, sums);
        let done = first + count as u64;
        let mut transaction = self.vault.begin();
        if seeded::on(Bug::ProgressAhead) {
            self.note_done(transaction, done).await?;
            transaction = self.vault.begin();
        }
        self.sums.set(&mut transaction, first, sums)?;
        self.note_done(transaction, done).await?;
        self.doubts.remove(range);
        Ok(range.len())
    }

    /// Posts a transaction, with the progress to block `done`.
    async fn note_done(&self, mut transaction: meta::vault::Transaction, done: u64) -> Result<()> {
        self.progress.facts.set(&mut transaction, PROGRESS, &U64::new(done))?;
        self.vault.post(transaction).await?;
        self.progress.done.set(done);
        Ok(())
    }
}
