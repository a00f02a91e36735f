//! Descriptors that a daemon keeps in reserve, so that it can start a worker when all others are in use.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Descriptors that the start of a worker needs at most: the socket with the held descriptors, the pipe that reports a
/// failed start, the process itself, and the lock file.
const SPARE: usize = 8;

/// Descriptors in reserve for the start of a worker. A clone is another handle to the same reserve.
#[derive(Clone)]
pub struct SpareDescriptors(Arc<Mutex<Vec<OwnedFd>>>);

impl SpareDescriptors {
    /// Opens the reserve. Descriptors that the system refuses now are tried again after each loan.
    pub fn open() -> Self {
        let spare = Self(Arc::default());
        spare.lend(|| ());
        spare
    }

    /// Carries out `start` while the descriptors of the reserve are free, then fills the reserve again.
    pub(crate) fn lend<T>(&self, start: impl FnOnce() -> T) -> T {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spare.clear();
        let started = start();
        let files = std::iter::repeat_with(|| File::open("/dev/null")).take(SPARE);
        spare.extend(files.map_while(|file| Some(file.ok()?.into())));
        started
    }
}
