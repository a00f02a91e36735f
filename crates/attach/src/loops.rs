//! Loop devices: connects them to a file in a FUSE mount, disconnects them, and recognizes the loop device of a name.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::{Error, ErrorKind, Result, error};

use crate::device::Device;
use crate::name::Name;
use crate::steps::Wanted;
use crate::{FILE, RUNTIME, sys};

const CONTROL: &str = "/dev/loop-control";

/// Maximum number of tries to get a free loop device, because other programs take free loop devices too.
const TRIES: usize = 16;

/// Unit of sizes in sysfs, in bytes.
const SECTOR_BYTES: u64 = 512;

/// Pause between two checks whether a block device is disconnected.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// A loop device of the kernel, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loop(pub(crate) u32);

impl Loop {
    /// Returns the path of the loop device, `/dev/loopN`.
    fn path(self) -> PathBuf {
        Device::Loop(self).path()
    }

    fn sysfs(self) -> PathBuf {
        Device::Loop(self).sysfs()
    }

    /// Whether the loop device was connected for the export attached under `name`.
    pub(crate) fn is_of(self, name: &Name) -> bool {
        let on = std::fs::read_to_string(self.sysfs().join("loop/backing_file"));
        let Ok(on) = on.as_deref().map(|on| Path::new(on.trim_end())) else { return false };
        // The loop devices of other programs and of mounts of other names are not even opened: a detach of theirs would
        // find this process among their users.
        (on == name.file() || on.ends_with(FILE) && !on.starts_with(RUNTIME))
            && File::open(self.path())
                .and_then(|device| sys::loop_mark(&device))
                .is_ok_and(|mark| mark == name.mark())
    }

    /// Checks that the loop device is connected to the mounted file of `name` and has the properties `wanted`, without
    /// opening it. Returns whether the device is smaller than the export, of `size_bytes`.
    ///
    /// # Errors
    /// `NotFound` if the loop device is connected to another file; `Unsupported` if it has other properties or is
    /// larger.
    pub(crate) fn must_be(self, name: &Name, wanted: Wanted, size_bytes: u64) -> Result<bool> {
        let (path, file) = (self.path(), name.file());
        let read =
            |what: &str| std::fs::read_to_string(self.sysfs().join(what)).unwrap_or_default();
        let number = |what: &str| read(what).trim().parse::<u64>().ok();
        if Path::new(read("loop/backing_file").trim_end()) != file {
            let why = format!("loop device {} is no longer on {}", path.display(), file.display());
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        let (sectors, served) = (number("size"), size_bytes / SECTOR_BYTES);
        let facts = [
            ("block size", number("queue/logical_block_size"), u64::from(wanted.block_bytes)),
            ("read-only", number("ro"), u64::from(wanted.read_only)),
            ("sectors", sectors.map(|sectors| sectors.max(served)), served),
        ];
        match facts.into_iter().find(|(_, is, wanted)| *is != Some(*wanted)) {
            None => Ok(sectors < Some(served)),
            Some((what, is, wanted)) => {
                let is = is.map_or_else(|| "unknown".to_owned(), |is| is.to_string());
                let why = format!("{} has {what} {is}; the export has {wanted}", path.display());
                Err(Error::new(ErrorKind::Unsupported, why))
            }
        }
    }

    /// Connects a free loop device to the mounted file of `name`.
    ///
    /// # Errors
    /// `Limit` if no loop device is free, `Unsupported` if the kernel has none, and other errors of the kernel.
    pub(crate) fn connect(name: &Name, wanted: Wanted) -> Result<Self> {
        let file = name.file();
        let backing = File::options()
            .read(true)
            .write(!wanted.read_only)
            .open(&file)
            .map_err(|error| Error::io(&error, file.display()))?;
        let control = File::options().read(true).write(true).open(CONTROL);
        let control = control.map_err(|error| no_loops(&error))?;
        for _ in 0..TRIES {
            let number = sys::free_loop(&control).map_err(|error| no_loops(&error))?;
            let device = Self(number);
            match device.put_on(&backing, name, wanted) {
                Ok(()) => return Ok(device),
                // Another program took this loop device first.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => {
                    let tried = format!("{}: configuring the loop device", device.path().display());
                    return Err(Error::io(&error, tried));
                }
            }
        }
        Err(error!(Limit, "no free loop device in {TRIES} tries: other programs took each first"))
    }

    fn put_on(self, backing: &File, name: &Name, wanted: Wanted) -> io::Result<()> {
        let device = File::options().read(true).write(!wanted.read_only).open(self.path())?;
        sys::configure_loop(&device, backing, wanted, &name.mark())
    }

    /// Disconnects the loop device from its file, which takes effect when its last user has closed it.
    pub(crate) fn let_go(self) -> Result<()> {
        let failed = |error: &io::Error| Error::io(error, self.path().display());
        let device = File::open(self.path()).map_err(|error| failed(&error))?;
        self.clear(device)
    }

    /// Disconnects the loop device from its file, which takes effect when `device` and all other open descriptors of it
    /// are closed.
    pub(crate) fn clear(self, device: File) -> Result<()> {
        sys::clear_loop(&device).map_err(|error| {
            Error::io(&error, format_args!("{}: detaching the loop device", self.path().display()))
        })
    }

    /// Whether the loop device is being disconnected: it stays connected until its last user has closed it.
    pub(crate) fn is_leaving(self) -> bool {
        let text = std::fs::read_to_string(self.sysfs().join("loop/autoclear"));
        text.is_ok_and(|text| text.trim() == "1")
    }

    /// Adjusts the size of the loop device to the present size of its file.
    pub(crate) fn resize(self) -> Result<()> {
        let resized = File::open(self.path()).and_then(|device| sys::resize_loop(&device));
        resized.map_err(|error| {
            Error::io(&error, format_args!("{}: resizing the loop device", self.path().display()))
        })
    }

    /// Clears a write error of an earlier use of the loop device, which the kernel would return for the next flush.
    pub(crate) fn forget_errors(self) {
        // The result is about the file to which the device was connected before.
        let _ = File::open(self.path()).and_then(|device| device.sync_all());
    }

    /// Whether the loop device bypasses the page cache of its file.
    pub(crate) fn is_direct(self) -> bool {
        let text = std::fs::read_to_string(self.sysfs().join("loop/dio"));
        text.is_ok_and(|text| text.trim() == "1")
    }
}

fn no_loops(error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            error!(Unsupported, "{CONTROL}: {error}: no loop devices in this kernel")
                .next("modprobe loop")
        }
        Some(libc::ENOSPC | libc::ENOMEM | libc::EEXIST) => {
            error!(Limit, "{CONTROL}: {error}: no loop device is free")
                .next("losetup lists the loop devices in use")
        }
        _ => Error::io(error, CONTROL),
    }
}
