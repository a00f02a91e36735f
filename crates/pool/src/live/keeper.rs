//! The tasks of a pool that work without a request: the keeper flushes and writes checkpoints, others follow each
//! checkpoint.

use std::rc::Rc;
use std::time::Duration;

use block::first;

use super::commit::Change;
use super::pool::{CHANGES_HALF, Inner, UNFLUSHED_BYTES_MAX};
use crate::root::SuperblockFlags;

/// Longest time that acknowledged data stay without a flush.
const UNFLUSHED_MAX: Duration = Duration::from_secs(5);

/// Time between two looks of the keeper, if nothing wakes it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Inner {
    /// Starts the keeper, and the tasks that follow checkpoints. From now on writes wait for space below.
    pub fn begin_keeping(self: &Rc<Self>) {
        self.patience().set(true);
        let pool = self.clone();
        self.tasks.spawn("the keeper of a pool", async move { pool.keep_house().await });
        let pool = self.clone();
        self.tasks.spawn("proofs of a pool", async move { pool.prove_last_records().await });
        // It commits, and a commit may wait until the keeper has made room in the log.
        self.after_checkpoints("removals of a pool", async |pool| {
            // An error makes the pool refuse changes, and the next request reports it.
            let ended = pool.ended.take();
            if !ended.is_empty() {
                let _ = pool.release_holds(ended).await;
            }
            let _ = pool.thin_all().await;
        });
        if self.room.with(|space| space.discards()) {
            self.after_checkpoints("discards of a pool", async |pool| pool.discard_free().await);
        }
    }

    /// Starts a task that calls `work` now and after each checkpoint.
    fn after_checkpoints(
        self: &Rc<Self>,
        name: &'static str,
        work: impl AsyncFn(&Rc<Self>) + 'static,
    ) {
        let pool = self.clone();
        self.tasks.spawn(name, async move {
            while !pool.tasks.is_closing() && pool.check_writable().is_ok() {
                let seen = pool.counted.get();
                work(&pool).await;
                let woken = pool
                    .changes
                    .until(|| pool.counted.get() != seen || pool.check_writable().is_err());
                let closing = pool.tasks.changed().until(|| pool.tasks.is_closing());
                let _ = first(woken, closing).await;
            }
        });
    }

    async fn keep_house(self: Rc<Self>) {
        // Commits that wait for room in the log end before the keeper does.
        let is_ending = || self.tasks.is_closing() && !self.commits.has_leader.get();
        while !is_ending() && self.check_writable().is_ok() {
            if self.needs_checkpoint() {
                self.wants_checkpoint.set(false);
                let _ = self.checkpoint(SuperblockFlags(0)).await;
                continue;
            }
            let since = self.log.unflushed_since();
            let is_late = since.is_some_and(|since| self.env.now().since(since) >= UNFLUSHED_MAX);
            if is_late || self.needs_flush() {
                let _ = self.flush().await;
                continue;
            }
            let woken =
                self.changes.until(|| self.needs_checkpoint() || self.needs_flush() || is_ending());
            let closing = self.tasks.changed().until(is_ending);
            let seen = self.log.numbers().written;
            let _ = first(first(woken, self.env.sleep(LOOK_EVERY)), closing).await;
            if self.needs_proof(seen) && !is_ending() {
                self.wants_proof.set(true);
                self.changed();
            }
        }
    }

    /// Writes an empty record, and flushes it. It states that the last records are flushed, so the blocks that they have
    /// freed are free. It frees none, so no further record follows.
    async fn prove_last_records(self: Rc<Self>) {
        let wants_proof = || self.wants_proof.get();
        while !self.tasks.is_closing() && self.check_writable().is_ok() {
            let closing = self.tasks.changed().until(|| self.tasks.is_closing());
            let _ = first(self.changes.until(wants_proof), closing).await;
            if self.wants_proof.take() {
                // An error makes the pool refuse changes, and the next request reports it.
                let _ = self.commit(Change::Rows(Vec::new(), Vec::new())).await;
                let _ = self.flush().await;
            }
        }
    }

    /// Whether no record has followed the record `seen`, all are flushed, and blocks that they have freed wait for proof.
    fn needs_proof(&self, seen: u64) -> bool {
        let numbers = self.log.numbers();
        (numbers.written, numbers.flushed) == (seen, seen)
            && self.room.with(|space| space.needs_proof())
    }

    /// Whether half of the data that may be unflushed is.
    fn needs_flush(&self) -> bool {
        self.unflushed_bytes.get() >= UNFLUSHED_BYTES_MAX / 2
    }

    fn needs_checkpoint(&self) -> bool {
        self.wants_checkpoint.get()
            || self.log.is_half_full()
            || self.fresh_changes.get() >= CHANGES_HALF
    }
}
