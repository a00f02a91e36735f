//! Starts the `cairn` program on a graph in a directory of its own, and controls it.
#![allow(clippy::disallowed_methods, reason = "it starts servers and reads the real clock")]

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::ground::Ground;
use crate::load::{self, Load};
use api::{ApplyRequest, ChangeWay, Client, Job, Problem, Progress, routes};
use block::Env;
use rustix::process::{Pid, Signal, kill_process};

/// Longest time for a server to accept connections after its start, and to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between two checks whether a server accepts connections or has ended. A measured start is longer by up to
/// this time.
const LOOK: Duration = Duration::from_millis(1);

/// The first lines of every spec after its name: the server listens at a Unix socket in the directory.
const LISTEN: &str = "[nbd]\nlisten = \"unix:nbd.sock\"\n";

/// Length in bytes of the read that shows that a server answers.
const FIRST_READ_BYTES: u64 = 4096;

/// The name of the graph in a spec.
const NAME: &str = "bench";

/// A directory for disks, specs and sockets of one measurement, removed on drop.
pub struct Bed(PathBuf);

impl Bed {
    /// Makes an empty directory. Its path must be short, because it is a part of a socket's path.
    pub fn new(parent: &Path, name: &str) -> Result<Self, String> {
        let bed = Self(parent.join(name));
        let _ = std::fs::remove_dir_all(&bed.0);
        std::fs::create_dir_all(&bed.0).map_err(|error| bed.failed(&error))?;
        Ok(bed)
    }

    /// Returns the path of the file `name` in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes `text` to the file `name` in the directory.
    pub fn write(&self, name: &str, text: &str) -> Result<(), String> {
        std::fs::write(self.path(name), text).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> String {
        format!("{}: {error}", self.0.display())
    }

    /// Returns a command that runs the `cairn` program with these arguments in the directory.
    pub fn command(&self, words: &[&str]) -> Result<Command, String> {
        let own = std::env::current_exe().map_err(|error| self.failed(&error))?;
        let mut command = Command::new(own.with_file_name("cairn"));
        let log = File::options().create(true).append(true).open(self.path("log"));
        let log = log.map_err(|error| self.failed(&error))?;
        command.args(words).current_dir(&self.0).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    /// Starts a server for a spec, and waits until it accepts connections.
    pub fn serve(&self, spec: &str) -> Result<Served<'_>, String> {
        self.serve_as(NAME, spec)
    }

    /// Starts a server for a spec with this graph name, and waits until it accepts connections.
    pub fn serve_as(&self, name: &str, spec: &str) -> Result<Served<'_>, String> {
        let file = format!("{name}.toml");
        self.write(&file, &whole(name, spec))?;
        self.start(&["serve", &file])?.wait()
    }

    /// Returns the request for a live change of the running graph to `spec`, in which the server may start a migration.
    pub fn change_to(&self, spec: &str) -> ApplyRequest {
        ApplyRequest {
            file: "bench.toml".to_owned(),
            text: whole(NAME, spec),
            variables: Default::default(),
            way: ChangeWay { directory: self.0.clone(), move_bytes: true, ..ChangeWay::default() },
        }
    }

    /// Starts `cairn` with these arguments, without waiting until it accepts connections.
    pub fn start(&self, words: &[&str]) -> Result<Served<'_>, String> {
        let control = self.path("control.sock");
        // A killed server has left them.
        for socket in [&control, &self.path("nbd.sock")] {
            let _ = std::fs::remove_file(socket);
        }
        let mut command = self.command(words)?;
        command.arg("--at").arg(&control);
        let child = command.spawn().map_err(|error| self.failed(&error))?;
        Ok(Served { bed: self, child, control: Client::new(control) })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn whole(name: &str, spec: &str) -> String {
    format!("name = \"{name}\"\n{LISTEN}{spec}")
}

/// A running server of a measurement, killed on drop.
pub struct Served<'a> {
    bed: &'a Bed,
    child: Child,
    /// Client of the server's control socket.
    pub control: Client,
}

impl Served<'_> {
    /// Returns the NBD URI of the server's export `vol`.
    pub fn uri(&self) -> String {
        self.uri_of("vol")
    }

    /// Returns the NBD URI of an export of the server.
    pub fn uri_of(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.bed.path("nbd.sock").display())
    }

    fn wait(mut self) -> Result<Self, String> {
        let begun = Instant::now();
        let accepts = |name| UnixStream::connect(self.bed.path(name)).is_ok();
        while !accepts("nbd.sock") || !accepts("control.sock") {
            self.is_there()?;
            if begun.elapsed() > PATIENCE {
                return Err(format!("cairn does not accept within {PATIENCE:?}"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(self)
    }

    /// Waits until the server has answered a read of the export `vol`.
    ///
    /// # Errors
    /// The server has ended, or does not answer in time.
    pub async fn answers(&mut self, env: &Env) -> Result<(), String> {
        self.answers_on(env, "vol").await
    }

    /// Waits until the server has answered a read of an export.
    ///
    /// # Errors
    /// The server has ended, or does not answer in time.
    pub async fn answers_on(&mut self, env: &Env, export: &str) -> Result<(), String> {
        let (begun, uri) = (Instant::now(), self.uri_of(export));
        loop {
            match first_read(env, &uri).await {
                Ok(()) => return Ok(()),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error.to_string()),
                Err(_) => self.is_there()?,
            }
            env.sleep(LOOK).await;
        }
    }

    /// Fails with the server's log if the server has ended.
    pub fn is_there(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let log = std::fs::read_to_string(self.bed.path("log")).unwrap_or_default();
                Err(format!("cairn ended with {status}: {}", log.trim()))
            }
            Err(error) => Err(format!("cairn: {error}")),
        }
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server after `time` under a load on an export, and starts it again. Returns the new server, and the
    /// milliseconds from its start to its first answer.
    ///
    /// # Errors
    /// The server cannot be killed, or does not answer in time.
    pub fn killed_under(
        self,
        ground: &Ground,
        export: &str,
        load: &Load,
        time: Duration,
    ) -> Result<(Self, f64), String> {
        let (bed, uri, pid) = (self.bed, self.uri_of(export), self.pid());
        std::thread::scope(|scope| {
            let killer = scope.spawn(move || kill_after(pid, time));
            // The load ends with an error when the server is killed.
            let _ = ground.load(&uri, &Load { time: time * 2, ..load.clone() });
            killer.join().map_err(|_| "the killer panicked")?
        })?;
        self.kill();
        let begun = Instant::now();
        let mut again = bed.start(&["serve", "bench.toml"])?;
        ground.core.block_on(again.answers_on(&ground.core.env(), export))?;
        Ok((again, begun.elapsed().as_secs_f64() * 1e3))
    }

    /// Kills the server, and waits until its process has ended.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops the server by SIGTERM, and waits until it has ended without an error.
    pub fn stop(mut self) -> Result<(), String> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|error| format!("cairn: {error}"))?;
        }
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(LOOK),
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return self.is_there(),
                Err(error) => return Err(format!("cairn: {error}")),
            }
        }
        Err(format!("cairn has not ended within {PATIENCE:?}"))
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn first_read(env: &Env, uri: &str) -> block::Result<()> {
    let client = load::connect(env, uri, false).await?;
    load::read(env, &client, 0, FIRST_READ_BYTES).await?;
    client.close();
    Ok(())
}

/// Kills the process `pid` of a server after `time`.
fn kill_after(pid: u32, time: Duration) -> Result<(), String> {
    std::thread::sleep(time);
    kill(pid)
}

/// Kills the process `pid` of a server.
pub fn kill(pid: u32) -> Result<(), String> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("the server has no number")?;
    kill_process(pid, Signal::KILL).map_err(|error| format!("kill: {error}"))
}

/// Formats the error reply of a server's control socket.
pub fn said(problem: Problem) -> String {
    format!("{problem:?}")
}

/// Returns the first unfinished job of the server (`None` without a job), and the time of the reply.
pub fn job(control: &Client) -> Result<(Instant, Option<Job>), String> {
    let jobs = control.get(&routes::JOBS).map_err(said)?;
    Ok((Instant::now(), jobs.into_iter().next()))
}

/// Returns the progress of the server's first unfinished job (`None` without a job), and the time of the reply.
pub fn progress(control: &Client) -> Result<(Instant, Option<Progress>), String> {
    let (at, job) = job(control)?;
    Ok((at, job.map(|job| job.work.progress)))
}

/// Waits until the server has no unfinished job, at most for `patience`.
pub fn until_over(control: &Client, patience: Duration) -> Result<(), String> {
    let begun = Instant::now();
    while let (_, Some(job)) = job(control)? {
        if begun.elapsed() > patience {
            return Err(format!("{} is not done within {patience:?}: {job:?}", job.device));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
