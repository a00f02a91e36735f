//! A labelled disk that is no member of the mirror and has an export of its own. No other disk has its bytes, so a
//! start with an older image of the disk must be refused.

use std::rc::Rc;

use block::Reason;
use sim::draw::Stream;
use sim::{Count, DiskConfig, Image, Profile, SimDisk, SimWorld};

use super::hands::NO_MEMBER;
use super::shape::Shape;
use super::{Ask, LABEL_BYTES, LIMIT, Start, Trial, VOLUME_BYTES, wrong};
use crate::trial::Failure;

/// Path of the labelled disk outside of the mirror.
pub(super) const PATH: &str = "/beside";

/// One in `SHARE` seeds with labelled graphs has a disk outside of the mirror.
const SHARE: u64 = 4;

/// The labelled disk outside of the mirror, with its older images.
pub(super) struct Beside {
    pub disk: Rc<SimDisk>,
    /// Earlier contents of the disk, each with the value of `rounds` at its time.
    images: Vec<(u64, Image)>,
    /// Number of broadcasts of an opening or of a close that have reached every disk of the graph so far.
    rounds: u64,
}

impl Beside {
    /// Whether the graph of the seed has a disk outside of the mirror.
    pub fn draw(seed: u64) -> bool {
        Stream::new(seed, "beside", 0).below(SHARE) == 0
    }

    /// Creates the disk and plugs it in; `None` if `shape` has no such disk. `number` must differ from the numbers of
    /// the mirror's disks.
    pub fn new(world: &SimWorld, shape: &Shape, number: usize) -> Option<Self> {
        shape.beside.then(|| {
            let config = DiskConfig::new(LABEL_BYTES + VOLUME_BYTES, Profile::Native512);
            let disk = SimDisk::new(world, number as u64, config);
            world.plug(PATH, &disk);
            Self { disk, images: Vec::new(), rounds: 0 }
        })
    }

    /// Counts a broadcast of an opening or of a close that has reached all disks of the graph.
    pub fn round_completed(&mut self) {
        self.rounds += 1;
    }

    /// Keeps a copy of the disk's present content, for a later start with an older image.
    pub fn keep_image(&mut self) {
        self.images.push((self.rounds, self.disk.image()));
    }

    /// Returns a random image of the disk from before the last complete broadcast; in half of the cases the newest such
    /// image. `None` if the disk has no such image.
    fn older_image(&self, draw: &Stream) -> Option<&Image> {
        let older: Vec<_> = self.images.iter().filter(|(at, _)| *at < self.rounds).collect();
        let newest = older.iter().map(|(at, _)| *at).max()?;
        let least = if draw.below(2) == 0 { newest } else { 0 };
        let chosen: Vec<_> = older.into_iter().filter(|(at, _)| *at >= least).collect();
        Some(&draw.pick(&chosen).1)
    }
}

impl Trial {
    /// After half of the process's runs: replaces the content of the disk by an older image, checks that the start is
    /// refused, and restores the content.
    pub(super) fn older_beside(&mut self) -> Result<(), Failure> {
        let draw = Stream::new(self.seed, "older beside", self.life);
        let Some(beside) = self.beside.as_ref().filter(|_| draw.below(2) == 0) else {
            return Ok(());
        };
        let Some(image) = beside.older_image(&draw) else { return Ok(()) };
        let (disk, own) = (beside.disk.clone(), beside.disk.image());
        disk.put_back(image);
        match self.start(Ask::default(), LIMIT)? {
            Start::Refused(Some(Reason::LabelStale), _) => {
                self.world.counters().add(Count::OlderRefused)
            }
            // It would be refused for this reason without the older image, too.
            Start::Refused(Some(NO_MEMBER), _) if !self.somebody()? => {}
            other => {
                let words = other.words();
                return Err(wrong(format!(
                    "a start with an older image of a single disk must be refused as stale; got: \
                     {words}"
                )));
            }
        }
        disk.put_back(&own);
        Ok(())
    }
}
