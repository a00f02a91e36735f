//! Transactions on their way to the log: admission of the pages that they change, the queue, and the changes in memory.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::seeded::{self, Bug};
use block::{ByteRange, Child, Error, Mono, Mutex, Notify, OneShot, Result, bail};

use zerocopy::FromBytes as _;
use zerocopy::little_endian::U64;

use super::bitmap::{self, BITMAP_HEADER_BYTES};
use super::entry::Entry;
use super::number::PageNumber;
use super::record::{self, Change, RECORD_HEADER_BYTES, Verb};
use super::superblock::Position;
use super::transaction::{DirectoryReservations, TRANSACTION_PAGES_MAX};
use super::{Counters, Inner, Transaction, Vault};
use crate::io::all_of;

/// Time within which changes of advisory objects reach the disks, plus the duration of a flush.
pub const LAZY_WITHIN: Duration = Duration::from_secs(4);

/// Total length in bytes of waiting changes of advisory objects at which a record with them is written at once.
const LAZY_BYTES_MAX: usize = 16 << 10;

/// Time without a transaction after which the vault proves its last record.
pub const SEALED_AFTER: Duration = Duration::from_secs(1);

/// Time within which the vault proves a record under a load without flushes, about.
pub(super) const PROVEN_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of transactions in the queue for the next record; further ones wait until the queue has room.
const QUEUE_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Commits {
    pub queue: RefCell<VecDeque<Pending>>,
    /// Whether the task runs that writes records.
    pub leading: Cell<bool>,
    /// Position of the next record in the log.
    pub head: Cell<Position>,
    /// Position behind the last record that is written on every current copy, with its data and all records before it.
    /// The changes of these records are in the pages in memory, and no others.
    pub done: Cell<Position>,
    /// Number of pages of the cache that transactions in progress have reserved.
    reserved: Cell<usize>,
    /// Lock that lets transactions which wait for page reservations get them in order.
    admission: Mutex,
    /// Lock held while records are in flight, and by code that must not see an incomplete record.
    pub logging: Mutex,
    /// Wakes the task that writes records when a transaction enters the queue.
    pub arrived: Notify,
    pub lazy: RefCell<Vec<(u64, Vec<u8>)>>,
    lazy_timer: Cell<bool>,
    pub lazy_due: Cell<bool>,
    /// The number that the last record of the log contains as the flushed one.
    pub stated: Cell<u64>,
    /// Number of the last record with changes.
    pub last: Cell<u64>,
    pub last_at: Cell<Mono>,
    /// Whether a timer runs that proves the last record.
    pub seal_timer: Cell<bool>,
    /// Number of tasks that prove a record now.
    pub proving: Cell<u32>,
    pub held: RefCell<VecDeque<Held>>,
    /// Highest proven number for which all that waited is released.
    pub released: Cell<u64>,
    /// Lock held while a flush of the log runs, so that all callers that wait for it share the next one.
    pub flushing: Mutex,
    pub counters: Cell<Counters>,
}

/// Values that are held until the record with this number is proven.
type Held = (u64, Vec<Box<dyn Any>>);

/// A transaction that waits in the queue of the vault for its commit.
pub(super) struct Pending {
    pub changes: Vec<u8>,
    pub count: u32,
    pub pages: Pages,
    pub plans: DirectoryReservations,
    /// Byte ranges of the data outside of the vault that the transaction makes reachable.
    pub named: Vec<ByteRange>,
    /// Writes of these data that are in flight.
    pub writes: Vec<Child>,
    pub kept: Vec<Box<dyn Any>>,
    pub until_proven: Vec<Box<dyn Any>>,
    pub answer: Rc<Answer>,
}

impl Pending {
    /// Answers the transaction with an error.
    pub fn fail(self, error: Error) {
        let Self { pages, kept, answer, .. } = self;
        drop((pages, kept));
        answer.set(Err(error));
    }
}

/// The number of the record with the transaction.
type Answer = OneShot<Result<u64>>;

/// The reservation for the pages that a transaction will change, which are loaded and pinned in the cache. Dropping it
/// unpins the pages.
pub(super) struct Pages {
    vault: Weak<Inner>,
    reserved: usize,
    pinned: Vec<PageNumber>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        let Some(vault) = self.vault.upgrade() else { return };
        let commits = &vault.commits;
        commits.reserved.set(commits.reserved.get() - self.reserved);
        let mut cache = vault.tree.cache.borrow_mut();
        self.pinned.iter().for_each(|page| cache.unpin(*page));
        drop(cache);
        vault.progress.wake();
    }
}

impl Commits {
    pub fn new(head: Position, now: Mono) -> Self {
        let commits = Self { last_at: Cell::new(now), ..Self::default() };
        commits.continue_at(head);
        commits
    }

    /// Sets the position of the next record. All records before it are written.
    pub fn continue_at(&self, head: Position) {
        self.head.set(head);
        self.done.set(head);
    }

    /// Whether transactions wait in the queue or are being written to the log, or a record is being proven.
    pub fn is_busy(&self) -> bool {
        self.leading.get() || !self.queue.borrow().is_empty() || self.proving.get() > 0
    }

    /// Returns the number of the last record that is written on every current copy, with its data and all records before
    /// it.
    pub fn written(&self) -> u64 {
        self.done.get().number - 1
    }

    pub fn count(&self, add: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        add(&mut counters);
        self.counters.set(counters);
    }
}

impl Vault {
    /// Commits a transaction of this vault: all of its changes become durable on every current copy, or none of them.
    /// As [`Vault::post`] and [`Vault::sync`] of one transaction.
    ///
    /// # Errors
    /// As [`Vault::post`] and [`Vault::sync`].
    pub async fn commit(&self, transaction: Transaction) -> Result<()> {
        let number = self.post(transaction).await?;
        if seeded::on(Bug::CommitBeforeFlush) {
            return Ok(());
        }
        self.0.flush_to(number).await
    }

    /// Writes a transaction of this vault to the log of every current copy, and returns the number of its record. A power
    /// cut before the next flush may undo the transaction, together with all later ones, but never a part of it.
    ///
    /// Transactions that are posted together may take effect in any order. One that is posted after another was
    /// returned takes effect after it.
    ///
    /// If changes make data outside of the vault reachable, the data must be durable before this call, or must be named
    /// in the transaction. Named data are written before this call or beside the record
    /// ([`Transaction::write_beside`]). A power cut that loses them undoes the transaction.
    ///
    /// # Errors
    /// Errors of writes beside the record; `ReadOnly`; `Faulted` once the vault has failed; `Limit` if the transaction is too large; `NotFound` for deleted
    /// objects; errors of reading the pages that change. After an error, the vault has none of the changes, except that
    /// after `Faulted` the next opening may find them in the log.
    pub async fn post(&self, mut transaction: Transaction) -> Result<u64> {
        let inner = &self.0;
        let pages = match inner.prepare(&mut transaction).await {
            Ok(pages) => pages,
            Err(error) => {
                // The reservations of the transaction are needed as long as a write to them is in flight.
                let _ = all_of(transaction.writes).await;
                return Err(error);
            }
        };
        if transaction.is_empty() {
            return Ok(inner.commits.written());
        }
        let Transaction { changes, count, plans, named, writes, kept, until_proven, .. } =
            transaction;
        transaction.turns.into_iter().for_each(|turn| {
            (turn.on_the_way)();
            drop(turn.alone);
        });
        let pending = move |answer| Pending {
            changes,
            count,
            pages,
            plans,
            named,
            writes,
            kept,
            until_proven,
            answer,
        };
        if seeded::on(Bug::PostBehindAnswer) {
            let vault = inner.me.upgrade().expect("a vault outlives its calls");
            inner.env.spawn("a late post", async move {
                let _ = vault.queued(pending).await;
            });
            return Ok(inner.commits.written() + 1);
        }
        inner.queued(pending).await
    }

    /// Applies a transaction that changes only advisory objects. Readers see the changes at once. The changes are
    /// durable within [`LAZY_WITHIN`] plus a flush; a crash may undo them.
    ///
    /// # Errors
    /// As [`Vault::commit`]; `Invalid` for objects that are not advisory.
    pub async fn note(&self, transaction: Transaction) -> Result<()> {
        let inner = &self.0;
        inner.check_writable()?;
        let pages = inner.admit(&transaction).await?;
        transaction.set_out()?;
        let changes = record::changes(&transaction.changes).expect("the changes were just encoded");
        for change in &changes {
            let entry = inner.entry(change.object)?;
            if !entry.advisory || !change.verb.is_of_object() {
                bail!(Invalid, "{entry} is not advisory: its changes need a commit");
            }
        }
        let mut lazy = inner.commits.lazy.borrow_mut();
        for change in changes {
            inner.apply(&change);
            let mut bytes = Vec::new();
            change.encode(&mut bytes);
            lazy.push((change.object, bytes));
        }
        let waiting: usize = lazy.iter().map(|(_, bytes)| bytes.len()).sum();
        drop((lazy, pages));
        transaction.turns.into_iter().for_each(|turn| (turn.on_the_way)());
        inner.note_soon(waiting);
        Ok(())
    }
}

impl Inner {
    /// Queues a transaction for the next record of the log, and waits for the number of the record.
    pub(super) async fn queued(&self, pending: impl FnOnce(Rc<Answer>) -> Pending) -> Result<u64> {
        let answer = Rc::<Answer>::default();
        self.commits.queue.borrow_mut().push_back(pending(answer.clone()));
        self.lead_soon();
        answer.wait().await
    }

    /// Returns an empty reservation of pages, for a record that changes no object.
    pub(super) fn no_pages(&self) -> Pages {
        Pages { vault: self.me.clone(), reserved: 0, pinned: Vec::new() }
    }

    /// Waits until the transaction can be queued, and begins its commit. Returns its pages.
    async fn prepare(&self, transaction: &mut Transaction) -> Result<Pages> {
        self.check_writable()?;
        let pages = self.admit(transaction).await?;
        self.progress.until(|| self.commits.queue.borrow().len() < QUEUE_MAX).await;
        self.check_writable()?;
        if transaction.changes_state_early() {
            all_of(std::mem::take(&mut transaction.writes)).await?;
        }
        transaction.set_out()?;
        Ok(pages)
    }

    /// Reserves cache room for the pages that the transaction changes, loads these pages, and pins them.
    async fn admit(&self, transaction: &Transaction) -> Result<Pages> {
        let most = self.replicas.geometry().record_bytes_max() as usize / 2 - RECORD_HEADER_BYTES;
        if transaction.changes.len() > most {
            bail!(
                Limit,
                "a transaction of {} bytes; the log of the vault takes {most}: split the transaction",
                transaction.changes.len()
            );
        }
        let wanted = transaction.pages()?;
        let dirty_max = self.tree.cache.borrow().dirty_max();
        let most = TRANSACTION_PAGES_MAX.min(dirty_max);
        if wanted.len() > most {
            bail!(
                Limit,
                "a transaction changes {} pages; at most {most} are possible: split the transaction",
                wanted.len()
            );
        }
        let mut pages = self.reserve(wanted.len(), dirty_max).await?;
        for (number, owner) in wanted {
            self.tree.ensure(&self.replicas, number).await?;
            // The object may have been deleted meanwhile; then the page may belong to another object.
            transaction.entry_now(owner)?;
            let mut cache = self.tree.cache.borrow_mut();
            cache.own(number, owner);
            cache.pin(number);
            pages.pinned.push(number);
        }
        Ok(pages)
    }

    async fn reserve(&self, pages: usize, dirty_max: usize) -> Result<Pages> {
        let _turn = self.commits.admission.lock().await;
        let has_room = || {
            let dirty = self.tree.cache.borrow().dirty();
            if dirty + self.commits.reserved.get() + pages <= dirty_max {
                return true;
            }
            // Transactions before this one will release their reservations; a checkpoint must write the pages that they
            // leave dirty.
            if dirty > 0 {
                self.checkpoint_soon();
            }
            self.failed.borrow().is_some()
        };
        self.progress.until(has_room).await;
        self.check_writable()?;
        self.commits.reserved.set(self.commits.reserved.get() + pages);
        Ok(Pages { vault: self.me.clone(), reserved: pages, pinned: Vec::new() })
    }

    /// Spawns the task that writes the queued transactions to the log of the vault, or wakes this task.
    fn lead_soon(&self) {
        self.commits.arrived.wake();
        if !self.commits.leading.replace(true) {
            let vault = self.me.upgrade().expect("a vault outlives its calls");
            self.env.spawn("a vault's log", async move { vault.lead().await });
        }
    }

    /// Applies encoded changes of objects to pages in memory.
    pub(super) fn apply_all(&self, changes: &[u8]) {
        let changes = record::changes(changes).expect("the vault encoded the changes");
        let own = changes.iter().filter(|change| change.verb.is_of_object());
        own.for_each(|change| self.apply(change));
    }

    /// Applies a change to pages in memory, which are loaded already.
    fn apply(&self, change: &Change<'_>) {
        let entry = self.entry(change.object).expect("a queued change has an object");
        for piece in pieces(change) {
            self.apply_piece(&entry, change, &piece);
        }
        self.note_slots(change).expect("the vault encoded the changes");
    }

    /// Applies a part of a change to its page in memory. This page, and the first page of a bitmap, are loaded already.
    pub(super) fn apply_piece(&self, entry: &Entry, change: &Change<'_>, piece: &Piece) {
        let mut cache = self.tree.cache.borrow_mut();
        let page = |index| entry.page(index).expect("the change is within the object");
        let (number, first) = (page(piece.index), page(0));
        cache.own(number, entry.number);
        let added = piece.apply(change, cache.change(number).content_mut());
        if added != 0 {
            cache.own(first, entry.number);
            bitmap::add_to_count(cache.change(first).content_mut(), added);
        }
    }

    /// Ensures that changes of advisory objects, `waiting` bytes in total, are written to the log within
    /// [`LAZY_WITHIN`].
    fn note_soon(&self, waiting: usize) {
        if waiting >= LAZY_BYTES_MAX.min(self.replicas.geometry().record_bytes_max() as usize / 4) {
            self.commits.lazy_due.set(true);
            self.lead_soon();
        } else if !self.commits.lazy_timer.replace(true) {
            let me = self.me.clone();
            let sleep = self.env.sleep(LAZY_WITHIN);
            self.env.spawn("a vault's hints", async move {
                sleep.await;
                if let Some(vault) = me.upgrade() {
                    vault.commits.lazy_timer.set(false);
                    vault.commits.lazy_due.set(true);
                    vault.lead_soon();
                }
            });
        }
    }
}

/// The part of a change to an object that falls into one page.
pub(super) struct Piece {
    /// Index of the page among the pages of the object.
    pub index: u64,
    /// The changed bytes, as a range of the page's content.
    within: std::ops::Range<usize>,
    /// Offset in the object of the first changed byte in this page.
    start: u64,
}

/// Splits a change to an object into one part for each page.
pub(super) fn pieces(change: &Change<'_>) -> impl Iterator<Item = Piece> + use<> {
    let content = super::page::CONTENT_BYTES as u64;
    let (first, bytes) = change.byte_range();
    let end = first + bytes;
    (first / content..=(end - 1) / content).map(move |index| {
        let base = index * content;
        let start = first.max(base);
        let within = (start - base) as usize..(end.min(base + content) - base) as usize;
        Piece { index, within, start }
    })
}

impl Piece {
    /// Applies this part of `change` to the content of its page. Returns the number of bits of a bitmap that it has set,
    /// negative if it has cleared them.
    fn apply(&self, change: &Change<'_>, content: &mut [u8]) -> i64 {
        let into = &mut content[self.within.clone()];
        match change.verb {
            Verb::Write(bytes) => {
                let from = (self.start - change.from) as usize;
                into.copy_from_slice(&bytes[from..from + into.len()]);
                0
            }
            Verb::Fill(_, value) => {
                into.fill(value);
                0
            }
            Verb::Raise(least) => {
                // A number is in one page, because pages hold whole numbers.
                if let Ok(number) = U64::mut_from_bytes(into) {
                    *number = least.max(number.get()).into();
                }
                0
            }
            Verb::Data(..) => unreachable!("a change of data has no object"),
            Verb::Bits(count, value) => {
                let last = change.from + u64::from(count) - 1;
                let mut added = 0;
                for (byte, at) in into.iter_mut().zip(self.start - BITMAP_HEADER_BYTES..) {
                    let before = byte.count_ones();
                    let mut mask = 0xff_u8;
                    if at == change.from / 8 {
                        mask &= 0xff << (change.from % 8);
                    }
                    if at == last / 8 {
                        mask &= 0xff >> (7 - last % 8);
                    }
                    *byte = if value { *byte | mask } else { *byte & !mask };
                    added += i64::from(byte.count_ones()) - i64::from(before);
                }
                added
            }
        }
    }
}
