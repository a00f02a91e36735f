//! Block devices of this machine on top of measured servers: loop devices, mounts and attached exports.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::mount::{UnmountFlags, unmount as unmount_now};

use crate::server::absolute;

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(absolute(program)?).args(arguments).output();
    let Output { status, stdout, stderr } = output.map_err(|e| format!("{program}: {e}"))?;
    if !status.success() {
        return Err(format!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
}

/// A loop device without the page cache. The kernel detaches it as soon as no process has it open any more, so it
/// disappears with this process in any case.
pub struct Looped {
    path: PathBuf,
    _open: File,
}

impl Looped {
    /// Creates a loop device on `file`.
    pub fn on(file: &Path) -> Result<Self, String> {
        let file = file.display().to_string();
        let path = run("losetup", &["--find", "--show", "--direct-io=on", &file])?;
        let opened = File::open(&path).map_err(|error| format!("{path}: {error}"));
        run("losetup", &["--detach", &path])?;
        let looped = Self { path: PathBuf::from(path), _open: opened? };
        let dio = Path::new("/sys/block")
            .join(looped.path.file_name().unwrap_or_default())
            .join("loop/dio");
        if std::fs::read_to_string(dio).is_ok_and(|text| text.trim() == "1") {
            return Ok(looped);
        }
        Err(format!("{} does not go past the page cache on {file}", looped.path.display()))
    }

    /// Returns the path of the loop device, `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes the mount point of a server that shows its volume as `file`: the parent directory for nbdfuse, which mounts on
/// a directory, otherwise the file itself.
pub fn make_mount_point(file: &Path) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let directory = file.parent().filter(|parent| parent.ends_with("nbdfuse"));
    match directory {
        Some(directory) => std::fs::create_dir_all(directory).map_err(failed)?,
        None => drop(File::create(file).map_err(failed)?),
    }
    Ok(directory.unwrap_or(file).to_owned())
}

/// Removes a mount that a killed server has left.
pub fn unmount(mount: &Path) {
    // An error means that nothing is mounted, which is fine.
    let _ = unmount_now(mount, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

/// Attaches an export of a running `cairn` server as a block device. Returns the path of the device.
pub fn attach(export: &str, control: &str) -> Result<PathBuf, String> {
    let name = format!("cairn-bench-{}", std::process::id());
    run("target/release/cairn", &["attach", export, "--name", &name, "--at", control])?;
    Ok(Path::new("/dev/cairn").join(name))
}
