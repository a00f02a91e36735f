//! What happens to devices, told to whoever looks after them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use crate::Notify;

/// So many events are kept for who comes later; the oldest go first.
pub const EVENTS_MAX: usize = 1024;

/// Something that has happened to a device, and that somebody may want to know at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What it was.
    pub what: What,
    /// The device, by its name in the spec.
    pub device: String,
    /// Its member, if it was one of several.
    pub member: Option<String>,
    /// More about it, for people; may be empty.
    pub words: String,
}

/// What can happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// A member is out of service.
    MemberFailed,
    /// A member that misses something is given it.
    ResyncBegun,
    /// A member has everything again.
    ResyncEnded,
    /// A range that a member could not read was written anew.
    RangeRewritten,
    /// All copies are being read and compared.
    ScrubBegun,
    /// That has ended.
    ScrubEnded,
    /// A spare stands in for a member that has failed.
    SpareTaken,
    /// A disk has not answered in time.
    DiskLate,
    /// A label could not be written.
    LabelUnwritable,
    /// The file of a disk was cut short by another program.
    DiskCut,
    /// The file of a disk was deleted.
    DiskDeleted,
    /// The path of a disk leads to another file, or to none.
    DiskMoved,
}

impl What {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::MemberFailed,
        Self::ResyncBegun,
        Self::ResyncEnded,
        Self::RangeRewritten,
        Self::ScrubBegun,
        Self::ScrubEnded,
        Self::SpareTaken,
        Self::DiskLate,
        Self::LabelUnwritable,
        Self::DiskCut,
        Self::DiskDeleted,
        Self::DiskMoved,
    ];

    /// The word that programs know it by.
    pub const fn word(self) -> &'static str {
        match self {
            Self::MemberFailed => "member-failed",
            Self::ResyncBegun => "resync-begun",
            Self::ResyncEnded => "resync-ended",
            Self::RangeRewritten => "range-rewritten",
            Self::ScrubBegun => "scrub-begun",
            Self::ScrubEnded => "scrub-ended",
            Self::SpareTaken => "spare-taken",
            Self::DiskLate => "disk-late",
            Self::LabelUnwritable => "label-unwritable",
            Self::DiskCut => "disk-cut",
            Self::DiskDeleted => "disk-deleted",
            Self::DiskMoved => "disk-moved",
        }
    }
}

/// An event that was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its number: they are told one by one, from 1 on.
    pub number: u64,
    /// When, by the wall clock since 1970.
    pub at: Duration,
    /// What happened.
    pub event: Event,
}

/// The latest events of one process. Whoever reads too slowly misses some, and sees it by their numbers.
#[derive(Default)]
pub struct Events {
    kept: RefCell<VecDeque<Told>>,
    last: Cell<u64>,
    waiters: Notify,
}

impl Events {
    /// One more; `at`: the wall clock.
    pub fn add(&self, at: Duration, event: Event) {
        let number = self.last.get() + 1;
        self.last.set(number);
        let mut kept = self.kept.borrow_mut();
        if kept.len() == EVENTS_MAX {
            kept.pop_front();
        }
        kept.push_back(Told { number, at, event });
        drop(kept);
        self.waiters.wake();
    }

    /// Those with numbers above `number` that are kept.
    pub fn after(&self, number: u64) -> Vec<Told> {
        self.kept.borrow().iter().filter(|told| told.number > number).cloned().collect()
    }

    /// The same, once there is one.
    pub async fn next_after(&self, number: u64) -> Vec<Told> {
        self.waiters.until(|| self.last.get() > number).await;
        self.after(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn event(words: &str) -> Event {
        let (what, device) = (What::MemberFailed, "pair".to_owned());
        Event { what, device, member: None, words: words.to_owned() }
    }

    #[test]
    fn the_latest_are_kept_and_who_waits_is_told() {
        let events = Events::default();
        let mut waits = pin!(events.next_after(0));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        events.add(Duration::from_secs(5), event("first"));
        let Poll::Ready(told) = waits.as_mut().poll(&mut cx) else { panic!("there is one") };
        assert_eq!(told, [Told { number: 1, at: Duration::from_secs(5), event: event("first") }]);
        (0..EVENTS_MAX).for_each(|_| events.add(Duration::ZERO, event("more")));
        let kept = events.after(0);
        assert_eq!((kept.len(), kept[0].number), (EVENTS_MAX, 2));
        assert_eq!(events.after(EVENTS_MAX as u64).len(), 1);
    }

    #[test]
    fn each_has_its_word() {
        let words: BTreeSet<_> = What::ALL.iter().map(|what| what.word()).collect();
        assert_eq!(words.len(), What::ALL.len());
    }
}
