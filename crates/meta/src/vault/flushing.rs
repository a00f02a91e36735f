//! The steps of a record after its write: *flushed*, then *proven*.
//!
//! A record is flushed when the copies and the lower with its data were flushed after its write. It is proven when a
//! later record, or a superblock, that contains its number as the flushed one is itself flushed: from then on, every
//! replay finds that number, and takes the record regardless of the data that it names. Only then may these data change
//! in place, and may the space that the record has freed be used again.

use block::seeded::{self, Bug};
use block::{Result, ScopeGuard};

use super::commit::{PROVEN_WITHIN, Pending, SEALED_AFTER};
use super::transaction::DirectoryReservations;
use super::{Inner, Vault};

impl Vault {
    /// Makes all transactions durable that were posted before this call, with their data.
    ///
    /// # Errors
    /// `Faulted` if no copy remains, or if the vault had failed before; the error of the flush of the data.
    pub async fn sync(&self) -> Result<()> {
        self.0.flush_to(self.0.commits.written()).await
    }

    /// Proves all records that were posted before this call: flushes them, writes a record that contains the number of the
    /// last one as flushed, and flushes this record.
    ///
    /// # Errors
    /// As [`Vault::post`] and [`Vault::sync`].
    pub async fn prove(&self) -> Result<()> {
        self.0.prove(self.0.commits.last.get()).await
    }

    /// Makes durable all that was written to the lower with the data before this call, and all transactions that were
    /// posted before.
    ///
    /// # Errors
    /// As [`Vault::sync`].
    pub async fn sync_with_data(&self) -> Result<()> {
        let inner = &self.0;
        if inner.replicas.flushed() >= inner.commits.written() {
            return match &inner.data {
                Some(place) => place.lower.flush().await,
                None => Ok(()),
            };
        }
        inner.check_writable()?;
        // A flush that runs already may have begun before the last write of data.
        inner.flush_to_end().await
    }

    /// Whether the record with this number is flushed, and a flushed record or superblock contains that.
    pub fn is_proven(&self, number: u64) -> bool {
        self.0.replicas.proven() >= number
    }

    /// Whether reservations wait for the proof of a record ([`Transaction::keep_until_proven`]).
    ///
    /// [`Transaction::keep_until_proven`]: super::Transaction::keep_until_proven
    pub fn holds_until_proof(&self) -> bool {
        !self.0.commits.held.borrow().is_empty()
    }

    /// Waits until the record with this number is proven, by a later flush or checkpoint. Flushes nothing itself.
    ///
    /// # Errors
    /// `Faulted` if the vault fails before.
    pub async fn until_proven(&self, number: u64) -> Result<()> {
        let inner = &self.0;
        inner.progress.until(|| self.is_proven(number) || self.failure().is_some()).await;
        if self.is_proven(number) { Ok(()) } else { inner.check_writable() }
    }
}

impl Inner {
    /// Waits until the record `number` is flushed on every current copy, and its data on their lower. Callers that wait
    /// at the same time share a flush.
    pub(super) async fn flush_to(&self, number: u64) -> Result<()> {
        while self.replicas.flushed() < number {
            let _turn = self.commits.flushing.lock().await;
            if self.replicas.flushed() < number {
                self.check_writable()?;
                self.flush_to_end().await?;
            }
        }
        Ok(())
    }

    /// Flushes as [`Self::flush_once`]. If the caller drops the future, a copy that could not be flushed is still
    /// recorded as left behind.
    async fn flush_to_end(&self) -> Result<()> {
        let vault = self.me.upgrade().expect("a vault outlives its calls");
        let flushed =
            async move { vault.flush_once().await.inspect_err(|error| vault.fail(error)) };
        self.env.run_to_end("a vault's flush", flushed).await
    }

    /// Flushes in parallel every copy and the lower with the data. All records that were written before this call are
    /// then flushed.
    pub(super) async fn flush_once(&self) -> Result<()> {
        let (written, stated) = (self.commits.written(), self.commits.stated.get());
        if seeded::on(Bug::FlushedAhead) {
            self.replicas.note_flushed(written, stated);
        }
        let beside = self.data.as_ref().and_then(|place| place.start_flush());
        self.replicas.flush().await;
        if let Some(flush) = beside {
            flush.await.result?;
        }
        self.replicas.settle().await?;
        self.replicas.note_flushed(written, stated);
        self.note_proven();
        Ok(())
    }

    /// Waits until the record `number` is proven.
    pub(super) async fn prove(&self, number: u64) -> Result<()> {
        if self.replicas.proven() >= number {
            return Ok(());
        }
        let proving = &self.commits.proving;
        proving.set(proving.get() + 1);
        let _one = ScopeGuard::new(|| {
            proving.set(proving.get() - 1);
            self.progress.wake();
        });
        self.check_writable()?;
        self.flush_to(number).await?;
        let mut proof = self.commits.written();
        if self.commits.stated.get() < number && self.replicas.proven() < number {
            let empty = |answer| Pending {
                changes: Vec::new(),
                count: 0,
                pages: self.no_pages(),
                plans: DirectoryReservations::none(self),
                named: Vec::new(),
                writes: Vec::new(),
                kept: Vec::new(),
                until_proven: Vec::new(),
                answer,
            };
            proof = self.queued(empty).await?;
        }
        if self.replicas.proven() >= number {
            return Ok(());
        }
        self.flush_to(proof).await
    }

    /// Releases what waited for the records that are proven now.
    pub(super) fn note_proven(&self) {
        let proven = self.replicas.proven();
        if self.commits.released.replace(proven) == proven {
            return;
        }
        if let Some(place) = &self.data {
            place.forget_named(proven);
        }
        let mut held = self.commits.held.borrow_mut();
        let count = held.partition_point(|(number, _)| *number <= proven);
        let released: Vec<_> = held.drain(..count).collect();
        drop(held);
        drop(released);
        self.progress.wake();
    }

    /// Starts a timer, unless it runs, that proves the last record once no transaction was posted for
    /// [`SEALED_AFTER`]. Under a load without flushes it proves records every [`PROVEN_WITHIN`], so that a replay has few
    /// data to verify.
    pub(super) fn seal_later(&self) {
        let is_proven = self.replicas.proven() >= self.commits.last.get();
        if is_proven || self.commits.seal_timer.replace(true) {
            return;
        }
        let (me, env) = (self.me.clone(), self.env.clone());
        let mut unproven = (self.commits.last.get(), env.now());
        self.env.spawn("a vault's last record", async move {
            loop {
                env.sleep(SEALED_AFTER).await;
                let Some(vault) = me.upgrade() else { return };
                let (commits, now) = (&vault.commits, env.now());
                let last = commits.last.get();
                if now.since(commits.last_at.get()) >= SEALED_AFTER {
                    commits.seal_timer.set(false);
                    // The timer of the next transaction tries again.
                    let _ = vault.prove(last).await;
                    return;
                }
                let (number, since) = unproven;
                let is_late = now.since(since) >= PROVEN_WITHIN;
                if is_late && vault.replicas.proven() < number {
                    // After an error the vault has failed.
                    let _ = vault.prove(last).await;
                }
                if vault.replicas.proven() >= number {
                    unproven = (last, now);
                }
            }
        });
    }
}
