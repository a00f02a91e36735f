//! The claim of a process to a name in `/dev/cairn`: a file lock, which the kernel releases when the process ends.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use block::{Error, ErrorKind, Result, error};
use rustix::fs::{FlockOperation, flock};

use crate::name::{Name, make_runtime};

/// Maximum number of tries to lock the lock file: another process may remove the file between its opening and its
/// locking.
const TRIES: usize = 16;

/// The claim of this process to a name in `/dev/cairn`. Dropping this value releases the name.
pub struct Claim {
    name: Name,
    file: File,
}

impl Claim {
    /// Claims a name in `/dev/cairn` for this process.
    ///
    /// # Errors
    /// `InUse` if another process has claimed the name, whose id the message contains; `Denied`; other errors of the
    /// system.
    pub fn take(name: &Name) -> Result<Self> {
        make_runtime()?;
        let path = name.lock();
        let failed = |error: &std::io::Error| Error::io(error, path.display());
        for _ in 0..TRIES {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.open(&path).map_err(|error| failed(&error))?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(taken(name, &mut file));
            }
            // The previous process with this claim may have removed the lock file after this process had opened it.
            let held = file.metadata().map_err(|error| failed(&error))?;
            if !std::fs::symlink_metadata(&path).is_ok_and(|found| found.ino() == held.ino()) {
                continue;
            }
            let mut claim = Self { name: name.clone(), file };
            claim.sign().map_err(|error| failed(&error))?;
            return Ok(claim);
        }
        let why = format!("{}: another process removes this lock file repeatedly", path.display());
        Err(Error::new(ErrorKind::InUse, why))
    }

    /// Whether a process has claimed `name`; also `true` if this process may not find out.
    pub(crate) fn is_taken(name: &Name) -> bool {
        match File::open(name.lock()) {
            Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    /// Returns the claimed name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    fn sign(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        writeln!(self.file, "{}", std::process::id())
    }
}

fn taken(name: &Name, file: &mut File) -> Error {
    let mut process = String::new();
    let by = match file.read_to_string(&mut process) {
        Ok(_) if !process.trim().is_empty() => format!("process {}", process.trim()),
        _ => "another process".to_owned(),
    };
    let link = name.link();
    error!(InUse, "{} belongs to {by}", link.display())
        .next(format!("cairn detach {name}, or choose another --name"))
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The file is removed while it is still locked, so that the lock file of another process is never removed. If
        // the removal fails, the file stays without a lock.
        let _ = std::fs::remove_file(self.name.lock());
    }
}
