//! Properties of this process in the system: its limits, its pid file, its service manager.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::{Env, ErrorKind};
use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::{Exit, Failure, Result};

/// Sets the name of the process. A process that was started through a link in /proc would otherwise be listed as
/// `exe`.
pub fn take_name() {
    // On failure it keeps that name.
    let _ = rustix::thread::set_name(c"cairn");
}

/// Number of open files that a server needs for a small graph, a few clients and its sockets.
const FILES_MIN: u64 = 64;

/// Raises the limits of this process on open files and on locked memory (for rings) to the maximum of this user.
///
/// # Errors
/// `Limit` if the process may open too few files for any graph.
pub fn raise_limits() -> Result<()> {
    for which in [Resource::Nofile, Resource::Memlock] {
        let Rlimit { maximum, .. } = getrlimit(which);
        // The present limit may be enough for a small graph. Operations that exceed it fail with their own error.
        let _ = setrlimit(which, Rlimit { current: maximum, maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < FILES_MIN => {
            let why = format!("this process may open {most} files; a server needs {FILES_MIN}");
            Err(Failure::new(Exit::of(ErrorKind::Limit), why)
                .next("ulimit -n 1024, or LimitNOFILE= of its service"))
        }
        _ => Ok(()),
    }
}

/// Sends a message to the service manager, if there is one: `READY=1`, `STOPPING=1`.
pub fn notify_manager(line: &str) {
    if let Err(error) = runtime::notify_manager(line) {
        warn!("cannot notify the service manager: {error}");
    }
}

/// Returns the time between two watchdog messages, if the service manager wants such messages. There are three in the
/// time after which the manager restarts a process without messages.
pub fn watchdog() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_meant = variable("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let limit = variable("WATCHDOG_USEC").filter(|limit| *limit > 0 && is_meant)?;
    Some(Duration::from_micros(limit / 3))
}

/// Sends a watchdog message to the service manager.
pub fn beat() {
    if let Err(error) = runtime::beat() {
        warn!("{error}");
    }
}

/// Sends watchdog messages to the service manager while this core runs its tasks, if the manager wants such messages.
pub fn watch(env: &Env) {
    let Some(pause) = watchdog() else { return };
    let me = env.clone();
    env.spawn("watchdog messages to the service manager", async move {
        loop {
            beat();
            me.sleep(pause).await;
        }
    });
}

/// A file with the id of this process, which is removed when the process ends in order.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Checks that the pid file at `path` does not name another running process.
    ///
    /// # Errors
    /// `InUse` with the id of that process.
    pub fn claim(path: &Path) -> Result<Self> {
        if let Ok(text) = std::fs::read_to_string(path)
            && let Ok(pid) = text.trim().parse::<u32>()
            && pid != std::process::id()
            && Path::new(&format!("/proc/{pid}")).exists()
        {
            let shown = path.display();
            return Err(failure!(
                InUse,
                "the pid file {shown} is that of process {pid}, which runs"
            )
            .next("stop that process, or choose another --pidfile"));
        }
        Ok(Self(path.to_owned()))
    }

    /// Writes the id of this process into the file. The caller calls it when clients can connect.
    pub fn write(&self) -> Result<()> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // If other users may write to the directory, a symbolic link there could lead root to any file.
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let opened = options.open(&self.0);
        opened
            .and_then(|mut file| file.write_all(format!("{}\n", std::process::id()).as_bytes()))
            .map_err(|error| Failure::io(&error, format_args!("writing {}", self.0.display())))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let own = std::process::id().to_string();
        if std::fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == own) {
            // If it stays, the next start finds that its process is gone.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}
