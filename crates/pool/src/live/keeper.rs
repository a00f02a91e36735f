//! The keeper of a pool: the task that flushes and writes checkpoints without a request.

use std::rc::Rc;
use std::time::Duration;

use block::first;

use super::pool::{CHANGES_HALF, Inner, UNFLUSHED_BYTES_MAX};
use crate::root::SuperblockFlags;

/// Longest time that acknowledged data stay without a flush.
const UNFLUSHED_MAX: Duration = Duration::from_secs(5);

/// Time between two looks of the keeper, if nothing wakes it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Inner {
    /// Starts the keeper.
    pub fn begin_keeping(self: &Rc<Self>) {
        let pool = self.clone();
        self.tasks.spawn("the keeper of a pool", async move { pool.keep_house().await });
    }

    async fn keep_house(self: Rc<Self>) {
        while !self.tasks.is_closing() && self.check_writable().is_ok() {
            if self.needs_checkpoint() {
                self.wants_checkpoint.set(false);
                // An error makes the pool refuse changes, and the next request reports it.
                let _ = self.checkpoint(SuperblockFlags(0)).await;
                let ended = self.ended.take();
                if !ended.is_empty() {
                    let _ = self.release_holds(ended).await;
                }
                let _ = self.thin_all().await;
                continue;
            }
            let since = self.log.unflushed_since();
            let is_late = since.is_some_and(|since| self.env.now().since(since) >= UNFLUSHED_MAX);
            if is_late || self.needs_flush() {
                let _ = self.flush().await;
                continue;
            }
            let woken = self.changes.until(|| self.needs_checkpoint() || self.needs_flush());
            let closing = self.tasks.changed().until(|| self.tasks.is_closing());
            let _ = first(first(woken, self.env.sleep(LOOK_EVERY)), closing).await;
        }
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
