//! Labelled graphs over disks that do not keep what they promise: they tear beyond their sectors, or one of them
//! lies. A graph comes up, or says why not, and then comes up without the liar; nothing panics or goes in circles,
//! and in the end copies are alike. What such disks may cost stands in `docs/testing.md`.

use std::time::Duration;

use block::control::copies::{Action, Scrub};
use block::control::member::{Resync, Stale};
use sim::draw::Stream;
use sim::{Count, Faults, Profile, Promise};

use super::{Ask, IN_SYNC, LIMIT, Start, Trial, wrong};
use crate::trial::Failure;

/// One of so many seeds about labelled disks is about such disks.
const SHARE: u64 = 8;

/// What is doubtful.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// A torn write damages its neighbours, or the sector that it ends in; on every disk.
    Tears(Profile),
    /// One disk answers flushes and does nothing.
    IgnoresFlushes(usize),
    /// One disk answers writes and loses some.
    LosesWrites(usize),
    /// One disk puts some writes elsewhere.
    Misdirects(usize),
}

impl Doubt {
    /// That of a seed over so many disks, if it has one.
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

    /// What a disk is like; `honest`: if there were no doubt.
    pub fn profile(self, disk: usize, honest: Profile) -> Profile {
        match self {
            Self::Tears(profile) => profile,
            Self::IgnoresFlushes(liar) if liar == disk => Profile::Liar,
            _ => honest,
        }
    }

    /// The disk that lies, if only one does.
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

    /// What is left to demand of bytes. Without checksums nobody tells which of two copies is right; and where
    /// a `remap` gives places to others, what was lost there shows what another block had.
    fn promise(self, remap: bool) -> Promise {
        match self {
            Self::Tears(_) => Promise::Damage,
            Self::IgnoresFlushes(_) | Self::LosesWrites(_) if remap => Promise::Displaced,
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

/// What became of a start.
enum Came {
    /// It came up.
    Whole,
    /// It did once the liar was taken away.
    WithoutLiar,
    /// It did not.
    Never,
}

impl Trial {
    /// Some lives over such disks, each ended by a crash.
    pub(super) fn in_doubt(&mut self, doubt: Doubt) -> Result<(), Failure> {
        self.model.demand(doubt.promise(self.shape.remap));
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
                // It was taken away, and the others have gone on: that is all they can do.
                Came::WithoutLiar => return self.check(),
                Came::Never => return Ok(()),
            }
        }
        self.finish()?;
        self.made_alike()
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

    /// Starts it again.
    fn doubtful_start(&mut self, doubt: Doubt) -> Result<Came, Failure> {
        let words = match self.start(Ask::default(), LIMIT)? {
            Start::Up => return self.check().map(|()| Came::Whole),
            Start::Refused(_, words) => words,
            Start::Unfinished => return Err(wrong("it comes up in time, or says why not")),
        };
        let Some(liar) = doubt.liar().filter(|liar| self.shape.members.contains(liar)) else {
            return Err(wrong(format!("a labelled graph comes up again: {words}")));
        };
        self.world.counters().add(Count::DoubtRefused);
        self.plug(liar, None);
        let trust = self.shape.members.iter().copied().find(|n| *n != liar);
        let ask = Ask { degraded: true, trust, ..Ask::default() };
        match self.start(ask, LIMIT)? {
            Start::Up => Ok(Came::WithoutLiar),
            // After a crash its mirror may have copied from the liar; the vault above has checksums, and says so.
            Start::Refused(..) if self.shape.remap => Ok(Came::Never),
            other => {
                let without = other.words();
                Err(wrong(format!("it comes up without a liar: {without}; with it: {words}")))
            }
        }
    }

    /// Everybody comes back in sync, and a scrub makes alike what is not.
    fn made_alike(&mut self) -> Result<(), Failure> {
        let mut scrubs = 0;
        for _ in 0..100 {
            self.world.run(self.world.env().now().after(Duration::from_secs(1)))?;
            let report = self.report();
            let scrub = report.scrub.as_ref();
            if report.members.iter().any(|member| member.state != IN_SYNC) {
                // It may be under way.
                let _ = self.ask::<Resync>(Stale::default());
            } else if scrubs == 0 {
                scrubs += usize::from(self.ask::<Scrub>(Action::default()).is_ok());
            } else if scrub.is_some_and(|scrub| scrub.progress.is_none()) {
                self.alike()?;
                return self.check();
            }
        }
        Err(wrong(format!("all come back, and are compared: {:?}", self.report())))
    }
}
