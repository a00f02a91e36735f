//! Live changes in the trial of migrations: they begin a migration, change its options and end it. A crash interrupts
//! some of them.

use std::time::Duration;

use block::{JobState, Reason};
use graph::labels::Opening;
use graph::live::Unchanged;
use sim::Count;

use super::shape::{self, Shape, Side};
use super::{DISKS, HERE, Trial, wrong};
use crate::process::{self, LIMIT, Refusal};
use crate::trial::Failure;

/// A live change that the simulator makes.
struct Wish {
    shape: Shape,
    /// Names of the disks that get a new label even if they hold data (option `wipe` of the change).
    wipe: Vec<String>,
    /// Whether the server may refuse the change because the migration has not yet moved all bytes of the volume to one
    /// side.
    may_be_early: bool,
}

impl Trial {
    /// Makes a random live change; in a third of the cases crashes the process during or after it, and starts the
    /// process again.
    pub(super) fn changes(&mut self) -> Result<(), Failure> {
        let wish = self.wish()?;
        let crashes = self.draw.below(3) == 0;
        let limit = match crashes {
            true => self.draw.within(1_000, 40 * self.answer.as_nanos() as u64),
            false => LIMIT.as_nanos() as u64,
        };
        let done = self.tries(&wish, Duration::from_nanos(limit))?;
        if !crashes {
            return done.then_some(()).ok_or_else(|| wrong("a live change did not end in time"));
        }
        if !done {
            self.world.counters().add(Count::ChangeCrashed);
        }
        self.crashes()?;
        if !done {
            self.other = Some(wish.shape);
        }
        self.comes_back()
    }

    /// Makes the live change `wish` and checks its result. Returns `false` if the change did not end within `limit`.
    fn tries(&mut self, wish: &Wish, limit: Duration) -> Result<bool, Failure> {
        self.puts_all_back();
        let opening = Opening { wipe: wish.wipe.clone(), ..process::opening(HERE) };
        let running = self.running.as_ref().expect("the graph runs");
        let came = running.change(&self.world, &wish.shape.text(), opening, limit)?;
        self.judge()?;
        match came {
            None => return Ok(false),
            Some(Ok(())) => self.has_become(wish.shape.clone())?,
            Some(Err(Unchanged::Failed(error)))
                if wish.may_be_early && error.reason() == Some(Reason::ChangeOtherBytes) =>
            {
                self.world.counters().add(Count::ChangeRefused);
            }
            Some(Err(unchanged)) => {
                let (is, would, words) = (&self.shape, &wish.shape, Refusal::of(&unchanged));
                return Err(wrong(format!(
                    "a live change from {is:?} to {would:?} failed: {words}"
                )));
            }
        }
        Ok(true)
    }

    fn has_become(&mut self, shape: Shape) -> Result<(), Failure> {
        match (self.shape.target.is_some(), shape.target.is_some()) {
            (false, true) => {
                self.boundary = 0;
                self.world.counters().add(Count::MigrationBegun);
            }
            (true, false) => self.world.counters().add(Count::MigrationEnded),
            _ => {}
        }
        self.is_now(shape);
        self.job().map(drop)
    }

    fn wish(&mut self) -> Result<Wish, Failure> {
        let Some(job) = self.job()? else { return Ok(self.beginning()) };
        if job.state == JobState::Done {
            return self.end();
        }
        let mut shape = self.shape.clone();
        let target = shape.target.clone().expect("the shape has a migration");
        let may_be_early = self.draw.below(2) == 0;
        if !may_be_early {
            shape.speed = self.speed();
        } else {
            let stays = if self.draw.below(2) == 0 { target } else { shape.source };
            shape = Shape::still(stays);
        }
        Ok(Wish { shape, wipe: Vec::new(), may_be_early })
    }

    /// Makes the live change that removes the `migrate` device of a finished migration.
    pub(super) fn ends_migration(&mut self) -> Result<(), Failure> {
        let wish = self.end()?;
        let done = self.tries(&wish, LIMIT)?;
        done.then_some(()).ok_or_else(|| wrong("a live change did not end in time"))
    }

    fn end(&self) -> Result<Wish, Failure> {
        let holders = self.holders();
        let sides = [Some(&self.shape.source), self.shape.target.as_ref()];
        let holds_all = |side: &&Side| holders == [side.top()];
        let stays = sides.into_iter().flatten().find(holds_all);
        let stays = stays.ok_or_else(|| {
            wrong(format!("neither source nor target has all bytes after a migration: {holders:?}"))
        })?;
        let shape = Shape::still(stays.clone());
        Ok(Wish { shape, wipe: Vec::new(), may_be_early: false })
    }

    /// Returns the live change that begins a random migration: in place, or to other disks.
    fn beginning(&mut self) -> Wish {
        let source = self.shape.source.clone();
        let mut target = Side { is_encrypted: !source.is_encrypted, ..source.clone() };
        if self.draw.below(2) == 0 {
            let free: Vec<_> = (0..DISKS).filter(|n| !source.disks.contains(n)).collect();
            let first = self.draw.below(free.len() as u64 - 1) as usize;
            let count = 1 + self.draw.below(4) as usize / 3;
            target.disks = free[first..first + count].to_vec();
            target.is_encrypted = self.draw.below(3) == 0;
        }
        let new = target.disks.iter().filter(|n| !source.disks.contains(n));
        let new: Vec<_> = new.copied().collect();
        let wipe = new.iter().filter(|n| self.used.contains(n)).map(|n| shape::disk(*n)).collect();
        self.used.extend(new);
        let shape = Shape { source, target: Some(target), speed: self.speed() };
        Wish { shape, wipe, may_be_early: false }
    }

    fn speed(&self) -> Option<u64> {
        (self.draw.below(3) == 0).then(|| self.draw.pick(&[1, 4, 32]) << 20)
    }
}
