//! Subjects of the battery: a device, or a graph of devices, that the conformance tests run on.

use block::Report;
use kind::Registry;
use sim::{Assembly, PartId};

use crate::strict::MAX_TRANSFER;

/// The description of a lower of a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerSpec {
    /// Size of the lower in bytes.
    pub size: u64,
    /// Block size of the lower in bytes.
    pub block_size: u32,
    /// Length in bytes of the longest read or write that the lower accepts.
    pub max_transfer: u32,
}

/// A function that builds the subject over its lowers, and returns the device under test.
pub type Build = dyn Fn(&mut Assembly, &[PartId]) -> block::Result<PartId>;

/// A function that checks the report of a subject after a restart against the report before it.
pub type Promise = dyn Fn(&Report, &Report) -> Result<(), String>;

/// A kind, or a graph of several kinds, with its promises beyond the contract of a device.
pub struct Subject {
    /// Name of the subject in messages.
    pub name: String,
    /// The kinds from which the subject is built.
    pub registry: Registry,
    /// The lowers of the subject.
    pub lowers: Vec<LowerSpec>,
    /// Function that builds the devices of the subject over its lowers.
    pub build: Box<Build>,
    /// Number of lowers that may fail at the same time without an error for clients.
    pub redundancy: usize,
    /// Whether all lowers have the same bytes when no request is in flight.
    pub copies: bool,
    /// Whether the subject is a disk. A disk opens its lowers itself, by the paths of [`disk_path`].
    pub is_disk: bool,
    /// Whether the disks of the lowers have labels, in which the subject can store its state.
    pub labelled: bool,
    /// Whether the subject starts on used disks without a state, and does not change their bytes.
    pub adopts: bool,
    /// The subject's promise: how its report after a restart follows from the report before.
    pub promise: Option<Box<Promise>>,
    /// Arguments for commands to the subject, valid and invalid ones, besides those of the battery.
    pub arguments: &'static [&'static str],
    /// Number of seeds for each part of the battery.
    pub seeds: u64,
}

impl Subject {
    /// Creates a subject without redundancy over `count` lowers of `size` bytes, with blocks of 512 bytes.
    pub fn new(
        name: &str,
        registry: Registry,
        count: usize,
        size: u64,
        build: impl Fn(&mut Assembly, &[PartId]) -> block::Result<PartId> + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            registry,
            lowers: vec![LowerSpec { size, block_size: 512, max_transfer: MAX_TRANSFER }; count],
            build: Box::new(build),
            redundancy: 0,
            copies: false,
            is_disk: false,
            labelled: false,
            adopts: false,
            promise: None,
            arguments: &[],
            seeds: 12,
        }
    }

    /// Creates a subject that is a disk.
    pub fn disk(
        name: &str,
        registry: Registry,
        count: usize,
        size: u64,
        build: impl Fn(&mut Assembly) -> block::Result<PartId> + 'static,
    ) -> Self {
        let build = move |graph: &mut Assembly, _: &[PartId]| build(graph);
        Self { is_disk: true, ..Self::new(name, registry, count, size, build) }
    }

    /// Sets the block size of all lowers to 4 KiB.
    #[must_use]
    pub fn with_blocks_of_4k(mut self) -> Self {
        self.lowers.iter_mut().for_each(|lower| lower.block_size = 4096);
        self
    }

    /// Sets the longest read and write that the lowers accept.
    #[must_use]
    pub fn with_transfers_of(mut self, bytes: u32) -> Self {
        self.lowers.iter_mut().for_each(|lower| lower.max_transfer = bytes);
        self
    }

    /// Sets the number of seeds for each part of the battery.
    #[must_use]
    pub fn with_seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// Sets arguments for commands to the subject.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &'static [&'static str]) -> Self {
        self.arguments = arguments;
        self
    }

    /// Gives labels to the disks of the lowers, so that the subject can keep its state over restarts.
    #[must_use]
    pub fn on_labels(mut self) -> Self {
        self.labelled = true;
        self
    }

    /// Makes the subject start on used disks without a state.
    #[must_use]
    pub fn adopting(mut self) -> Self {
        self.adopts = true;
        self
    }

    /// Sets the subject's promise about its report.
    #[must_use]
    pub fn promising(
        mut self,
        promise: impl Fn(&Report, &Report) -> Result<(), String> + 'static,
    ) -> Self {
        self.promise = Some(Box::new(promise));
        self
    }

    /// Sets the number of lowers that may fail at the same time without an error for clients.
    #[must_use]
    pub fn with_redundancy(mut self, redundancy: usize) -> Self {
        self.redundancy = redundancy;
        self
    }

    /// Sets the number of lowers that may fail at the same time without an error for clients, and sets that all lowers
    /// have the same bytes.
    #[must_use]
    pub fn with_copies(mut self, redundancy: usize) -> Self {
        (self.redundancy, self.copies) = (redundancy, true);
        self
    }
}

/// Returns the path of the disk of lower number `n`.
pub fn disk_path(n: usize) -> String {
    format!("/lower{n}")
}
