//! Resync of a copy that was left behind.

use block::{ByteRange, Error, ErrorKind, Lower, Op, Result};

use super::geometry::{LOG_START, PageNumber};
use super::page::PAGE_BYTES;
use super::replicas::CopyState;
use super::superblock::Position;
use super::{Inner, Vault, open};

/// Pages that are copied in one batch; between batches a checkpoint may run.
const BATCH: usize = 64;

impl Vault {
    /// Resyncs a copy of the vault that was left behind, or was replaced by a blank disk: copies every page to it while
    /// the vault is in use. The former content of the disk is lost.
    ///
    /// # Errors
    /// `Invalid` for a copy that is current or missing; errors of its disk, after which it stays behind; `Faulted` if
    /// the vault has failed, `ReadOnly`.
    pub async fn rejoin(&self, copy: usize) -> Result<()> {
        let inner = &self.0;
        inner.check_writable()?;
        let lower = (copy < self.copies()).then(|| inner.replicas.lower(copy)).flatten();
        let behind = lower.filter(|_| inner.replicas.copy_state(copy) == CopyState::Behind);
        let lower = behind.cloned().ok_or_else(|| {
            let words = format!("copy {copy} of the vault is missing, or was not left behind");
            Error::new(ErrorKind::Invalid, words)
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
    /// Erases the superblocks and the log of a copy, so that nothing on it is taken for this vault or its records.
    async fn blank(&self, copy: usize, lower: &Lower) -> Result<()> {
        self.replicas.set_slot(copy, None);
        open::write_first(&self.env, lower, None).await?;
        let log_bytes = self.replicas.geometry.log_bytes;
        let step = crate::io::step(lower) as u64;
        for from in (0..log_bytes).step_by(step as usize) {
            let part = ByteRange::new(LOG_START + from, step.min(log_bytes - from));
            let range = part.expect("a part has bytes");
            lower.call(Op::WriteZeroes { range, unmap: false, fua: false }).await.result?;
        }
        lower.flush().await?;
        // Writes a superblock that declares the copy as behind. So a power cut cannot leave it without a superblock
        // once the others declare it as current.
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
        // The log after this checkpoint is on the copy as well.
        self.checkpoint(true).await?;
        self.copy_pages(copy, lower).await?;
        let _no_record = self.commits.logging.lock().await;
        let _turn = self.checkpointing.lock().await;
        self.check_joining(copy)?;
        // Records of an epoch that the copy took no part in do not belong to its log.
        self.replicas.raise_epoch();
        let epoch = self.replicas.epoch().number;
        self.commits.head.set(Position { epoch, ..self.commits.head.get() });
        self.replicas.flush().await;
        self.check_joining(copy)?;
        self.replicas.set_copy_state(copy, CopyState::Current);
        self.checkpoint_alone(true).await?;
        match self.replicas.copy_state(copy) {
            CopyState::Current => Ok(()),
            _ => self.check_joining(copy),
        }
    }

    fn check_joining(&self, copy: usize) -> Result<()> {
        match self.replicas.copy_state(copy) {
            CopyState::Joining => Ok(()),
            _ => Err(self.replicas.fault(copy).unwrap_or_else(|| {
                let words = format!("copy {copy} of the vault failed again during its resync");
                Error::new(ErrorKind::Stopped, words)
            })),
        }
    }

    /// Copies every page that the map names, in the order of their numbers.
    async fn copy_pages(&self, copy: usize, lower: &Lower) -> Result<()> {
        let mut next = 0;
        while next < self.replicas.geometry.all_pages() {
            // A checkpoint during a batch could overwrite pages that are being copied.
            let _turn = self.checkpointing.lock().await;
            for _ in 0..BATCH {
                if next >= self.replicas.geometry.all_pages() {
                    break;
                }
                next = self.copy_page(next, copy, lower).await?;
            }
            drop(_turn);
            self.check_joining(copy)?;
            self.check_writable()?;
            self.env.give_way().await;
        }
        Ok(())
    }

    /// Copies a page, and returns the number of the next one.
    async fn copy_page(&self, number: PageNumber, copy: usize, to: &Lower) -> Result<PageNumber> {
        let Some(pointer) = self.tree.pointer(&self.replicas, number).await? else {
            return Ok(number + 1);
        };
        let (page, _) = self.replicas.read_page(number, &pointer).await?;
        let buf = self.env.pool().scratch(PAGE_BYTES).await?;
        buf.write().copy_from_slice(page.bytes());
        let at = self.replicas.geometry.home(number, pointer.home);
        let range = ByteRange::new(at, PAGE_BYTES as u64).expect("a page has bytes");
        if let Err(error) = to.write(range, buf).await {
            self.replicas.fail(copy, &error);
            return Err(error);
        }
        Ok(number + 1)
    }
}
