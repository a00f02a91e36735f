//! A service manager like systemd for tests: it starts a server and keeps the server's descriptors over restarts.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{Dir, PATIENCE, Ran};

/// Shell script that starts the server. It moves its standard input to descriptor 3, its standard error to 4 and its
/// standard output to 5, as many of them as `LISTEN_FDS` says, and executes the server.
const PASS: &str = "test $LISTEN_FDS -lt 1 || exec 3<&0
    test $LISTEN_FDS -lt 2 || exec 4<&2
    test $LISTEN_FDS -lt 3 || exec 5<&1
    exec </dev/null >/dev/null 2>>server.log
    export LISTEN_PID=$$
    exec \"$@\"";

/// The largest number of stored descriptors that the script [`PASS`] can pass to a server.
const MOST: usize = 3;

pub struct Manager<'d> {
    dir: &'d Dir,
    socket: UnixDatagram,
    /// The descriptors that servers have stored with `FDSTORE`, and their names.
    pub held: Vec<(String, OwnedFd)>,
    server: Option<Child>,
}

impl<'d> Manager<'d> {
    pub fn new(dir: &'d Dir) -> Self {
        let socket = UnixDatagram::bind(dir.path("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { dir, socket, held: Vec::new(), server: None }
    }

    /// Starts `cairn serve` with the stored descriptors, and waits until clients can connect.
    pub fn start(&mut self, args: &[&str]) {
        self.begin(&[&["serve"], args].concat());
    }

    /// Starts `cairn` with `args` and the stored descriptors, and waits until clients can connect.
    pub fn begin(&mut self, args: &[&str]) {
        let cairn = env!("CARGO_BIN_EXE_cairn");
        let words = [&["-c", PASS, "bash", cairn], args].concat();
        let mut command = Command::new("bash");
        command.args(words).current_dir(&self.dir.0).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.dir.path("run"));
        command.env("NOTIFY_SOCKET", self.dir.path("notify"));
        assert!(self.held.len() <= MOST, "{:?}", self.names());
        command.env("LISTEN_FDS", self.held.len().to_string());
        command.env("LISTEN_FDNAMES", self.names().join(":"));
        let mut files = self.held.iter().map(|(_, file)| file.try_clone().unwrap());
        if let Some(file) = files.next() {
            command.stdin(file);
        }
        if let Some(file) = files.next() {
            command.stderr(file);
        }
        if let Some(file) = files.next() {
            command.stdout(file);
        }
        self.server = Some(command.spawn().unwrap());
        // The command also holds the passed descriptors open.
        drop(command);
        let begun = Instant::now();
        while !self.listen().contains(&"READY=1".to_owned()) {
            let ended = self.server.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && begun.elapsed() < PATIENCE, "{ended:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the server with SIGKILL, and waits until its process is gone.
    pub fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        self.listen();
    }

    /// Stops the server with SIGTERM, and returns its exit code.
    pub fn stop(&mut self) -> i32 {
        self.end("TERM")
    }

    /// Ends the server with SIGUSR2 (systemd's `RestartKillSignal=`), so that it hands over. Returns its exit code.
    pub fn replace(&mut self) -> i32 {
        self.end("USR2")
    }

    /// Sends SIGUSR1 (the unit's `ExecReload=`) to the server.
    pub fn reload(&self) {
        super::send(self.server.as_ref().unwrap().id(), "USR1");
    }

    /// Waits until the server ends, and returns its exit code.
    pub fn ended(&mut self) -> i32 {
        let output = self.server.take().unwrap().wait_with_output().unwrap();
        self.listen();
        Ran::of(&output).code
    }

    fn end(&mut self, signal: &str) -> i32 {
        super::send(self.server.as_ref().unwrap().id(), signal);
        self.ended()
    }

    pub fn names(&self) -> Vec<String> {
        self.held.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the log of all servers that the manager has started.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path("server.log")).unwrap_or_default()
    }

    /// Carries out the pending `sd_notify` messages of the server, and returns their texts.
    pub fn listen(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Some((words, file)) = self.message() {
            let value = |key: &str| words.lines().find_map(|line| line.strip_prefix(key));
            let name = value("FDNAME=").unwrap_or_default().to_owned();
            if value("FDSTORE=").is_some() {
                let file = file.expect("there is something to store");
                // As in systemd, a descriptor that is stored already is not stored twice.
                if !self.held.iter().any(|(_, held)| is_same(held, &file)) {
                    self.held.push((name, file));
                }
            } else if value("FDSTOREREMOVE=").is_some() {
                self.held.retain(|(held, _)| *held != name);
            }
            told.push(words);
        }
        told
    }

    fn message(&self) -> Option<(String, Option<OwnedFd>)> {
        let mut words = [0; 4096];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut room);
        let mut into = [IoSliceMut::new(&mut words)];
        let got = recvmsg(&self.socket, &mut into, &mut with, RecvFlags::CMSG_CLOEXEC).ok()?;
        let file = with.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        Some((String::from_utf8(words[..got.bytes].to_vec()).unwrap(), file))
    }
}

/// Whether two descriptors refer to the same socket; descriptors of other files always count as different.
fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let target = |file: &OwnedFd| {
        let file = File::from(file.try_clone().unwrap());
        let stat = rustix::fs::fstat(&file).unwrap();
        (stat.st_dev, stat.st_ino, stat.st_rdev)
    };
    // All opens of /dev/fuse have the same node, so only sockets can be compared.
    target(one) == target(other) && target(one).2 == 0
}

impl Drop for Manager<'_> {
    fn drop(&mut self) {
        // With its descriptors closed, no device waits for a server any more.
        self.held.clear();
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
