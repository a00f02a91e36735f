//! A labelled disk beside the mirror, with an export of its own. No other disk has its bytes, so a start with
//! an older image must be refused.

use std::rc::Rc;

use block::Reason;
use sim::draw::Stream;
use sim::{Count, DiskConfig, Image, Profile, SimDisk, SimWorld};

use super::hands::NO_MEMBER;
use super::shape::Shape;
use super::{Ask, LABEL_BYTES, LIMIT, Start, Trial, VOLUME_BYTES, wrong};
use crate::trial::Failure;

/// Path of the disk.
pub(super) const PATH: &str = "/beside";

/// One of so many graphs has such a disk.
const SHARE: u64 = 4;

/// The disk beside the mirror.
pub(super) struct Beside {
    pub disk: Rc<SimDisk>,
    /// Its earlier images, each with the number of complete rounds at that time.
    images: Vec<(u64, Image)>,
    /// Number of complete rounds: label updates of openings and orderly ends that reached every disk.
    rounds: u64,
}

impl Beside {
    /// Whether the graph of a seed has such a disk.
    pub fn draw(seed: u64) -> bool {
        Stream::new(seed, "beside", 0).below(SHARE) == 0
    }

    /// Plugs the disk in, if a graph of this shape has one. `number` must be unique among the disks.
    pub fn new(world: &SimWorld, shape: &Shape, number: usize) -> Option<Self> {
        shape.beside.then(|| {
            let config = DiskConfig::new(LABEL_BYTES + VOLUME_BYTES, Profile::Native512);
            let disk = SimDisk::new(world, number as u64, config);
            world.plug(PATH, &disk);
            Self { disk, images: Vec::new(), rounds: 0 }
        })
    }

    /// Counts a round: the label updates of an opening or an orderly end have reached all disks.
    pub fn round_completed(&mut self) {
        self.rounds += 1;
    }

    /// Keeps an image of the disk as it is now.
    pub fn keep_image(&mut self) {
        self.images.push((self.rounds, self.disk.image()));
    }

    /// Draws an image that is older than the last complete round, in half of the cases the newest of these;
    /// `None` if there is none.
    fn older_image(&self, draw: &Stream) -> Option<&Image> {
        let older: Vec<_> = self.images.iter().filter(|(at, _)| *at < self.rounds).collect();
        let newest = older.iter().map(|(at, _)| *at).max()?;
        let least = if draw.below(2) == 0 { newest } else { 0 };
        let chosen: Vec<_> = older.into_iter().filter(|(at, _)| *at >= least).collect();
        Some(&draw.pick(&chosen).1)
    }
}

impl Trial {
    /// Puts back an older image of the disk beside the mirror, in half of the lives. The start must be refused.
    /// Then restores the latest image.
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
