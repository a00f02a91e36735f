//! The durable marks of regions.

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{Error, Result};

use crate::vault::{Bitmap, Vault};

/// Maximum number of runs of regions in one transaction.
const RUNS_AT_ONCE: usize = 64;

/// Maximum number of pages of the bitmap, beside the first, that one transaction changes. The smallest cache of a vault
/// has room for them.
const PAGES_AT_ONCE: usize = 4;

/// The place of the durable marks of a device's regions. Calls of [`Marks::mark`] and [`Marks::clear`] may overlap, for
/// different regions.
pub trait Marks {
    /// Marks regions, which are in order, and returns once all marks are durable.
    ///
    /// # Errors
    /// If a mark may not be durable.
    fn mark(&self, regions: Vec<u64>) -> LocalFuture<Result<()>>;

    /// Clears the marks of regions, which are in order. A power cut may undo it, as long as each later mark is durable.
    ///
    /// # Errors
    /// If all regions are still marked; or if [`Marks::failure`] has an error, after which the marks are unknown.
    fn clear(&self, regions: Vec<u64>) -> LocalFuture<Result<()>>;

    /// Returns the error after which no mark is cleared and some marks are unknown.
    fn failure(&self) -> Option<Error>;

    /// Returns the number of `regions`, at least one, from the first on, that one call of [`Marks::clear`] takes.
    fn step(&self, regions: &[u64]) -> usize {
        regions.len()
    }

    /// Returns the most regions that may be cleared now. It is called at each time when quiet regions are looked for.
    fn clears_now(&self) -> usize {
        usize::MAX
    }

    /// Returns the number of further writes, of the same length and in sequence, whose regions are marked with the first
    /// one. So sequential writes share marks.
    fn ahead(&self) -> u64 {
        0
    }

    /// Whether the owner flushes its data so that quiet regions are cleared, although no client flushes.
    fn flushes(&self) -> bool {
        false
    }

    /// Flushes the data of the owner, which notes the flush as any other.
    ///
    /// # Errors
    /// If the flush has failed.
    fn flush(&self) -> LocalFuture<Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Marks in a bitmap object of a vault.
pub(super) struct VaultMarks {
    pub vault: Vault,
    pub bitmap: Bitmap,
}

impl VaultMarks {
    /// Posts a transaction that marks (`value`) or clears regions of one of the [`parts`].
    fn post(&self, part: &[u64], value: bool) -> LocalFuture<Result<()>> {
        let mut transaction = self.vault.begin();
        let put = part
            .chunk_by(|one, next| one + 1 == *next)
            .try_for_each(|run| self.bitmap.put(&mut transaction, run[0], run.len() as u64, value));
        let vault = self.vault.clone();
        Box::pin(async move {
            put?;
            vault.post(transaction).await.map(drop)
        })
    }
}

impl Marks for VaultMarks {
    fn mark(&self, regions: Vec<u64>) -> LocalFuture<Result<()>> {
        let posts: Vec<_> = parts(&regions).into_iter().map(|part| self.post(part, true)).collect();
        let vault = self.vault.clone();
        Box::pin(async move {
            for post in posts {
                post.await?;
            }
            if seeded::on(Bug::MarkNotFlushed) {
                return Ok(());
            }
            vault.sync().await
        })
    }

    fn clear(&self, regions: Vec<u64>) -> LocalFuture<Result<()>> {
        self.post(&regions, false)
    }

    fn failure(&self) -> Option<Error> {
        self.vault.failure()
    }

    fn step(&self, regions: &[u64]) -> usize {
        parts(regions).first().map_or(0, |part| part.len())
    }
}

/// Divides regions, which are in order, into parts that one transaction each can change in a bitmap object.
pub fn parts(regions: &[u64]) -> Vec<&[u64]> {
    let (mut all, mut start, mut runs, mut pages) = (Vec::new(), 0, 0, 0);
    for at in 0..regions.len() {
        let page = |at: usize| Bitmap::page_of(regions[at]);
        let begins_page = at == start || page(at - 1) != page(at);
        let begins_run = at == start || regions[at - 1] + 1 != regions[at];
        runs += usize::from(begins_run);
        pages += usize::from(begins_page);
        if runs > RUNS_AT_ONCE || pages > PAGES_AT_ONCE {
            all.push(&regions[start..at]);
            (start, runs, pages) = (at, 1, 1);
        }
    }
    if start < regions.len() {
        all.push(&regions[start..]);
    }
    all
}
