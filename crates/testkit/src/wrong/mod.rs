//! Devices that break one rule of the battery each, to prove that the battery finds every breach.
//!
//! Each device is correct except for one [`Sin`]. Without a sin it passes the battery.

mod keeper;
mod mirror;
mod window;

use std::rc::Rc;

use block::{Needs, Report};
use kind::Registry;
use sim::Rule;

use crate::refusal::Broken;
use crate::subject::Subject;

/// The fault that a wrong device has on purpose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sin {
    /// The device acknowledges a write before its members acknowledge it.
    AcknowledgesEarly,
    /// The device flushes all members except the first.
    FlushSkipsMember,
    /// The device acknowledges a flush without flushing its members.
    IgnoresFlush,
    /// The device drops FUA from the requests to its members.
    IgnoresFua,
    /// The device sends overlapping writes to its members in different orders.
    ReordersOverlaps,
    /// The device reports success after a failure of a member, and continues to use the member.
    SwallowsErrors,
    /// The device does not resync its members after a start.
    NeverResyncs,
    /// The device does not record the failure of a member for the next start.
    ForgetsStale,
    /// The device acknowledges a write before the labels record that a member has failed.
    MarksLate,
    /// The device records that a member is in sync before the resync of the member has ended.
    RevivesEarly,
    /// The device passes a discard on to its members, which may read differently afterwards.
    DiscardsCopies,
    /// The device retries a failed flush, and reports success.
    RetriesFlush,
    /// The device reports a failed flush once, and lets later flushes succeed.
    ForgetsFailedFlush,
    /// The device lets a flush share the result of another flush that is already in flight.
    JoinsFlush,
    /// The device does not write the last block of a longer write.
    WritesPart,
    /// The device fills the last block of a longer read with junk.
    JunkAtEdge,
    /// The device replies to some reads with the bytes of an earlier read.
    AnswersStale,
    /// The device reads from an address that is one block too low in its second half.
    OffByOne,
    /// The device acknowledges a write-zeroes request and writes nothing.
    ZeroesNothing,
    /// The device returns bytes from another address in reads of discarded ranges.
    DiscardExposes,
    /// The device returns other bytes in each read of a discarded range.
    DiscardFlickers,
    /// The device reports every range as zeros in block status.
    StatusLies,
    /// The device changes the payload of a write.
    ChangesPayload,
    /// The device never returns some buffers to the buffer pool.
    LeaksBuffer,
    /// The device never replies to some writes.
    NeverCompletes,
    /// The device sends longer requests to its lower than the lower accepts.
    IgnoresLimit,
    /// The device starts two reads into one buffer at the same time.
    SharesBuffer,
    /// The device reports a larger size than its lower has.
    Boasts,
    /// The device panics when a request to its lower fails.
    Panics,
    /// The device fails some requests at random, without an error of its lower.
    FailsAtRandom,
    /// The device reports its number of starts as durable without storing the number.
    NeverStores,
    /// The device starts on a used disk without a state, and overwrites the disk.
    FormatsUsed,
    /// The device changes bytes of its lower before the live change that made the device is committed.
    ActsUnsure,
    /// The device panics at a command with the name of a member that does not exist.
    PanicsAtCommand,
    /// The device accepts a command that its kind does not declare.
    HidesCommand,
}

impl Sin {
    /// All faults of wrong devices, in the order of their declaration.
    pub const ALL: [Self; 35] = [
        Self::AcknowledgesEarly,
        Self::FlushSkipsMember,
        Self::IgnoresFlush,
        Self::IgnoresFua,
        Self::ReordersOverlaps,
        Self::SwallowsErrors,
        Self::NeverResyncs,
        Self::ForgetsStale,
        Self::MarksLate,
        Self::RevivesEarly,
        Self::DiscardsCopies,
        Self::RetriesFlush,
        Self::ForgetsFailedFlush,
        Self::JoinsFlush,
        Self::WritesPart,
        Self::JunkAtEdge,
        Self::AnswersStale,
        Self::OffByOne,
        Self::ZeroesNothing,
        Self::DiscardExposes,
        Self::DiscardFlickers,
        Self::StatusLies,
        Self::ChangesPayload,
        Self::LeaksBuffer,
        Self::NeverCompletes,
        Self::IgnoresLimit,
        Self::SharesBuffer,
        Self::Boasts,
        Self::Panics,
        Self::FailsAtRandom,
        Self::NeverStores,
        Self::FormatsUsed,
        Self::ActsUnsure,
        Self::PanicsAtCommand,
        Self::HidesCommand,
    ];

    /// Returns the rules for whose breach the battery may refuse a device with this fault.
    pub fn breaks(self) -> &'static [Broken] {
        use Broken::{Builds, Foreign, Promise};
        use Broken::{Bytes, Completes, Copies, Errors, Facts, Panic, Payload, Returns, Seam};
        use Rule::{Durable, Order, Place, Status, Sticky, Whole};
        match self {
            Self::AcknowledgesEarly => &[Bytes(Order), Bytes(Durable)],
            Self::FlushSkipsMember | Self::IgnoresFlush => &[Bytes(Durable), Bytes(Order)],
            Self::IgnoresFua | Self::JoinsFlush => &[Bytes(Durable), Bytes(Order)],
            Self::ReordersOverlaps => &[Bytes(Order), Copies],
            Self::NeverResyncs => &[Bytes(Order), Bytes(Durable)],
            Self::ForgetsStale => &[Bytes(Order), Bytes(Durable)],
            // After a power cut there may be no mark at all.
            Self::MarksLate => &[Bytes(Order), Bytes(Durable), Builds],
            Self::RevivesEarly => &[Bytes(Order), Bytes(Durable)],
            Self::DiscardsCopies => &[Bytes(Order), Copies],
            // After a swallowed read error, the buffer shows its old content.
            Self::SwallowsErrors => &[Errors, Bytes(Order), Bytes(Whole), Bytes(Place)],
            Self::RetriesFlush => &[Errors, Bytes(Sticky)],
            Self::ForgetsFailedFlush => &[Bytes(Sticky)],
            Self::WritesPart | Self::ZeroesNothing => &[Bytes(Order)],
            Self::JunkAtEdge => &[Bytes(Whole)],
            Self::AnswersStale | Self::OffByOne => &[Bytes(Order), Bytes(Place)],
            Self::DiscardExposes => &[Bytes(Place), Bytes(Order)],
            Self::DiscardFlickers => &[Bytes(Order)],
            Self::StatusLies => &[Bytes(Status)],
            Self::ChangesPayload => &[Payload, Bytes(Whole)],
            Self::LeaksBuffer => &[Returns],
            Self::NeverCompletes => &[Completes],
            Self::IgnoresLimit => &[Errors, Seam],
            Self::SharesBuffer => &[Seam],
            Self::Boasts => &[Errors, Facts],
            Self::Panics | Self::PanicsAtCommand => &[Panic],
            Self::HidesCommand => &[Broken::Commands],
            Self::FailsAtRandom => &[Errors],
            Self::NeverStores => &[Promise],
            Self::FormatsUsed => &[Foreign],
            Self::ActsUnsure => &[Bytes(Order)],
        }
    }

    fn is_of_copies(self) -> bool {
        use Sin::{AcknowledgesEarly, FlushSkipsMember, IgnoresFlush, IgnoresFua};
        use Sin::{DiscardsCopies, JoinsFlush, NeverResyncs, ReordersOverlaps, SwallowsErrors};
        matches!(
            self,
            AcknowledgesEarly
                | FlushSkipsMember
                | IgnoresFlush
                | IgnoresFua
                | ReordersOverlaps
                | SwallowsErrors
                | JoinsFlush
                | NeverResyncs
                | DiscardsCopies
        )
    }

    fn is_of_a_state(self) -> bool {
        matches!(self, Self::NeverStores | Self::FormatsUsed | Self::ActsUnsure)
    }

    fn is_of_labels(self) -> bool {
        matches!(self, Self::ForgetsStale | Self::MarksLate | Self::RevivesEarly)
    }
}

const SIZE: u64 = 48 << 10;

/// Returns a subject of the battery with this fault.
pub fn subject(sin: Sin) -> Subject {
    match sin {
        _ if sin.is_of_a_state() => keeper(Some(sin)),
        _ if sin.is_of_labels() => copies(Some(sin)).on_labels(),
        _ if sin.is_of_copies() => copies(Some(sin)),
        _ => one(Some(sin)),
    }
}

/// Returns a subject that writes to two members and reads from either member, with the fault `sin` if given.
pub fn copies(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("two copies".to_owned(), |sin| format!("two copies, {sin:?}"));
    let subject = Subject::new(&name, Registry(&[]), 2, SIZE, move |graph, lowers| {
        let members = lowers.iter().map(|lower| graph.lower(*lower)).collect();
        let kept = graph.kept("copies", lowers);
        let device = mirror::Copies::new(members, kept, graph.env(), sin)?;
        graph.adopt("copies", Rc::new(device), Needs::children(2), lowers)
    });
    subject.with_copies(1)
}

/// Returns a subject that stores the number of its starts on its lower, with the fault `sin` if given.
pub fn keeper(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("a keeper".to_owned(), |sin| format!("a keeper, {sin:?}"));
    let subject = Subject::new(&name, Registry(&[]), 1, SIZE, move |graph, lowers| {
        let kept = graph.kept("keeper", lowers);
        let device = keeper::Stateful::new(graph.lower(lowers[0]), kept, graph.env(), sin)?;
        graph.adopt("keeper", device, Needs::children(1), lowers)
    });
    let starts = |report: &Report| report.counters.iter().map(|(_, starts)| *starts).sum::<u64>();
    subject.on_labels().promising(move |before, after| match (starts(before), starts(after)) {
        (before, after) if after < before => Err(format!("{after} starts after {before}")),
        _ => Ok(()),
    })
}

/// Returns a subject that forwards all requests to one lower, with the fault `sin` if given.
pub fn one(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("one lower".to_owned(), |sin| format!("one lower, {sin:?}"));
    Subject::new(&name, Registry(&[]), 1, SIZE, move |graph, lowers| {
        let lower = graph.lower(lowers[0]);
        let device = window::Window::new(lower, graph.env(), sin);
        graph.adopt("window", Rc::new(device), Needs::children(2), lowers)
    })
}
