//! Servers under test: their start, and their use of processor time.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::device;
use crate::stream;
use bench::places::Places;

/// Limit for a server until it accepts connections.
const START: Duration = Duration::from_secs(10);

/// Limit for a server with a device until it has removed the device.
const END: Duration = Duration::from_secs(5);

/// Writes in flight while a device is checked.
const DEPTH: u32 = 32;

/// Interval between two checks for a start or an end.
const LOOK: Duration = Duration::from_millis(20);

/// A server, and the way to start it. In every word `{socket}`, `{port}`, `{cipher}`, `{size}` and the placeholders of
/// [`Places`] are replaced.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// A short name: `cairn`, `nbdkit`, `qsd`.
    pub name: &'static str,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The interface that it offers.
    pub serves: Serves,
    /// A file that must exist, filled, before it starts.
    pub file: Option<&'static str>,
}

/// The interface that a server offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serves {
    /// NBD on a Unix socket, with the name of the export.
    Nbd(&'static str),
    /// NBD on TCP with TLS, with the name of the export.
    Nbds(&'static str),
    /// A long file over plain TLS.
    Stream,
    /// A block device, made by `cairn attach`.
    Attached { export: &'static str, control: &'static str },
    /// A file of a FUSE mount, for a loop device, and the number of writes that it can handle at a time.
    Looped { file: &'static str, depth: u32 },
}

impl Serves {
    /// Returns the programs that it needs beside the server.
    pub fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Nbd(_) => &[],
            Self::Nbds(_) | Self::Stream => &["openssl"],
            Self::Attached { .. } => &["fio"],
            Self::Looped { .. } => &["fio", "losetup"],
        }
    }

    /// Returns the number of writes that it may have in flight.
    pub fn depth(self) -> u32 {
        if let Self::Looped { depth, .. } = self { depth } else { DEPTH }
    }

    /// Whether it needs root.
    pub fn needs_root(self) -> bool {
        matches!(self, Self::Attached { .. } | Self::Looped { .. })
    }
}

/// The address of a running server.
pub enum At {
    /// URI of an NBD export.
    Uri(String),
    /// TCP port of a stream.
    Port(u16),
    /// Path of a block device.
    Device(PathBuf),
}

/// Splits a command line into words.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// A running server. It is ended on drop, with its device.
pub struct Server {
    /// Its recipe's name.
    pub name: &'static str,
    /// Its address.
    pub at: At,
    /// The command that was run.
    pub line: String,
    // Dropped before the server ends.
    looped: Option<device::Looped>,
    child: Child,
    serves: Serves,
    /// Its mount.
    mount: Option<PathBuf>,
}

impl Server {
    /// Starts it and waits until it accepts.
    pub fn start(recipe: &Recipe, places: &Places, size: u64) -> Result<Self, String> {
        let socket = places.dir.join(format!("{}.sock", recipe.name));
        let _ = std::fs::remove_file(&socket);
        let port = free_port()?;
        let fill = |word: &str| {
            places
                .fill(word)
                .replace("{socket}", &socket.display().to_string())
                .replace("{port}", &port.to_string())
                .replace("{cipher}", stream::CIPHER)
                .replace("{size}", &size.to_string())
        };
        if matches!(recipe.serves, Serves::Nbds(_) | Serves::Stream) {
            stream::make_certificates(&places.dir)?;
        }
        if recipe.serves == Serves::Stream {
            stream::make_file(&places.shm)?;
        }
        let mut mount = None;
        if let Serves::Looped { file, .. } = recipe.serves {
            mount = Some(device::make_mount_point(Path::new(&fill(file)))?);
        }
        let words: Vec<String> = recipe.command.iter().map(|word| fill(word)).collect();
        let child = Command::new(absolute(&words[0])?)
            .args(&words[1..])
            .current_dir(if recipe.serves == Serves::Stream { &places.shm } else { Path::new(".") })
            .env("SOCKET", &socket)
            .env("PORT", port.to_string())
            .env("DIR", &places.dir)
            .env("SHM", &places.shm)
            .env("SIZE", size.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        let mut server = Self {
            name: recipe.name,
            at: At::Port(port),
            line: places.hide(&words.join(" ")),
            looped: None,
            child,
            serves: recipe.serves,
            mount,
        };
        server.settle(&fill, &socket, port, size, &places.dir)?;
        Ok(server)
    }

    /// Waits until its interface is ready, and opens it.
    fn settle(
        &mut self,
        fill: &dyn Fn(&str) -> String,
        socket: &Path,
        port: u16,
        size: u64,
        dir: &Path,
    ) -> Result<(), String> {
        let on_socket = || UnixStream::connect(socket).is_ok();
        let on_port = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        match self.serves {
            Serves::Nbd(export) => {
                self.wait_until(on_socket)?;
                self.at = At::Uri(format!("nbd+unix:///{export}?socket={}", socket.display()));
            }
            Serves::Nbds(export) => {
                self.wait_until(on_port)?;
                let certificates = dir.display();
                self.at = At::Uri(format!(
                    "nbds://127.0.0.1:{port}/{export}?tls-certificates={certificates}"
                ));
            }
            Serves::Stream => self.wait_until(on_port)?,
            Serves::Attached { export, control } => {
                self.wait_until(on_socket)?;
                self.at = At::Device(device::attach(export, &fill(control))?);
            }
            Serves::Looped { file, .. } => {
                let file = PathBuf::from(fill(file));
                self.wait_until(|| file.metadata().is_ok_and(|found| found.len() == size))?;
                let looped = device::Looped::on(&file)?;
                self.at = At::Device(looped.path().to_owned());
                self.looped = Some(looped);
            }
        }
        Ok(())
    }

    fn wait_until(&mut self, ready: impl Fn() -> bool) -> Result<(), String> {
        let begun = Instant::now();
        while !ready() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{} ended at once: {status}", self.line));
            }
            if begun.elapsed() > START {
                return Err(format!("{} does not accept within {START:?}", self.line));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Returns the processor time of all its threads so far.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }

    /// Asks it to end, and waits for that. Returns whether it has ended.
    fn ends(&mut self) -> bool {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if pid.is_none_or(|pid| kill_process(pid, Signal::TERM).is_err()) {
            return false;
        }
        let begun = Instant::now();
        while begun.elapsed() < END {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(LOOK);
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.looped = None;
        // A server with a device or a mount must remove it. The others have nothing to lose.
        if !self.serves.needs_root() || !self.ends() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(mount) = &self.mount {
            device::unmount(mount);
        }
    }
}

/// Returns the path of a program: one of this tree, or of the system.
///
/// # Errors
/// If the program does not exist, with the next step.
pub fn absolute(program: &str) -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| error.to_string())?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<_> = if program.contains('/') {
        vec![here]
    } else {
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect()
    };
    let found = places.iter().map(|place| place.join(program)).find(|path| path.is_file());
    found.ok_or_else(|| format!("there is no {program}. Next: tools/setup bench"))
}

/// Returns a free TCP port of this machine.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| format!("a free port: {error}"))
}

/// Returns the processor time of a process, including its ended threads: nbdkit has some for each connection. The
/// kernel counts in hundredths of a second.
pub fn cpu_of(pid: u32) -> Duration {
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program is in brackets and may contain anything; numbers follow.
    let numbers = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u32 = numbers
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse::<u32>().ok())
        .sum();
    TICK * ticks
}
