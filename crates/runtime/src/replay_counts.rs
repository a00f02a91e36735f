//! Counts of resent FUSE requests. A request that ends the process which carries it out would also end the next
//! process; its count reveals that.
//!
//! The counts are in a file on tmpfs, for the next process on this machine. `docs/formats/fuse.md` defines the
//! format.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Length in bytes of a record: the number of a request, and its count.
const RECORD_BYTES: usize = 16;

/// Length in bytes of the longest file that is read: many times what all requests in flight need.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// The counts of resent FUSE requests of one mount, by the number of the request.
pub(crate) struct Again {
    path: PathBuf,
    file: File,
    /// Counts that earlier processes wrote.
    before: BTreeMap<u64, u64>,
    /// Counts of the requests that were resent to this process. All other requests of earlier processes have replies.
    now: BTreeMap<u64, u64>,
    settled: bool,
}

impl Again {
    /// Opens the file of counts at `path`, and creates the file if there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).append(true).create(true).mode(0o600);
        let file = options.open(path)?;
        if file.metadata()?.len() > FILE_MAX_BYTES {
            file.set_len(0)?;
        }
        let before = read(&std::fs::read(path)?);
        let path = path.to_owned();
        Ok(Self { path, file, before, now: BTreeMap::new(), settled: false })
    }

    /// Returns the path of the file with the counts.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds one to the count of the resent request `number`, and returns the count. The count is in the file before
    /// the method returns.
    pub(crate) fn note(&mut self, number: u64) -> io::Result<u64> {
        let known = self.now.get(&number).or_else(|| self.before.get(&number));
        let count = known.copied().unwrap_or(0).saturating_add(1);
        self.now.insert(number, count);
        self.file.write_all(&record(number, count))?;
        Ok(count)
    }

    /// Reduces the file to the counts of requests that were resent to this process. It is called when the kernel has
    /// resent all requests.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.settled, true) {
            return Ok(());
        }
        let records: Vec<u8> =
            self.now.iter().flat_map(|(number, count)| record(*number, *count)).collect();
        let new = self.path.with_extension("new");
        replace(&self.path, &new, &records).inspect_err(|_| {
            // A partial file would stay forever. If it does not exist, the removal fails without harm.
            let _ = std::fs::remove_file(&new);
        })
    }
}

fn replace(path: &Path, new: &Path, records: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(new)?.write_all(records)?;
    std::fs::rename(new, path)
}

fn record(number: u64, count: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record[8..].copy_from_slice(&count.to_le_bytes());
    record
}

/// Parses the records of a file. Of several records of one number, the last is valid; an incomplete record is
/// ignored.
fn read(bytes: &[u8]) -> BTreeMap<u64, u64> {
    let word = |half: &[u8]| half.first_chunk().copied().map_or(0, u64::from_le_bytes);
    bytes.chunks_exact(RECORD_BYTES).map(|one| (word(one), word(&one[8..]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_resend_counts_survive_process_restart() {
        let path = std::env::temp_dir().join(format!("cairn-again-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut first = Again::open(&path).unwrap();
        assert_eq!((first.note(7).unwrap(), first.note(9).unwrap()), (1, 1));
        // Killed before it had received all of them.
        let mut second = Again::open(&path).unwrap();
        assert_eq!(second.note(9).unwrap(), 2);
        second.settle().unwrap();
        // 7 did not come to the second process: it was answered, and its number is free.
        assert_eq!(std::fs::read(&path).unwrap(), record(9, 2));
        let mut third = Again::open(&path).unwrap();
        assert_eq!((third.note(9).unwrap(), third.note(7).unwrap()), (3, 1));
        // A file that ends in the middle of a record.
        std::fs::write(&path, [&record(9, 3)[..], &[1; 5]].concat()).unwrap();
        assert_eq!(Again::open(&path).unwrap().note(9).unwrap(), 4);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn fuse_resend_counts_restart_when_count_file_is_too_long() {
        let path = std::env::temp_dir().join(format!("cairn-again-long-{}", std::process::id()));
        std::fs::write(&path, vec![1; FILE_MAX_BYTES as usize + RECORD_BYTES]).unwrap();
        assert_eq!(Again::open(&path).unwrap().note(0x0101_0101_0101_0101).unwrap(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), RECORD_BYTES as u64);
        std::fs::remove_file(&path).unwrap();
    }
}
