//! Changes that a simulated operator makes to the disks of a labelled graph between two runs of the server, and the
//! checks of the next start.

use block::{ByteRange, Op, Reason};
use meta::Area;
use sim::Count;
use sim::draw::Stream;

use std::time::Duration;

use super::steps::What;
use super::{Ask, LIMIT, Load, Start, Trial, path, wrong};
use crate::trial::Failure;

/// The reason with which a start must be refused if no member in sync is plugged in. The start must find the reason in
/// the labels alone, because the states of members in the memory of the last process need not have been durable.
pub(super) const NO_MEMBER: Reason = Reason::MirrorNoCurrentMember;

/// Offsets in bytes of the two copies of a label in its area (`docs/formats/label.md`), and the number of bytes at the
/// begin of a copy that are always in use.
const COPIES: [u64; 2] = [64 << 10, 320 << 10];
const COPY_BYTES: u64 = 1024;

/// One in `OVERWRITES` changes by the operator overwrites a disk, as another program might.
const OVERWRITES: u64 = 10;

/// A change that the operator makes to the disks between two runs of the server process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hand {
    Nothing,
    Swap,
    TakeAway,
    OldImage,
    Twin,
    Apart,
    Elsewhere,
    Rot,
    Overwrite,
}

const HANDS: [Hand; 9] = [
    Hand::Nothing,
    Hand::Nothing,
    Hand::Swap,
    Hand::TakeAway,
    Hand::OldImage,
    Hand::Twin,
    Hand::Apart,
    Hand::Elsewhere,
    Hand::Rot,
];

impl Trial {
    /// Makes a random change to the disks between two runs of the process, and starts the process again. Before that,
    /// some starts are interrupted.
    pub(super) fn between(&mut self) -> Result<(), Failure> {
        self.settle()?;
        if let Some(cut) = self.cut.take() {
            return self.long_again(cut);
        }
        if !self.torn {
            self.older_beside()?;
        }
        let hand = if self.takes(What::Hand) { self.hand() } else { Hand::Nothing };
        self.note(What::Hand, format!("{hand:?}"));
        match hand {
            _ if self.torn => {}
            Hand::Nothing => {}
            Hand::Swap => self.swap(),
            Hand::TakeAway => return self.without(),
            Hand::OldImage => return self.old_image(),
            Hand::Twin => self.twin()?,
            Hand::Apart => return self.apart(),
            Hand::Elsewhere => self.elsewhere()?,
            Hand::Rot => self.rot(),
            Hand::Overwrite => return self.overwrite(),
        }
        self.interrupted(Ask::default())?;
        self.up(Ask::default())
    }

    /// Draws a change by the operator.
    fn hand(&self) -> Hand {
        match Stream::new(self.seed, "overwrite", self.life).below(OVERWRITES) {
            0 => Hand::Overwrite,
            _ => self.draw.pick(&HANDS),
        }
    }

    /// Extends the truncated file of disk `cut` to its former size, and starts the process. If the label at the end of
    /// the file is lost, the start must be refused until the operator permits a new label.
    fn long_again(&mut self, cut: usize) -> Result<(), Failure> {
        self.put_all_back();
        self.disks[cut].grow_back();
        match self.start(Ask::default(), LIMIT)? {
            Start::Up => self.came_up(),
            Start::Refused(
                Some(Reason::LabelDamaged | Reason::LabelMissing | Reason::LabelNotBlank),
                _,
            ) => {
                // It gets a new identity.
                self.images[cut] = None;
                self.up(Ask { wipe: Some(cut), ..Ask::default() })
            }
            other => Err(wrong(format!(
                "a start with a truncated and extended disk must succeed or be refused; got: {}",
                other.words()
            ))),
        }
    }

    /// Starts the process some times, each time with a crash before or just after the graph is up.
    fn interrupted(&mut self, ask: Ask) -> Result<(), Failure> {
        for n in 0.. {
            let what = What::Interruption(n);
            if !self.takes(what) || self.draw.below(3) != 0 {
                break;
            }
            self.note(what, "a start is interrupted".to_owned());
            self.world.counters().add(Count::StartCut);
            let limit = Duration::from_nanos(self.draw.within(1_000, 6_000_000));
            match self.start(ask, limit)? {
                Start::Up | Start::Unfinished => {}
                // The start that follows will be refused for the same reason.
                Start::Refused(Some(NO_MEMBER), _) if !self.somebody()? => {
                    return Ok(());
                }
                Start::Refused(_, words) => {
                    return Err(wrong(format!(
                        "a start after an interrupted start was refused: {words}"
                    )));
                }
            }
            let before = self.in_sync.clone();
            if self.draw.below(2) == 0 {
                self.power_cut()?
            } else {
                self.kill()?
            }
            self.in_sync.retain(|n| before.contains(n));
            if self.in_sync.is_empty() {
                self.in_sync = before;
            }
            self.settle()?;
            self.which()?;
        }
        Ok(())
    }

    pub(super) fn plug(&mut self, place: usize, disk: Option<usize>) {
        self.plugged[place] = disk;
        match disk {
            Some(n) => self.world.plug(path(place), &self.disks[n]),
            None => self.world.unplug(path(place)),
        }
    }

    fn two_members(&self) -> (usize, usize) {
        let members = &self.shape.members;
        let one = self.draw.below(members.len() as u64) as usize;
        (members[one], members[(one + 1) % members.len()])
    }

    fn swap(&mut self) {
        let (one, two) = self.two_members();
        let (a, b) = (self.plugged[one], self.plugged[two]);
        self.plug(one, b);
        self.plug(two, a);
        self.world.counters().add(Count::Swapped);
    }

    /// Flips a bit in one copy of a random member's label. The copy at the other end of the disk stays intact.
    fn rot(&mut self) {
        self.put_all_back();
        let any = self.any_member();
        let area = self.draw.pick(&[Area::Front, Area::Back(self.shape.data_bytes())]);
        let copy = self.draw.pick(&COPIES);
        if self.disks[any].rot(area.range().start() + copy + self.draw.below(COPY_BYTES)) {
            self.world.counters().add(Count::LabelRot);
        }
    }

    /// Overwrites the front of a random member, with its label, as another program might, and starts the process. The
    /// mirror must resync the whole member. The start may be refused if the labels show no other member with every
    /// write.
    fn overwrite(&mut self) -> Result<(), Failure> {
        self.put_all_back();
        let any = self.any_member();
        let (before, has_copy) = (self.disks[any].image(), self.another_is_whole(any)?);
        let end = meta::DATA_START + 4096 * self.draw.within(1, self.shape.data_bytes() / 4096);
        self.disks[any]
            .overwrite(ByteRange::between(0, end).expect("the range has at least one byte"), 0x5a);
        self.world.counters().add(Count::Overwritten);
        if has_copy {
            self.interrupted(Ask::default())?;
        }
        match self.start(Ask::default(), LIMIT)? {
            Start::Up => self.came_up(),
            Start::Refused(Some(Reason::LabelDamaged), _) if !has_copy => {
                self.world.counters().add(Count::OverwrittenRefused);
                self.disks[any].put_back(&before);
                self.up(Ask::default())
            }
            other => Err(wrong(format!(
                "a start with an overwritten member must copy the member; got: {}",
                other.words()
            ))),
        }
    }

    /// Plugs every disk of the trial in at its own path.
    fn put_all_back(&mut self) {
        for n in 0..self.disks.len() {
            self.plug(n, Some(n));
        }
    }

    /// Runs the process once without a random member, if another member has every write; then plugs the member in and
    /// starts again.
    fn without(&mut self) -> Result<(), Failure> {
        self.put_all_back();
        let any = self.any_member();
        let divided = self.divided_beside(any)?;
        let spare = self.in_sync.iter().any(|n| *n != any) || divided == Some(true);
        let knows_more = self.knows_more(any)?;
        // If the labels of the others do not record that this member alone had every write, starting with
        // `--degraded` is the operator's decision.
        if !spare && !knows_more && divided.is_none() {
            self.stale_alone(any)?;
        }
        if spare {
            self.plug(any, None);
            match self.start(Ask::default(), LIMIT)? {
                Start::Refused(Some(Reason::LabelDegraded), _) => {}
                Start::Refused(Some(Reason::LabelMissing), _) if !self.somebody()? => {}
                Start::Refused(_, words) => {
                    return Err(wrong(format!(
                        "a start without a member was refused for the wrong reason: {words}"
                    )));
                }
                _ => {
                    return Err(wrong(
                        "a start without a member succeeded although --degraded was not given",
                    ));
                }
            }
            let ask = Ask { degraded: true, leftover: self.leftover(), ..Ask::default() };
            self.interrupted(ask)?;
            match self.start(ask, LIMIT)? {
                Start::Up => {
                    self.world.counters().add(Count::Without);
                    self.check()?;
                    self.enters(self.life + 1);
                    self.life(Load::Steady)?;
                    self.settle()?;
                }
                Start::Refused(Some(NO_MEMBER), _) if !self.somebody()? => {}
                Start::Refused(_, words) => {
                    return Err(wrong(format!(
                        "a degraded start with a member in sync was refused: {words}"
                    )));
                }
                Start::Unfinished => return Err(wrong("a start did not end in time")),
            }
        }
        self.put_all_back();
        match self.start(Ask::default(), LIMIT)? {
            Start::Up => self.came_up(),
            // The process died when only its label recorded that the others had failed, so it may have gone on
            // without them. The labels do not show whether it had: the record is durable before any write is
            // acknowledged that relies on it.
            Start::Refused(Some(Reason::MirrorSplitBrain), _) if knows_more => {
                let trust = self.in_sync.iter().copied().find(|n| *n != any);
                self.up(Ask { trust, ..Ask::default() })
            }
            other => Err(wrong(format!(
                "a start with a missing member back must succeed; got: {}",
                other.words()
            ))),
        }
    }

    /// Returns a random member that the spec trusts from an earlier decision; `None` in half of the cases.
    fn leftover(&self) -> Option<usize> {
        (self.draw.below(2) == 0).then(|| self.any_member())
    }

    /// Unplugs disk `only`, the only member in sync. The start must be refused, even with a `trust` in the spec, unless
    /// another member has every acknowledged write because its resync ended just before the process did.
    fn stale_alone(&mut self, only: usize) -> Result<(), Failure> {
        self.plug(only, None);
        let leftover = self.leftover().filter(|n| *n != only);
        match self.start(Ask { degraded: true, leftover, ..Ask::default() }, LIMIT)? {
            Start::Refused(Some(NO_MEMBER), _) => {
                self.world.counters().add(Count::StaleRefused);
                Ok(())
            }
            // Its label may be the only one that records the undoing of a change.
            Start::Refused(..) => Ok(()),
            Start::Up => {
                self.check()?;
                self.kill()?;
                self.settle()
            }
            Start::Unfinished => Err(wrong(
                "a start without the only member in sync neither succeeded nor was refused in time",
            )),
        }
    }

    /// Replaces the content of a random member by an older image, and starts the process. The mirror must not take the
    /// old content for the newest.
    fn old_image(&mut self) -> Result<(), Failure> {
        let any = self.any_member();
        let other = self.in_sync.iter().copied().find(|n| *n != any);
        let Some(other) = other else { return self.up(Ask::default()) };
        let Some(image) = &self.images[any] else { return self.up(Ask::default()) };
        let (newest, marks) = (self.disks[any].image(), self.marks(any)?);
        self.disks[any].put_back(image);
        if self.marks(any)? == marks {
            // Nothing on the disk states that it is older (`docs/limits.md`).
            self.disks[any].put_back(&newest);
            return self.up(Ask::default());
        }
        self.world.counters().add(Count::OldImage);
        match self.start(Ask::default(), LIMIT)? {
            Start::Up => self.came_up(),
            // The image is from a time when its label recorded failures of the others.
            Start::Refused(Some(Reason::MirrorSplitBrain), _) => {
                self.up(Ask { trust: Some(other), ..Ask::default() })
            }
            // It was the only member that was in sync by the labels.
            Start::Refused(Some(NO_MEMBER), _) if !self.somebody()? => {
                self.up(Ask { trust: Some(other), ..Ask::default() })
            }
            Start::Refused(_, words) => Err(wrong(format!(
                "a start with an older image of a member was refused for the wrong reason: {words}"
            ))),
            Start::Unfinished => Err(wrong("a start did not end in time")),
        }
    }

    /// Copies the content of one member onto another. The start must be refused, because two disks have the same label.
    fn twin(&mut self) -> Result<(), Failure> {
        let (one, two) = self.two_members();
        let own = self.disks[two].image();
        self.disks[two].put_back(&self.disks[one].image());
        match self.start(Ask { degraded: true, ..Ask::default() }, LIMIT)? {
            Start::Refused(Some(Reason::LabelDuplicate), _) => {
                self.world.counters().add(Count::TwinRefused);
            }
            Start::Refused(_, words) => {
                return Err(wrong(format!(
                    "a start with two disks of one label was refused for the wrong reason: {words}"
                )));
            }
            _ => return Err(wrong("a start with two disks of one label was not refused")),
        }
        self.disks[two].put_back(&own);
        Ok(())
    }

    /// Runs the graph on each of two members alone, with other writes. The start with both members must then be refused
    /// as split brain.
    fn apart(&mut self) -> Result<(), Failure> {
        self.put_all_back();
        if self.in_sync.len() < 2 {
            return self.up(Ask::default());
        }
        let (ours, theirs) = (self.in_sync[0], self.in_sync[1]);
        let degraded = Ask { degraded: true, ..Ask::default() };
        // The second goes on first, with a write that the model does not know.
        self.only(theirs);
        match self.start(degraded, LIMIT)? {
            Start::Up => {}
            Start::Refused(Some(NO_MEMBER), _) if !self.somebody()? => {
                self.put_all_back();
                return self.up(Ask::default());
            }
            other => {
                return Err(wrong(format!(
                    "a degraded start with one member in sync must succeed; got: {}",
                    other.words()
                )));
            }
        }
        let running = self.running.as_ref().expect("the graph runs");
        let range = ByteRange::new(0, 4096).expect("the range has at least one byte");
        let data = self.world.env().buf(4096).map_err(|error| wrong(error.to_string()))?;
        data.write().fill(0xa5);
        let write = running.client.send(Op::Write {
            range,
            data,
            fua: true,
            restores: block::Copies::NONE,
        });
        let written = self.world.block_on(write)?;
        written.result.map_err(|error| wrong(error.to_string()))?;
        self.tally.killed();
        self.world.kill();
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        self.settle()?;
        self.only(ours);
        match self.start(degraded, LIMIT)? {
            Start::Up => {}
            Start::Refused(Some(NO_MEMBER), _) if !self.somebody()? => {
                // The labels record that the second has every write. Without it, a `trust` of the first is
                // accepted.
                self.up(Ask { degraded: true, trust: Some(ours), ..Ask::default() })?;
            }
            other => {
                return Err(wrong(format!(
                    "a degraded start with one member in sync must succeed; got: {}",
                    other.words()
                )));
            }
        }
        self.enters(self.life + 1);
        self.life(Load::Steady)?;
        self.settle()?;
        self.put_all_back();
        match self.start(Ask::default(), LIMIT)? {
            Start::Refused(Some(Reason::MirrorSplitBrain), _) => {
                self.world.counters().add(Count::ApartRefused);
            }
            Start::Refused(_, words) => {
                return Err(wrong(format!(
                    "a start after a split brain was refused for the wrong reason: {words}"
                )));
            }
            _ => return Err(wrong("a start after a split brain was not refused")),
        }
        self.up(Ask { trust: Some(ours), ..Ask::default() })
    }

    fn only(&mut self, disk: usize) {
        for n in 0..self.disks.len() {
            self.plug(n, (n == disk).then_some(n));
        }
    }

    /// Starts the graph on another machine. The start must be refused if labels are still open on the first machine,
    /// and only then.
    fn elsewhere(&mut self) -> Result<(), Failure> {
        let open = self.labels()?.iter().any(|(_, label)| label.holder.is_some());
        match self.start(Ask { elsewhere: true, ..Ask::default() }, LIMIT)? {
            Start::Refused(Some(Reason::LabelHeldByOtherHost), _) if open => {
                self.world.counters().add(Count::ForeignRefused);
                Ok(())
            }
            Start::Up if !open => {
                self.world.counters().add(Count::Moved);
                self.check()?;
                self.stop()?;
                self.settle()
            }
            Start::Refused(_, words) => Err(wrong(format!(
                "a start on another machine (disks open on the first: {open}) was refused for the \
                 wrong reason: {words}"
            ))),
            _ => Err(wrong(
                "a start on another machine succeeded although the first machine has the disks \
                 open",
            )),
        }
    }
}
