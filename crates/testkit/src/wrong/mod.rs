//! Test devices that each break one rule on purpose. The battery must refuse every such device; otherwise it does not
//! find the faults of real devices.
//!
//! Each device is correct except for one fault, its [`Sin`]. Without a fault the device passes the battery.

mod keeper;
mod mirror;
mod window;

use std::rc::Rc;

use block::Needs;
use kind::{Registry, Value};
use sim::{Reached, Rule};

use crate::refusal::Broken;
use crate::subject::Subject;

pub use keeper::KEEPER;

/// The fault that a test device has on purpose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sin {
    /// The mirror acknowledges a write before its members do.
    AcknowledgesEarly,
    /// The mirror flushes all members except the first.
    FlushSkipsMember,
    /// The mirror acknowledges a flush without flushing its members.
    IgnoresFlush,
    /// The mirror drops the FUA flag from writes to its members.
    IgnoresFua,
    /// The mirror sends overlapping writes to its members in different orders.
    ReordersOverlaps,
    /// The mirror reports success after a member has failed a request, and continues to use the member.
    SwallowsErrors,
    /// The mirror does not resync its members after a start.
    NeverResyncs,
    /// The mirror ignores at its start the record that a member has failed.
    ForgetsStale,
    /// The mirror acknowledges a write before the labels record that a member has failed.
    MarksLate,
    /// The mirror records a member as in sync before the resync of the member has ended.
    RevivesEarly,
    /// The mirror passes discards on to its members, after which the members may have different bytes.
    DiscardsCopies,
    /// The device flushes its lower again after a failed flush, and reports success.
    RetriesFlush,
    /// The device reports the failure of a flush once, and later flushes as successful.
    ForgetsFailedFlush,
    /// The mirror answers a flush together with an earlier flush that is already in flight.
    JoinsFlush,
    /// The device does not write the last block of a write of several blocks.
    WritesPart,
    /// The device fills the last block of a read of several blocks with junk.
    JunkAtEdge,
    /// The device replies to one read in eight with the bytes of an earlier read.
    AnswersStale,
    /// The device reads one block too low in the second half of its address space.
    OffByOne,
    /// The device acknowledges write zeroes and writes nothing.
    ZeroesNothing,
    /// The device returns bytes from another address in reads of discarded ranges.
    DiscardExposes,
    /// The device returns different bytes in two reads of the same discarded range.
    DiscardFlickers,
    /// The device reports every range as zeros in a block status.
    StatusLies,
    /// The device changes a byte in the buffer of a write in flight.
    ChangesPayload,
    /// The device keeps some buffers of reads for ever, so that the pool never gets them back.
    LeaksBuffer,
    /// The device never replies to some writes.
    NeverCompletes,
    /// The device sends longer requests to its lower than the lower accepts.
    IgnoresLimit,
    /// The device starts two reads of its lower into one buffer at the same time.
    SharesBuffer,
    /// The device reports a larger size than its lower has.
    Boasts,
    /// The device panics when its lower fails a request.
    Panics,
    /// The device fails some requests at random, although its lower has failed no request.
    FailsAtRandom,
    /// The device reports a number of writes as durable without storing it.
    NeverStores,
    /// The device starts on a used disk without a state, and overwrites the disk.
    FormatsUsed,
    /// The device overwrites its lower during a live change, before the device is committed.
    ActsUnsure,
    /// The device opens any store on its lower, not only the store that the labels name.
    AcceptsOther,
    /// The device does not wait in its close for the task that makes its store.
    ClosesEarly,
    /// The device makes its store before the labels record that the store is being made.
    MakesEarly,
    /// The device acknowledges a write before it has stored a number of writes that includes the write.
    CountsLate,
    /// The device panics at the command `member.fail` with the name of a member that does not exist.
    PanicsAtCommand,
    /// The mirror writes to all members a write that restores one copy.
    RestoresAll,
    /// The mirror writes to another member a write that restores one copy.
    RestoresOther,
    /// The device passes on a write that restores a copy as a write of new content.
    DropsRestore,
    /// The device does not pass on the copies that a read avoids.
    DropsAvoid,
    /// The device passes on a last resort as any other read.
    DropsLastResort,
    /// The device accepts a command that its kind does not declare.
    HidesCommand,
}

impl Sin {
    /// The faults that the enumeration of crashes must find. The battery crashes a device at random, and not during its
    /// first start.
    pub const OF_CRASHES: [Self; 2] = [Self::MakesEarly, Self::CountsLate];

    /// The faults that the battery must find, in the order of their declaration.
    pub const ALL: [Self; 42] = [
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
        Self::AcceptsOther,
        Self::ClosesEarly,
        Self::PanicsAtCommand,
        Self::RestoresAll,
        Self::RestoresOther,
        Self::DropsRestore,
        Self::DropsAvoid,
        Self::DropsLastResort,
        Self::HidesCommand,
    ];

    /// Returns the rules of which the battery may report any as broken by a device with this fault.
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
            Self::MarksLate => &[Bytes(Order), Bytes(Durable), Builds, Broken::Closes],
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
            Self::RestoresAll | Self::RestoresOther => &[Broken::Named],
            Self::DropsRestore | Self::DropsAvoid | Self::DropsLastResort => &[Broken::Named],
            Self::FailsAtRandom => &[Errors],
            Self::NeverStores | Self::CountsLate => &[Promise],
            Self::FormatsUsed => &[Foreign],
            Self::ActsUnsure => &[Broken::Uncommitted],
            Self::AcceptsOther => &[Broken::OtherStore],
            Self::ClosesEarly => &[Broken::Closes],
            Self::MakesEarly => &[Builds],
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
                | Self::RestoresAll
                | Self::RestoresOther
        )
    }

    fn is_of_a_state(self) -> bool {
        use Sin::{AcceptsOther, ActsUnsure, ClosesEarly, CountsLate, MakesEarly, NeverStores};
        matches!(
            self,
            NeverStores
                | ActsUnsure
                | AcceptsOther
                | ClosesEarly
                | MakesEarly
                | CountsLate
                | Self::FormatsUsed
        )
    }

    /// Returns the fault of the test kind [`KEEPER`] that its option `sin` names.
    fn of_name(name: &str) -> Option<Self> {
        let all = Self::ALL.into_iter().chain(Self::OF_CRASHES);
        all.filter(|sin| sin.is_of_a_state()).find(|sin| format!("{sin:?}") == name)
    }

    fn is_of_labels(self) -> bool {
        matches!(self, Self::ForgetsStale | Self::MarksLate | Self::RevivesEarly)
    }
}

const SIZE: u64 = 48 << 10;

/// Returns a test device with this fault, as a subject for the battery.
pub fn subject(sin: Sin) -> Subject {
    match sin {
        _ if sin.is_of_a_state() => keeper(Some(sin)),
        _ if sin.is_of_labels() => copies(Some(sin)).on_labels(),
        _ if sin.is_of_copies() => copies(Some(sin)),
        _ => one(Some(sin)),
    }
}

/// Returns a test mirror as a subject for the battery. It writes to two members, and reads from either.
pub fn copies(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("two copies".to_owned(), |sin| format!("two copies, {sin:?}"));
    let subject = Subject::new(&name, Registry(&[]), 2, SIZE, move |graph, lowers| {
        let members = lowers.iter().map(|lower| graph.lower(*lower)).collect();
        let kept = graph.kept("copies", lowers);
        let device = Rc::new(mirror::Mirror::new(members, kept, graph.env(), sin)?);
        // Disks without a state are refused at the next start.
        let opened = device.clone();
        graph.finished(Box::pin(async move { opened.remember().await }))??;
        graph.adopt("copies", device, Needs::children(2), lowers)
    });
    subject.with_copies(1)
}

/// Returns a device of the test kind [`KEEPER`], as a subject for the battery.
pub fn keeper(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("a keeper".to_owned(), |sin| format!("a keeper, {sin:?}"));
    let sin = sin.map(|sin| ("sin", Value::Text(format!("{sin:?}"))));
    let subject = Subject::new(&name, Registry(&[KEEPER]), 1, SIZE, move |graph, lowers| {
        graph.add("keeper", sin.as_slice(), lowers)
    });
    subject.on_labels().promises(|report, _, log| {
        let (counted, flushed) = (report.counters[0].1, log.writes(Reached::Flushed));
        if counted >= flushed { Ok(()) } else { Err(format!("{counted} of {flushed} writes")) }
    })
}

/// Returns a test device that forwards all requests to one lower, as a subject for the battery.
pub fn one(sin: Option<Sin>) -> Subject {
    let name = sin.map_or("one lower".to_owned(), |sin| format!("one lower, {sin:?}"));
    Subject::new(&name, Registry(&[]), 1, SIZE, move |graph, lowers| {
        let lower = graph.lower(lowers[0]);
        let device = window::Window::new(lower, graph.env(), sin);
        graph.adopt("window", Rc::new(device), Needs::children(2), lowers)
    })
}
