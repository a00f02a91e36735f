//! What is done for a name, step by step. Each step may wait for the device.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};

use crate::device::Device;
use crate::loops::{LOOK, Loop};
use crate::name::{DEVICES, Name};
use crate::nbd::Nbd;
use crate::users::Users;

/// Whoever looks at new devices (udev, blkid) has them open for a moment.
const GLANCE: Duration = Duration::from_secs(2);

/// How often it is looked who uses a device.
const RETRY: Duration = Duration::from_millis(50);

/// From the last close of a loop device until it is off its file.
const CLOSE: Duration = Duration::from_secs(10);

const FUSE: &str = "/dev/fuse";

/// What a device is to be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Its block, a power of two from 512 to 4096.
    pub block_bytes: u32,
    /// Whether it may only be read.
    pub read_only: bool,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connected {
    /// `/dev/loopN`
    pub device: PathBuf,
    /// Whether it goes past the page cache, so that nothing is kept twice.
    pub direct: bool,
}

/// A device that goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What came of it once.
    pub connected: Connected,
    /// Whether what is served has grown since: [`resize`] it.
    pub is_smaller: bool,
}

/// How a device is let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// How long to wait for whoever uses it.
    pub patience: Duration,
    /// Past that: leave it to its users, who will get errors once nobody serves it.
    pub give_up: bool,
}

/// Whether this kernel can be asked for a FUSE mount.
///
/// # Errors
/// What opening `/dev/fuse` says.
pub fn has_fuse() -> Result<()> {
    let opened = std::fs::File::options().read(true).write(true).open(FUSE);
    opened.map(drop).map_err(|error| Error::io(&error, FUSE))
}

/// Makes the way free for a name that somebody has claimed: removes what a dead process left of it, and
/// makes the mount point.
///
/// # Errors
/// `InUse` if there is something of others under that name; what the system says.
pub fn prepare(name: &Name) -> Result<()> {
    clear(name)?;
    let link = name.link();
    if std::fs::symlink_metadata(&link).is_ok() {
        let why = format!("{} is there already, and is none of Cairn's", link.display());
        return Err(Error::new(ErrorKind::InUse, why).next("remove it, or choose another --name"));
    }
    let at = name.mount_point();
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700).create(&at).map_err(|error| Error::io(&error, at.display()))
}

/// Puts a loop device on the file of a mount that is served, and gives it its name.
///
/// # Errors
/// `Limit` if no loop device is free; what the system says. Nothing is left behind but the mount.
pub fn connect(name: &Name, wanted: Wanted) -> Result<Connected> {
    let device = Loop::connect(name, wanted.block_bytes, wanted.read_only)?;
    device.forget_errors();
    link_or_let_go(name, Device::Loop(device))?;
    Ok(Connected { device: Device::Loop(device).path(), direct: device.is_direct() })
}

/// The device of a name that a process before this one has connected, whose mount goes on. It is only
/// looked at: this does not wait for the device.
///
/// # Errors
/// `NotFound` if the name or its device are gone; `Unsupported` if the device is not like that, or larger
/// than `size_bytes`.
pub fn find(name: &Name, wanted: Wanted, size_bytes: u64) -> Result<Found> {
    let link = name.link();
    let shown = link.display();
    let target = std::fs::read_link(&link).map_err(|error| Error::io(&error, &shown))?;
    let device = Device::of(&target);
    let Some(Device::Loop(device)) = device.filter(|_| is_ours(&link)) else {
        let why = format!("{shown} leads to {}, which is no loop device", target.display());
        return Err(Error::new(ErrorKind::NotFound, why));
    };
    let is_smaller = device.must_be(name, wanted, size_bytes)?;
    let connected = Connected { device: Device::Loop(device).path(), direct: device.is_direct() };
    Ok(Found { connected, is_smaller })
}

/// Gives a device of the kernel's NBD client to the server that listens for that name, and gives it its
/// name.
///
/// # Errors
/// What the handshake or the kernel says. Nothing is left behind.
pub fn connect_nbd(name: &Name, export: &str, wanted: Wanted) -> Result<Connected> {
    let device = Device::Nbd(Nbd::connect(name, export, wanted)?);
    link_or_let_go(name, device)?;
    Ok(Connected { device: device.path(), direct: true })
}

fn link_or_let_go(name: &Name, device: Device) -> Result<()> {
    link(name, device).inspect_err(|_| {
        // If it stays it is found by its mark the next time.
        let _ = device.let_go();
        device.is_off(name, CLOSE);
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

/// Lets the device of a name be as large as what is behind it is now.
///
/// # Errors
/// What the system says.
pub fn resize(name: &Name) -> Result<()> {
    let file = name.file();
    // The kernel keeps sizes of files, and asks for this one only when it is told to.
    let (flags, mask) = (AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE);
    statx(CWD, &file, flags, mask).map_err(|error| Error::io(&error.into(), file.display()))?;
    Device::all_of(name).into_iter().try_for_each(Device::resize)
}

/// Flushes the device of a name, takes it off its file, and removes everything of the name. Answers why
/// it could not be flushed, if it could not: it is gone all the same.
///
/// # Errors
/// `InUse` with who uses it, and nothing is changed, unless it is to be given up; what the system says.
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

/// Waits until nobody uses the device, then flushes it and takes it off its file.
fn let_go(name: &Name, device: Device, patience: Duration) -> Result<Option<Error>> {
    let link = name.link();
    let begun = Instant::now();
    let alone = loop {
        // Held like this it can neither be mounted nor built upon by anybody else.
        let alone = device.alone()?;
        let users = Users::of(device, &link);
        let limit = match alone {
            Some(alone) if users.is_empty() => break alone,
            // What is only open may be closed in a moment, and a mount that nothing shows is one that
            // is being taken apart. What is seen to be mounted stays so.
            Some(_) => patience.max(GLANCE),
            None if users.is_empty() => patience.max(GLANCE),
            None => patience,
        };
        if begun.elapsed() >= limit {
            let why = format!("{} {users}", link.display());
            return Err(Error::new(ErrorKind::InUse, why));
        }
        std::thread::sleep(RETRY);
    };
    let shown = link.display();
    let flushed = alone.sync_all();
    device.clear(alone)?;
    if !device.is_off(name, CLOSE) {
        let why = format!("{shown}: somebody opened it in the last moment, and has it still");
        return Err(Error::new(ErrorKind::InUse, why));
    }
    Ok(flushed.err().map(|error| {
        let tried = format_args!(
            "{shown} is detached, but its last flush failed, and what was written \
                                  before may be lost"
        );
        Error::io(&error, tried)
    }))
}

/// What can still be done for a device that is in use: its file systems write what they have, and the
/// device goes when its last user does.
fn abandon(name: &Name, device: Device) {
    for (_, at) in Users::of(device, &name.link()).mounts {
        // The error that counts is that it is in use.
        if let Ok(directory) = std::fs::File::open(at) {
            let _ = rustix::fs::syncfs(directory);
        }
    }
    let _ = device.let_go();
    let _ = remove(name);
}

/// Whether there is something of a name that nobody may have any more. A device that was taken away is nobody's.
pub fn is_left(name: &Name) -> bool {
    let there = |path: PathBuf| std::fs::symlink_metadata(path).err().map(|error| error.kind());
    there(name.mount_point()) != Some(std::io::ErrorKind::NotFound)
        || there(name.socket()) != Some(std::io::ErrorKind::NotFound)
        || Device::all_of(name).into_iter().any(|device| !device.is_leaving())
        || is_ours(&name.link())
}

/// Who still uses a device that was taken from a name.
pub fn still_used(name: &Name) -> Option<Users> {
    let device = Device::all_of(name).into_iter().find(|device| device.is_leaving())?;
    Some(Users::of(device, &name.link()))
}

/// Whether it is an entry that [`connect`] could have made.
fn is_ours(link: &Path) -> bool {
    std::fs::read_link(link)
        .is_ok_and(|to| to.parent() == Some(Path::new("..")) && Device::of(&to).is_some())
}

/// Removes what a dead process left behind of a name that this process has: its loop device, its mount,
/// its entry in `/dev/cairn`.
///
/// # Errors
/// What the system says.
pub fn clear(name: &Name) -> Result<()> {
    for device in Device::all_of(name) {
        device.let_go()?;
        // Whoever still has it mounted keeps it until they give it up.
        device.is_off(name, LOOK);
    }
    remove(name)
}

/// Removes the name and its mount.
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
    // Mounted more than once only if somebody else did it; not mounted is what is wanted.
    if let Err(error) = unmount(&at, UnmountFlags::NOFOLLOW)
        && error != rustix::io::Errno::INVAL
    {
        // Somebody looks into it, or its device is still in use: it goes when they are done.
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
