//! Servers under test: how each is started, and what it uses of the processors.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it accepts.
const START: Duration = Duration::from_secs(10);

/// A server, and how to start it.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// A short name: `cairn`, `nbdkit`, `qsd`.
    pub name: &'static str,
    /// The program and its arguments; `{socket}`, `{dir}` and `{size}` are replaced.
    pub command: Vec<String>,
    /// The export's name.
    pub export: &'static str,
    /// A file that must be there, filled, before it starts; in `{dir}`.
    pub file: Option<&'static str>,
}

/// Words of a command line.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// A running server. Killed when dropped.
pub struct Server {
    /// Its recipe's name.
    pub name: &'static str,
    /// Where it serves.
    pub uri: String,
    /// The command that was run.
    pub line: String,
    child: Child,
}

impl Server {
    /// Starts it and waits until it accepts.
    pub fn start(recipe: &Recipe, dir: &Path, size: u64, number: usize) -> Result<Self, String> {
        let socket: PathBuf = dir.join(format!("{}-{number}.sock", recipe.name));
        let _ = std::fs::remove_file(&socket);
        let fill = |word: &String| {
            word.replace("{socket}", &socket.display().to_string())
                .replace("{dir}", &dir.display().to_string())
                .replace("{size}", &size.to_string())
        };
        let words: Vec<String> = recipe.command.iter().map(fill).collect();
        let child = Command::new(&words[0])
            .args(&words[1..])
            .env("SOCKET", &socket)
            .env("DIR", dir)
            .env("SIZE", size.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}; install it, or leave it out", words[0]))?;
        let uri = format!("nbd+unix:///{}?socket={}", recipe.export, socket.display());
        // The report is read elsewhere.
        let line = words.join(" ").replace(&dir.display().to_string(), "DIR");
        let mut server = Self { name: recipe.name, uri, line, child };
        server.wait_for(&socket)?;
        Ok(server)
    }

    fn wait_for(&mut self, socket: &Path) -> Result<(), String> {
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{} ended at once: {status}", self.line));
            }
            if begun.elapsed() > START {
                return Err(format!("{} does not accept within {START:?}", self.line));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Processor time of all its threads so far.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time of a process, with that of its threads that have ended: nbdkit has some for each
/// connection. The kernel counts it in hundredths of a second.
pub fn cpu_of(pid: u32) -> Duration {
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program stands in brackets and may hold anything; numbers follow.
    let numbers = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u32 = numbers
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse::<u32>().ok())
        .sum();
    TICK * ticks
}
