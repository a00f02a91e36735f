//! Events of devices that the operator or a monitoring program reads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use crate::Notify;

/// Most events that a process keeps for later readers; the oldest ones are dropped first.
pub const EVENTS_MAX: usize = 1024;

/// An event of a device that the operator or a monitoring program may need at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Type of the event.
    pub what: What,
    /// Name of the device in the spec.
    pub device: String,
    /// Name of the member that the event concerns, if the device has several.
    pub member: Option<String>,
    /// Details of the event for the operator; may be empty.
    pub words: String,
}

/// Type of an event of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// A member of a redundant device went out of service.
    MemberFailed,
    /// The resync of a member has begun.
    ResyncBegun,
    /// The resync of a member has ended: it is in sync.
    ResyncEnded,
    /// A range that a member could not read was rewritten with the bytes of another member.
    RangeRewritten,
    /// A scrub of a redundant device has begun.
    ScrubBegun,
    /// A scrub of a redundant device has ended.
    ScrubEnded,
    /// A scrub has found a range in which copies differ, and has left them as they are.
    CopiesDiffer,
    /// No copy of a range could be read by a scrub.
    RangeUnreadable,
    /// A spare has replaced a failed member.
    SpareTaken,
    /// A device could not carry out a request.
    DeviceError,
    /// A device had no space for a write.
    DeviceFull,
    /// A device could not flush: acknowledged writes may be lost.
    FlushFailed,
    /// The job of a device has begun, or continues after a pause, an error or a restart.
    JobBegun,
    /// The job of a device has paused by command.
    JobPaused,
    /// The job of a device has stopped after an error.
    JobStopped,
    /// The job of a device is done, or was cancelled.
    JobEnded,
    /// A disk did not answer a request in time.
    DiskLate,
    /// The label of a disk could not be written.
    LabelUnwritable,
    /// The file of a disk was truncated by another program.
    DiskCut,
    /// The file of a disk was deleted.
    DiskDeleted,
    /// The path of a disk leads to another file, or to none.
    DiskMoved,
    /// Virtual disks were created by command, or cloned.
    VdiskCreated,
    /// A virtual disk or a snapshot was removed by command.
    VdiskRemoved,
    /// A virtual disk was rolled back to a snapshot.
    VdiskRolledBack,
    /// The map of a virtual disk is damaged.
    VdiskDamaged,
}

impl What {
    /// Returns the word for this type of event in messages for programs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::MemberFailed => "member-failed",
            Self::ResyncBegun => "resync-begun",
            Self::ResyncEnded => "resync-ended",
            Self::RangeRewritten => "range-rewritten",
            Self::ScrubBegun => "scrub-begun",
            Self::ScrubEnded => "scrub-ended",
            Self::CopiesDiffer => "copies-differ",
            Self::RangeUnreadable => "range-unreadable",
            Self::SpareTaken => "spare-taken",
            Self::DeviceError => "device-error",
            Self::DeviceFull => "device-full",
            Self::FlushFailed => "flush-failed",
            Self::JobBegun => "job-begun",
            Self::JobPaused => "job-paused",
            Self::JobStopped => "job-stopped",
            Self::JobEnded => "job-ended",
            Self::DiskLate => "disk-late",
            Self::LabelUnwritable => "label-unwritable",
            Self::DiskCut => "disk-cut",
            Self::DiskDeleted => "disk-deleted",
            Self::DiskMoved => "disk-moved",
            Self::VdiskCreated => "vdisk-created",
            Self::VdiskRemoved => "vdisk-removed",
            Self::VdiskRolledBack => "vdisk-rolled-back",
            Self::VdiskDamaged => "vdisk-damaged",
        }
    }

    /// Returns the level of this type of event in a log.
    pub const fn level(self) -> Level {
        match self {
            Self::ResyncBegun
            | Self::ResyncEnded
            | Self::ScrubBegun
            | Self::ScrubEnded
            | Self::JobBegun
            | Self::JobPaused
            | Self::JobEnded
            | Self::VdiskCreated
            | Self::VdiskRemoved
            | Self::VdiskRolledBack => Level::Info,
            Self::RangeRewritten
            | Self::SpareTaken
            | Self::JobStopped
            | Self::DiskLate
            | Self::LabelUnwritable
            | Self::DiskMoved => Level::Warning,
            Self::MemberFailed
            | Self::CopiesDiffer
            | Self::RangeUnreadable
            | Self::DeviceError
            | Self::DeviceFull
            | Self::FlushFailed
            | Self::DiskCut
            | Self::DiskDeleted
            | Self::VdiskDamaged => Level::Error,
        }
    }
}

/// The level of a line in a log, from the least to the most urgent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// A detail for the search for a fault. It is logged only on request.
    Debug,
    /// Normal operation.
    Info,
    /// Operation continues, but the operator may have to act later.
    Warning,
    /// Data or redundancy are lost, or a request of the operator has failed.
    Error,
}

impl Level {
    /// Returns the word for this level in a log.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// An event of a device, with its number and time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedEvent {
    /// Number of the event among the events of the process, from 1.
    pub number: u64,
    /// Time of the event, by the wall clock since 1970.
    pub at: Duration,
    /// The event that was recorded.
    pub event: Event,
}

/// Buffer of the latest events of one process. A slow reader misses events, and detects this by their numbers.
#[derive(Default)]
pub struct Events {
    kept: RefCell<VecDeque<RecordedEvent>>,
    last: Cell<u64>,
    waiters: Notify,
}

impl Events {
    /// Records `event` as the latest one; `at` is the wall-clock time since 1970.
    pub fn add(&self, at: Duration, event: Event) {
        let number = self.last.get() + 1;
        self.last.set(number);
        let mut kept = self.kept.borrow_mut();
        if kept.len() == EVENTS_MAX {
            kept.pop_front();
        }
        kept.push_back(RecordedEvent { number, at, event });
        drop(kept);
        self.waiters.wake();
    }

    /// Returns the events with numbers above `number` that the buffer still has.
    pub fn after(&self, number: u64) -> Vec<RecordedEvent> {
        self.kept.borrow().iter().filter(|told| told.number > number).cloned().collect()
    }

    /// Waits until there is an event with a number above `number`, and returns all such events that the buffer has.
    pub async fn next_after(&self, number: u64) -> Vec<RecordedEvent> {
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
    fn event_log_keeps_latest_events_and_wakes_waiting_reader() {
        let events = Events::default();
        let mut waits = pin!(events.next_after(0));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        events.add(Duration::from_secs(5), event("first"));
        let Poll::Ready(told) = waits.as_mut().poll(&mut cx) else { panic!("there is one") };
        assert_eq!(
            told,
            [RecordedEvent { number: 1, at: Duration::from_secs(5), event: event("first") }]
        );
        (0..EVENTS_MAX).for_each(|_| events.add(Duration::ZERO, event("more")));
        let kept = events.after(0);
        assert_eq!((kept.len(), kept[0].number), (EVENTS_MAX, 2));
        assert_eq!(events.after(EVENTS_MAX as u64).len(), 1);
    }

    #[test]
    fn event_types_have_distinct_names_and_are_documented() {
        let document = include_str!("../../../docs/events.md");
        const ALL: [What; 25] = [
            What::MemberFailed,
            What::ResyncBegun,
            What::ResyncEnded,
            What::RangeRewritten,
            What::ScrubBegun,
            What::ScrubEnded,
            What::CopiesDiffer,
            What::RangeUnreadable,
            What::SpareTaken,
            What::DeviceError,
            What::DeviceFull,
            What::FlushFailed,
            What::JobBegun,
            What::JobPaused,
            What::JobStopped,
            What::JobEnded,
            What::DiskLate,
            What::LabelUnwritable,
            What::DiskCut,
            What::DiskDeleted,
            What::DiskMoved,
            What::VdiskCreated,
            What::VdiskRemoved,
            What::VdiskRolledBack,
            What::VdiskDamaged,
        ];
        let words: BTreeSet<_> = ALL.iter().map(|what| what.word()).collect();
        assert_eq!(words.len(), ALL.len());
        for what in ALL {
            let row = format!("| `{}` | {} | ", what.word(), what.level().word());
            assert!(document.contains(&row), "{row}");
        }
    }
}
