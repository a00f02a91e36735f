//! Moving the boundary, a window at a time.
//!
//! What makes it safe: the state that tells of a step is durable before any request can begin in the
//! window behind it. So the mover keeps the window that it has moved until it has written the state that
//! goes with the next one.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{
    Buf, ByteRange, Error, ErrorKind, Info, Locked, Locking, Lower, Mode, Result, Step, first,
};

use super::device::{Inner, State, Torn};
use super::record::{Record, SECTOR_BYTES, WINDOW_MAX_BYTES, Window, sums};

/// Moved at once at most, from one disk to another: a request there waits so long.
const STEP_BYTES: u64 = 1 << 20;

/// After a disk has failed, the next attempt.
const RETRY: Duration = Duration::from_secs(30);

/// The longest step, in whole blocks.
pub fn step_bytes(info: &Info, in_place: bool) -> u64 {
    let most = if in_place { WINDOW_MAX_BYTES } else { STEP_BYTES };
    let most = most.min(u64::from(info.max_transfer));
    most - most % u64::from(info.block_size)
}

/// The mover, between two steps.
struct Mover {
    /// The window that was moved last, until the state says so.
    moved: Option<(ByteRange, Locked)>,
}

impl Inner {
    /// Begins to move, or to find out that nothing is left.
    pub fn resume(self: &Rc<Self>) {
        let torn = self.torn.borrow().clone();
        // A window that is half moved is mended first: requests there wait for that.
        if self.paused.get() && torn.is_none() {
            return self.become_state(State::Paused);
        }
        self.become_state(State::Moving);
        if self.is_moved.replace(true) {
            // It was about to rest, and goes on.
            return;
        }
        // Nobody else gets in between.
        let torn = torn.map(|torn| (self.lock.lock(torn.range, Mode::Exclusive), torn));
        let inner = Rc::downgrade(self);
        let one = self.underway.begin();
        self.env.spawn("a migration", async move {
            let _one = one;
            let Some(sure) = inner.upgrade().map(|inner| inner.kept.committed()) else { return };
            if Self::undisturbed(&inner, sure).await {
                Self::go_on(&inner, torn).await;
            }
            if let Some(inner) = inner.upgrade() {
                inner.is_moved.set(false);
                inner.tried().await;
            }
        });
    }

    /// Moves window after window until there is nothing left to do, or nothing can be done.
    async fn go_on(inner: &Weak<Self>, mut torn: Option<(Locking, Torn)>) {
        let mut mover = Mover { moved: None };
        loop {
            let Some(inner) = inner.upgrade() else { return };
            let done = match torn.take() {
                Some((locking, torn)) => inner.mend(&mut mover, torn, locking.await).await,
                None => inner.step(&mut mover).await,
            };
            match done {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return inner.stop(mover, error),
            }
            inner.env.give_way().await;
        }
    }

    /// Waits, unless it is told to rest before; whether it was not.
    async fn undisturbed(inner: &Weak<Self>, wait: LocalFuture<()>) -> bool {
        let Some(inner) = inner.upgrade() else { return false };
        first(wait, inner.changed.until(|| inner.closing.get())).await.is_some()
    }

    fn become_state(&self, state: State) {
        *self.state.borrow_mut() = state;
        self.changed.wake();
    }

    /// The bytes that were moved last are nobody's until their state is durable.
    fn stop(&self, mover: Mover, error: Error) {
        if let Some((range, _)) = &mover.moved {
            self.torn.borrow_mut().get_or_insert(Torn { range: *range, window: None });
        }
        self.failed.set(self.failed.get() + 1);
        self.become_state(State::Stopped(error));
    }

    /// What has stopped is tried again after a while: who waits for the window should not have to wait for
    /// a person.
    async fn tried(self: Rc<Self>) {
        let is_stopped = || match &*self.state.borrow() {
            State::Stopped(error) => {
                !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Faulted)
            }
            _ => false,
        };
        let disturbed = self.changed.until(|| !is_stopped() || self.closing.get());
        if self.env.within(RETRY, disturbed).await.is_none() {
            self.resume();
        }
    }

    /// The device that bytes come from, and the one that they go to.
    fn sides(&self) -> (&Lower, &Lower) {
        if self.back.get() { (&self.to, &self.from) } else { (&self.from, &self.to) }
    }

    /// What is moved next.
    fn window(&self) -> Option<ByteRange> {
        let (boundary, most) = (self.boundary.get(), self.step_bytes);
        match self.back.get() {
            false => ByteRange::between(boundary, self.size.min(boundary + most)),
            true => {
                // Backward the first step may be a short one, so that all others are in line.
                let last = boundary.saturating_sub(1);
                ByteRange::between(last - last % most, boundary)
            }
        }
    }

    /// One window, or the end; whether there may be more.
    async fn step(&self, mover: &mut Mover) -> Result<bool> {
        if self.turning.take() {
            self.back.set(true);
        }
        if self.is_told_to_rest() {
            self.settle(mover).await?;
            // It may have been told something else meanwhile.
            let rests = self.paused.get() && !self.turning.get();
            if rests && !self.closing.get() {
                self.become_state(State::Paused);
            }
            return Ok(!rests && !self.closing.get());
        }
        if self.is_at_end() {
            self.settle(mover).await?;
            // The second one is for the copy of the label that the first one has left.
            self.keep(None).await?;
            if self.turning.get() {
                return Ok(true);
            }
            self.become_state(State::Done);
            return Ok(false);
        }
        self.flush_fault.check()?;
        let Some(turn) = self.turn(mover).await? else { return Ok(true) };
        let Some(range) = self.window() else { return Ok(true) };
        if mover.moved.as_ref().is_some_and(|(moved, _)| moved.overlaps(range)) {
            // It was told to turn round.
            self.settle(mover).await?;
        }
        let room = self.room(mover, range.len() as usize).await?;
        let alone = match self.lock.try_lock(range, Mode::Exclusive) {
            Some(alone) => alone,
            None => {
                // Who waits for both windows would wait for ever.
                if mover.moved.is_some() {
                    self.settle(mover).await?;
                }
                self.lock.lock(range, Mode::Exclusive).await
            }
        };
        let (source, _) = self.sides();
        let data = source.read(range, room).await?;
        let window = self.in_place.then(|| Window::of(range, &data.read()));
        let has_moved = mover.moved.is_some();
        if seeded::on(Bug::MoveReleasedEarly) {
            mover.moved = None;
        }
        if !seeded::on(Bug::MoveUnrecorded) && (window.is_some() || has_moved) {
            self.keep(window.clone()).await?;
        }
        mover.moved = None;
        self.put(mover, Torn { range, window }, data, alone).await?;
        turn.done(range.len());
        Ok(true)
    }

    /// A buffer. Nobody waits for the mover meanwhile: they may be those who have them all.
    async fn room(&self, mover: &mut Mover, len: usize) -> Result<Buf> {
        let mut room = pin!(self.env.pool().wait_for(len));
        if let Poll::Ready(room) = poll_fn(|cx| Poll::Ready(room.as_mut().poll(cx))).await {
            return room;
        }
        if mover.moved.is_some() {
            self.settle(mover).await?;
        }
        room.await
    }

    /// Writes a window where it goes to, and lets the boundary follow.
    async fn put(&self, mover: &mut Mover, torn: Torn, data: Buf, alone: Locked) -> Result<()> {
        let (_, target) = self.sides();
        let range = torn.range;
        // From the first byte on it is not what it was, if it is changed in place.
        *self.torn.borrow_mut() = self.in_place.then_some(torn);
        target.write(range, data).await?;
        if !seeded::on(Bug::MoveUnflushed)
            && let Err(error) = target.flush().await
        {
            // No later one makes it good.
            self.flush_fault.note(&error, &self.name);
            self.flush_fault.check()?;
        }
        *self.torn.borrow_mut() = None;
        self.boundary.set(if self.back.get() { range.start() } else { range.end() });
        mover.moved = Some((range, alone));
        Ok(())
    }

    /// Lets go of the window that was moved last: its state is durable.
    async fn settle(&self, mover: &mut Mover) -> Result<()> {
        self.keep(None).await?;
        mover.moved = None;
        Ok(())
    }

    /// When the next step may begin. Nobody waits for the mover meanwhile. `None` if it is told something
    /// else.
    async fn turn(&self, mover: &mut Mover) -> Result<Option<Step>> {
        // It is flushes that take the time, and not bytes: a short step would be no shorter.
        let mut step = pin!(self.pace.whole_step(self.step_bytes));
        if let Poll::Ready(step) = poll_fn(|cx| Poll::Ready(step.as_mut().poll(cx))).await {
            return Ok(Some(step));
        }
        if mover.moved.is_some() {
            self.settle(mover).await?;
        }
        let disturbed = || self.is_told_to_rest() || self.turning.get();
        Ok(first(step, self.changed.until(disturbed)).await)
    }

    fn is_told_to_rest(&self) -> bool {
        self.closing.get() || self.paused.get()
    }

    /// Makes durable how far it is, and what is changed next.
    async fn keep(&self, window: Option<Window>) -> Result<()> {
        let record = Record {
            back: self.back.get(),
            paused: self.paused.get(),
            size: self.size,
            boundary: self.boundary.get(),
            window,
        };
        let written = self.kept.write(&self.ports, record.encode()).await;
        written.into_iter().try_for_each(|(_, answer)| answer)
    }

    /// Brings a window to where it was to go, whatever has become of it.
    async fn mend(&self, mover: &mut Mover, torn: Torn, alone: Locked) -> Result<bool> {
        let Some(window) = &torn.window else {
            // It is there; what tells so is not durable yet.
            self.keep(None).await?;
            *self.torn.borrow_mut() = None;
            return Ok(true);
        };
        let data = self.recognise(window).await?;
        // Before anything of the window has moved, a power cut may have lost writes that the sums count on.
        let found = Window::of(window.range, &data.read());
        if found != *window && !seeded::on(Bug::MoveMendedUnrecorded) {
            self.keep(Some(found.clone())).await?;
        }
        self.put(mover, Torn { range: torn.range, window: Some(found) }, data, alone).await?;
        Ok(true)
    }

    /// What clients saw in a window that was being changed in place: `docs/formats/migrate.md`.
    async fn recognise(&self, window: &Window) -> Result<Buf> {
        let (source, target) = self.sides();
        let len = window.range.len() as usize;
        let old = source.read(window.range, self.env.pool().wait_for(len).await?).await?;
        let new = target.read(window.range, self.env.pool().wait_for(len).await?).await?;
        let is_new: Vec<bool> =
            sums(&new.read()).zip(&window.sums).map(|(sum, wanted)| sum == *wanted).collect();
        if !is_new.contains(&true) {
            return Ok(old);
        }
        let is_old: Vec<bool> =
            sums(&old.read()).zip(&window.sums).map(|(sum, wanted)| sum == *wanted).collect();
        let damaged = is_new.iter().zip(&is_old).filter(|(new, old)| !**new && !**old).count();
        if damaged > 0 {
            let words = format!(
                "{damaged} of {} sectors in {} are neither what they were nor what they were \
                         to become: a disk has lost them",
                is_new.len(),
                window.range
            );
            return Err(Error::new(ErrorKind::Corrupt, words)
                .next("bring back the disk, or what is there from a backup")
                .at(&self.name));
        }
        for (n, _) in is_new.iter().enumerate().filter(|(_, new)| !**new) {
            let at = n * SECTOR_BYTES as usize;
            let sector = at..at + SECTOR_BYTES as usize;
            new.slice(sector.clone()).write().copy_from_slice(&old.slice(sector).read());
        }
        Ok(new)
    }
}
