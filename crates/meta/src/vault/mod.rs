//! Vaults: transactional stores of persistent objects, with one copy on each of 1 to 8 disks.
//!
//! | file | holds |
//! | --- | --- |
//! | `geometry.rs`, `number.rs` | layout of a copy of a vault; numbers and places of its pages |
//! | `superblock.rs`, `record.rs`, `page.rs`, `entry.rs` | on-disk structures, as in `docs/formats/vault.md` |
//! | `replicas.rs` | the copies of a vault, their states, and their superblocks |
//! | `cache.rs`, `tree.rs` | page cache; loading of pages |
//! | `directory.rs` | list of objects, and free pages |
//! | `transaction.rs`, `commit.rs` | transactions, and their way to the log |
//! | `records.rs`, `flushing.rs` | records in flight; flushed and proven records |
//! | `data.rs` | data outside of the vault that records make reachable |
//! | `checkpoint.rs` | checkpoints: changed pages, map of pages, superblocks |
//! | `open.rs`, `replay.rs` | formatting, opening, replay of the log after a crash |
//! | `grow.rs` | growth of a vault at its opening |
//! | `rejoin.rs` | resync of a copy that was left behind |
//! | `check.rs` | verification of every copy of a vault |
//! | `cell.rs`, `array.rs`, `bitmap.rs`, `log.rs` | the objects: [`Cell`], [`Array`], [`Bitmap`], [`Log`] |
//!
//! **In one paragraph.** A post writes a transaction as part of one record to the log of every copy, and applies the
//! changes to pages in memory; a commit also flushes the copies. Each page has two places on a copy, its homes. A checkpoint
//! writes each changed page to the home that the previous checkpoint does not use, then the map of pages (a tree of
//! pointers to all pages), then a superblock that points to the root of the map. So no valid page is overwritten. Each
//! pointer contains the checksum of its page. So a lost, stale or misdirected write of a page is detected, and an
//! intact copy repairs it.

mod array;
mod bitmap;
mod cache;
mod cell;
mod check;
mod checkpoint;
mod commit;
mod data;
mod directory;
pub mod entry;
mod flushing;
pub mod geometry;
mod grow;
mod log;
pub mod number;
mod open;
pub mod page;
pub mod record;
mod records;
mod rejoin;
mod replay;
mod replicas;
pub mod superblock;
mod transaction;
mod tree;

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use block::seeded::{self, Bug};
use block::{Env, Error, ErrorKind, Mutex, Notify, Result, bail, error};

use crate::Uuid;
use commit::Commits;
use directory::Directory;
use geometry::Geometry;
use replicas::Replicas;
use tree::Tree;

pub use array::Array;
pub use bitmap::Bitmap;
pub use cache::CACHE_BYTES_MIN;
pub use cell::{Cell, Codec};
pub use check::{FINDINGS_MAX, Findings};
pub use commit::{LAZY_WITHIN, SEALED_AFTER};
pub use data::Data;
pub use directory::Spec;
pub use entry::{Entry, ObjectKind};
pub use log::{Log, LogEntry};
pub use open::{Options, Shape, newest_record, standing_bytes};
pub use replicas::{CopyOwner, CopyState};
pub use transaction::{TRANSACTION_PAGES_MAX, Transaction};

/// The number of an object of a vault. The vault never gives the same number to another object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub u64);

/// An open vault. A clone is a second handle to the same vault.
#[derive(Clone)]
pub struct Vault(Rc<Inner>);

struct Inner {
    me: Weak<Inner>,
    env: Env,
    read_only: bool,
    replicas: Replicas,
    tree: Tree,
    directory: RefCell<Directory>,
    commits: Commits,
    /// Lower with the data outside of the vault that records of its log name, if the vault was opened with one.
    data: Option<data::DataLower>,
    /// Lock that permits one checkpoint at a time.
    checkpointing: Mutex,
    checkpoint_soon: std::cell::Cell<bool>,
    /// Wakes waiting tasks at the end of a checkpoint, at the end of a group of commits, and when the vault fails.
    progress: Notify,
    /// The error that tasks get once the vault has failed: it commits no more transactions.
    failed: RefCell<Option<Error>>,
    reserved_bytes: usize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.env.pool().unreserve(self.reserved_bytes);
    }
}

/// Counters of a vault: its activity since the vault was opened, and its free pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Number of records with changes that were written to the log.
    pub records: u64,
    /// Number of transactions in the records that were written to the log.
    pub transactions: u64,
    /// Number of records that had to wait until a checkpoint made room in the log.
    pub waited: u64,
    /// Number of checkpoints, including failed ones.
    pub checkpoints: u64,
    /// Highest number of pages that the cache has held at one time.
    pub pages_peak: usize,
    /// Number of pages of the vault that belong to no object.
    pub free_pages: u64,
}

impl Vault {
    /// Returns the UUID of the vault.
    pub fn uuid(&self) -> Uuid {
        self.0.replicas.vault
    }

    /// Returns the sizes of the parts of the vault: its log, its pages and its directory.
    pub fn geometry(&self) -> Geometry {
        self.0.replicas.geometry()
    }

    /// Returns the state of a copy of the vault, and the error for which this process left the copy behind, if the
    /// process did so.
    pub fn copy_state(&self, copy: usize) -> (CopyState, Option<Error>) {
        (self.0.replicas.copy_state(copy), self.0.replicas.fault(copy))
    }

    /// Returns the number of the newest record that copy `copy` of the vault had at the opening. If it is less than
    /// [`Vault::found_flushed`], the disk of a current copy is an older image, or has lost writes.
    pub fn newest_record(&self, copy: usize) -> u64 {
        self.0.replicas.newest_record(copy)
    }

    /// Returns the highest number of a record that any copy contained, at the opening, as flushed on all current copies.
    pub fn found_flushed(&self) -> u64 {
        self.0.replicas.found_flushed()
    }

    /// Leaves copy `copy` of the vault behind because of `error`, which its owner has noticed. The copy gets no later
    /// records. The superblocks of the other copies record this with the next record.
    pub fn leave(&self, copy: usize, error: &Error) {
        if self.0.replicas.copy_state(copy) != CopyState::Behind {
            self.0.replicas.fail(copy, error);
        }
    }

    /// Returns the number of copies of the vault, including missing ones.
    pub fn copies(&self) -> usize {
        self.0.replicas.count()
    }

    /// Returns the counters of the vault.
    pub fn counters(&self) -> Counters {
        Counters {
            pages_peak: self.0.tree.cache.borrow().peak,
            free_pages: self.0.directory.borrow().free_pages(),
            ..self.0.commits.counters.get()
        }
    }

    /// Returns the directory entry of an object of the vault.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn object(&self, id: ObjectId) -> Result<Rc<Entry>> {
        self.0.entry(id.0)
    }

    /// Returns the id of the object with this owner and role.
    pub fn find(&self, owner: &str, role: u32) -> Option<ObjectId> {
        self.0.directory.borrow().find(owner, role).map(|entry| ObjectId(entry.number))
    }

    /// Returns the ids of all objects that belong to the device `owner`.
    pub fn owned_by(&self, owner: &str) -> Vec<ObjectId> {
        let directory = self.0.directory.borrow();
        let own = directory.all().filter(|entry| entry.owner == owner);
        own.map(|entry| ObjectId(entry.number)).collect()
    }

    /// Loads all pages of an object into the cache.
    ///
    /// # Errors
    /// `Limit` if the object has more pages than the cache keeps; errors of reads.
    pub async fn load(&self, id: ObjectId) -> Result<()> {
        let entry = self.0.entry(id.0)?;
        let most = self.0.tree.cache.borrow().clean_max() as u64;
        if entry.pages() > most {
            bail!(Limit, "{entry} has {} pages; the cache holds {most}", entry.pages());
        }
        for index in 0..entry.pages() {
            let number = entry.page(index).expect("the index is below the page count");
            self.0.tree.ensure(&self.0.replicas, number).await?;
        }
        Ok(())
    }

    /// Makes a checkpoint, and evicts all pages of an object from the cache.
    ///
    /// # Errors
    /// As [`Vault::flush`].
    pub async fn unload(&self, id: ObjectId) -> Result<()> {
        let entry = self.0.entry(id.0)?;
        self.flush().await?;
        let mut cache = self.0.tree.cache.borrow_mut();
        for index in 0..entry.pages() {
            cache.forget(entry.page(index).expect("the index is below the page count"));
        }
        Ok(())
    }

    /// Makes a checkpoint of the vault: writes every changed page to one of its homes. Committed changes are durable
    /// even without this call. Changes of advisory objects are durable after it.
    ///
    /// # Errors
    /// `Faulted` if the vault has failed; `ReadOnly`.
    pub async fn flush(&self) -> Result<()> {
        self.0.check_writable()?;
        self.0.checkpoint(false).await
    }

    /// Closes the vault: waits until commits in progress have ended, and makes a checkpoint, so that the next opening
    /// has no records to replay. Afterwards, no write of the vault is in flight, and other handles to the vault can
    /// neither commit nor write.
    ///
    /// # Errors
    /// As [`Vault::flush`].
    pub async fn close(self) -> Result<()> {
        let inner = &self.0;
        let is_idle = || !inner.commits.is_busy() && !inner.checkpoint_soon.get();
        loop {
            inner.progress.until(is_idle).await;
            let flushed = self.flush().await;
            let _alone = inner.checkpointing.lock().await;
            // During the checkpoint, the timer of the last record may have started a proof.
            if is_idle() || seeded::on(Bug::CloseLeavesRecord) {
                inner.fail(&error!(Stopped, "closed by its device"));
                return flushed;
            }
        }
    }

    /// Returns the error for which the vault commits no more transactions, if it has failed.
    pub fn failure(&self) -> Option<Error> {
        self.0.failed.borrow().clone()
    }
}

impl Inner {
    fn entry(&self, number: u64) -> Result<Rc<Entry>> {
        let directory = self.directory.borrow();
        directory.get(number).cloned().ok_or_else(|| directory::missing(number))
    }

    fn check_writable(&self) -> Result<()> {
        if self.read_only {
            bail!(ReadOnly, "the vault was opened read-only");
        }
        self.failed.borrow().clone().map_or(Ok(()), Err)
    }

    /// Marks the vault as failed, because its pages in memory and its copies may differ: it commits no more
    /// transactions.
    fn fail(&self, error: &Error) {
        let mut failed = self.failed.borrow_mut();
        if failed.is_none() {
            let words = format!("the vault failed ({}); open the vault again", error.message());
            *failed = Some(Error::new(ErrorKind::Faulted, words));
        }
        drop(failed);
        self.progress.wake();
    }

    /// Calls `look` with the content of page `index` of an object, if the page is in the cache.
    fn look_now<T>(&self, entry: &Entry, index: u64, look: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut cache = self.tree.cache.borrow_mut();
        let page = cache.get_of(entry.page(index)?, entry.number)?;
        Some(look(page.content()))
    }

    /// Calls `look` with the content of page `index` of an object. The page stays in the cache until the caller awaits
    /// again.
    async fn look<T>(&self, entry: &Entry, index: u64, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let number = entry.page(index).ok_or_else(|| {
            error!(OutOfRange, "page {index} is beyond the {} pages of {entry}", entry.pages())
        })?;
        if let Some(page) = self.tree.cache.borrow_mut().get_of(number, entry.number) {
            return Ok(look(page.content()));
        }
        self.tree.ensure(&self.replicas, number).await?;
        let mut cache = self.tree.cache.borrow_mut();
        if !cache.is_of(number, entry.number) {
            // Either the page was never written; or the object was deleted meanwhile, and the page may belong to
            // another one.
            self.entry(entry.number)?;
            cache.own(number, entry.number);
        }
        Ok(look(cache.peek(number).expect("the page was just loaded").content()))
    }

    /// Reads the bytes of an object from offset `from` on into `into`, across pages.
    async fn read(&self, entry: &Entry, mut from: u64, into: &mut [u8]) -> Result<()> {
        let content = page::CONTENT_BYTES as u64;
        let mut done = 0;
        while done < into.len() {
            let within = (from % content) as usize;
            let part = (page::CONTENT_BYTES - within).min(into.len() - done);
            let to = &mut into[done..done + part];
            self.look(entry, from / content, |page| to.copy_from_slice(&page[within..][..part]))
                .await?;
            done += part;
            from += part as u64;
        }
        Ok(())
    }
}
