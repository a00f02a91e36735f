//! The default directories of sockets and of local state.

use std::ffi::OsStr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::exit::{Failure, Result};

/// The runtime directory of root's login sessions. System services are not given it.
const ROOT_SESSION: &str = "/run/user/0";

/// Returns the runtime directory: `$XDG_RUNTIME_DIR/cairn` if this user owns it, else `/run/cairn` for root and
/// `/tmp/cairn-UID` for others. Root's `/run/user/0` does not count, so commands of a login session find a daemon that
/// the system has started.
pub fn directory() -> PathBuf {
    directory_of(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

/// Returns the runtime directory of a process whose `$XDG_RUNTIME_DIR` has the value `said`.
pub fn directory_of(said: Option<PathBuf>) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let own = |path: &PathBuf| {
        path.is_absolute()
            && path != Path::new(ROOT_SESSION)
            && std::fs::metadata(path).is_ok_and(|found| found.uid() == user)
    };
    match said.filter(own) {
        Some(path) => path.join("cairn"),
        None if user == 0 => PathBuf::from("/run/cairn"),
        None => PathBuf::from(format!("/tmp/cairn-{user}")),
    }
}

/// Returns the directory for the control sockets of graphs.
pub fn control() -> PathBuf {
    directory().join("control")
}

/// Returns the path of the control socket of `graph`, which the process `pid` serves.
pub fn control_of(graph: &str, pid: u32) -> PathBuf {
    control().join(format!("{graph}-{pid}.sock"))
}

/// Returns the directory for the sockets and lock files of a daemon's workers.
pub fn keeper() -> PathBuf {
    directory().join("keeper")
}

/// Returns the path of a daemon's control socket.
pub fn daemon() -> PathBuf {
    daemon_in(&directory())
}

/// Returns the path of the control socket of a daemon with this runtime directory.
pub fn daemon_in(directory: &Path) -> PathBuf {
    directory.join("daemon.sock")
}

/// Returns the default state directory of a daemon: `/var/lib/cairn` for root, `$XDG_STATE_HOME/cairn` or
/// `~/.local/state/cairn` for others.
pub fn state() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/cairn");
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    let base = absolute("XDG_STATE_HOME").or_else(home);
    base.unwrap_or_else(directory).join("cairn")
}

/// Returns a path as text. A path that is not text could not be written into a spec, a label or a reply.
///
/// # Errors
/// `Usage` if the path is not UTF-8.
pub fn text<P: AsRef<OsStr> + ?Sized>(path: &P) -> Result<&str> {
    Ok(doctor::scan::text(Path::new(path))?)
}

/// Checks that `path` is short enough for a control socket. `next` is the next step for the operator if it is not.
///
/// # Errors
/// `Usage` if the path is too long.
pub fn check_socket(path: &Path, next: &str) -> Result<()> {
    let (bytes, most) = (path.as_os_str().len(), api::SOCKET_PATH_MAX_BYTES);
    if bytes <= most {
        return Ok(());
    }
    Err(failure!(
        Usage,
        "the control socket {}: a path of {bytes} bytes, more than {most}",
        path.display()
    )
    .next(next.to_string()))
}

/// Returns the working directory of this process. Relative paths in a request to another process begin there.
///
/// # Errors
/// As [`text`]; errors of the system.
pub fn here() -> Result<PathBuf> {
    let here =
        std::env::current_dir().map_err(|error| Failure::io(&error, "the current directory"))?;
    text(&here)?;
    Ok(here)
}

/// Creates [`directory`] and `path`, a directory below it, with access for this user only.
///
/// # Errors
/// As [`check`]; errors of the system.
pub fn make(path: &Path) -> Result<()> {
    [&directory(), path].into_iter().try_for_each(|path| {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| Failure::io(&error, format_args!("making {}", path.display())))?;
        check(path)
    })
}

/// Checks that no other user can create files in the directory `path`.
///
/// # Errors
/// `Denied` if another user owns the directory or may write to it, because any user may create directories in `/tmp`.
/// Also as [`text`].
pub fn check(path: &Path) -> Result<()> {
    text(path)?;
    let shown = path.display();
    let found = std::fs::symlink_metadata(path).map_err(|error| Failure::io(&error, &shown))?;
    let user = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        return Err(failure!(Denied, "{shown} is not a directory that only user {user} can write")
            .next("remove that entry, or set XDG_RUNTIME_DIR to such a directory"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_login_session_has_runtime_directory_of_system_services() {
        if rustix::process::geteuid().is_root() {
            let session = directory_of(Some(PathBuf::from(ROOT_SESSION)));
            assert_eq!(session, directory_of(None));
            assert_eq!(session, PathBuf::from("/run/cairn"));
        }
    }
}
