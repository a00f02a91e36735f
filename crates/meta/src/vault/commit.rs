//! Group commit: all transactions that wait at one moment become one record of the log.
//!
//! A task of the vault, the leader, runs while transactions wait. It takes the waiting transactions, writes them as one
//! record to the log of every copy, applies the changes to the pages in memory, and returns the number of the record to
//! each caller. The pages were loaded into memory before. So after the write, only the copies themselves can fail, and the
//! data that are written beside the record. The
//! leader flushes nothing: `flushing.rs` does.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::seeded::{self, Bug};
use block::{ByteRange, Child, Error, Mono, Mutex, OneShot, Result, bail};

use super::bitmap::{self, BITMAP_HEADER_BYTES};
use super::entry::Entry;
use super::geometry::PageNumber;
use super::record::{self, Change, Head, RECORD_HEADER_BYTES, Verb};
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

/// Maximum number of transactions in the queue for the next record; further ones wait until the queue has room.
const QUEUE_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Commits {
    queue: RefCell<VecDeque<Pending>>,
    leading: Cell<bool>,
    /// Position of the next record in the log.
    pub head: Cell<Position>,
    /// Number of the last record that is written on every current copy, with its data and all records before it.
    written: Cell<u64>,
    /// Number of pages of the cache that transactions in progress have reserved.
    reserved: Cell<usize>,
    /// Lock that lets transactions which wait for page reservations get them in order.
    admission: Mutex,
    /// Lock held while a record is written to the log, and by code that must not see an incomplete record.
    pub logging: Mutex,
    lazy: RefCell<Vec<(u64, Vec<u8>)>>,
    lazy_timer: Cell<bool>,
    lazy_due: Cell<bool>,
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
        self.written.set(head.number - 1);
    }

    /// Whether transactions wait in the queue or are being written to the log, or a record is being proven.
    pub fn is_busy(&self) -> bool {
        self.leading.get() || !self.queue.borrow().is_empty() || self.proving.get() > 0
    }

    /// Returns the number of the last record that is written on every current copy, with its data and all records before
    /// it.
    pub fn written(&self) -> u64 {
        self.written.get()
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
        let pending = |answer| Pending {
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
        let most = self.replicas.geometry.record_bytes_max() as usize / 2 - RECORD_HEADER_BYTES;
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

    /// Spawns the task that writes the queued transactions to the log of the vault, unless this task is running.
    fn lead_soon(&self) {
        if !self.commits.leading.replace(true) {
            let vault = self.me.upgrade().expect("a vault outlives its calls");
            self.env.spawn("a vault's log", async move { vault.lead().await });
        }
    }

    async fn lead(&self) {
        while let Some(group) = self.next_group() {
            if seeded::on(Bug::AppliedEarly) {
                group.pending.iter().for_each(|pending| self.apply_all(&pending.changes));
            }
            let has_hints = !group.lazy.is_empty();
            if let (Ok(number), true) = (self.write_group(group).await, has_hints) {
                // On an error the vault is marked as failed.
                let _ = self.flush_to(number).await;
            }
            self.checkpoint_if_due();
        }
        self.commits.leading.set(false);
        self.progress.wake();
        self.seal_later();
    }

    /// Returns the changes for the next record, which are empty if the record is only a proof; `None` if no record is
    /// due.
    fn next_group(&self) -> Option<Group> {
        let commits = &self.commits;
        let mut queue = commits.queue.borrow_mut();
        let lazy_due = commits.lazy_due.get() && !commits.lazy.borrow().is_empty();
        if queue.is_empty() && !lazy_due {
            return None;
        }
        let most = self.replicas.geometry.record_bytes_max() as usize;
        let mut group = self.lazy_group(most / 2);
        let mut bytes = RECORD_HEADER_BYTES + group.lazy.len();
        while let Some(next) = queue.front()
            && (bytes + next.changes.len() <= most)
        {
            bytes += next.changes.len();
            group.count += next.count;
            group.pending.push(queue.pop_front().expect("the queue has a front"));
        }
        Some(group)
    }

    /// Takes waiting changes of advisory objects for the next record, at most `most` bytes.
    fn lazy_group(&self, most: usize) -> Group {
        let mut group = Group::default();
        let mut lazy = self.commits.lazy.borrow_mut();
        let mut taken = 0;
        for (object, change) in lazy.iter() {
            if RECORD_HEADER_BYTES + group.lazy.len() + change.len() > most {
                break;
            }
            // Changes of an object that was deleted meanwhile are dropped.
            if self.directory.borrow().get(*object).is_some() {
                group.lazy.extend_from_slice(change);
                group.count += 1;
            }
            taken += 1;
        }
        lazy.drain(..taken);
        self.commits.lazy_due.set(!lazy.is_empty());
        group
    }

    /// Writes a group of changes to the log as one record, and returns the number of the record. Answers the
    /// transactions of the group.
    async fn write_group(&self, mut group: Group) -> Result<u64> {
        let _alone = self.commits.logging.lock().await;
        let written = match self.check_writable() {
            Ok(()) => self.log(&mut group).await.inspect_err(|error| self.fail(error)),
            Err(failed) => Err(failed),
        };
        self.answer(group, &written);
        written
    }

    /// Writes a group of changes to the log as one record, and returns the number of the record. If the log is full, a
    /// checkpoint proves all earlier records, and an empty group needs no record.
    async fn log(&self, group: &mut Group) -> Result<u64> {
        let mut parts: Vec<&[u8]> = vec![&group.lazy];
        parts.extend(group.pending.iter().map(|pending| &pending.changes[..]));
        let bytes = RECORD_HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let padded = record::padded(bytes);
        let room = |tail: u64| {
            let used = self.commits.head.get().offset - tail;
            let record = if seeded::on(Bug::RoomForNothing) { 0 } else { padded as u64 };
            used + record <= self.replicas.geometry.log_bytes
        };
        if !room(self.replicas.durable.get().tail.offset) {
            self.commits.count(|counters| counters.waited += 1);
            self.checkpoint(false).await?;
            if group.is_empty() {
                return Ok(self.commits.written());
            }
        }
        let at = Position { epoch: self.replicas.epoch().number, ..self.commits.head.get() };
        let head = self.write_record(at, group.count, &parts, padded).await?;
        self.replicas.settle().await?;
        // The superblocks of copies that remain may have proven records.
        self.note_proven();
        let number = head.at.number;
        self.commits.stated.set(head.flushed);
        self.commits.head.set(head.next());
        let failed = group.take_failed().await;
        if !failed.is_empty() {
            self.drop_record(group, failed).await?;
            return Ok(number);
        }
        self.commits.continue_at(head.next());
        if let Some(place) = &self.data {
            let named = group.pending.iter().flat_map(|pending| pending.named.iter());
            named.for_each(|range| place.note_named(*range, number));
        }
        if !group.is_empty() {
            self.commits.last.set(number);
            self.commits.last_at.set(self.env.now());
            self.commits.count(|counters| {
                counters.records += 1;
                counters.transactions += group.pending.len() as u64;
            });
        }
        Ok(number)
    }

    /// Drops the last record, which contains `failed` transactions whose data could not be written: a checkpoint moves
    /// the tail past it, because a replay would end there. Answers these transactions with their errors. The other ones
    /// return to the queue.
    async fn drop_record(&self, group: &mut Group, failed: Vec<(Pending, Error)>) -> Result<()> {
        let dropped = match seeded::on(Bug::RecordWithoutDataKept) {
            true => Ok(()),
            false => self.checkpoint(false).await,
        };
        for (Pending { pages, kept, answer, .. }, error) in failed {
            drop((pages, kept));
            answer.set(Err(error));
        }
        dropped?;
        self.commits.continue_at(self.commits.head.get());
        let mut queue = self.commits.queue.borrow_mut();
        group.pending.drain(..).rev().for_each(|pending| queue.push_front(pending));
        Ok(())
    }

    async fn write_record(
        &self,
        at: Position,
        count: u32,
        parts: &[&[u8]],
        padded: usize,
    ) -> Result<Head> {
        let buf = self.env.pool().scratch(padded).await?;
        let flushed = self.replicas.flushed();
        let head = record::encode(self.replicas.vault, at, flushed, count, parts, &mut buf.write());
        let log_bytes = self.replicas.geometry.log_bytes;
        let to_end = (log_bytes - at.offset % log_bytes) as usize;
        let first = padded.min(to_end);
        let mut begun =
            self.replicas.start_write(self.replicas.log_place(at.offset), &buf.slice(0..first));
        if first < padded {
            let rest = buf.slice(first..padded);
            begun.extend(self.replicas.start_write(self.replicas.log_place(0), &rest));
        }
        self.replicas.finish(begun).await;
        Ok(head)
    }

    fn answer(&self, group: Group, result: &Result<u64>) {
        for Pending { changes, pages, plans, kept, until_proven, answer, .. } in group.pending {
            if let Ok(number) = result {
                self.apply_all(&changes);
                plans.keep();
                if !until_proven.is_empty() {
                    self.commits.held.borrow_mut().push_back((*number, until_proven));
                }
            }
            drop((pages, kept));
            answer.set(result.clone());
        }
    }

    /// Applies encoded changes of objects to pages in memory.
    fn apply_all(&self, changes: &[u8]) {
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
        if waiting >= LAZY_BYTES_MAX.min(self.replicas.geometry.record_bytes_max() as usize / 4) {
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

/// The content of one record of the log.
#[derive(Default)]
struct Group {
    lazy: Vec<u8>,
    pending: Vec<Pending>,
    count: u32,
}

impl Group {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Waits for the data of the group, and removes the transactions whose data could not be written.
    async fn take_failed(&mut self) -> Vec<(Pending, Error)> {
        let (mut written, mut failed) = (Vec::new(), Vec::new());
        for mut pending in self.pending.drain(..) {
            match all_of(std::mem::take(&mut pending.writes)).await {
                Ok(()) => written.push(pending),
                Err(error) => failed.push((pending, error)),
            }
        }
        self.pending = written;
        failed
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
