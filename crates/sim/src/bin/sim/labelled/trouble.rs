//! Faults of one member in the trial of labelled disks while the server process runs: errors, late replies, or a
//! truncated file.

use std::time::Duration;

use block::control::member::{Fail, Name};
use sim::draw::Stream;
use sim::{Count, Faults};

use super::steps::What;
use super::{End, Trial};
use crate::trial::Failure;

/// Longest virtual time that the trial waits for resyncs at the begin of a process's run, before it makes a disk's
/// replies late.
const COPIES_WITHIN: Duration = Duration::from_millis(200);

/// The late replies of one disk in a run of the server process.
struct Late {
    faults: Faults,
    /// Time after which a command takes the disk out of the mirror, while late replies may still be missing; `None` for
    /// no command.
    taken_out: Option<Duration>,
}

impl Late {
    /// Draws the late replies for a run of the server process: in one of three runs; otherwise `None`.
    fn draw(seed: u64, life: u64) -> Option<Self> {
        let draw = Stream::new(seed, "late", life);
        let stall = draw.within(20_000, 300_000) as u32;
        let hang = draw.pick(&[0, 0, stall / 4]);
        let pause = Duration::from_nanos(draw.within(1_000, 20_000_000));
        let taken_out = (draw.below(4) == 0).then_some(pause);
        let faults = Faults { stall, hang, ..Faults::default() };
        (draw.below(3) == 0).then_some(Self { faults, taken_out })
    }
}

impl Trial {
    /// Gives a random member errors or late replies, takes it out by a command, or truncates its file, if the other
    /// members can replace it. Returns whether the member's replies are late.
    pub(super) fn trouble(&mut self, end: End, changes: u64) -> Result<bool, Failure> {
        let any = self.any_member();
        if self.plugged.contains(&None) {
            return Ok(false);
        }
        let late = Late::draw(self.seed, self.life);
        if late.is_some() {
            self.await_copies()?;
        }
        if self.in_sync_now()? == [any] {
            return Ok(false);
        }
        let faults = match &late {
            Some(late) => late.faults,
            None => self.errors(any, end, changes)?,
        };
        self.note(What::Trouble, format!("faults of disk d{any}: {faults:?}"));
        // By disk, not by place: its label identifies it, wherever it is plugged in.
        self.disks[any].set_faults(faults);
        self.ill = (faults != Faults::default()).then_some(any);
        if let Some(pause) = late.as_ref().and_then(|late| late.taken_out) {
            self.take_out(any, pause);
        }
        Ok(late.is_some())
    }

    /// Draws errors for disk `any` and returns them; or takes the member out by a command, or truncates its file.
    fn errors(&mut self, any: usize, end: End, changes: u64) -> Result<Faults, Failure> {
        let none = Faults::default();
        let rate = self.draw.within(50_000, 500_000) as u32;
        Ok(match (self.draw.below(4), end) {
            (0, _) => {
                let member = self.shape.member(any);
                // The mirror refuses it if the member is the last one, or out already.
                if self.ask::<Fail>(Name { member }).is_ok() {
                    self.world.counters().add(Count::MemberFailed);
                    self.disks[any].garble_reads(self.data());
                }
                none
            }
            // Only before an orderly end: the writes that a failed flush drops are lost before the mirror can
            // record it, so a kill then would be one fault more than a mirror survives.
            (1, End::Stop) => Faults { flush_error: rate, ..none },
            (1 | 2, _) => Faults { write_error: rate, ..none },
            (_, End::PowerAfter(_) | End::KillAfter(_) | End::KillAtFailure(_)) if changes == 0 => {
                let disk = &self.disks[any];
                let size = self.draw.below(disk.config().size / 512) * 512;
                // A write in flight behind the new end would extend the file again, and the loss would stay
                // unnoticed. A member whose copy has just ended is no replacement before its label records it.
                if !disk.is_writing_behind(size) && self.another_is_whole(any)? {
                    disk.cut_short(size);
                    self.cut = Some(any);
                }
                none
            }
            _ => none,
        })
    }

    /// Ends all faults of all disks. Operations without a reply fail now.
    pub(super) fn calm(&self) {
        for disk in &self.disks {
            disk.set_faults(Faults::default());
            disk.release();
        }
    }

    /// Waits until all members are in sync, at most [`COPIES_WITHIN`]. Otherwise most disks with late replies would be
    /// out of sync.
    fn await_copies(&self) -> Result<(), Failure> {
        let env = self.world.env();
        let until = env.now().after(COPIES_WITHIN);
        while env.now() < until && self.in_sync_now()?.len() < self.shape.members.len() {
            self.world.run(env.now().after(COPIES_WITHIN / 100))?;
        }
        Ok(())
    }

    /// Lets up to 50 ms of virtual time pass, so that clients wait for late replies, and the mirror marks regions as
    /// clean.
    pub(super) fn hold_up(&self) -> Result<(), Failure> {
        let draw = Stream::new(self.seed, "held up", self.life);
        let pause = Duration::from_nanos(draw.within(1_000, 50_000_000));
        Ok(self.world.run(self.world.env().now().after(pause))?)
    }
}
