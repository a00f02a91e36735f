//! Exports that a test attaches as block devices of this machine, each under its own name in `/dev/cairn`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Dir, Ran, tool, until};

/// The longest time for which the cleanup after a failed test retries to detach a device that is in use.
const DETACH_MAX: Duration = Duration::from_secs(10);
/// The exit code of `cairn detach` if another process has the device open.
const IN_USE: i32 = 5;

/// Whether the test runs as root. For other users, prints that the test is skipped.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("passed over: only root may attach");
    }
    root
}

/// A process in the background, which is killed when this value is dropped.
pub struct Background(Child);

impl Background {
    /// Starts the process of `command`, and discards its output.
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits for the end of the process, and returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // After a test that passed, the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The name of an attached device in `/dev/cairn`, and a directory to mount its file system on.
pub struct Name<'d> {
    dir: &'d Dir,
    pub name: String,
}

impl<'d> Name<'d> {
    pub fn new(dir: &'d Dir) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{n}", std::process::id());
        std::fs::create_dir(dir.path(&name)).unwrap();
        Self { dir, name }
    }

    /// Returns the path of the attached device, `/dev/cairn/NAME`.
    pub fn path(&self) -> PathBuf {
        Path::new("/dev/cairn").join(&self.name)
    }

    pub fn shown(&self) -> String {
        self.path().display().to_string()
    }

    /// Returns the directory to mount the device's file system on.
    pub fn mount_point(&self) -> PathBuf {
        self.dir.path(&self.name)
    }

    /// Attaches `export` under this name with `cairn attach`, and returns its loop device, `/dev/loopN`.
    pub fn attach(&self, export: &str) -> PathBuf {
        let out = self.dir.text(&["attach", export, "--name", &self.name]);
        let device = out.strip_prefix(&format!("{} -> ", self.shown())).unwrap_or_else(|| {
            panic!("what attach printed: {out:?}");
        });
        PathBuf::from(device.trim())
    }

    pub fn detach(&self) -> Ran {
        self.dir.cairn(&["detach", &self.name])
    }

    /// Detaches the device with `cairn detach`, which must succeed.
    pub fn detach_well(&self) {
        let ran = self.detach();
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    /// Opens the attached device for reading and writing.
    pub fn open(&self) -> File {
        File::options().read(true).write(true).open(self.path()).unwrap()
    }

    /// Makes an empty ext4 file system on the attached device, and mounts it.
    pub fn make_fs(&self) {
        run("mkfs.ext4", &["-q", &self.shown()]);
        self.mount();
    }

    /// Flushes the mounted file system of the device with `sync`.
    pub fn sync(&self) {
        run("sync", &["-f", &self.mount_point().display().to_string()]);
    }

    pub fn mount(&self) {
        run("mount", &[&self.shown(), &self.mount_point().display().to_string()]);
    }

    pub fn umount(&self) {
        // A process that another test has just forked holds this process's open files for a moment.
        until("it can be unmounted", || {
            let status = Command::new("umount").arg("-q").arg(self.mount_point()).status();
            status.unwrap().success()
        });
    }

    /// Whether this machine has no link, directory, lock file or loop device of the attached device left.
    pub fn is_gone(&self) -> bool {
        let runtime = Path::new("/run/cairn/attach");
        !self.path().is_symlink()
            && !runtime.join(&self.name).exists()
            && !runtime.join(format!(".{}.lock", self.name)).exists()
            && self.loops().is_empty()
    }

    /// Returns the loop devices of this machine that are backed by the file of the attached device.
    pub fn loops(&self) -> Vec<PathBuf> {
        let file = format!("/run/cairn/attach/{}/volume", self.name);
        let all = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| {
            let on = std::fs::read_to_string(path.join("loop/backing_file"));
            on.is_ok_and(|on| on.trim_end() == file)
        })
        .collect()
    }
}

impl Drop for Name<'_> {
    fn drop(&mut self) {
        let at = self.mount_point();
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("-l").arg(at).status();
            // The server may be gone already, or may end with the test, and processes that the test has started may
            // be about to end. A device that stays would be found by later tests.
            let patience = Instant::now() + DETACH_MAX;
            while self.detach().code == IN_USE && Instant::now() < patience {
                sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Runs the installed program `name`, which must succeed. Returns its output.
pub fn run(name: &str, args: &[&str]) -> String {
    let path = format!("{}:/sbin:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(name).args(args).env("PATH", path).output();
    let ran = Ran::of(&output.unwrap_or_else(|error| panic!("{name}: {error}: see tools/setup")));
    assert_eq!(ran.code, 0, "{name} {args:?}: {ran:?}");
    ran.out
}

/// Returns `len` pseudo-random bytes, which depend only on `seed`.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Changes every copy of the label of the disk `name`, and corrects the checksums of the copies. `back` is the offset
/// in bytes of the label area at the end of the disk.
pub fn relabel(dir: &Dir, name: &str, back: u64, change: impl Fn(&mut [u8])) {
    let mut bytes = std::fs::read(dir.path(name)).unwrap();
    let areas = [0, back as usize];
    for at in areas.into_iter().flat_map(|area| [area + (64 << 10), area + (320 << 10)]) {
        let copy = &mut bytes[at..];
        if !copy.starts_with(&meta::MAGIC) {
            continue;
        }
        let length = u32::from_le_bytes(copy[16..20].try_into().unwrap()) as usize;
        let copy = &mut copy[..length];
        change(copy);
        let sum = meta::checksum(copy);
        copy[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(dir.path(name), bytes).unwrap();
}

/// The path of a loop device, which is detached when this value is dropped.
pub struct Loop(pub String);

impl Loop {
    /// Attaches the file `file` in `dir`.
    pub fn over(dir: &Dir, file: &str) -> Self {
        let made = tool(dir, "losetup", &["-f", "--show", file]);
        assert_eq!(made.code, 0, "{made:?}");
        Self(made.out.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}
