//! Live changes in the trial of labelled disks, while clients send requests. The server must refuse some of them, and a
//! crash interrupts others.

use std::time::Duration;

use block::{ErrorKind, Reason};
use graph::labels::{self, Opening};
use graph::live::Unchanged;
use sim::workload::Worker;
use sim::{Client, Count, Door, Faults};

use super::shape::{self, CLEAR, Shape};
use super::steps::What;
use super::{Ask, Crash, End, HERE, LIMIT, Start, Trial, wrong};
use crate::process::{self, Refusal};
use crate::trial::Failure;

/// A live change that the simulator makes.
struct Wish {
    shape: Shape,
    /// Names of the disks that get a new label even if they hold data (option `wipe` of the change).
    wipe: Vec<String>,
    due: Due,
    /// Whether a member with every acknowledged write is in both the old and the new graph. Another member may also
    /// come in sync during the change.
    keeps_bytes: bool,
}

/// The result that a live change must have if all disks work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Done,
    /// The server refuses the change, or undoes it, with this reason.
    Refused(Reason),
}

impl Trial {
    /// Makes the random live change number `n` of this run of the process, and checks the result. `end` is how the run
    /// will end.
    pub(super) fn change(&mut self, n: u64, end: End) -> Result<(), Failure> {
        let Some(wish) = self.wish()? else { return Ok(()) };
        self.note(What::Change(n), format!("{:?}", wish.shape));
        self.victim(&wish, end)?;
        let came = self.attempt(&wish, LIMIT)?;
        let came =
            came.ok_or_else(|| wrong(format!("a live change did not end within {LIMIT:?}")))?;
        self.changed(wish, came)?;

        match self.draw.below(3) {
            0 => self.check(),
            _ => self.judge(),
        }
    }

    /// Crashes the process during a random live change. Afterwards the labels decide whether the old or the new graph
    /// can start.
    pub(super) fn crash_in_change(&mut self, end: End, crash: Crash) -> Result<(), Failure> {
        let Some(wish) = self.wish()? else { return self.crash(crash) };
        self.note(What::End, format!("{crash:?} in a change to {:?}", wish.shape));
        self.victim(&wish, end)?;
        let most = self.draw.pick(&[300_000, 3_000_000, 10_000_000, 30_000_000]);
        let limit = Duration::from_nanos(self.draw.within(1_000, most));
        let shape = wish.shape.clone();
        let due = wish.due;
        let came = self.attempt(&wish, limit)?;
        let unfinished = came.is_none();
        if let Some(came) = came {
            self.changed(wish, came)?;
        }
        self.judge()?;
        self.crash(crash)?;
        self.calm();
        if !unfinished {
            return Ok(());
        }
        self.world.counters().add(Count::ChangeCrashed);
        self.torn = true;
        self.settle()?;
        // The mirror may have failed the `ill` member in its last moments, which is not known here.
        let well = |n: &usize| Some(*n) != self.ill;
        if self.in_sync.iter().any(well) {
            let well: Vec<_> = self.in_sync.iter().copied().filter(well).collect();
            self.in_sync = well;
        }
        if due == Due::Done {
            self.between = Some([self.shape.clone(), shape]);
        }
        self.which()
    }

    fn crash(&mut self, crash: Crash) -> Result<(), Failure> {
        match crash {
            Crash::Kill => self.kill(),
            Crash::Power => self.power_cut(),
        }
    }

    /// After a crash in a live change, finds out from the labels whether the old or the new graph starts, and checks
    /// that the start of the other graph is refused if that graph lacks a disk. Each further crash before a start may
    /// change the result, because labels need not be durable.
    pub(super) fn which(&mut self) -> Result<(), Failure> {
        let Some([before, after]) = self.between.clone() else { return Ok(()) };
        self.shape = before;
        if after.members == self.shape.members {
            // Both have the same disks and the same bytes.
            if self.draw.below(2) == 0 {
                self.shape = after;
            }
            return Ok(());
        }
        let labels = self.labels()?;
        let newest = labels.iter().map(|(_, label)| label).max_by_key(|label| label.epoch);
        let newest = newest.ok_or_else(|| wrong("no disk of the graph has a label"))?;
        let named = labels::disks(&newest.spec).map_err(|error| wrong(error.to_string()))?;
        let is_it = |shape: &Shape| shape.names().iter().eq(named.keys());
        if is_it(&after) {
            self.world.counters().add(Count::ChangeRecorded);
            self.refused_now("a start with the spec from before a live change", &[])?;
            self.in_sync.retain(|n| after.members.contains(n));
            self.shape = after;
            return Ok(());
        }
        if !is_it(&self.shape) {
            return Err(wrong(format!(
                "after a crash in a live change the labels match neither the old nor the new spec: \
                 {named:?}"
            )));
        }
        self.world.counters().add(Count::ChangeUnrecorded);
        if self.shape.members.iter().any(|n| !after.members.contains(n)) {
            let is_new = |n: &usize| !self.shape.members.contains(n);
            let new: Vec<_> = after.members.iter().copied().filter(is_new).collect();
            let before = std::mem::replace(&mut self.shape, after);
            let refused =
                self.refused_now("a start with the new spec of an unfinished live change", &new);
            self.shape = before;
            return refused;
        }
        // A start may also add disks, so the graph after the change can come up.
        Ok(())
    }

    /// Checks that a start of the graph `shape` is refused, because the labels record another graph. Disks in `new`,
    /// which the interrupted change added, may be partly wiped; then the error must name such a disk.
    fn refused_now(&mut self, what: &str, new: &[usize]) -> Result<(), Failure> {
        let is_new =
            |refusal: &Refusal| new.iter().any(|n| refusal.place() == Some(&shape::name(*n)));
        let ask = Ask { degraded: self.plugged.contains(&None), ..Ask::default() };
        match self.start(ask, LIMIT)? {
            Start::Refused(Some(Reason::LabelForeign | Reason::LabelForgotten), _) => Ok(()),
            Start::Refused(Some(Reason::LabelNotBlank | Reason::LabelDamaged), words)
                if is_new(&words) =>
            {
                Ok(())
            }
            Start::Refused(_, words) => {
                Err(wrong(format!("{what} was refused for the wrong reason: {words}")))
            }
            Start::Up | Start::Unfinished => Err(wrong(format!("{what} was not refused"))),
        }
    }

    /// Makes a live change; `None` if the change does not end within `limit`.
    fn attempt(
        &self,
        wish: &Wish,
        limit: Duration,
    ) -> Result<Option<Result<(), Unchanged>>, Failure> {
        let running = self.running.as_ref().expect("the graph runs");
        let opening = Opening {
            // A disk that is missing was missing before.
            degraded: true,
            wipe: wish.wipe.clone(),
            ..process::opening(HERE)
        };
        running.change(&self.world, &wish.shape.text(None), opening, limit)
    }

    /// Checks that the live change `wish` had a permitted result, given the faults of disks.
    fn changed(&mut self, wish: Wish, came: Result<(), Unchanged>) -> Result<(), Failure> {
        let counters = self.world.counters();
        let unchanged = match (came, wish.due) {
            (Ok(()), Due::Done) => return self.is_now(wish.shape),
            (Ok(()), Due::Refused(due)) => {
                return Err(wrong(format!(
                    "a live change to {:?} must be refused with {due} and succeeded",
                    wish.shape
                )));
            }
            (Err(unchanged), _) => unchanged,
        };
        let refusal = Refusal::of(&unchanged);
        let why = refusal.reason();
        let is_ill = self.ill.is_some();
        let undone = match (&unchanged, wish.due) {
            (Unchanged::Lost { .. }, _) => false,
            (Unchanged::Failed(_), Due::Refused(due)) if why == Some(due) => {
                counters.add(Count::ChangeRefused);
                true
            }
            (Unchanged::Failed(_), Due::Done) if why == Some(Reason::ChangeOtherBytes) => {
                counters.add(Count::ChangeRefused);
                // Right if no member that stays has all bytes.
                !wish.keeps_bytes || !self.keeps_bytes(&wish.shape)?
            }
            (Unchanged::Failed(_), Due::Done) if why == Some(Reason::ChangeOtherBlocks) => {
                counters.add(Count::ChangeRefused);
                wish.shape.members.iter().any(|n| !self.shape.members.contains(n))
            }
            (Unchanged::Failed(_), Due::Done) if why == Some(Reason::CryptOtherUnits) => {
                counters.add(Count::ChangeRefused);
                self.block_of(&wish.shape) != self.block_of(&self.shape)
            }
            // Emulated zeroes need buffers below each member, so more members may take shorter requests only.
            (Unchanged::Failed(_), Due::Done)
                if !self.zeroes
                    && why.is_none()
                    && refusal.kind() == Some(ErrorKind::Unsupported) =>
            {
                counters.add(Count::ChangeRefused);
                true
            }
            (Unchanged::Failed(_), _) if is_ill => {
                counters.add(Count::ChangeUndone);
                true
            }
            // Disks were swapped: a disk is identified by its label, wherever it is plugged in.
            (Unchanged::Refused(_), _) if why == Some(Reason::LabelForgotten) => !self.in_places(),
            (Unchanged::Refused(_), _) => {
                // A disk that was removed with an operation in flight stays locked until the operation ends.
                let failed = [ErrorKind::Io, ErrorKind::TimedOut, ErrorKind::InUse];
                let kind = refusal.kind().filter(|_| why.is_none());
                is_ill && kind.is_some_and(|kind| failed.contains(&kind))
            }
            (Unchanged::Failed(_), _) => false,
        };
        if undone {
            return Ok(());
        }
        let (is, would) = (&self.shape, &wish.shape);
        Err(wrong(format!(
            "a live change from {is:?} to {would:?} failed without a valid reason: {refusal}"
        )))
    }

    /// Returns the block size in bytes of the mirror in the graph `shape`: the largest block size of its disks.
    fn block_of(&self, shape: &Shape) -> u32 {
        let blocks = shape.members.iter().map(|n| self.disks[*n].config().profile.block_size());
        blocks.max().expect("a mirror has members")
    }

    /// Records that the process serves the graph `shape` after a live change, and counts what the change did.
    fn is_now(&mut self, shape: Shape) -> Result<(), Failure> {
        let before = std::mem::replace(&mut self.shape, shape);
        let counters = self.world.counters();
        counters.add(Count::ChangeDone);
        for n in 0..self.disks.len() {
            match (before.members.contains(&n), self.shape.members.contains(&n)) {
                (false, true) => counters.add(Count::ChangeGrew),
                (true, false) => counters.add(Count::ChangeShrank),
                _ => {}
            }
        }
        if self.shape.disk_timeout_s != before.disk_timeout_s {
            counters.add(Count::ChangeReopened);
        }
        if self.shape.second && !before.second {
            self.check_second()?;
        }
        Ok(())
    }

    /// Checks that the export `second`, which a live change added, has the content of the export `vol`.
    fn check_second(&self) -> Result<(), Failure> {
        let running = self.running.as_ref().expect("the graph runs");
        let portal = running.live.portal("second").expect("the spec has the export second");
        let client = Door::Graph(Client::of(&running.engine, portal));
        let worker = Worker { client, ..self.worker(self.starts << 48 | 2) };
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    fn in_places(&self) -> bool {
        self.plugged.iter().enumerate().all(|(place, disk)| *disk == Some(place))
    }

    /// In some live changes, makes a random disk fail flushes or writes: a disk whose loss the mirror survives in the
    /// old and in the new graph.
    fn victim(&mut self, wish: &Wish, end: End) -> Result<(), Failure> {
        if self.ill.is_some() || self.plugged.contains(&None) || self.draw.below(3) > 0 {
            return Ok(());
        }
        let any = self.draw.below(self.disks.len() as u64) as usize;
        let stays =
            |n: &usize| *n != any && Some(*n) != self.leaving && wish.shape.members.contains(n);
        if !self.in_sync_now()?.iter().any(stays) {
            return Ok(());
        }
        let (none, rate) = (Faults::default(), self.draw.within(100_000, 1_000_000) as u32);
        let faults = match (self.draw.below(2), end) {
            // Only before an orderly end; see `errors` in `trouble.rs`.
            (0, End::Stop) => Faults { flush_error: rate, ..none },
            _ => Faults { write_error: rate, ..none },
        };
        self.disks[any].set_faults(faults);
        self.ill = Some(any);
        Ok(())
    }

    /// Returns a random live change; `None` if the drawn type of change is not possible in the present graph.
    fn wish(&mut self) -> Result<Option<Wish>, Failure> {
        let (shape, wipe) = (self.shape.clone(), Vec::new());
        let mut wish = Wish { shape, wipe, due: Due::Done, keeps_bytes: false };
        let shape = &mut wish.shape;
        let spare = (0..self.disks.len())
            .find(|n| !shape.members.contains(n) && self.plugged[*n] == Some(*n));
        let drawn = self.draw.below(10);
        match drawn {
            0..=3 => {
                let (adds, removes) = (drawn != 1, drawn == 1 || drawn == 2);
                if removes {
                    let at = self.draw.below(shape.members.len() as u64) as usize;
                    shape.members.remove(at);
                }
                if let Some(new) = spare.filter(|_| adds) {
                    shape.members.push(new);
                    wish.wipe.extend(self.used.contains(&new).then(|| shape::name(new)));
                }
                let least = shape.members.len() >= 2;
                if !least || wish.shape == self.shape || !self.is_safe(&wish.shape)? {
                    return Ok(None);
                }
                // Its earlier image belongs to a disk with another identity.
                for new in wish.shape.members.iter().filter(|n| !self.shape.members.contains(n)) {
                    self.used.insert(*new);
                    self.images[*new] = None;
                }
            }
            4 | 5 => {
                let kind = self.draw.pick(&CLEAR);
                match shape.clear.iter().position(|known| *known == kind) {
                    Some(at) => drop(shape.clear.remove(at)),
                    None => {
                        let at = self.draw.below(shape.clear.len() as u64 + 1) as usize;
                        shape.clear.insert(at, kind);
                    }
                }
            }
            6 => match self.draw.below(2) {
                0 => shape.timeout_s = Some(shape.timeout_s.unwrap_or(20) + 1),
                _ => shape.disk_timeout_s = Some(shape.disk_timeout_s.unwrap_or(30) + 1),
            },
            7 => shape.second = !shape.second,
            8 => {
                wish.due = Due::Refused(Reason::ChangeOtherBytes);
                match self.draw.below(2) {
                    0 => shape.crypt = !shape.crypt,
                    _ => shape.shifted = true,
                }
            }
            _ => match &mut shape.raw_timeout_s {
                Some(timeout) => {
                    *timeout += 1;
                    wish.due = Due::Refused(Reason::ChangeOnRawDisks);
                }
                None => {
                    // A mirror records the states of its members by their names.
                    shape.below = !shape.below;
                    wish.due = Due::Refused(Reason::ChangeRenamesMembers);
                }
            },
        }
        wish.keeps_bytes = self.keeps_bytes(&wish.shape)?;
        Ok(Some(wish))
    }

    fn keeps_bytes(&self, shape: &Shape) -> Result<bool, Failure> {
        Ok(self.in_sync_now()?.iter().any(|n| shape.members.contains(n)))
    }

    /// Whether the result of a change to `shape` is certain, although a member may be `ill`. Either a member with every
    /// write stays in the graph and is not `ill`; or no member with every write stays, so the server refuses the
    /// change. In the second case the `ill` member must not stay, because it may come in sync meanwhile.
    fn is_safe(&self, shape: &Shape) -> Result<bool, Failure> {
        let in_sync = self.in_sync_now()?;
        let mut stay = in_sync.iter().filter(|n| shape.members.contains(n)).peekable();
        let the_ill_stays = || self.ill.is_some_and(|ill| shape.members.contains(&ill));
        Ok(match stay.peek() {
            None => !the_ill_stays(),
            Some(_) => stay.any(|n| Some(*n) != self.ill),
        })
    }
}
