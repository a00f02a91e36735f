//! The disk that breaks the contract in the trial of checksums, and the bytes that it may cost.

use sim::draw::Stream;
use sim::{Count, Faults, Promise, Unsure};

use super::shape::{Layout, Shape};

/// How the disk breaks the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It changes bits, in reads and while no process runs.
    Rots,
    /// It puts some writes at another address.
    Misdirects,
    /// It acknowledges all writes, and loses some of them.
    Loses,
    /// It acknowledges flushes without effect.
    Lies,
}

/// The disk of a trial that breaks the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// Number of the disk.
    pub disk: usize,
    /// How it breaks the contract.
    pub fault: Fault,
}

impl Trouble {
    /// Draws the disk that breaks the contract; `None` if all disks keep it.
    pub fn draw(draw: &Stream, shape: &Shape) -> Option<Self> {
        let faults = [Fault::Rots, Fault::Rots, Fault::Misdirects, Fault::Loses, Fault::Lies];
        let fault = draw.pick(&faults);
        // The checksums of a device over a mirror have a disk without a copy, which must keep the contract.
        let disks = match shape.layout {
            Layout::OverMirror => shape.disks,
            Layout::Alone | Layout::UnderMirror => shape.disks + shape.others,
        };
        let disk = draw.below(disks as u64) as usize;
        (draw.below(5) > 0).then_some(Self { disk, fault })
    }

    /// Returns the rates of the faults. `rate`: operations in a million.
    pub fn faults(self, rate: u32) -> Faults {
        let none = Faults::default();
        match self.fault {
            Fault::Rots => Faults { rot: rate, ..none },
            Fault::Misdirects => Faults { misdirected: rate, ..none },
            Fault::Loses => Faults { lost_write: rate, ..none },
            Fault::Lies => none,
        }
    }

    /// Returns the guarantees about bytes after an unclean stop.
    ///
    /// One disk alone cannot show that it lost the newest record of a log or ring, together with the data that the record
    /// names, or that such a record has rotted. So a checksum device whose checksums are on the faulty disk may return older
    /// bytes, also below a mirror.
    pub fn promise_after_crash(self, shape: &Shape) -> Promise {
        match shape.layout {
            Layout::OverMirror => Promise::Full,
            _ if shape.has_only_data(self.disk) => Promise::Full,
            Layout::Alone | Layout::UnderMirror => Promise::Lossy,
        }
    }

    /// Returns the blocks that may hold any bytes after an unclean stop with `crash = "regions"`. `power`: the power was cut.
    pub fn unsure(self, shape: &Shape, power: bool) -> Unsure {
        match power {
            _ if !shape.is_redundant() => Unsure::From(0),
            true => Unsure::Unflushed,
            false => Unsure::InFlight,
        }
    }
}

/// The number of faults of each type, and where they are counted for graphs with checksums.
pub const COUNTS: [(Count, Count); 4] = [
    (Count::Rot, Count::SumsRotted),
    (Count::Misdirected, Count::SumsMisdirected),
    (Count::LostWrite, Count::SumsLost),
    (Count::FlushIgnored, Count::SumsIgnored),
];
