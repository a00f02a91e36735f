//! Directories for the files of a benchmark, on disk and in memory. They are removed when the benchmark ends.
#![allow(clippy::disallowed_methods, reason = "it lays out files for servers, as a person would")]

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Mount point of a file system in memory.
const MEMORY: &str = "/dev/shm";

/// Length in bytes of a key of AES-256-XTS.
const KEY_BYTES: u8 = 64;

/// The two directories of a benchmark's files, removed on drop.
pub struct Places {
    /// Directory on disk, below the directory of the results.
    pub dir: PathBuf,
    /// Directory on a file system in memory.
    pub shm: PathBuf,
}

impl Places {
    /// Makes both directories, and a key file for `crypt` devices in the first.
    pub fn new(out: &Path) -> Result<Self, String> {
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| format!("{path}: {error}")
        };
        let (dir, shm) = (
            out.join("work"),
            Path::new(MEMORY).join(format!("cairn-bench-{}", std::process::id())),
        );
        std::fs::create_dir_all(&dir).map_err(failed(&dir))?;
        let places = Self { dir: dir.canonicalize().map_err(failed(&dir))?, shm };
        std::fs::create_dir_all(&places.shm).map_err(failed(&places.shm))?;
        let key = places.dir.join("crypt.key");
        let bytes: Vec<u8> = (0..KEY_BYTES).collect();
        let mut options = std::fs::File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&key);
        file.and_then(|mut file| file.write_all(&bytes)).map_err(failed(&key))?;
        Ok(places)
    }

    /// Replaces the placeholders `{dir}` and `{shm}` in a word by the paths of the directories.
    pub fn fill(&self, word: &str) -> String {
        word.replace("{dir}", &self.dir.display().to_string())
            .replace("{shm}", &self.shm.display().to_string())
    }

    /// Replaces the paths of the directories in a line by `DIR` and `SHM`, because the report is read on other
    /// machines.
    pub fn hide(&self, line: &str) -> String {
        line.replace(&self.dir.display().to_string(), "DIR")
            .replace(&self.shm.display().to_string(), "SHM")
    }

    /// Makes a file of `size` bytes with the test pattern in all blocks, so that no measurement includes allocation.
    /// Keeps an existing file of that size, because every write of a load writes the pattern again.
    pub fn allocate(&self, file: &str, size: u64) -> Result<PathBuf, String> {
        let path = PathBuf::from(self.fill(file));
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        if path.metadata().is_ok_and(|found| found.len() == size) {
            return Ok(path);
        }
        let mut file = std::fs::File::create(&path).map_err(failed)?;
        let mut piece = vec![0; 1 << 20];
        for n in 0..size >> 20 {
            crate::pattern::fill(&mut piece, n << 20);
            file.write_all(&piece).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(path)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for place in [&self.dir, &self.shm] {
            let _ = std::fs::remove_dir_all(place);
        }
    }
}
