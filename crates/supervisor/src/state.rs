//! The directory of a daemon's local state, with one subdirectory for each graph. `docs/formats/daemon-state.md` defines it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, Result, bail, error};
use rustix::fs::{FlockOperation, flock};

use crate::record::{RECORD_MAX_BYTES, Record};
use crate::worker_lock;

const LOCK: &str = "lock";
const GRAPH: &str = "graph";
const NEW: &str = "graph.new";

/// Length in bytes of the longest name of a graph, the same as in a spec.
const NAME_MAX_BYTES: usize = 64;

/// Mode bits that must not be set, because they permit access by other users.
const OTHERS: u32 = 0o077;

/// The state directory of a daemon, locked while this process uses it.
pub struct State {
    path: PathBuf,
    /// The locked file. It is never read through this handle.
    _lock: File,
}

/// Returns the path of the state file of the graph `name` in the state directory `state`, which may be open in
/// another process.
pub fn file_in(state: &Path, name: &str) -> PathBuf {
    state.join(name).join(GRAPH)
}

/// A graph with a subdirectory in the state directory.
pub struct Entry {
    /// Name of the graph, which is also the name of its subdirectory.
    pub name: String,
    /// The content of the state file of the graph, or the reason why the file cannot be read.
    pub record: Result<Record>,
}

impl State {
    /// Locks the state directory at `path` for this process, and creates it if there is none.
    ///
    /// # Errors
    /// `Invalid` if the path is no directory; `Denied` if other users have access to it, or if it belongs to another
    /// user; `InUse` with the process that has it locked; errors of the system.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error: &io::Error| Error::io(error, path.display());
        let path = std::path::absolute(path).map_err(|error| failed(&error))?;
        if std::fs::metadata(&path).is_ok_and(|found| !found.is_dir()) {
            return Err(
                error!(Invalid, "{} is not a directory", path.display()).next("another --state")
            );
        }
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&path).map_err(|error| failed(&error))?;
        check(&path)?;
        let file = path.join(LOCK);
        let failed = |error: io::Error| Error::io(&error, file.display());
        let mut lock = worker_lock::open(&file).map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let holder = Self::holder(&path);
            let holder =
                holder.map_or_else(|| "another process".into(), |pid| format!("process {pid}"));
            bail!(InUse, "the state directory {} is in use by {holder}, a daemon", path.display());
        }
        worker_lock::sign(&mut lock).map_err(failed)?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the id of the process that has, or had last, the state directory at `path` locked; `None` if it is not
    /// known.
    pub fn holder(path: &Path) -> Option<u32> {
        worker_lock::number(&mut File::open(path.join(LOCK)).ok()?).ok()
    }

    /// Returns the path of the state directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the state file of the graph `name`.
    pub fn file(&self, name: &str) -> PathBuf {
        file_in(&self.path, name)
    }

    /// Returns all graphs in the state directory, by name.
    ///
    /// # Errors
    /// Errors of the system at the directory. The error of one state file is in its entry.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let failed = |error| Error::io(&error, self.path.display());
        let mut entries = Vec::new();
        for found in std::fs::read_dir(&self.path).map_err(failed)? {
            let found = found.map_err(failed)?;
            let Ok(name) = found.file_name().into_string() else { continue };
            let file = self.file(&name);
            if is_name(&name) && std::fs::symlink_metadata(&file).is_ok() {
                let record = read(&file).and_then(|record| is_named(record, &name));
                entries.push(Entry { name, record });
            }
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Writes the state file of a graph. The file is durable when the method returns.
    ///
    /// # Errors
    /// `Invalid` for an invalid name of a graph; `Limit`, `NoSpace` and other errors of the system. After an error
    /// the previous state file is unchanged.
    pub fn write(&self, record: &Record) -> Result<()> {
        if !is_name(&record.name) {
            bail!(
                Invalid,
                "{:?} is not a graph name: a name has 1 to {NAME_MAX_BYTES} letters a-z, digits, - \
                 _ and ., and begins with a letter or digit",
                record.name
            );
        }
        let directory = self.path.join(&record.name);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| Error::io(&error, directory.display()))?;
        record.write(&directory.join(GRAPH))?;
        sync(&self.path)
    }

    /// Removes the state file of the graph `name`, with its subdirectory.
    ///
    /// # Errors
    /// Errors of the system. A graph that does not exist is no error.
    pub fn forget(&self, name: &str) -> Result<()> {
        if !is_name(name) {
            return Ok(());
        }
        let directory = self.path.join(name);
        for file in [directory.join(GRAPH), directory.join(NEW)] {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io(&error, file.display()));
                }
                _ => {}
            }
        }
        // Files of others stay, and the directory with them.
        let _ = std::fs::remove_dir(&directory);
        sync(&self.path)
    }
}

impl Record {
    /// Reads the state file `file`.
    ///
    /// # Errors
    /// As [`Record::decode`], with the path of the file; errors of the system.
    pub fn read(file: &Path) -> Result<Self> {
        read(file)
    }

    /// Replaces the state file `file` durably, or leaves the existing file unchanged.
    ///
    /// # Errors
    /// As [`State::write`].
    pub fn write(&self, file: &Path) -> Result<()> {
        let bytes = self.encode()?;
        let new = file.with_file_name(NEW);
        let failed = |error| Error::io(&error, new.display());
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
        let mut written = opened.map_err(failed)?;
        written.write_all(&bytes).and_then(|()| written.sync_all()).map_err(failed)?;
        std::fs::rename(&new, file).map_err(|error| Error::io(&error, file.display()))?;
        file.parent().map_or(Ok(()), sync)
    }
}

fn read(file: &Path) -> Result<Record> {
    let mut bytes = Vec::new();
    let read = File::open(file)
        .and_then(|opened| opened.take(RECORD_MAX_BYTES as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| Error::io(&error, file.display()))?;
    let failed =
        |kind, why: &dyn std::fmt::Display| Error::new(kind, format!("{}: {why}", file.display()));
    if bytes.len() > RECORD_MAX_BYTES {
        let why = format!("the record is longer than {RECORD_MAX_BYTES} bytes");
        return Err(failed(ErrorKind::Corrupt, &why));
    }
    Record::decode(&bytes).map_err(|error| failed(error.kind(), &error))
}

fn is_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    begins && name.len() <= NAME_MAX_BYTES && name.bytes().all(known)
}

/// Checks that `record`, from the subdirectory `name`, is that of the graph `name`. Otherwise two graphs could have
/// the same disks.
fn is_named(record: Record, name: &str) -> Result<Record> {
    if record.name == name {
        return Ok(record);
    }
    Err(error!(Corrupt, "{name}: the record in this directory is of the graph {:?}", record.name))
}

fn sync(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Error::io(&error, directory.display()))
}

fn check(path: &Path) -> Result<()> {
    let found = std::fs::metadata(path).map_err(|error| Error::io(&error, path.display()))?;
    let user = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == user && found.mode() & OTHERS == 0 {
        return Ok(());
    }
    Err(error!(
        Denied,
        "{} belongs to user {} and has mode {:03o}; only user {user} may have access to records",
        path.display(),
        found.uid(),
        found.mode() & 0o777
    )
    .next("chmod 700, or another --state"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::record::{Options, Source};

    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> Self {
            let name = format!("cairn-state-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn record(name: &str) -> Record {
        let source = Source::Labels {
            text: String::new(),
            disks: Default::default(),
            keys: Default::default(),
            options: Default::default(),
        };
        let (name, directory) = (name.to_owned(), PathBuf::from("/"));
        Record { name, directory, source, next: None, options: Options::default() }
    }

    #[test]
    fn entries_lists_records_beside_corrupt_records() {
        let place = TempDir::new("found");
        let state = State::open(&place.0).unwrap();
        for name in ["one", "two", "three"] {
            state.write(&record(name)).unwrap();
        }
        std::fs::write(state.file("two"), "nonsense").unwrap();
        std::fs::rename(place.0.join("three"), place.0.join("four")).unwrap();
        std::fs::create_dir(place.0.join("empty")).unwrap();
        std::fs::write(place.0.join("notes"), "").unwrap();
        let entries = state.entries().unwrap();
        let told: Vec<_> =
            entries.iter().map(|entry| (&*entry.name, entry.record.is_ok())).collect();
        assert_eq!(told, [("four", false), ("one", true), ("two", false)]);
        for name in ["one", "two", "four", "nowhere"] {
            state.forget(name).unwrap();
        }
        assert!(state.entries().unwrap().is_empty());
        assert!(!place.0.join("one").exists() && place.0.join("notes").exists());
    }

    #[test]
    fn state_rejects_graph_names_outside_state_directory() {
        let place = TempDir::new("name");
        let state = State::open(&place.0.join("state")).unwrap();
        for name in ["", "..", ".", "../other", "a/b", "ä", "-a", &"x".repeat(65)] {
            assert_eq!(
                state.write(&record(name)).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{name}"
            );
        }
        std::fs::create_dir(place.0.join("other")).unwrap();
        std::fs::write(place.0.join("other/graph"), "").unwrap();
        state.forget("../other").unwrap();
        assert!(place.0.join("other/graph").exists());
        state.write(&record(&"x".repeat(64))).unwrap();
    }

    #[test]
    fn failed_record_write_keeps_previous_record() {
        let place = TempDir::new("kept");
        let state = State::open(&place.0).unwrap();
        state.write(&record("home")).unwrap();
        // A partial write of a process that was killed.
        std::fs::create_dir(place.0.join("home").join(NEW)).unwrap();
        let mut other = record("home");
        other.options.degraded = true;
        assert!(state.write(&other).is_err());
        assert_eq!(state.entries().unwrap()[0].record.as_ref().unwrap(), &record("home"));
    }

    #[test]
    fn state_directory_admits_one_daemon_and_one_user() {
        let place = TempDir::new("lock");
        let first = State::open(&place.0).unwrap();
        let error = State::open(&place.0).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(first);
        drop(State::open(&place.0).unwrap());
        std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(0o750)).unwrap();
        let error = State::open(&place.0).err().unwrap();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("750"), "{error}");
    }
}
