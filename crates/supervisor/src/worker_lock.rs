//! The lock of a graph's worker: a file that the worker locks as long as it runs.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use block::{Error, Result, bail, error};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Length in bytes that is read of a lock file: more than the longest process id.
const NUMBER_MAX_BYTES: u64 = 32;

/// The lock of a graph's worker, held by this process.
pub struct WorkerLock(#[expect(dead_code, reason = "it is held, not read")] File);

/// The holder of the lock of a graph's worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockHolder {
    /// The lock is free.
    No,
    /// The process with this id holds the lock.
    By(u32),
}

impl WorkerLock {
    /// Takes the worker lock at `path` for this process.
    ///
    /// # Errors
    /// `InUse` with the process that holds the lock; errors of the system.
    pub fn take(path: &Path) -> Result<Self> {
        let failed = |error: &io::Error| Error::io(error, path.display());
        let mut file = open(path).map_err(|error| failed(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = number(&mut file).unwrap_or_default();
                bail!(InUse, "{}: process {holder} is the worker already", path.display());
            }
            Err(error) => return Err(failed(&error.into())),
        }
        sign(&mut file).map_err(|error| failed(&error))?;
        Ok(Self(file))
    }

    /// Returns the holder of the worker lock at `path`. To check, it takes the lock for a moment, in which a starting
    /// worker is refused. So it may be called only while no worker is being started.
    ///
    /// # Errors
    /// Errors of the system; `Corrupt` if the lock is held and its file has no process id.
    pub fn holder(path: &Path) -> Result<LockHolder> {
        let failed = |error: &io::Error| Error::io(error, path.display());
        let mut file = open(path).map_err(|error| failed(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(LockHolder::No),
            Err(Errno::WOULDBLOCK) => match number(&mut file) {
                Ok(pid) => Ok(LockHolder::By(pid)),
                Err(error) => Err(error!(
                    Corrupt,
                    "{}: another process holds the lock of the worker: {error}",
                    path.display()
                )),
            },
            Err(error) => Err(failed(&error.into())),
        }
    }
}

/// Opens a worker lock file, and creates it if there is none.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Writes the id of this process into a worker lock file.
pub(crate) fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// Reads the id of a process from a lock file.
pub(crate) fn number(file: &mut File) -> io::Result<u32> {
    let mut text = String::new();
    file.take(NUMBER_MAX_BYTES).read_to_string(&mut text)?;
    text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    #[test]
    fn worker_lock_admits_one_worker() {
        let path = std::env::temp_dir().join(format!("cairn-seat-{}", std::process::id()));
        assert_eq!(WorkerLock::holder(&path).unwrap(), LockHolder::No);
        let seat = WorkerLock::take(&path).unwrap();
        assert_eq!(WorkerLock::holder(&path).unwrap(), LockHolder::By(std::process::id()));
        assert_eq!(WorkerLock::take(&path).err().unwrap().kind(), ErrorKind::InUse);
        drop(seat);
        assert_eq!(WorkerLock::holder(&path).unwrap(), LockHolder::No);
        drop(WorkerLock::take(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
