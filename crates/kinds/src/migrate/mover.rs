//! Moves the bytes of a migration and its boundary, one window at a time.
//!
//! Safety rests on one rule: the record of a step is durable before any request can begin in the window of that step.
//! So the mover keeps the lock of a moved window until the record of the move is durable.

use std::time::Duration;

use block::env::LocalFuture;
use block::job::{Cancel, Job, Outcome, Steps, Work};
use block::seeded::{self, Bug};
use block::{
    Buf, ByteRange, Error, ErrorKind, Info, Locked, Locking, Lower, Mode, Op, Progress, Result,
    TaskGroup, error,
};

use super::device::{Inner, Torn};
use super::record::{Record, SECTOR_BYTES, WINDOW_MAX_BYTES, Window, sums};

/// Most bytes that the mover moves to another disk in one step. A request to these bytes waits for the complete step.
const STEP_BYTES: u64 = 1 << 20;

/// Time from an error of a disk to the next attempt of the mover.
const RETRY: Duration = Duration::from_secs(30);

/// Returns the most bytes that the mover of a migration moves in one step, a multiple of the block size.
pub fn step_bytes(info: &Info, in_place: bool) -> u64 {
    let most = if in_place { WINDOW_MAX_BYTES } else { STEP_BYTES };
    let most = most.min(u64::from(info.max_transfer));
    most - most % u64::from(info.block_size)
}

/// A window that the mover has moved, and whose move no durable record covers yet.
pub struct Moved {
    range: ByteRange,
    /// The exclusive lock of the window, for which requests to the window wait.
    _alone: Locked,
}

impl Work for Inner {
    type Guard = Moved;
    /// A window whose move was interrupted, with its lock; the first step completes the move.
    type Run = Option<(Locking, Torn)>;
    const TASK: &'static str = "a migration";
    const WHEN_DONE: Option<&'static str> =
        Some("the migration has moved all bytes; remove the migration from the graph");

    fn job(&self) -> &Job {
        &self.job
    }

    fn tasks(&self) -> &TaskGroup {
        &self.tasks
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn committed(&self) -> LocalFuture<()> {
        self.kept.committed()
    }

    /// Asks for the lock of a window whose move was interrupted, before any request to the window can begin.
    fn begin(&self) -> Self::Run {
        let torn = self.torn.borrow().clone();
        torn.map(|torn| (self.lock.lock(torn.range, Mode::Exclusive), torn))
    }

    /// Whether the mover must first complete an interrupted move of a window: requests to the window wait for that.
    fn is_urgent(&self) -> bool {
        self.torn.borrow().is_some()
    }

    async fn step(&self, steps: &mut Steps<'_, Self>) -> Result<Outcome<Moved>> {
        match steps.run.take() {
            Some((locking, torn)) => self.mend(steps, torn, locking.await).await,
            None => self.move_window(steps).await,
        }
    }

    async fn record(&self) -> Result<()> {
        self.keep(None).await
    }

    /// Blocks requests to the last moved window, when the mover stops before the record of the move is durable.
    fn stopped(&self, unsettled: &[Moved]) {
        if let Some(moved) = unsettled.last() {
            self.torn.borrow_mut().get_or_insert(Torn { range: moved.range, window: None });
        }
    }

    /// Returns the time to the next attempt, unless another attempt cannot succeed. Requests that wait for a window
    /// must not wait for an operator.
    fn retry_after(&self, error: &Error) -> Option<Duration> {
        (!matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Faulted)).then_some(RETRY)
    }

    fn cancel(&self) -> Result<Cancel> {
        if self.goes_back() {
            return Err(error!(InUse, "the bytes are being moved back already").at(&self.name));
        }
        if seeded::on(Bug::TurnedAtOnce) {
            self.back.set(true);
        }
        Ok(Cancel::Back)
    }

    fn turn(&self) {
        self.back.set(true);
    }

    fn is_reversed(&self) -> bool {
        self.goes_back()
    }

    fn progress(&self) -> (String, Progress) {
        let (from, to) = (self.from.name(), self.to.name());
        let (what, done) = match self.goes_back() {
            false => (format!("from {from} to {to}"), self.boundary.get()),
            true => (format!("back from {to} to {from}"), self.size - self.boundary.get()),
        };
        (what, Progress { done_bytes: done, all_bytes: self.size, of_bytes: self.size })
    }
}

impl Inner {
    /// Returns the source and the target in the present direction of the migration.
    fn sides(&self) -> (&Lower, &Lower) {
        if self.back.get() { (&self.to, &self.from) } else { (&self.from, &self.to) }
    }

    /// Returns the window that the mover moves next; `None` if the boundary has reached its destination.
    fn window(&self) -> Option<ByteRange> {
        let (boundary, most) = (self.boundary.get(), self.step_bytes);
        match self.back.get() {
            false => ByteRange::between(boundary, self.size.min(boundary + most)),
            true => {
                // On the way back the first step may be short, so that all later ones are aligned.
                let last = boundary.saturating_sub(1);
                ByteRange::between(last - last % most, boundary)
            }
        }
    }

    /// Moves one window. If the boundary has reached its destination, makes the end of the migration durable instead.
    async fn move_window(&self, steps: &mut Steps<'_, Self>) -> Result<Outcome<Moved>> {
        if self.is_at_end() {
            steps.settle().await?;
            // The second write replaces the older generation of each label.
            self.keep(None).await?;
            return Ok(if self.job.is_turning() { Outcome::Unchanged } else { Outcome::Done });
        }
        self.flush_fault.check()?;
        // Flushes take the time, not bytes: a shorter step would not be faster.
        let throttled = steps.throttled(self.pace.whole_step(self.step_bytes)).await?;
        let Some((step, range)) = throttled.zip(self.window()) else {
            return Ok(Outcome::Unchanged);
        };
        // Wait before the lock: requests that hold buffers may wait for the lock.
        let room = steps.wait(self.env.pool().wait_for(range.len() as usize)).await??;
        let alone = steps.wait(self.lock.lock(range, Mode::Exclusive)).await?;
        let (source, _) = self.sides();
        // In place, the sums of a window need its bytes.
        let data = match !self.in_place && source.is_zero(range).await? {
            true => None,
            false => Some(source.read(range, room).await?),
        };
        let window = data.as_ref().filter(|_| self.in_place);
        let window = window.map(|data| Window::of(range, &data.read()));
        if window.is_some() || steps.is_unsettled() {
            let kept = self.keep(window.clone());
            let unrecorded = seeded::on(Bug::MoveUnrecorded);
            steps.settle_by(async { if unrecorded { Ok(()) } else { kept.await } }).await?;
        }
        let moved = self.put(Torn { range, window }, data, alone).await?;
        step.done(range.len());
        Ok(Outcome::Moved(moved))
    }

    /// Writes `data`, the content of a window, to the target, and moves the boundary over the window. Without data the
    /// content is zeros: a hole stays a hole.
    async fn put(&self, torn: Torn, data: Option<Buf>, alone: Locked) -> Result<Moved> {
        let (_, target) = self.sides();
        let range = torn.range;
        // A change in place destroys the old content from its first byte on.
        *self.torn.borrow_mut() = self.in_place.then_some(torn);
        match data {
            Some(data) => target.write(range, data).await?,
            None if target.is_zero(range).await? => {}
            None => {
                let zeroes = Op::WriteZeroes { range, unmap: true, fua: false };
                target.call(zeroes).await.result?;
            }
        }
        if !seeded::on(Bug::MoveUnflushed)
            && let Err(error) = target.flush().await
        {
            // No later flush makes up for the failed one.
            self.flush_fault.note(&error, &self.name);
            self.flush_fault.check()?;
        }
        *self.torn.borrow_mut() = None;
        self.boundary.set(if self.back.get() { range.start() } else { range.end() });
        Ok(Moved { range, _alone: alone })
    }

    /// Writes the progress of the migration to the labels, with `window` as the window that changes in place next.
    async fn keep(&self, window: Option<Window>) -> Result<()> {
        let record = Record {
            back: self.back.get(),
            paused: self.job.is_pausing(),
            size: self.size,
            boundary: self.boundary.get(),
            window,
        };
        let written = self.kept.write(&self.ports, record.encode()).await;
        written.into_iter().try_for_each(|(_, answer)| answer)
    }

    /// Completes the interrupted move of a window, however much of the window was written.
    async fn mend(
        &self,
        steps: &mut Steps<'_, Self>,
        torn: Torn,
        alone: Locked,
    ) -> Result<Outcome<Moved>> {
        let Some(window) = &torn.window else {
            // The window has moved; only the record of the move is not durable yet.
            steps.settle().await?;
            *self.torn.borrow_mut() = None;
            return Ok(Outcome::Unchanged);
        };
        let data = self.recognise(window).await?;
        // A power cut before the window began to move may have lost writes that its sums include.
        let found = Window::of(window.range, &data.read());
        if found != *window && !seeded::on(Bug::MoveMendedUnrecorded) {
            steps.settle_by(self.keep(Some(found.clone()))).await?;
        }
        let torn = Torn { range: torn.range, window: Some(found) };
        Ok(Outcome::Moved(self.put(torn, Some(data), alone).await?))
    }

    /// Returns the content that clients saw last in a window whose change in place was interrupted: see
    /// `docs/formats/migrate.md`.
    async fn recognise(&self, window: &Window) -> Result<Buf> {
        let (source, target) = self.sides();
        let len = window.range.len() as usize;
        let old = source.read(window.range, self.env.pool().wait_for(len).await?).await?;
        let new = target.read(window.range, self.env.pool().wait_for(len).await?).await?;
        let matches = |data: &Buf| -> Vec<bool> {
            sums(&data.read()).zip(&window.sums).map(|(sum, wanted)| sum == *wanted).collect()
        };
        let (is_new, is_old) = (matches(&new), matches(&old));
        let damaged = is_new.iter().zip(&is_old).filter(|(new, old)| !**new && !**old).count();
        if damaged > 0 && !window.is_proved_moved(&is_new, &is_old) {
            return Ok(old);
        }
        if damaged > 0 {
            return Err(error!(
                Corrupt,
                "{damaged} of {} sectors in bytes {} hold neither their old nor their new bytes: a \
                 disk has lost writes",
                is_new.len(),
                window.range
            )
            .next("bring the lost disk back, or restore the sectors from a backup")
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
