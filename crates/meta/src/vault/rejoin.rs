//! Resync of a copy of a vault that was left behind.

use block::seeded::{self, Bug};
use block::{ByteRange, Lower, Op, Result, error};

use super::geometry::LOG_START;
use super::number::PageNumber;
use super::page::PAGE_BYTES;
use super::replicas::CopyState;
use super::superblock::Position;
use super::{Inner, Vault, open};

/// Number of pages that a resync copies in one batch. A checkpoint may run between two batches.
const BATCH: usize = 64;

impl Vault {
    /// Resyncs copy `copy` of the vault, which was left behind or replaced by a blank disk: copies every page to its
    /// disk while the vault is in use. The former content of the disk is lost.
    ///
    /// # Errors
    /// `Invalid` for a copy that is current or missing; errors of its disk, after which the copy is still left behind;
    /// `Faulted` if the vault has failed; `ReadOnly`.
    pub async fn rejoin(&self, copy: usize) -> Result<()> {
        let inner = &self.0;
        inner.check_writable()?;
        let lower = (copy < self.copies()).then(|| inner.replicas.lower(copy)).flatten();
        let behind = lower.filter(|_| inner.replicas.copy_state(copy) == CopyState::Behind);
        let lower = behind.cloned().ok_or_else(|| {
            error!(Invalid, "copy {copy} of the vault is missing or current: it cannot be resynced")
        })?;
        inner.blank(copy, &lower).await?;
        let joined = inner.join(copy, &lower).await;
        if joined.is_err() && inner.replicas.copy_state(copy) == CopyState::Joining {
            inner.replicas.set_copy_state(copy, CopyState::Behind);
        }
        joined
    }
}

impl Inner {
    /// Erases the superblocks and the log of a copy, so that no opening takes old bytes for this vault or for its
    /// records.
    async fn blank(&self, copy: usize, lower: &Lower) -> Result<()> {
        self.replicas.set_slot(copy, None);
        open::write_first(&self.env, lower, None).await?;
        let log_bytes = self.replicas.geometry().log_bytes;
        let step = crate::io::step(lower) as u64;
        for from in (0..log_bytes).step_by(step as usize) {
            let part = ByteRange::new(LOG_START + from, step.min(log_bytes - from));
            let range = part.expect("a part has bytes");
            lower.call(Op::WriteZeroes { range, unmap: false, fua: false }).await.result?;
        }
        // A new disk, or a copy that has missed the growth of the vault, gets zeros where its pages will be.
        let start = self.replicas.room_end(copy).max(LOG_START + log_bytes);
        if !seeded::on(Bug::RejoinedUnzeroed) {
            open::take_room(lower, start, self.replicas.geometry().end()).await?;
        }
        lower.flush().await?;
        // This superblock marks the copy as not current. So a power cut cannot leave the copy without a superblock
        // after the other copies have recorded it as current.
        let behind = self.replicas.superblock_behind(copy);
        open::write_first(&self.env, lower, Some(&behind)).await?;
        self.replicas.set_slot(copy, Some(0));
        Ok(())
    }

    async fn join(&self, copy: usize, lower: &Lower) -> Result<()> {
        {
            let _no_record = self.commits.logging.lock().await;
            self.replicas.set_copy_state(copy, CopyState::Joining);
        }
        // Records after this checkpoint are written to the log of this copy too.
        self.checkpoint(true).await?;
        self.copy_pages(copy, lower).await?;
        let _no_record = self.commits.logging.lock().await;
        let _turn = self.checkpointing.lock().await;
        self.check_joining(copy)?;
        // The log of the copy must not contain records of an epoch in which the copy had no superblock.
        self.replicas.raise_epoch();
        let epoch = self.replicas.epoch().number;
        self.commits.continue_at(Position { epoch, ..self.commits.head.get() });
        self.replicas.flush().await;
        self.check_joining(copy)?;
        self.replicas.set_copy_state(copy, CopyState::Current);
        self.checkpoint_alone(true, None).await?;
        match self.replicas.copy_state(copy) {
            CopyState::Current => Ok(()),
            _ => self.check_joining(copy),
        }
    }

    fn check_joining(&self, copy: usize) -> Result<()> {
        match self.replicas.copy_state(copy) {
            CopyState::Joining => Ok(()),
            _ => Err(self.replicas.fault(copy).unwrap_or_else(|| {
                error!(Stopped, "copy {copy} of the vault failed again during its resync")
            })),
        }
    }

    /// Copies every page that the map of pages contains to copy `copy` of the vault, level by level.
    async fn copy_pages(&self, copy: usize, lower: &Lower) -> Result<()> {
        let mut next = Some(0);
        while next.is_some() {
            // A checkpoint during a batch could overwrite a page that is being copied.
            let _turn = self.checkpointing.lock().await;
            for _ in 0..BATCH {
                let Some(number) = next else { break };
                self.copy_page(number, copy, lower).await?;
                next = self.replicas.geometry().after(number);
            }
            drop(_turn);
            self.check_joining(copy)?;
            self.check_writable()?;
            self.env.give_way().await;
        }
        Ok(())
    }

    /// Copies page `number` to copy `copy` of the vault, if the page was ever written.
    async fn copy_page(&self, number: PageNumber, copy: usize, to: &Lower) -> Result<()> {
        let Some(pointer) = self.tree.pointer(&self.replicas, number).await? else {
            return Ok(());
        };
        let (page, _) = self.replicas.read_page(number, &pointer).await?;
        let buf = self.env.pool().scratch(PAGE_BYTES).await?;
        buf.write().copy_from_slice(page.bytes());
        let at = self.replicas.geometry().home(number, pointer.home);
        let range = ByteRange::new(at, PAGE_BYTES as u64).expect("a page has bytes");
        if let Err(error) = to.write(range, buf).await {
            self.replicas.fail(copy, &error);
            return Err(error);
        }
        Ok(())
    }
}
