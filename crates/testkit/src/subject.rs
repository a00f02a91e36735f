//! What the battery judges.

use block::Report;
use kind::Registry;
use sim::{Assembly, PartId};

use crate::strict::MAX_TRANSFER;

/// A lower that a subject stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerSpec {
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// The longest read or write that it takes.
    pub max_transfer: u32,
}

/// Builds what is to be judged over the lowers, and answers the top of it.
pub type Build = dyn Fn(&mut Assembly, &[PartId]) -> block::Result<PartId>;

/// A kind's own promise: what its report before a crash demands of the one after it.
pub type Promise = dyn Fn(&Report, &Report) -> Result<(), String>;

/// A kind, or a graph of several, and what it promises beyond the contract.
pub struct Subject {
    /// Its name, for messages.
    pub name: String,
    /// Its kinds.
    pub registry: Registry,
    /// What it stands on.
    pub lowers: Vec<LowerSpec>,
    /// How it is built.
    pub build: Box<Build>,
    /// How many lowers may fail and nothing is seen above.
    pub redundancy: usize,
    /// Whether all lowers hold the same bytes when all is quiet.
    pub copies: bool,
    /// Whether it is a disk: then it opens its lowers itself, by the paths that [`disk_path`] says.
    pub is_disk: bool,
    /// Whether its lowers are labelled, so that it can keep something there.
    pub labelled: bool,
    /// Whether it begins on disks that were used and have no state of it: their bytes become its own.
    pub adopts: bool,
    /// What it promises over its report.
    pub promise: Option<Box<Promise>>,
    /// Arguments for its commands, right and wrong ones, beside those that the battery has.
    pub arguments: &'static [&'static str],
    /// Seeds of each part of the battery.
    pub seeds: u64,
}

impl Subject {
    /// A subject without redundancy over `count` lowers of `size` bytes in blocks of 512.
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

    /// A disk, as one by itself.
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

    /// The same, in blocks of 4 KiB.
    #[must_use]
    pub fn with_blocks_of_4k(mut self) -> Self {
        self.lowers.iter_mut().for_each(|lower| lower.block_size = 4096);
        self
    }

    /// The same, on lowers that take requests so long.
    #[must_use]
    pub fn with_transfers_of(mut self, bytes: u32) -> Self {
        self.lowers.iter_mut().for_each(|lower| lower.max_transfer = bytes);
        self
    }

    /// The same, with so many seeds of each part.
    #[must_use]
    pub fn with_seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// The same, with more arguments for its commands.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &'static [&'static str]) -> Self {
        self.arguments = arguments;
        self
    }

    /// The same, on labelled lowers: what it keeps there outlives it.
    #[must_use]
    pub fn on_labels(mut self) -> Self {
        self.labelled = true;
        self
    }

    /// The same; it takes over used disks as they are.
    #[must_use]
    pub fn adopting(mut self) -> Self {
        self.adopts = true;
        self
    }

    /// The same, with a promise of its own.
    #[must_use]
    pub fn promising(
        mut self,
        promise: impl Fn(&Report, &Report) -> Result<(), String> + 'static,
    ) -> Self {
        self.promise = Some(Box::new(promise));
        self
    }

    /// The same; so many lowers may fail.
    #[must_use]
    pub fn with_redundancy(mut self, redundancy: usize) -> Self {
        self.redundancy = redundancy;
        self
    }

    /// The same; so many lowers may fail, and all hold the same.
    #[must_use]
    pub fn with_copies(mut self, redundancy: usize) -> Self {
        (self.redundancy, self.copies) = (redundancy, true);
        self
    }
}

/// Where the `n`-th lower's disk is plugged in.
pub fn disk_path(n: usize) -> String {
    format!("/lower{n}")
}
