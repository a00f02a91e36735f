//! Runs the `cairn` binary in a temporary directory of the test.
#![allow(dead_code, reason = "every test file uses its own part of it")]

pub mod control;
pub mod keeper;
pub mod load;
pub mod machine;
pub mod manager;
pub mod memory;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The longest time that a test waits for an event: longer than any of these waits takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The longest time of a command that ends by itself.
const COMMAND_MAX: Duration = PATIENCE.saturating_mul(4);

/// Bytes of the room that each new member of a mirror has behind the data, for members of at most 32 GiB.
pub const STORE_BYTES: u64 = 336 << 10;

/// A temporary directory, removed after the test, with a runtime directory for sockets in it. Its path is short,
/// because the path of a socket must be.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// Makes the directory in memory, if `/dev/shm` exists. Then the time of a flush does not depend on other programs
    /// that use the same disk.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::within(memory) } else { Self::new() }
    }

    fn within(place: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("cairn-cli-{}-{n}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::create_dir(path.join("run")).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Returns a command of `cairn` with `args` that runs in this directory, with the runtime directory in it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.path("run")).env_remove("NOTIFY_SOCKET");
        command
    }

    /// Runs `cairn` with `args` to its end. Kills it if it does not end.
    pub fn cairn(&self, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (ended, end) = mpsc::channel::<()>();
        let watch = thread::spawn(move || {
            if end.recv_timeout(COMMAND_MAX) == Err(RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let output = child.wait_with_output().unwrap();
        drop(ended);
        watch.join().unwrap();
        Ran::of(&output)
    }

    /// Runs `cairn` with `args`, which must succeed, and returns its stdout.
    pub fn text(&self, args: &[&str]) -> String {
        let ran = self.cairn(args);
        assert_eq!(ran.code, 0, "cairn {args:?}: {ran:?}");
        ran.out
    }

    /// Runs `cairn -o json` with `args`, which must end with the exit code `code`, and parses its stdout.
    pub fn json<T: serde::de::DeserializeOwned>(&self, code: i32, args: &[&str]) -> T {
        let ran = self.cairn(&[&["-o", "json"], args].concat());
        assert_eq!(ran.code, code, "cairn {args:?}: {ran:?}");
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// Starts `cairn serve` with `args`, and waits until clients can connect.
    pub fn serve(&self, args: &[&str]) -> Serve {
        self.started(&[&["serve"], args].concat())
    }

    /// Starts `cairn import` with `args`, and waits until clients can connect.
    pub fn import(&self, args: &[&str]) -> Serve {
        self.started(&[&["import"], args].concat())
    }

    fn started(&self, args: &[&str]) -> Serve {
        let mut command = self.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        // The last line is an example for fio, or for a virtual disk of a pool.
        while !banner.contains("fio ") && !banner.contains("cairn vdisk create ") {
            let before = banner.len();
            reader.read_line(&mut banner).unwrap();
            if banner.len() == before {
                let output = child.wait_with_output().unwrap();
                panic!("serve {args:?} ended: {:?} after {banner:?}", Ran::of(&output));
            }
        }
        Serve { child: Some(child), reader, banner }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The exit code, the stdout and the stderr of a program that has ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = output.status;
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        Self { code, out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Checks that the exit code of the command is 0.
    pub fn ok(&self) {
        assert_eq!(self.code, 0, "{self:?}");
    }
}

/// A running `cairn serve` or `cairn import`, which is killed when this value is dropped.
pub struct Serve {
    child: Option<Child>,
    reader: BufReader<std::process::ChildStdout>,
    pub banner: String,
}

impl Serve {
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Returns the first NBD URI that the server printed at its start.
    pub fn uri(&self) -> &str {
        self.banner.lines().find(|line| line.contains("://")).unwrap().trim()
    }

    pub fn signal(&self, signal: &str) {
        send(self.pid(), signal);
    }

    /// Waits for the end of the server. Returns its exit code and the rest of its output.
    pub fn end(mut self) -> Ran {
        let mut child = self.child.take().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begun.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("the server did not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut ran = Ran::of(&child.wait_with_output().unwrap());
        self.reader.read_to_string(&mut ran.out).unwrap();
        ran
    }

    /// Sends SIGTERM to the server, and waits for its end.
    pub fn stop(self) -> Ran {
        self.signal("TERM");
        self.end()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn send(pid: u32, signal: &str) {
    let status =
        Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Runs an installed program of another project, for example qemu-io, in the test's directory.
pub fn tool(dir: &Dir, name: &str, args: &[&str]) -> Ran {
    let output = Command::new(name).args(args).current_dir(&dir.0).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| {
        panic!(
            "{name}: {error}. These tests need programs of other projects: YES=1 tools/setup test \
                installs them"
        )
    });
    Ran::of(&output)
}

/// Runs the qemu-io `commands` on the export `uri`, which must all succeed.
pub fn io(dir: &Dir, uri: &str, commands: &[&str]) {
    try_io(dir, uri, commands).unwrap_or_else(|ran| panic!("{commands:?}: {ran:?}"));
}

/// Runs the qemu-io `commands` on the export `uri`. The error is its output, if any of them failed.
pub fn try_io(dir: &Dir, uri: &str, commands: &[&str]) -> Result<(), Ran> {
    let mut args = vec!["-f", "raw", uri];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    let ran = tool(dir, "qemu-io", &args);
    if ran.code == 0 && !ran.out.contains("failed") { Ok(()) } else { Err(ran) }
}

/// Whether a server accepts connections on a unix socket. The file of the socket exists a moment before that.
pub fn listens(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Polls the condition `so` until it is true. Panics with `what` after [`PATIENCE`].
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the paths of all files and directories below `path`, so that a test can find new and removed files.
pub fn listing(path: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        all.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            all.extend(listing(&entry.path()));
        }
    }
    all.sort();
    all
}

/// A spec with a mirror of two file disks, and two partitions on the mirror.
pub const PAIR: &str = r#"
name = "home"
[disk]
a = { file = "a.img", size = "64MiB", create = true }
b = { file = "b.img", size = "64MiB", create = true }
[device]
pair = { kind = "mirror", on = ["a", "b"] }
part = { kind = "partition", on = "pair", start = "1MiB", size = "16MiB" }
rest = { kind = "partition", on = "pair", size = "rest" }
[export]
vol = { on = "part" }
all = { on = "rest", read_only = true }
"#;
