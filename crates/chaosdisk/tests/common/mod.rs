//! Runs `cairn` on the simulated disks of a `chaosdisk` process, with clients in the process of the test.
#![allow(dead_code, reason = "every test file uses its own part of it")]
#![allow(clippy::disallowed_methods, reason = "a test drives real programs, by real time")]

mod client;
mod shape;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use runtime::{Config, Core};
use serde_json::Value;

#[allow(unused_imports, reason = "as above")]
pub use client::{Volume, bytes_of};
pub use shape::Shape;

/// The longest time that a test waits for an event: longer than any of these waits takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The exit code of `cairn serve` if another process uses the socket or a disk.
const IN_USE: i32 = 5;

/// A running chaosdisk, and the running `cairn` process that serves its disks as the volume `vol`, if there is one.
pub struct Rig {
    pub core: Core,
    dir: PathBuf,
    chaos: Child,
    cairn: Option<Child>,
}

impl Rig {
    /// Starts chaosdisk with `disks`, each given as `NAME=SIZE[,PROFILE]`.
    pub fn new(seed: u64, disks: &[String]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("cairn-chaos-{}-{n}", std::process::id()));
        fs::create_dir_all(dir.join("run")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_chaosdisk"));
        command.arg("serve").arg("--socket").arg(dir.join("disks.sock"));
        command.arg("--control").arg(dir.join("control.sock"));
        command.args(["--seed", &seed.to_string()]).args(disks);
        // A seeded bug is one of cairn: the disks are part of the judge.
        command.env_remove("CAIRN_SEEDED_BUG");
        let chaos = start(&mut command, "disks, seed").unwrap();
        Self { core: Core::new(Config::default()).unwrap(), dir, chaos, cairn: None }
    }

    /// Starts chaosdisk with the disks of the graph `shape`.
    pub fn of(shape: &Shape, seed: u64) -> Self {
        Self::new(seed, &shape.disks())
    }

    /// Sends the command `line` to the control socket of chaosdisk. It must succeed. Returns the reply.
    pub fn ctl(&self, line: &str) -> String {
        let answer = chaosdisk::ask(&self.dir.join("control.sock"), line).unwrap();
        answer.unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Returns the numbers of requests that chaosdisk's disks got, by disk, and the number of connections.
    pub fn counts(&self) -> Value {
        serde_json::from_str(&self.ctl("counts")).unwrap()
    }

    /// Returns the number of requests of the type `what` that `disk` got.
    pub fn count(&self, disk: &str, what: &str) -> u64 {
        self.counts()["disks"][disk][what].as_u64().unwrap()
    }

    /// Returns the NBD URI of chaosdisk's export of `disk`.
    pub fn disk_uri(&self, disk: &str) -> String {
        format!("nbd+unix:///{disk}?socket={}", self.dir.join("disks.sock").display())
    }

    /// Starts `cairn serve` on a spec, and waits until clients can connect. In the spec, `@NAME` represents the NBD
    /// URI of chaosdisk's disk `NAME`.
    pub fn serve(&mut self, spec: &str) {
        self.try_serve(spec, &[]).unwrap_or_else(|ended| panic!("{ended:?}"));
    }

    /// Starts `cairn serve` on a spec with more arguments, and waits until clients can connect. Returns the exit code
    /// and the output as an error if `cairn` ends before.
    pub fn try_serve(&mut self, spec: &str, args: &[&str]) -> Result<(), Ended> {
        let mut command = self.serve_command(spec, args);
        // The kernel closes the descriptors in the ring of a killed process a moment after the process is
        // gone.
        let begun = Instant::now();
        loop {
            // The line for fio is the last one of the banner.
            match start(&mut command, "fio ") {
                Ok(child) => {
                    self.cairn = Some(child);
                    return Ok(());
                }
                Err(ended) if ended.code == Some(IN_USE) && begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(ended) => return Err(ended),
            }
        }
    }

    /// Starts `cairn daemon` without a graph, and adds the graph of `spec` with `cairn apply`.
    pub fn keep(&mut self, spec: &str) {
        self.start_daemon();
        self.apply(&format!("[nbd]\nlisten = \"unix:vol.sock\"\n{spec}"));
    }

    /// Starts `cairn daemon` with the graphs of its state directory.
    pub fn start_daemon(&mut self) {
        assert!(self.cairn.is_none(), "it is running");
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let mut command = self.cairn_command();
        command.args(["daemon", "--state", "state"]).stdin(Stdio::null()).stdout(Stdio::null());
        self.cairn = Some(command.stderr(log).spawn().unwrap());
        let client = || UnixStream::connect(self.dir.join("run/cairn/daemon.sock"));
        until("the daemon comes up", || client().is_ok());
    }

    /// Simulates a power cut of a whole machine: at one moment stops the daemon and the worker, and cuts the power of
    /// the disks. Then kills both processes.
    pub fn machine_cut(&mut self, policy: &str) {
        let worker = self.worker().expect("a process has the seat");
        let daemon = self.cairn.as_ref().expect("it is running").id().to_string();
        [&worker, &daemon].iter().for_each(|pid| signal("STOP", pid));
        self.ctl(&format!("powercut {policy}"));
        signal("KILL", &worker);
        self.kill();
        until("it is gone", || !PathBuf::from(format!("/proc/{worker}/fd/0")).exists());
        // No connection of the old worker is left that could be taken for one of the next.
        until("the disks know", || self.counts()["connections"] == 0);
    }

    /// Returns the process id of the worker under the daemon.
    fn worker(&self) -> Option<String> {
        let seat = fs::read_to_string(self.dir.join("run/cairn/keeper/vol.seat")).ok()?;
        Some(seat.trim().to_owned())
    }

    /// Waits until a new worker serves the volume after a kill.
    pub fn is_up_again(&self) {
        until("another process serves", || {
            self.ask(&["status"])[0]["devices"].is_array()
                && UnixStream::connect(self.socket()).is_ok()
        });
    }

    /// Kills the worker under the daemon, and runs `meanwhile` before the daemon starts the next worker.
    pub fn kill_worker(&self, meanwhile: impl FnOnce(&Self)) {
        let daemon = self.cairn.as_ref().expect("it is running").id().to_string();
        let worker = self.worker().expect("a process has the seat");
        signal("STOP", &daemon);
        signal("KILL", &worker);
        let gone = || !PathBuf::from(format!("/proc/{worker}/fd/0")).exists();
        let begun = Instant::now();
        while !gone() {
            assert!(begun.elapsed() < PATIENCE, "it does not die");
            std::thread::sleep(Duration::from_millis(2));
        }
        meanwhile(self);
        signal("CONT", &daemon);
    }

    /// Starts `cairn serve` on a spec, and does not wait until it serves or fails.
    pub fn begin_serve(&mut self, spec: &str) {
        let mut command = self.serve_command(spec, &[]);
        self.cairn = Some(silent(&mut command));
    }

    fn serve_command(&self, spec: &str, args: &[&str]) -> Command {
        assert!(self.cairn.is_none(), "it is running");
        self.put_spec(spec);
        let mut command = self.cairn_command();
        command.args(["serve", "vol.toml"]).args(args).arg("--listen");
        command.arg(format!("unix:{}", self.socket().display()));
        command
    }

    fn put_spec(&self, spec: &str) {
        let uris = spec.split('@').enumerate().map(|(n, text)| match n {
            0 => text.to_owned(),
            _ => {
                let end = text.find('"').expect("a name ends with its string");
                self.disk_uri(&text[..end]) + &text[end..]
            }
        });
        self.put("vol.toml", &uris.collect::<String>());
    }

    /// Changes the running graph to `spec` with `cairn apply`.
    pub fn apply(&self, spec: &str) {
        self.put_spec(spec);
        let output = self.cairn_command().args(["apply", "vol.toml"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Writes the file `name` to the directory of the spec, readable only for this user, for example a key.
    pub fn put(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).unwrap();
        fs::set_permissions(self.dir.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Starts a `cairn` command on the running graph, and does not wait for its end.
    pub fn begin(&self, args: &[&str]) -> Child {
        silent(self.cairn_command().args(args))
    }

    /// Sends SIGTERM to `cairn`, and does not wait for its end.
    pub fn begin_stop(&self) {
        signal("TERM", &self.cairn.as_ref().expect("it is running").id().to_string());
    }

    fn cairn_command(&self) -> Command {
        let beside = PathBuf::from(env!("CARGO_BIN_EXE_chaosdisk")).with_file_name("cairn");
        assert!(
            beside.exists(),
            "{} is needed: cargo build --package cairn, in the profile of this test",
            beside.display()
        );
        let mut command = Command::new(beside);
        command.current_dir(&self.dir).env("XDG_RUNTIME_DIR", self.dir.join("run"));
        command
    }

    /// Returns the path of the unix socket on which `cairn` serves the volume.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("vol.sock")
    }

    /// Returns the NBD URI of the volume that `cairn` serves.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///vol?socket={}", self.socket().display())
    }

    /// Connects a new client to the volume that `cairn` serves.
    pub fn volume(&self) -> Volume {
        Volume::connect(&self.core, &self.uri())
    }

    /// Connects a new client directly to chaosdisk's export of `disk`, past `cairn`.
    pub fn disk(&self, disk: &str) -> Volume {
        Volume::connect(&self.core, &self.disk_uri(disk))
    }

    /// Runs `cairn -o json` with `args` on the running graph, and returns the output, also of a failed command.
    pub fn ask(&self, args: &[&str]) -> Value {
        let output = self.cairn_command().args(["-o", "json"]).args(args).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// Waits until `cairn status` reports the health `ok`, so that every mirror member is in sync.
    pub fn in_sync(&self) {
        let begun = Instant::now();
        loop {
            let all = self.ask(&["status"]);
            assert!(all[0]["devices"].is_array(), "{all}");
            if all[0]["health"] == "ok" {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "never in sync: {all}; disks: {}", self.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the `cairn` process with SIGKILL.
    pub fn kill(&mut self) {
        let mut cairn = self.cairn.take().expect("it is running");
        cairn.kill().unwrap();
        cairn.wait().unwrap();
    }

    /// Kills the `cairn` process with SIGKILL, and waits until the disks have carried out all its requests.
    pub fn kill_and_drain(&mut self) {
        self.kill();
        until("the disks are done", || self.counts()["connections"] == 0);
    }

    /// Kills the `cairn` process, and then cuts the power of chaosdisk's disks.
    pub fn power_cut(&mut self, policy: &str) {
        self.kill();
        self.ctl(&format!("powercut {policy}"));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(cairn) = &mut self.cairn {
            // A daemon's workers outlive it.
            let _ = cairn.kill();
            let worker = self.worker();
            let _ = worker.map(|pid| Command::new("kill").args(["-KILL", &pid]).status());
        }
        for child in [Some(&mut self.chaos), self.cairn.as_mut()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.dir.join("log")).unwrap_or_default());
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The exit code and the output of a program that ended before it was ready.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub said: String,
}

fn silent(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Starts a program, and reads its stdout up to a line that contains `ready`.
fn start(command: &mut Command, ready: &str) -> Result<Child, Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains(ready) {
        if reader.read_line(&mut said).unwrap() == 0 {
            let output = child.wait_with_output().unwrap();
            said += &String::from_utf8_lossy(&output.stderr);
            return Err(Ended { code: output.status.code(), said });
        }
    }
    Ok(child)
}

/// Polls the condition `so` until it is true. Panics with `what` after [`PATIENCE`].
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the seed of a test run from the environment variable `SEED`, or a new seed. Prints the seed, so that the
/// run can be repeated.
pub fn seed() -> u64 {
    let given = std::env::var("SEED").ok().map(|text| text.parse().expect("SEED is a number"));
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = given.unwrap_or(clock.as_micros() as u64);
    println!("SEED={seed}");
    seed
}

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), pid]).status().unwrap().success());
}
