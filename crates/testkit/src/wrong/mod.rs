//! Devices that each break one rule. The battery must refuse them all, or it is worth nothing.
//!
//! Each is a correct device but for one [`Sin`]; without any, the two of them pass.

mod keeper;
mod mirror;
mod window;

use std::rc::Rc;

use block::Report;
use kind::Registry;
use sim::Rule;

use crate::refusal::Broken;
use crate::subject::Subject;

/// What a wrong device does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sin {
    /// Answers a write before its members have.
    AcknowledgesEarly,
    /// Flushes all members but the last.
    FlushSkipsMember,
    /// Answers a flush and sends none.
    IgnoresFlush,
    /// Forgets FUA on the way.
    IgnoresFua,
    /// Sends overlapping writes to each member in another order.
    ReordersOverlaps,
    /// Says that all is well when a member has failed, and goes on using it.
    SwallowsErrors,
    /// After a start it leaves members as different as they are.
    NeverResyncs,
    /// Forgets with the process that a member has failed.
    ForgetsStale,
    /// Answers before the labels say that a member has failed.
    MarksLate,
    /// Says that a member has everything again before it has.
    RevivesEarly,
    /// Passes a discard on to members that make of it what each likes.
    DiscardsCopies,
    /// Tries a failed flush again, and says that it worked.
    RetriesFlush,
    /// Tells of a failed flush once, and not again.
    ForgetsFailedFlush,
    /// Joins a flush that is on its way already.
    JoinsFlush,
    /// Leaves the last block of longer writes out.
    WritesPart,
    /// Fills the last block of longer reads with junk.
    JunkAtEdge,
    /// Answers a read with the bytes of an earlier one.
    AnswersStale,
    /// Is off by one block past the middle.
    OffByOne,
    /// Answers a write of zeros and writes none.
    ZeroesNothing,
    /// Lets discarded bytes read as those of another place.
    DiscardExposes,
    /// Reads something else each time after a discard.
    DiscardFlickers,
    /// Says that all is zero.
    StatusLies,
    /// Changes the payload that it was given.
    ChangesPayload,
    /// Keeps a buffer for ever.
    LeaksBuffer,
    /// Never answers a write of one place.
    NeverCompletes,
    /// Sends more below than the lower takes at once.
    IgnoresLimit,
    /// Reads twice at once into one buffer.
    SharesBuffer,
    /// Says that it is larger than what it stands on.
    Boasts,
    /// Panics when a lower fails.
    Panics,
    /// Fails now and then, for no reason.
    FailsAtRandom,
    /// Reports as durable what it never stores.
    NeverStores,
    /// Formats a disk that is not new and has no state.
    FormatsUsed,
    /// Changes bytes below before it is sure to stay.
    ActsUnsure,
    /// Panics at a member's name that it does not know.
    PanicsAtCommand,
    /// Knows a command that no kind declares.
    HidesCommand,
}

impl Sin {
    /// All of them.
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

    /// The rules by any of which the battery may refuse it.
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
            // Of a read that it swallows the buffer shows what it held before.
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

/// A device with that sin.
pub fn subject(sin: Sin) -> Subject {
    match sin {
        _ if sin.is_of_a_state() => keeper(Some(sin)),
        _ if sin.is_of_labels() => copies(Some(sin)).on_labels(),
        _ if sin.is_of_copies() => copies(Some(sin)),
        _ => one(Some(sin)),
    }
}

/// A device that writes to two and reads from either.
pub fn copies(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("two copies".to_owned(), |sin| format!("two copies, {sin:?}"));
    let subject = Subject::new(&name, Registry(&[]), 2, SIZE, move |graph, lowers| {
        let members = lowers.iter().map(|lower| graph.lower(*lower)).collect();
        let kept = graph.kept("copies", lowers);
        let device = mirror::Copies::new(members, kept, graph.env(), sin)?;
        graph.adopt("copies", Rc::new(device), lowers)
    });
    subject.with_copies(1)
}

/// A device that keeps a number on its lower.
pub fn keeper(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("a keeper".to_owned(), |sin| format!("a keeper, {sin:?}"));
    let subject = Subject::new(&name, Registry(&[]), 1, SIZE, move |graph, lowers| {
        let kept = graph.kept("keeper", lowers);
        let device = keeper::Stateful::new(graph.lower(lowers[0]), kept, graph.env(), sin)?;
        graph.adopt("keeper", device, lowers)
    });
    let starts = |report: &Report| report.counters.iter().map(|(_, starts)| *starts).sum::<u64>();
    subject.on_labels().promising(move |before, after| match (starts(before), starts(after)) {
        (before, after) if after < before => Err(format!("{after} starts after {before}")),
        _ => Ok(()),
    })
}

/// A device that passes everything on to one.
pub fn one(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("one lower".to_owned(), |sin| format!("one lower, {sin:?}"));
    Subject::new(&name, Registry(&[]), 1, SIZE, move |graph, lowers| {
        let lower = graph.lower(lowers[0]);
        let device = window::Window::new(lower, graph.env(), sin);
        graph.adopt("window", Rc::new(device), lowers)
    })
}
