//! Vaults: persistent objects in one transactional store, on 1 to 8 copies.
//!
//! | file | holds |
//! | --- | --- |
//! | `geometry.rs` | where everything lies in a copy |
//! | `superblock.rs`, `record.rs`, `page.rs`, `entry.rs` | the bytes, as `docs/formats/vault.md` has them |
//! | `replicas.rs` | the copies: which are current, and which get a record |
//! | `cache.rs`, `tree.rs` | pages in memory, pages on demand |
//! | `directory.rs` | which objects there are, which pages are free |
//! | `transaction.rs`, `commit.rs` | changes, and how they become durable |
//! | `data.rs` | data outside of the vault that records make reachable |
//! | `checkpoint.rs` | how changed pages reach their places |
//! | `open.rs`, `replay.rs` | formatting, opening, what a log says after a crash |
//! | `rejoin.rs` | how a copy comes back |
//! | `check.rs` | whether every copy has what it should have |
//! | `cell.rs`, `array.rs`, `bitmap.rs`, `log.rs` | the objects: [`Cell`], [`Array`], [`Bitmap`], [`Log`] |
//!
//! **In one paragraph.** A transaction is one record in the log of every copy, and one flush; then it
//! is applied to pages in memory. A checkpoint writes changed pages to the home that the last one does
//! not name, then the map above them, then a superblock. Nothing that counts is written over. Whoever
//! points to a page knows its checksum, so what is lost, stale, or elsewhere is an error, and one good
//! copy repairs it.

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
pub mod geometry;
mod log;
mod open;
pub mod page;
pub mod record;
mod rejoin;
mod replay;
mod replicas;
pub mod superblock;
mod transaction;
mod tree;

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use block::{Env, Error, ErrorKind, Mutex, Notify, Result};

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
pub use data::{Data, LOST};
pub use directory::Spec;
pub use entry::{Entry, ObjectKind};
pub use log::{Log, LogEntry};
pub use open::{Options, Shape};
pub use replicas::CopyState;
pub use transaction::{TRANSACTION_PAGES_MAX, Transaction};

/// The number of an object, never used again in its vault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub u64);

/// An open vault. A clone is a second handle to it.
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
    /// Where the data are that records name.
    data: Option<data::Place>,
    /// One checkpoint after the other.
    checkpointing: Mutex,
    checkpoint_soon: std::cell::Cell<bool>,
    /// Woken when a checkpoint is over, and when something was answered.
    progress: Notify,
    /// Why nothing more is committed.
    failed: RefCell<Option<Error>>,
    reserved_bytes: usize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.env.pool().unreserve(self.reserved_bytes);
    }
}

/// What a vault has done, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Records written to the log.
    pub records: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Records for which the log had no room until a checkpoint was made.
    pub waited: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// The most pages that were in memory at once.
    pub pages_peak: usize,
    /// Pages that no object has.
    pub free_pages: u64,
}

impl Vault {
    /// The vault's own number.
    pub fn uuid(&self) -> Uuid {
        self.0.replicas.vault
    }

    /// Its sizes.
    pub fn geometry(&self) -> Geometry {
        self.0.replicas.geometry
    }

    /// What has become of a copy, and why it was left behind if this process did it.
    pub fn standing(&self, copy: usize) -> (CopyState, Option<Error>) {
        (self.0.replicas.standing(copy), self.0.replicas.fault(copy))
    }

    /// How many copies there are, here or not.
    pub fn copies(&self) -> usize {
        self.0.replicas.count()
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        Counters {
            pages_peak: self.0.tree.cache.borrow().peak(),
            free_pages: self.0.directory.borrow().free_pages(),
            ..self.0.commits.counters.get()
        }
    }

    /// What the directory says of an object.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn object(&self, id: ObjectId) -> Result<Rc<Entry>> {
        self.0.entry(id.0)
    }

    /// The object of that owner and role.
    pub fn find(&self, owner: &str, role: u32) -> Option<ObjectId> {
        self.0.directory.borrow().find(owner, role).map(|entry| ObjectId(entry.number))
    }

    /// All objects of that owner.
    pub fn owned_by(&self, owner: &str) -> Vec<ObjectId> {
        let directory = self.0.directory.borrow();
        let own = directory.all().filter(|entry| entry.owner == owner);
        own.map(|entry| ObjectId(entry.number)).collect()
    }

    /// Brings all pages of an object into memory.
    ///
    /// # Errors
    /// `Limit` if it has more pages than the cache keeps; what reading says.
    pub async fn load(&self, id: ObjectId) -> Result<()> {
        let entry = self.0.entry(id.0)?;
        let most = self.0.tree.cache.borrow().clean_max() as u64;
        if entry.pages() > most {
            let words = format!("{entry} has {} pages; the cache keeps {most}", entry.pages());
            return Err(Error::new(ErrorKind::Limit, words));
        }
        for index in 0..entry.pages() {
            let number = entry.page(index).expect("it is below their number");
            self.0.tree.ensure(&self.0.replicas, number).await?;
        }
        Ok(())
    }

    /// Takes all pages of an object out of memory; those that were changed are written first.
    ///
    /// # Errors
    /// As [`Vault::flush`].
    pub async fn unload(&self, id: ObjectId) -> Result<()> {
        let entry = self.0.entry(id.0)?;
        self.flush().await?;
        let mut cache = self.0.tree.cache.borrow_mut();
        for index in 0..entry.pages() {
            cache.forget(entry.page(index).expect("it is below their number"));
        }
        Ok(())
    }

    /// Writes everything that was changed to its place: a checkpoint. What was committed is durable
    /// without it; what is advisory is durable after it.
    ///
    /// # Errors
    /// `Faulted` if the vault has failed, `ReadOnly`.
    pub async fn flush(&self) -> Result<()> {
        self.0.check_writable()?;
        self.0.checkpoint(false).await
    }

    /// Waits for what is being committed, and makes a checkpoint: a vault that is opened after this has
    /// nothing to replay. Whoever has a handle still commits nothing more, and writes nothing.
    ///
    /// # Errors
    /// As [`Vault::flush`].
    pub async fn close(self) -> Result<()> {
        self.0.progress.until(|| !self.0.commits.is_busy()).await;
        let flushed = self.flush().await;
        self.0.fail(&Error::new(ErrorKind::Stopped, "it is closed"));
        flushed
    }

    /// Why nothing more is committed, if it has failed.
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
            return Err(Error::new(ErrorKind::ReadOnly, "the vault was opened for reading"));
        }
        self.failed.borrow().clone().map_or(Ok(()), Err)
    }

    /// Nothing more is committed: what memory says and what the copies say may differ.
    fn fail(&self, error: &Error) {
        let mut failed = self.failed.borrow_mut();
        if failed.is_none() {
            let words = format!("the vault has failed ({}); open it anew", error.message());
            *failed = Some(Error::new(ErrorKind::Faulted, words));
        }
        drop(failed);
        self.progress.wake();
    }

    /// A page of an object, in the cache until the caller waits again: its contents go to `look`.
    async fn look<T>(&self, entry: &Entry, index: u64, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let number = entry.page(index).ok_or_else(|| {
            let words = format!("{entry} has {} pages; page {index} is asked for", entry.pages());
            Error::new(ErrorKind::OutOfRange, words)
        })?;
        self.tree.ensure(&self.replicas, number).await?;
        let mut cache = self.tree.cache.borrow_mut();
        if !cache.is_of(number, entry.number) {
            // Never written; or the object is gone by now, and the page is another's.
            self.entry(entry.number)?;
            cache.own(number, entry.number);
        }
        Ok(look(cache.peek(number).expect("it was just made sure").content()))
    }

    /// Reads bytes of an object, across pages.
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
