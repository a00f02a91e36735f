//! Marked regions: a durable record of the parts of a device in which a crash may leave unflushed writes.
//!
//! | file | holds |
//! | --- | --- |
//! | `division.rs` | division of a device into regions |
//! | `state.rs` | the marked regions in memory |
//! | `marks.rs` | the durable marks: a bitmap object of a vault, or a place of the owner |
//!
//! A device is divided into regions of equal size. A bitmap object of the owner's vault has one bit for each region, unless
//! the owner keeps the marks itself ([`Marks`]). The format is `docs/formats/regions.md`. After a crash, only marked regions can contain a write that was in flight or
//! not flushed; the owner verifies or resyncs them.
//!
//! **Invariants**
//! - A region is durably marked before a write to it begins ([`Regions::begin`]). The mark stays while a write to the
//!   region is in flight or not flushed.
//! - A region is cleared only after a flush of its owner that began after the last write had ended. The clear has no
//!   flush of its own: a power cut may undo it, and the region is then marked without need.
//! - A write that begins while the clear of its region is on its way waits for the end of the clear's transaction, and
//!   marks the region again. So the mark has a later record than the clear.
//! - A region that was marked at the opening is cleared only after the owner has verified all its bytes, and has flushed
//!   afterwards.
//!
//! **Memory.** Only marked regions and regions with writes have state: about 100 bytes for each such region. Their
//! number is at most the size of the device divided by the size of a region.

mod division;
mod marks;
mod state;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::{ByteRange, Env, Notify, Result, ScopeGuard, TaskTracker, bail, error, first};

use crate::vault::{Bitmap, ObjectId, Spec, Transaction, Vault};
use marks::VaultMarks;
use state::{Batch, State};

pub use division::{Division, REGION_BYTES_MIN};
pub use marks::{Marks, parts};

/// Maximum number of regions that are cleared at once, in most cases by one transaction. A write to such a
/// region waits for the clear.
pub const CLEARS_AT_ONCE: usize = 256;

/// The marked regions of a device. A clone is a second handle to the same regions.
#[derive(Clone)]
pub struct Regions(Rc<Inner>);

struct Inner {
    env: Env,
    marks: Rc<dyn Marks>,
    division: Division,
    clear_delay: Duration,
    state: RefCell<State>,
    /// Wakes tasks that wait for marks or clears, and the task that clears regions at the close.
    progress: Notify,
    /// Whether the task runs that commits marks.
    is_marking: Cell<bool>,
    /// Whether the task runs that clears quiet regions.
    is_clearing: Cell<bool>,
    is_closed: Cell<bool>,
    tasks: TaskTracker,
}

/// A write in flight to the regions of a range. The regions stay marked until this guard was dropped, a later flush has
/// succeeded, and the regions were quiet. Dropping the guard ends the write, whether it succeeded or not.
#[must_use = "dropping the guard ends the write"]
pub struct Writing {
    regions: Rc<Inner>,
    first: u64,
    last: u64,
}

/// Number of a flush of the owner, from [`Regions::before_flush`].
#[must_use = "a flush clears regions only after `Regions::flushed`"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushToken(u64);

/// Numbers of a device's regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Number of regions that are marked, or are being marked or cleared.
    pub marked: u64,
    /// Number of bytes in these regions: the bytes that a crash now would leave unverified, at most.
    pub marked_bytes: u64,
    /// Number of regions marked at the opening that are not completely verified.
    pub opened: u64,
    /// Number of bytes of these regions that are not verified.
    pub unverified_bytes: u64,
}

impl Regions {
    /// Adds to a transaction the creation of the bitmap object of a device's regions, without marked regions.
    ///
    /// # Errors
    /// As [`Transaction::create`].
    pub fn create(
        transaction: &mut Transaction,
        owner: &str,
        role: u32,
        division: Division,
    ) -> Result<ObjectId> {
        transaction.create(&Spec::bitmap(owner, role, division.count()))
    }

    /// Opens the regions of a device: reads the bitmap, page by page. `clear_delay` is the time without writes after
    /// which a region may be cleared.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the object is no bitmap, or has fewer bits than the device has regions; `Corrupt` if a region
    /// behind the device is marked; errors of reads.
    pub async fn open(
        env: &Env,
        vault: &Vault,
        (owner, role): (&str, u32),
        division: Division,
        clear_delay: Duration,
    ) -> Result<Self> {
        let id = vault.find(owner, role).ok_or_else(|| {
            error!(NotFound, "the vault has no object of `{owner}` with role {role}")
        })?;
        let bitmap = Bitmap::new(vault, id);
        let (bits, count) = (bitmap.bits()?, division.count());
        if bits < count {
            bail!(
                Invalid,
                "the bitmap of `{owner}` has {bits} bits; the device has {count} regions"
            );
        }
        let mut opened = Vec::new();
        let mut from = 0;
        while let Some((start, count)) = bitmap.find_set(from).await? {
            from = start + count;
            if from > division.count() {
                bail!(Corrupt, "region {} of `{owner}` is marked, behind the device", from - 1);
            }
            opened.push(start..from);
        }
        let marks = Rc::new(VaultMarks { vault: vault.clone(), bitmap });
        let regions = Self::over(env, marks, division, clear_delay);
        for region in opened.into_iter().flatten() {
            regions.0.state.borrow_mut().add_opened(region, env.now());
        }
        Ok(regions)
    }

    /// Returns the regions of a device with the durable marks `marks`, of which none is set. `clear_delay` is as in
    /// [`Regions::open`].
    pub fn over(
        env: &Env,
        marks: Rc<dyn Marks>,
        division: Division,
        clear_delay: Duration,
    ) -> Self {
        Self(Rc::new(Inner {
            env: env.clone(),
            marks,
            division,
            clear_delay,
            state: RefCell::new(State::new(division)),
            progress: Notify::default(),
            is_marking: Cell::default(),
            is_clearing: Cell::default(),
            is_closed: Cell::default(),
            tasks: TaskTracker::default(),
        }))
    }

    /// Returns the division of the device into regions.
    pub fn division(&self) -> Division {
        self.0.division
    }

    /// Returns the numbers of the device's regions. Visits each marked region.
    pub fn report(&self) -> Report {
        self.0.state.borrow().report()
    }

    /// Returns the parts that are not verified of the regions marked at the opening, in order. The owner may call any
    /// method while it iterates.
    pub fn unverified(&self) -> impl Iterator<Item = ByteRange> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let part = self.0.state.borrow().next_unverified(from)?;
            from = part.end();
            Some(part)
        })
    }

    /// Whether a byte of `range` is in a region marked at the opening, and not verified yet.
    ///
    /// # Panics
    /// If the range ends behind the device.
    pub fn is_unverified(&self, range: ByteRange) -> bool {
        self.0.state.borrow().is_unverified(range)
    }

    /// Returns the regions that are marked, are being marked or cleared, or have writes: all regions in which a write is in
    /// flight or not flushed, and others.
    pub fn used(&self) -> Vec<u64> {
        self.0.state.borrow().used()
    }

    /// Begins a write: returns once all regions of `range` are durably marked. Regions that are not marked share one
    /// record and one flush with all callers that wait at the same time. If all are marked, the call returns without
    /// waiting. With [`Marks::ahead`], the regions behind `range` are marked too.
    ///
    /// # Errors
    /// `Stopped` after [`Regions::close`]; errors of the vault, if a region was not marked yet.
    ///
    /// # Panics
    /// If the range ends behind the device.
    pub async fn begin(&self, range: ByteRange) -> Result<Writing> {
        let inner = &self.0;
        let (first, last) = inner.division.of(range);
        let may_go_on = || inner.is_closed.get() || inner.state.borrow().is_open(first, last);
        inner.progress.until(may_go_on).await;
        if inner.is_closed.get() {
            bail!(Stopped, "the device was closed");
        }
        let now = inner.env.now();
        inner.state.borrow_mut().begin_write(first, last, now);
        let writing = Writing { regions: inner.clone(), first, last };
        let bytes_ahead = range.len().saturating_mul(inner.marks.ahead());
        let ahead =
            (last + bytes_ahead / inner.division.region_bytes()).min(inner.division.count() - 1);
        // The count of the write keeps a region from being cleared while the caller waits for another region.
        loop {
            let Some(batch) = inner.state.borrow_mut().want(first..=last, ahead, now) else {
                return Ok(writing);
            };
            inner.mark_soon();
            let result = inner.progress.until_some(|| batch.result.borrow().clone()).await;
            result?;
        }
    }

    /// Notes that the owner begins a flush of the device's data. All writes that have ended before this call are
    /// durable when the flush succeeds.
    pub fn before_flush(&self) -> FlushToken {
        FlushToken(self.0.state.borrow_mut().begin_flush())
    }

    /// Notes that the flush of `token` has succeeded. The owner does not call it after a flush that failed.
    pub fn flushed(&self, token: FlushToken) {
        if self.0.state.borrow_mut().end_flush(token.0) {
            self.0.clear_later();
        }
    }

    /// Notes that the owner has verified or resynced a range.
    /// A region marked at the opening is cleared only after calls for all its bytes, and a flush after them.
    ///
    /// # Panics
    /// If the range ends behind the device.
    pub fn verified(&self, range: ByteRange) {
        self.0.state.borrow_mut().verified(range);
    }

    /// Closes the regions: waits until transactions in progress have ended, and posts a transaction that clears all regions
    /// that may be cleared, without regard to the time of their last write. The owner has ended all writes and has
    /// flushed before, and closes or syncs the vault afterwards. If the future is dropped before, the regions stay open.
    ///
    /// # Errors
    /// Errors of the vault.
    pub async fn close(&self) -> Result<()> {
        let inner = &self.0;
        let goes_on = ScopeGuard::new(|| self.resume());
        self.stop().await;
        let cleared = inner.clear(Duration::ZERO, usize::MAX).await;
        goes_on.done();
        cleared
    }

    /// Stops the marks and clears, and waits until those in progress have ended. [`Regions::begin`] fails from now on.
    pub async fn stop(&self) {
        self.0.is_closed.set(true);
        self.0.progress.wake();
        self.0.tasks.ended().await;
    }

    /// Resumes the marks and clears after [`Regions::stop`].
    pub fn resume(&self) {
        self.0.is_closed.set(false);
        if !self.0.state.borrow().is_empty() {
            self.0.clear_later();
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let now = self.regions.env.now();
        self.regions.state.borrow_mut().end_write(self.first, self.last, now);
    }
}

impl Inner {
    /// Spawns the task that commits marks, unless it runs or no region waits for a mark.
    fn mark_soon(self: &Rc<Self>) {
        if !self.state.borrow().has_pending() || self.is_marking.replace(true) {
            return;
        }
        let (me, task) = (self.clone(), self.tasks.begin());
        self.env.spawn("marks of regions", async move {
            while let Some(batch) = me.next_batch() {
                let regions = batch.regions.borrow().iter().copied().collect();
                let result = me.marks.mark(regions).await;
                me.state.borrow_mut().marked(&batch, result);
                me.progress.wake();
                if me.marks.flushes() {
                    me.clear_later();
                }
            }
            me.is_marking.set(false);
            drop(task);
        });
    }

    fn next_batch(&self) -> Option<Rc<Batch>> {
        self.state.borrow_mut().take_pending()
    }

    /// Spawns the task that clears quiet regions, unless it runs. The task ends when no region is flushed; the next
    /// flush spawns it again. With [`Marks::flushes`] it ends when no region is marked.
    fn clear_later(self: &Rc<Self>) {
        if self.is_closed.get() || self.is_clearing.replace(true) {
            return;
        }
        let (me, env, task) = (Rc::downgrade(self), self.env.clone(), self.tasks.begin());
        let delay = self.clear_delay;
        self.env.spawn("clears of regions", async move {
            while let Some(regions) = me.upgrade() {
                let sleep = env.sleep(delay);
                let closing = until_closed(me.clone());
                drop(regions);
                let _ = first(sleep, closing).await;
                if !clear_quiet(&me).await {
                    break;
                }
            }
            drop(task);
        });
    }

    /// Clears all regions that may be cleared and had no write for `delay`, at most `most`.
    async fn clear(&self, delay: Duration, most: usize) -> Result<()> {
        let (mut from, mut left) = (0, most);
        loop {
            // Failed marks take no clears; without an attempt, the regions stay known as marked.
            self.marks.failure().map_or(Ok(()), Err)?;
            let step = left.min(CLEARS_AT_ONCE);
            let quiet = self.state.borrow_mut().take_quiet(from, self.env.now(), delay, step);
            let Some(last) = quiet.last() else { return Ok(()) };
            (from, left) = (last + 1, left - quiet.len());
            self.clear_taken(&quiet).await?;
        }
    }

    /// Clears regions from [`State::take_quiet`].
    async fn clear_taken(&self, regions: &[u64]) -> Result<()> {
        let mut result = Ok(());
        let mut rest = regions;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(self.marks.step(rest));
            rest = behind;
            let mut is_marked = true;
            if result.is_ok() {
                result = self.marks.clear(part.to_vec()).await;
                // Failed marks may have the clear.
                is_marked = result.is_err() && self.marks.failure().is_none();
            }
            self.state.borrow_mut().cleared(part, is_marked);
            self.progress.wake();
        }
        result
    }

    /// Clears quiet regions, after a flush if they wait for it. Returns whether more are to be cleared later.
    async fn clear_now(&self) -> bool {
        self.flush_quiet().await;
        let cleared = self.clear(self.clear_delay, self.marks.clears_now()).await;
        let state = self.state.borrow();
        match self.marks.flushes() {
            true => !self.is_closed.get() && !state.is_empty(),
            // After an error, the regions are still marked, and the next flush tries again.
            false => !self.is_closed.get() && cleared.is_ok() && state.has_clearable(),
        }
    }

    /// Flushes the owner's data if regions without writes for a time wait for it. An error leaves them marked.
    async fn flush_quiet(&self) {
        let waits = || self.state.borrow().waits_for_flush(self.env.now(), self.clear_delay);
        if self.marks.flushes() && waits() {
            let _ = self.marks.flush().await;
        }
    }
}

/// Waits until the regions are closed.
async fn until_closed(regions: Weak<Inner>) {
    std::future::poll_fn(|cx| match regions.upgrade() {
        Some(regions) if !regions.is_closed.get() => {
            regions.progress.wake_later(cx);
            std::task::Poll::Pending
        }
        _ => std::task::Poll::Ready(()),
    })
    .await;
}

/// Clears quiet regions. Returns whether the task has more to clear later.
async fn clear_quiet(regions: &Weak<Inner>) -> bool {
    let Some(regions) = regions.upgrade() else { return false };
    let goes_on = !regions.is_closed.get() && regions.clear_now().await;
    regions.is_clearing.set(goes_on);
    goes_on
}
