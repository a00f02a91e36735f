//! The servers that the suite measures: how it starts them, and their processor time.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::device;
use crate::stream;
use bench::places::Places;

/// Longest time for a server to accept connections after its start.
const START: Duration = Duration::from_secs(10);

/// Longest time for a server with a block device or mount to remove it and end, after SIGTERM.
const END: Duration = Duration::from_secs(5);

/// Number of writes in flight while the suite checks a block device.
const DEPTH: u32 = 32;

/// Interval between two checks whether a server accepts connections or has ended.
const LOOK: Duration = Duration::from_millis(20);

/// How the suite starts a server. In every word of the command, the suite replaces `{socket}`, `{port}`, `{cipher}`,
/// `{size}` and the placeholders of [`Places`].
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Short name of the server, such as `cairn`, `nbdkit` or `qsd`.
    pub name: &'static str,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The interface through which clients use the server.
    pub serves: Serves,
    /// A file that the suite makes and fills before the server starts; `None` if the server needs no file.
    pub file: Option<&'static str>,
}

/// The interface through which clients use a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serves {
    /// NBD on a Unix socket; with the name of the export.
    Nbd(&'static str),
    /// NBD over TLS on a TCP port; with the name of the export.
    Nbds(&'static str),
    /// A long file over plain TLS, without NBD (openssl).
    Stream,
    /// A block device, made by `cairn attach`.
    Attached { export: &'static str, control: &'static str },
    /// A file in a FUSE mount, on which the suite makes a loop device; with the number of writes in flight that the
    /// server can handle.
    Looped { file: &'static str, depth: u32 },
}

impl Serves {
    /// Returns the programs that clients of this interface need beside the server.
    pub fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Nbd(_) => &[],
            Self::Nbds(_) | Self::Stream => &["openssl"],
            Self::Attached { .. } => &["fio"],
            Self::Looped { .. } => &["fio", "losetup"],
        }
    }

    /// Returns the number of writes in flight that the server can handle.
    pub fn depth(self) -> u32 {
        if let Self::Looped { depth, .. } = self { depth } else { DEPTH }
    }

    /// Whether clients of this interface need root.
    pub fn needs_root(self) -> bool {
        matches!(self, Self::Attached { .. } | Self::Looped { .. })
    }
}

/// Where clients reach a running server.
pub enum At {
    /// At the URI of an NBD export.
    Uri(String),
    /// At a TCP port, for a file over TLS.
    Port(u16),
    /// At the path of a block device.
    Device(PathBuf),
}

/// Splits a command line into words at white space.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// A running server of the suite. On drop the server ends, and its block device or mount is removed.
pub struct Server {
    /// Name of the server's recipe.
    pub name: &'static str,
    /// Where clients reach the server.
    pub at: At,
    /// The command line of the server, with placeholders for directories.
    pub line: String,
    // Dropped before the server ends.
    looped: Option<device::Looped>,
    child: Child,
    serves: Serves,
    /// Mount point of the server's FUSE mount; `None` without a mount.
    mount: Option<PathBuf>,
}

impl Server {
    /// Starts the server of a recipe with a volume of `size` bytes, and waits until it accepts connections.
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

    /// Waits until the server's interface is ready, and makes its block device if it needs one.
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

    /// Returns the processor time of all threads of the server so far.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }

    /// Sends SIGTERM to the server, and waits until it has ended, at most [`END`]. Returns whether it has ended.
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

/// Returns the path of a program: relative to this source tree if the name has a slash, otherwise from `PATH`.
///
/// # Errors
/// The program does not exist. The message names the next step.
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

/// Returns a TCP port of this machine that is free now.
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
