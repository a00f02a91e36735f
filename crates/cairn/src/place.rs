//! Where sockets lie when nobody says where.

use std::ffi::OsStr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure, Result};

/// The directory for what runs: `$XDG_RUNTIME_DIR/cairn` if that is this user's own, else
/// `/run/cairn` for root and `/tmp/cairn-UID` for others.
pub fn directory() -> PathBuf {
    directory_of(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

/// The same of a process that has this in the place of `$XDG_RUNTIME_DIR`.
pub fn directory_of(said: Option<PathBuf>) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let own = |path: &PathBuf| {
        path.is_absolute() && std::fs::metadata(path).is_ok_and(|found| found.uid() == user)
    };
    match said.filter(own) {
        Some(path) => path.join("cairn"),
        None if user == 0 => PathBuf::from("/run/cairn"),
        None => PathBuf::from(format!("/tmp/cairn-{user}")),
    }
}

/// Where control sockets lie.
pub fn control() -> PathBuf {
    directory().join("control")
}

/// The control socket of a graph that a process serves.
pub fn control_of(graph: &str, pid: u32) -> PathBuf {
    control().join(format!("{graph}-{pid}.sock"))
}

/// Where a daemon's workers and their sockets lie.
pub fn keeper() -> PathBuf {
    directory().join("keeper")
}

/// The control socket of a daemon.
pub fn daemon() -> PathBuf {
    daemon_in(&directory())
}

/// The same of a daemon with another directory for what runs.
pub fn daemon_in(directory: &Path) -> PathBuf {
    directory.join("daemon.sock")
}

/// Where a daemon keeps what is local: `/var/lib/cairn` for root, `$XDG_STATE_HOME/cairn` or
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

/// A path as text, which is what specs, labels and answers are made of: what is none could be named in
/// none of them.
///
/// # Errors
/// `Usage` if it is not UTF-8.
pub fn text<P: AsRef<OsStr> + ?Sized>(path: &P) -> Result<&str> {
    Ok(doctor::scan::text(Path::new(path))?)
}

/// Makes sure that a control socket may lie there, which `next` changes.
///
/// # Errors
/// `Usage` if its path is too long.
pub fn check_socket(path: &Path, next: &str) -> Result<()> {
    let (bytes, most) = (path.as_os_str().len(), api::SOCKET_PATH_MAX_BYTES);
    if bytes <= most {
        return Ok(());
    }
    let why = format!(
        "the control socket {}: the path has {bytes} bytes; at most {most} are possible",
        path.display()
    );
    Err(Failure::new(Exit::Usage, why).next(next.to_string()))
}

/// The directory of this command, for whoever is to begin relative paths there.
///
/// # Errors
/// As [`text`]; what the system says.
pub fn here() -> Result<PathBuf> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::io(&error, "the directory of this command"))?;
    text(&here)?;
    Ok(here)
}

/// Makes [`keeper`], and what is above it, for this user alone.
///
/// # Errors
/// As [`check`], and what the system says.
pub fn make_keeper() -> Result<()> {
    make_directory()?;
    make(&keeper())
}

/// Makes [`directory`] for this user alone.
///
/// # Errors
/// As [`check`], and what the system says.
pub fn make_directory() -> Result<()> {
    make(&directory())
}

/// Makes [`control`], and what is above it, for this user alone.
///
/// # Errors
/// As [`check`], and what the system says.
pub fn make_control() -> Result<()> {
    make_directory()?;
    make(&control())
}

fn make(path: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Failure::io(&error, format_args!("making {}", path.display())))?;
    check(path)
}

/// Makes sure that nobody else can put something there.
///
/// # Errors
/// `Denied` if somebody else owns it: in `/tmp` anybody could have made it before us; as [`text`].
pub fn check(path: &Path) -> Result<()> {
    text(path)?;
    let shown = path.display();
    let found = std::fs::symlink_metadata(path).map_err(|error| Failure::io(&error, &shown))?;
    let user = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        let why = format!("{shown} is not a directory of user {user} that nobody else can write");
        return Err(Failure::new(Exit::Denied, why)
            .next("remove it, or set XDG_RUNTIME_DIR to one that is"));
    }
    Ok(())
}
