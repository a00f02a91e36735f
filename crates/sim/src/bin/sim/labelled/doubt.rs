//! The trial of labelled graphs over disks that break the contract: torn writes damage other sectors, or one disk
//! ignores flushes, loses writes or misdirects them. The graph must start, or be refused with a reason and then start
//! without that disk. No code may panic or loop forever, and at the end all members have the same bytes.
//! `docs/testing.md` describes the damage that such disks may cause.

use std::time::Duration;

use block::control::copies::{Action, Scrub};
use block::control::member::{Resync, Stale};
use sim::draw::Stream;
use sim::{Count, Faults, Profile, Promise};

use super::shape::Placing;
use super::{Ask, IN_SYNC, LIMIT, Start, Trial, wrong};
use crate::trial::Failure;

/// One in `SHARE` seeds with labelled graphs has disks that break the contract.
const SHARE: u64 = 8;

/// How the simulated disks of a seed break the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// A power cut that tears a write also damages neighbouring sectors, or the sector in which it stopped, on every
    /// disk. The profile says which.
    Tears(Profile),
    /// The disk with this number acknowledges flushes without effect.
    IgnoresFlushes(usize),
    /// The disk with this number acknowledges all writes, and loses some of them.
    LosesWrites(usize),
    /// The disk with this number puts some writes at another address.
    Misdirects(usize),
}

impl Doubt {
    /// Draws how the disks of a seed break the contract; `None` if all disks keep the contract, as in most seeds.
    /// `disks`: the number of the mirror's members.
    pub fn draw(seed: u64, disks: usize) -> Option<Self> {
        let draw = Stream::new(seed, "doubt", 0);
        let one = draw.below(disks as u64) as usize;
        (draw.below(SHARE) == 0).then(|| match draw.below(5) {
            0 => Self::Tears(Profile::Emulated512),
            1 => Self::Tears(Profile::NotAtomic),
            2 => Self::IgnoresFlushes(one),
            3 => Self::LosesWrites(one),
            _ => Self::Misdirects(one),
        })
    }

    /// Returns the profile of the disk number `disk` in this seed. `honest`: the profile of a disk that keeps the
    /// contract.
    pub fn profile(self, disk: usize, honest: Profile) -> Profile {
        match self {
            Self::Tears(profile) => profile,
            Self::IgnoresFlushes(liar) if liar == disk => Profile::Liar,
            _ => honest,
        }
    }

    /// Returns the number of the disk that ignores flushes, or loses or misdirects writes; `None` if no disk does.
    pub(super) fn liar(self) -> Option<usize> {
        match self {
            Self::Tears(_) => None,
            Self::IgnoresFlushes(liar) | Self::LosesWrites(liar) | Self::Misdirects(liar) => {
                Some(liar)
            }
        }
    }

    fn faults(self, rate: u32) -> Faults {
        let none = Faults::default();
        match self {
            Self::Tears(_) | Self::IgnoresFlushes(_) => none,
            Self::LosesWrites(_) => Faults { lost_write: rate, ..none },
            Self::Misdirects(_) => Faults { misdirected: rate, ..none },
        }
    }

    /// Returns the guarantees about the volume's bytes that the model still checks. Without checksums the mirror cannot
    /// know which of two members is right. A `remap` reuses physical blocks, so a lost write to such a block shows
    /// bytes of another logical block; a `versioned` has checksums of all blocks.
    fn promise(self, placing: Option<Placing>) -> Promise {
        match self {
            Self::Tears(_) => Promise::Damage,
            Self::IgnoresFlushes(_) | Self::LosesWrites(_) if placing.is_some() => {
                Promise::Displaced
            }
            Self::IgnoresFlushes(_) | Self::LosesWrites(_) => Promise::Lossy,
            Self::Misdirects(_) => Promise::Nothing,
        }
    }

    fn count(self) -> Count {
        match self {
            Self::Tears(_) => Count::DoubtTears,
            Self::IgnoresFlushes(_) => Count::DoubtFlushes,
            Self::LosesWrites(_) => Count::DoubtLost,
            Self::Misdirects(_) => Count::DoubtMisdirected,
        }
    }
}

/// The result of a start with disks that break the contract.
enum Came {
    /// The graph has started with all disks.
    Whole,
    /// The graph was refused at first, and has started after the simulator unplugged the disk that breaks the contract.
    WithoutLiar,
    /// The graph starts neither with the disk that breaks the contract nor without it.
    Never,
}

impl Trial {
    /// Runs the server process several times over disks that break the contract. Each run ends with a kill or a power
    /// cut.
    pub(super) fn in_doubt(&mut self, doubt: Doubt) -> Result<(), Failure> {
        self.model.demand(doubt.promise(self.shape.placing));
        self.world.counters().add(doubt.count());
        for life in 0..self.draw.within(2, 5) {
            self.enters(life << 4);
            self.draw = Stream::new(self.seed, "doubtful life", life);
            if let Some(liar) = doubt.liar() {
                self.disks[liar].set_faults(doubt.faults(self.draw.within(20_000, 200_000) as u32));
            }
            self.doubtful_life()?;
            self.calm();
            self.settle()?;
            match self.doubtful_start(doubt)? {
                Came::Whole => {}
                // The lying disk is unplugged for good, so redundancy cannot come back.
                Came::WithoutLiar => return self.check(),
                Came::Never => return Ok(()),
            }
        }
        self.finish()?;
        self.made_alike(doubt)
    }

    fn doubtful_life(&mut self) -> Result<(), Failure> {
        for n in 0..self.draw.within(1, 4) {
            let requests = self.draw.within(5, 40);
            self.worker(self.life << 36 | n).start(requests);
        }
        let time = Duration::from_nanos(self.draw.within(1_000, 10_000_000));
        self.world.run(self.world.env().now().after(time))?;
        self.judge()?;
        match self.draw.below(4) {
            0 => self.kill(),
            _ => self.power_cut(),
        }
    }

    /// Starts the process again after a crash. If the start is refused, unplugs the disk that breaks the contract and
    /// starts without it.
    fn doubtful_start(&mut self, doubt: Doubt) -> Result<Came, Failure> {
        let words = match self.start(Ask::default(), LIMIT)? {
            Start::Up => return self.check().map(|()| Came::Whole),
            Start::Refused(_, words) => words,
            Start::Unfinished => {
                return Err(wrong(
                    "a start over a lying disk neither succeeded nor was refused in time",
                ));
            }
        };
        let Some(liar) = doubt.liar().filter(|liar| self.shape.members.contains(liar)) else {
            return Err(wrong(format!("a start with all disks working was refused: {words}")));
        };
        self.world.counters().add(Count::DoubtRefused);
        self.plug(liar, None);
        let trust = self.shape.members.iter().copied().find(|n| *n != liar);
        let ask = Ask { degraded: true, trust, ..Ask::default() };
        match self.start(ask, LIMIT)? {
            Start::Up => Ok(Came::WithoutLiar),
            // After a crash the mirror may have copied from the lying disk. The vault above has checksums, and
            // reports it.
            Start::Refused(..) if self.shape.placing.is_some() => Ok(Came::Never),
            other => {
                let without = other.words();
                Err(wrong(format!(
                    "a start without the lying disk failed ({without}) after a start with the disk \
                     was refused: {words}"
                )))
            }
        }
    }

    /// Waits until all members are in sync, repairs the mirror from a member that keeps the contract, and checks that
    /// all members have the same bytes.
    fn made_alike(&mut self, doubt: Doubt) -> Result<(), Failure> {
        let trust = self.shape.members.iter().position(|n| Some(*n) != doubt.liar());
        let mut scrubs = 0;
        for _ in 0..100 {
            self.world.run(self.world.env().now().after(Duration::from_secs(1)))?;
            let report = self.report();
            let scrub = report.scrub.as_ref();
            if report.members.iter().any(|member| member.state != IN_SYNC) {
                // It may be running already.
                let _ = self.ask::<Resync>(Stale::default());
            } else if scrubs == 0 {
                let trust = trust.map(|member| report.members[member].name.clone());
                let repair = Action { repair: true, trust, ..Action::default() };
                scrubs += usize::from(self.ask::<Scrub>(repair).is_ok());
            } else if scrub.is_some_and(|scrub| scrub.progress.is_none()) {
                self.alike()?;
                return self.check();
            }
        }
        Err(wrong(format!(
            "the members did not all come in sync and complete a scrub: {:?}",
            self.report()
        )))
    }
}
