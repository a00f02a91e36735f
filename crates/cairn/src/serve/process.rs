//! This process as the system sees it: its limits, its pid file, its service manager.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::{Env, ErrorKind};
use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::{Exit, Failure, Result};

/// What was started by a link of /proc has the link's name, `exe`, for whoever looks for us.
pub fn take_name() {
    // Then it is called that.
    let _ = rustix::thread::set_name(c"cairn");
}

/// Files that a server has open with a small graph, a few clients and its sockets.
const FILES_MIN: u64 = 64;

/// As many files, and as much locked memory for rings, as this user may have.
///
/// # Errors
/// `Limit` if the files are too few for any graph: what fails later would be anything.
pub fn raise_limits() -> Result<()> {
    for which in [Resource::Nofile, Resource::Memlock] {
        let Rlimit { maximum, .. } = getrlimit(which);
        // What was enough so far is enough for a small graph: what fails later says so itself.
        let _ = setrlimit(which, Rlimit { current: maximum, maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < FILES_MIN => {
            let why =
                format!("at most {most} files may be open at once, and a server needs {FILES_MIN}");
            Err(Failure::new(Exit::of(ErrorKind::Limit), why)
                .next("ulimit -n 1024, or LimitNOFILE= of its service"))
        }
        _ => Ok(()),
    }
}

/// A line for the service manager, if one started us: `READY=1`, `STOPPING=1`.
pub fn tell_manager(line: &str) {
    if let Err(error) = runtime::tell_manager(line) {
        crate::out::note(&format!("warning: the service manager was not told: {error}"));
    }
}

/// Tells the service manager, if it wants to know, that this core still turns: three times in the time
/// after which it takes us for dead.
pub fn watch(env: &Env) {
    let variable = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_meant = variable("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let Some(limit) = variable("WATCHDOG_USEC").filter(|limit| *limit > 0 && is_meant) else {
        return;
    };
    let (pause, me) = (Duration::from_micros(limit / 3), env.clone());
    env.spawn("word to the service manager", async move {
        loop {
            if let Err(error) = runtime::beat() {
                crate::out::note(&format!("warning: {error}"));
            }
            me.sleep(pause).await;
        }
    });
}

/// A file with our process id; removed at the end.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Makes sure that no other process lives under that file.
    ///
    /// # Errors
    /// `InUse` with the process.
    pub fn claim(path: &Path) -> Result<Self> {
        if let Ok(text) = std::fs::read_to_string(path)
            && let Ok(pid) = text.trim().parse::<u32>()
            && pid != std::process::id()
            && Path::new(&format!("/proc/{pid}")).exists()
        {
            let shown = path.display();
            let why = format!("{shown} belongs to process {pid}, which is running");
            return Err(Failure::new(Exit::InUse, why).next("stop it, or choose another --pidfile"));
        }
        Ok(Self(path.to_owned()))
    }

    /// Writes it: clients can connect from now on.
    pub fn write(&self) -> Result<()> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // In a directory that others may write to, a link would lead root to any file.
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
            // If it cannot be removed the next start finds that its process is gone.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}
