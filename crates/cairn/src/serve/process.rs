//! This process as the system sees it: its limits, its pid file, its service manager.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::{Exit, Failure, Result};

/// As many files, and as much locked memory for rings, as this user may have.
pub fn raise_limits() {
    for which in [Resource::Nofile, Resource::Memlock] {
        let Rlimit { maximum, .. } = getrlimit(which);
        // What was enough so far is enough for a small graph: what fails later says so itself.
        let _ = setrlimit(which, Rlimit { current: maximum, maximum });
    }
}

/// A line for the service manager, if one started us: `READY=1`, `STOPPING=1`.
pub fn tell_manager(line: &str) {
    if let Err(error) = runtime::tell_manager(line) {
        crate::out::note(&format!("warning: the service manager was not told: {error}"));
    }
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
            let why = format!(
                "{shown} belongs to process {pid}, which is running. Next: stop it, or choose \
                 another --pidfile"
            );
            return Err(Failure::new(Exit::InUse, why));
        }
        Ok(Self(path.to_owned()))
    }

    /// Writes it: clients can connect from now on.
    pub fn write(&self) -> Result<()> {
        std::fs::write(&self.0, format!("{}\n", std::process::id()))
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
