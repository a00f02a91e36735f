//! Helpers of the tests: cores with each I/O engine (io_uring or threads), and paths for test files.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};

use block::env::{CacheMode, DiskIo, Open, Storage};
use block::{Buf, ByteRange, Env};
use runtime::{Config, Core, Engine};

/// Returns the path of the program `name` in `examples/`, which cargo builds before it runs tests.
pub fn helper(name: &str) -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

/// Runs `test` twice: on a core that uses io_uring, and on a core that uses threads for file I/O.
pub fn each_core(test: impl Fn(&Core)) {
    for engine in [Engine::Ring, Engine::Threads] {
        let core = Core::new(Config { engine, ..Config::default() }).unwrap();
        println!("with {engine:?}: {}", core.engine_words());
        test(&core);
    }
}

/// The path of a test file, on the disk of the build or in memory. The file is removed when this value is dropped.
pub struct Place(PathBuf);

impl Place {
    pub fn on_disk(name: &str) -> Self {
        Self::at(Path::new(option_env!("CARGO_TARGET_TMPDIR").unwrap_or("/var/tmp")), name)
    }

    pub fn in_memory(name: &str) -> Self {
        Self::at(Path::new("/dev/shm"), name)
    }

    fn at(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("cairn-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    pub fn path(&self) -> PathBuf {
        self.0.clone()
    }

    pub fn open(&self, size: u64, cache: CacheMode) -> Open {
        Open {
            path: self.path(),
            device: false,
            read_only: false,
            create: Some(size),
            odd_size: false,
            cache,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).unwrap()
}

pub fn filled(env: &Env, len: usize, byte: u8) -> Buf {
    let buf = env.buf(len).unwrap();
    buf.write().fill(byte);
    buf
}

pub async fn write(disk: &dyn Storage, offset: u64, data: Buf, fua: bool) {
    let len = data.len();
    let outcome = disk.start(DiskIo::Write { offset, data, fua }).await;
    assert_eq!(outcome.result.unwrap(), len);
}

/// Reads `len` bytes of the disk at `offset`. All must have the same value, which is returned.
pub async fn byte_at(env: &Env, disk: &dyn Storage, offset: u64, len: usize) -> u8 {
    let into = filled(env, len, 0xee);
    let outcome = disk.start(DiskIo::Read { offset, into }).await;
    assert_eq!(outcome.result.unwrap(), len);
    let buf = outcome.buf.unwrap();
    let bytes = buf.read();
    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "{len} bytes at {offset} differ");
    bytes[0]
}
