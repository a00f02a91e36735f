//! The parts that all measurements of a benchmark program share: the client, the directories, the number of rounds.

use std::cell::RefCell;
use std::path::PathBuf;

use crate::awake::Awake;
use crate::load::{self, Load, Outcome};
use crate::places::Places;

/// The client, the directories and the number of rounds that all measurements share.
pub struct Ground {
    /// The event loop in which the client runs.
    pub core: runtime::Core,
    /// The directories for disks and specs, on disk and in memory.
    pub places: Places,
    /// Number of rounds of each measurement.
    pub rounds: usize,
    /// The processes that keep the processors awake.
    pub awake: RefCell<Option<Awake>>,
}

/// Where the files of the measured disks lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// On a file system in memory.
    Memory,
    /// On a disk of this machine.
    Disk,
}

impl Medium {
    /// Both storage media.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Disk];

    /// Returns the name of the medium for the names of rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }

    /// Returns the name of the medium for the titles of rows.
    pub fn words(self) -> &'static str {
        match self {
            Self::Memory => "files in memory",
            Self::Disk => "files on this machine's disk",
        }
    }

    /// Returns the directory in which the measured disks lie.
    pub fn place(self, ground: &Ground) -> PathBuf {
        match self {
            Self::Memory => ground.places.shm.clone(),
            Self::Disk => ground.places.dir.clone(),
        }
    }
}

impl Ground {
    /// Runs a measurement of single, rare requests while the processors may sleep. The processes that keep them awake
    /// delay a few of such requests by a tick of the scheduler, 4 ms.
    ///
    /// # Errors
    /// Those of the measurement; the processes cannot be started again.
    pub fn asleep<T>(&self, measured: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        drop(self.awake.take());
        let result = measured();
        *self.awake.borrow_mut() = Some(Awake::begin()?);
        result
    }

    /// Fills the first `span` bytes of the export at `uri` with the pattern that clients compare reads with.
    ///
    /// # Errors
    /// As [`load::fill`].
    pub fn fill(&self, uri: &str, span: u64) -> Result<(), String> {
        let filled = self.core.block_on(load::fill(&self.core.env(), uri, Some(span)));
        filled.map_err(|error| error.to_string())
    }

    /// Runs a load on the export at `uri`.
    ///
    /// # Errors
    /// As [`load::run`]; the first error of a request.
    pub fn load(&self, uri: &str, load: &Load) -> Result<Outcome, String> {
        let outcome = self.core.block_on(load::run(&self.core.env(), uri, load));
        let outcome = outcome.map_err(|error| error.to_string())?;
        match &outcome.first_error {
            Some(error) => Err(format!("{} errors; the first: {error}", outcome.errors)),
            None => Ok(outcome),
        }
    }
}
