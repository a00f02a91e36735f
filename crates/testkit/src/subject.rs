//! The subjects of the battery of tests: a kind, or a graph of several kinds, with its lowers and its promises.

use block::Report;
use kind::Registry;
use sim::{Assembly, PartId, WriteLog};

use crate::strict::MAX_TRANSFER;

/// The size and limits of a lower over which the battery tests a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerSpec {
    /// Size of the lower in bytes.
    pub size: u64,
    /// Block size of the lower in bytes.
    pub block_size: u32,
    /// Length in bytes of the longest read or write that the lower accepts.
    pub max_transfer: u32,
}

/// Builds the devices under test over their lowers, and returns the number of the topmost device.
pub type Build = dyn Fn(&mut Assembly, &[PartId]) -> block::Result<PartId>;

/// Judges a device by its report after a start, its report at the end of the run before, and the log of all writes.
/// Returns an error in words if the device has broken its promise.
pub type Promise = dyn Fn(&Report, &Report, &WriteLog) -> Result<(), String>;

/// A kind, or a graph of several kinds, that the battery tests, with its promises beyond the contract of a device.
pub struct Subject {
    /// Name of the tested kind or graph in messages of the battery.
    pub name: String,
    /// The kinds that the function `build` uses.
    pub registry: Registry,
    /// Sizes and limits of the lowers over which the battery builds the devices.
    pub lowers: Vec<LowerSpec>,
    /// Builds the devices under test over the lowers.
    pub build: Box<Build>,
    /// Number of lowers that may fail at the same time without an error for clients.
    pub redundancy: usize,
    /// Whether all lowers have the same bytes when no request is in flight, as under a mirror.
    pub copies: bool,
    /// Whether the device under test is a disk, which opens its storage itself at the paths of [`disk_path`].
    pub is_disk: bool,
    /// Whether the disks of the lowers have labels, in which the devices under test store their states.
    pub labelled: bool,
    /// Whether the device under test starts on used disks without a state, and leaves their bytes unchanged.
    pub adopts: bool,
    /// Judges the promise of the device about its report after a start; `None` if there is no promise.
    pub promise: Option<Box<Promise>>,
    /// JSON arguments for commands to the device under test, valid and invalid, in addition to those of the battery.
    pub arguments: &'static [&'static str],
    /// Number of seeds with which the battery runs each of its parts.
    pub seeds: u64,
}

impl Subject {
    /// Creates a subject over `count` lowers of `size` bytes, with blocks of 512 bytes and without redundancy.
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

    /// Creates a subject that is a disk on `count` simulated disks of `size` bytes.
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

    /// Sets the length in bytes of the longest read or write that the lowers accept.
    #[must_use]
    pub fn with_transfers_of(mut self, bytes: u32) -> Self {
        self.lowers.iter_mut().for_each(|lower| lower.max_transfer = bytes);
        self
    }

    /// Sets the number of seeds with which the battery runs each of its parts.
    #[must_use]
    pub fn with_seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// Sets JSON arguments with which the battery sends commands to the device under test.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &'static [&'static str]) -> Self {
        self.arguments = arguments;
        self
    }

    /// Gives labels to the disks of the lowers, in which the devices under test store their states.
    #[must_use]
    pub fn on_labels(mut self) -> Self {
        self.labelled = true;
        self
    }

    /// Declares that the device under test starts on used disks without a state.
    #[must_use]
    pub fn adopting(mut self) -> Self {
        self.adopts = true;
        self
    }

    /// Sets the judge of a promise of the device about its report. The battery calls it after each kill, power cut,
    /// restart and live change, once the device answers requests: with the report, the report at the end of the run
    /// before, and the log of all writes of clients. For a number in the report that the device keeps durably:
    ///
    /// ```text
    /// subject.promises(|report, _, log| {
    ///     let (counted, flushed) = (report.counters[0].1, log.writes(Reached::Flushed));
    ///     if counted >= flushed { Ok(()) } else { Err(format!("{counted} of {flushed} writes")) }
    /// })
    /// ```
    #[must_use]
    pub fn promises(
        mut self,
        promise: impl Fn(&Report, &Report, &WriteLog) -> Result<(), String> + 'static,
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

    /// Declares that all lowers have the same bytes, and sets the number of lowers that may fail at the same time
    /// without an error for clients.
    #[must_use]
    pub fn with_copies(mut self, redundancy: usize) -> Self {
        (self.redundancy, self.copies) = (redundancy, true);
        self
    }
}

/// Returns the path of the simulated disk of lower number `n`.
pub fn disk_path(n: usize) -> String {
    format!("/lower{n}")
}
