//! Subjects: the devices that the battery tests.

use block::Report;
use kind::Registry;
use sim::{Assembly, PartId};

use crate::strict::MAX_TRANSFER;

/// A lower of a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerSpec {
    /// Size in bytes.
    pub size: u64,
    /// Size of a block in bytes.
    pub block_size: u32,
    /// The longest read or write that it accepts.
    pub max_transfer: u32,
}

/// Builds the subject over its lowers, and returns its top.
pub type Build = dyn Fn(&mut Assembly, &[PartId]) -> block::Result<PartId>;

/// A promise of a kind: checks its report after a restart against the one before.
pub type Promise = dyn Fn(&Report, &Report) -> Result<(), String>;

/// A kind, or a graph of several, and its promises beyond the contract.
pub struct Subject {
    /// Its name, for messages.
    pub name: String,
    /// Its kinds.
    pub registry: Registry,
    /// Its lowers.
    pub lowers: Vec<LowerSpec>,
    /// Builds it.
    pub build: Box<Build>,
    /// Number of lowers that may fail without an error above.
    pub redundancy: usize,
    /// Whether all lowers hold the same bytes once no request is in flight.
    pub copies: bool,
    /// Whether it is a disk. A disk opens its lowers itself, by the paths of [`disk_path`].
    pub is_disk: bool,
    /// Whether its lowers have labels, so that it can keep state there.
    pub labelled: bool,
    /// Whether it accepts used disks without a state, and keeps their bytes.
    pub adopts: bool,
    /// Its promise about its report.
    pub promise: Option<Box<Promise>>,
    /// Arguments for its commands, right and wrong ones, beside those that the battery has.
    pub arguments: &'static [&'static str],
    /// Number of seeds for each part of the battery.
    pub seeds: u64,
}

impl Subject {
    /// Makes a subject without redundancy over `count` lowers of `size` bytes in blocks of 512.
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

    /// Makes a subject that is a disk.
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

    /// Sets blocks of 4 KiB.
    #[must_use]
    pub fn with_blocks_of_4k(mut self) -> Self {
        self.lowers.iter_mut().for_each(|lower| lower.block_size = 4096);
        self
    }

    /// Sets the longest request of the lowers.
    #[must_use]
    pub fn with_transfers_of(mut self, bytes: u32) -> Self {
        self.lowers.iter_mut().for_each(|lower| lower.max_transfer = bytes);
        self
    }

    /// Sets the number of seeds for each part.
    #[must_use]
    pub fn with_seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// Adds arguments for its commands.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &'static [&'static str]) -> Self {
        self.arguments = arguments;
        self
    }

    /// Gives the lowers labels, so that its state there outlives it.
    #[must_use]
    pub fn on_labels(mut self) -> Self {
        self.labelled = true;
        self
    }

    /// Makes it accept used disks as they are.
    #[must_use]
    pub fn adopting(mut self) -> Self {
        self.adopts = true;
        self
    }

    /// Adds a promise about its report.
    #[must_use]
    pub fn promising(
        mut self,
        promise: impl Fn(&Report, &Report) -> Result<(), String> + 'static,
    ) -> Self {
        self.promise = Some(Box::new(promise));
        self
    }

    /// Sets the number of lowers that may fail.
    #[must_use]
    pub fn with_redundancy(mut self, redundancy: usize) -> Self {
        self.redundancy = redundancy;
        self
    }

    /// Sets the number of lowers that may fail; all lowers hold the same bytes.
    #[must_use]
    pub fn with_copies(mut self, redundancy: usize) -> Self {
        (self.redundancy, self.copies) = (redundancy, true);
        self
    }
}

/// Returns the path at which the disk of lower `n` is plugged in.
pub fn disk_path(n: usize) -> String {
    format!("/lower{n}")
}
