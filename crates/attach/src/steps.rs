//! The steps by which an export is attached under a name, and detached. Each step may wait for the block device.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, Result, bail};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::device::Device;
use crate::loops::{LOOK, Loop};
use crate::name::{DEVICES, Name};
use crate::nbd::Nbd;
use crate::users::Users;

/// Time within which programs that inspect new block devices (udev, blkid) close them again.
const GLANCE: Duration = Duration::from_secs(2);

/// Pause between two checks of the users of a block device.
const RETRY: Duration = Duration::from_millis(50);

/// Maximum time that the kernel needs to detach a loop device from its file after its last close.
const CLOSE: Duration = Duration::from_secs(10);

const FUSE: &str = "/dev/fuse";

/// The properties that the block device of an attached export must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// Block size of the device in bytes, a power of two from 512 to 4096.
    pub block_bytes: u32,
    /// Whether the device refuses writes.
    pub read_only: bool,
}

/// A block device that is connected to an export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connected {
    /// Path of the block device, such as `/dev/loopN`.
    pub device: PathBuf,
    /// Whether the block device bypasses the page cache of its file, so that no data are cached twice.
    pub direct: bool,
}

/// A block device that an earlier process has connected to the export, and that is still connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The block device.
    pub connected: Connected,
    /// Whether the block device is smaller than the export, which has been enlarged: then [`resize`] is needed.
    pub is_smaller: bool,
}

/// Options for releasing a block device that may be in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Release {
    /// Time to wait until the block device has no users.
    pub patience: Duration,
    /// Whether to disconnect the block device if it still has users after `patience`. They get errors once no process
    /// serves the device.
    pub give_up: bool,
}

/// Returns an error if this kernel has no FUSE.
///
/// # Errors
/// The error of opening `/dev/fuse`.
pub fn has_fuse() -> Result<()> {
    let opened = File::options().read(true).write(true).open(FUSE);
    opened.map(drop).map_err(|error| Error::io(&error, FUSE))
}

/// Prepares a claimed name for a new attachment: removes the remains of a dead process, and creates the mount point.
///
/// # Errors
/// `InUse` if `/dev/cairn` has an entry of this name that Cairn did not make; errors of the system.
pub fn prepare(name: &Name) -> Result<()> {
    clear(name)?;
    let link = name.link();
    if std::fs::symlink_metadata(&link).is_ok() {
        let why = format!("{} exists already, and was not made by Cairn", link.display());
        return Err(
            Error::new(ErrorKind::InUse, why).next("remove the file, or choose another --name")
        );
    }
    let at = name.mount_point();
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700).create(&at).map_err(|error| Error::io(&error, at.display()))
}

/// Connects a free loop device to the file in the FUSE mount of `name`, and makes `/dev/cairn/NAME` a link to the
/// device.
///
/// # Errors
/// `Limit` if no loop device is free; errors of the system. After an error, only the mount is left.
pub fn connect(name: &Name, wanted: Wanted) -> Result<Connected> {
    let device = Loop::connect(name, wanted)?;
    device.forget_errors();
    link_or_let_go(name, Device::Loop(device))?;
    Ok(Connected { device: Device::Loop(device).path(), direct: device.is_direct() })
}

/// Finds the loop device that an earlier process has connected for `name`, and whose mount still exists. Only reads
/// facts about the device, so that it does not wait for the device.
///
/// # Errors
/// `NotFound` if the link or the device of `name` does not exist any more; `Unsupported` if the device differs from
/// `wanted`, or is larger than `size_bytes`.
pub fn find(name: &Name, wanted: Wanted, size_bytes: u64) -> Result<Found> {
    let link = name.link();
    let shown = link.display();
    let target = std::fs::read_link(&link).map_err(|error| Error::io(&error, &shown))?;
    let device = Device::of(&target);
    let Some(Device::Loop(device)) = device.filter(|_| is_ours(&link)) else {
        let why = format!("{shown} leads to {}, no loop device of Cairn", target.display());
        return Err(Error::new(ErrorKind::NotFound, why));
    };
    let is_smaller = device.must_be(name, wanted, size_bytes)?;
    let connected = Connected { device: Device::Loop(device).path(), direct: device.is_direct() };
    Ok(Found { connected, is_smaller })
}

/// Connects a device of the kernel's NBD client to the server that listens on the socket of `name`, and makes
/// `/dev/cairn/NAME` a link to the device.
///
/// # Errors
/// Errors of the handshake or of the kernel. After an error, nothing is left.
pub fn connect_nbd(name: &Name, export: &str, wanted: Wanted) -> Result<Connected> {
    let device = Device::Nbd(Nbd::connect(name, export, wanted)?);
    link_or_let_go(name, device)?;
    Ok(Connected { device: device.path(), direct: true })
}

fn link_or_let_go(name: &Name, device: Device) -> Result<()> {
    link(name, device).inspect_err(|_| {
        // If the device cannot be disconnected now, a later start finds it by its mark.
        let _ = device.let_go();
        device.wait_disconnected(name, CLOSE);
    })
}

fn link(name: &Name, device: Device) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(DEVICES)
        .map_err(|error| Error::io(&error, format_args!("making {DEVICES}")))?;
    let target = Path::new("..").join(device.name());
    let link = name.link();
    std::os::unix::fs::symlink(target, &link).map_err(|error| Error::io(&error, link.display()))
}

/// Adjusts the size of the block device of `name` to the present size of its export.
///
/// # Errors
/// Errors of the system.
pub fn resize(name: &Name) -> Result<()> {
    let file = name.file();
    // The kernel caches the size of a file in a FUSE mount, and asks its server for the size only if forced to.
    let (flags, mask) = (AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE);
    statx(CWD, &file, flags, mask).map_err(|error| Error::io(&error.into(), file.display()))?;
    Device::all_of(name).into_iter().try_for_each(Device::resize)
}

/// Flushes and disconnects the block device of `name`, and removes its link, mount and files. If the flush fails,
/// disconnects the device all the same, and returns the error of the flush.
///
/// # Errors
/// `InUse` with the users of the block device; errors of the system. A device in use stays connected, unless
/// `how.give_up`.
pub fn release(name: &Name, how: Release) -> Result<Option<Error>> {
    let mut unflushed = None;
    for device in Device::all_of(name) {
        match let_go(name, device, how.patience) {
            Ok(flushed) => unflushed = unflushed.or(flushed),
            Err(error) => {
                if how.give_up {
                    abandon(name, device);
                }
                return Err(error);
            }
        }
    }
    remove(name)?;
    Ok(unflushed)
}

/// Checks that nothing but its server uses the block device of `name`, so that [`release`] would not be refused.
///
/// # Errors
/// `InUse` with the users of the block device; errors of the system.
pub fn check_unused(name: &Name) -> Result<()> {
    Device::all_of(name)
        .into_iter()
        .try_for_each(|device| open_unused(device, &name.link(), Duration::ZERO).map(drop))
}

/// Waits until the block device has no users, for at most `patience`; then flushes and disconnects it.
fn let_go(name: &Name, device: Device, patience: Duration) -> Result<Option<Error>> {
    let link = name.link();
    let alone = open_unused(device, &link, patience)?;
    let shown = link.display();
    let flushed = alone.sync_all();
    device.clear(alone)?;
    if !device.wait_disconnected(name, CLOSE) {
        bail!(InUse, "{shown}: another process opened the device during the detach");
    }
    Ok(flushed.err().map(|error| {
        let tried = format_args!(
            "{shown} is detached, but its last flush failed, and earlier writes may be lost"
        );
        Error::io(&error, tried)
    }))
}

/// Opens the block device exclusively once it has no users, for which it waits for at most `patience`. `link` is the
/// path of the link to the device.
fn open_unused(device: Device, link: &Path, patience: Duration) -> Result<File> {
    let begun = Instant::now();
    loop {
        // Opened exclusively, it can neither be mounted nor be part of another device.
        let alone = device.open_exclusive()?;
        let users = Users::of(device, link);
        let limit = match alone {
            Some(alone) if users.is_empty() => return Ok(alone),
            _ if users.stay() => patience,
            // A process that has the device open may close it soon, and a mount that is not listed is being unmounted.
            _ => patience.max(GLANCE),
        };
        if begun.elapsed() >= limit {
            bail!(InUse, "{} {users}", link.display());
        }
        std::thread::sleep(RETRY);
    }
}

/// Handles a block device that stays in use after the time limit: flushes its file systems, and lets the kernel
/// disconnect it when its last user closes it.
fn abandon(name: &Name, device: Device) {
    for (_, at) in Users::of(device, &name.link()).mounts {
        // The caller reports that the device is in use, not this error.
        if let Ok(directory) = File::open(at) {
            let _ = rustix::fs::syncfs(directory);
        }
    }
    let _ = device.let_go();
    let _ = remove(name);
}

/// Whether a mount, socket, link or connected block device of `name` exists. A loop device that is being disconnected
/// does not count.
pub fn is_left(name: &Name) -> bool {
    let there = |path: PathBuf| std::fs::symlink_metadata(path).err().map(|error| error.kind());
    there(name.mount_point()) != Some(std::io::ErrorKind::NotFound)
        || there(name.socket()) != Some(std::io::ErrorKind::NotFound)
        || Device::all_of(name).into_iter().any(|device| !device.is_leaving())
        || is_ours(&name.link())
}

/// Returns the names in `/dev/cairn` of which a dead process has left parts ([`is_left`]).
pub fn left() -> Vec<Name> {
    let entries = std::fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut left: Vec<Name> =
        names.filter(|name| is_left(name) && !Claim::is_taken(name)).collect();
    left.sort_by_key(ToString::to_string);
    left
}

/// Returns the users of the loop device of `name` that is being disconnected and waits for its last user to close it.
pub fn still_used(name: &Name) -> Option<Users> {
    let device = Device::all_of(name).into_iter().find(|device| device.is_leaving())?;
    Some(Users::of(device, &name.link()))
}

/// Whether `link` is a link to a block device as [`connect`] makes it.
fn is_ours(link: &Path) -> bool {
    std::fs::read_link(link)
        .is_ok_and(|to| to.parent() == Some(Path::new("..")) && Device::of(&to).is_some())
}

/// Removes the remains of a dead process for a name that this process has claimed: the block device, the mount, the
/// files, and the link in `/dev/cairn`.
///
/// # Errors
/// Errors of the system.
pub fn clear(name: &Name) -> Result<()> {
    for device in Device::all_of(name) {
        device.let_go()?;
        // Processes that still have it mounted keep it until they unmount it.
        device.wait_disconnected(name, LOOK);
    }
    remove(name)
}

/// Removes the link, the mount and the files of a name, but no block device.
fn remove(name: &Name) -> Result<()> {
    let link = name.link();
    if is_ours(&link) {
        gone(std::fs::remove_file(&link), &link)?;
    }
    for file in [name.socket(), name.counts()] {
        gone(std::fs::remove_file(&file), &file)?;
    }
    let at = name.mount_point();
    if std::fs::symlink_metadata(&at).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Ok(());
    }
    // If the directory is mounted a second time, another program did that. If it is not mounted, it only has to be
    // removed.
    if let Err(error) = unmount(&at, UnmountFlags::NOFOLLOW)
        && error != rustix::io::Errno::INVAL
    {
        // Either a process uses the mount, or the loop device is still in use: the mount ends after their last use.
        let _ = unmount(&at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
    gone(std::fs::remove_dir(&at), &at)
}

fn gone(removed: std::io::Result<()>, path: &Path) -> Result<()> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(&error, format_args!("removing {}", path.display())))
        }
        _ => Ok(()),
    }
}
