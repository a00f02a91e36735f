//! The block device of an attached export, whatever its driver.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, Result};

use crate::loops::{LOOK, Loop};
use crate::name::Name;
use crate::nbd::Nbd;

const BLOCK_DEVICES: &str = "/sys/block";

/// A block device of the kernel whose server is, or may be, a process of Cairn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// A loop device, whose file is in a FUSE mount.
    Loop(Loop),
    /// An NBD device of the kernel's NBD client.
    Nbd(Nbd),
}

impl Device {
    /// Returns the name of the block device in the kernel, such as `loop0`.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Loop(Loop(number)) => format!("loop{number}"),
            Self::Nbd(Nbd(number)) => format!("nbd{number}"),
        }
    }

    /// Returns the path of the block device, `/dev/loopN` or `/dev/nbdN`.
    pub(crate) fn path(self) -> PathBuf {
        Path::new("/dev").join(self.name())
    }

    /// Returns the directory of the block device in sysfs.
    pub(crate) fn sysfs(self) -> PathBuf {
        Path::new(BLOCK_DEVICES).join(self.name())
    }

    /// Returns the block device that `path` names; `None` if its last part is no name of a loop or NBD device.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let number = |driver| name.strip_prefix(driver)?.parse().ok();
        let nbd = || number("nbd").map(|number| Self::Nbd(Nbd(number)));
        number("loop").map(|number| Self::Loop(Loop(number))).or_else(nbd)
    }

    /// Returns every block device that is connected for the export attached under `name`.
    pub(crate) fn all_of(name: &Name) -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir(BLOCK_DEVICES) else { return Vec::new() };
        let all = entries.flatten().filter_map(|entry| Self::of(&entry.path()));
        all.filter(|one| one.is_of(name)).collect()
    }

    fn is_of(self, name: &Name) -> bool {
        match self {
            Self::Loop(device) => device.is_of(name),
            Self::Nbd(_) => Nbd::is_of(&self.sysfs(), name),
        }
    }

    /// Opens the block device exclusively. Returns `None` if the device or a partition of it is mounted, or another
    /// device is built on it.
    pub(crate) fn open_exclusive(self) -> Result<Option<File>> {
        let opened = File::options().read(true).custom_flags(libc::O_EXCL).open(self.path());
        match opened {
            Ok(device) => Ok(Some(device)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
            Err(error) => Err(Error::io(&error, self.path().display())),
        }
    }

    /// Disconnects the block device from the process that serves it: an NBD device at once, a loop device when its last
    /// user has closed it.
    pub(crate) fn let_go(self) -> Result<()> {
        match self {
            Self::Loop(device) => device.let_go(),
            Self::Nbd(device) => device.disconnect(),
        }
    }

    /// Whether the block device is being disconnected, which takes effect when its last user closes it.
    pub(crate) fn is_leaving(self) -> bool {
        match self {
            Self::Loop(device) => device.is_leaving(),
            Self::Nbd(_) => false,
        }
    }

    /// Disconnects the block device as [`Device::let_go`] does. `alone` is the device, which this process has opened
    /// exclusively.
    pub(crate) fn clear(self, alone: File) -> Result<()> {
        match self {
            Self::Loop(device) => device.clear(alone),
            // The device stays open until it is disconnected, so that no other process can mount it before.
            Self::Nbd(device) => device.disconnect().inspect(|()| drop(alone)),
        }
    }

    /// Adjusts the size of the block device to the present size of its export.
    pub(crate) fn resize(self) -> Result<()> {
        match self {
            Self::Loop(device) => device.resize(),
            Self::Nbd(_) => {
                let why = "the kernel's NBD client reads the size of an export only once";
                Err(Error::new(ErrorKind::Unsupported, why)
                    .next("detach the device, and attach the export again"))
            }
        }
    }

    /// Waits until the block device is no longer connected for `name`, for at most `limit`. Returns whether this is so.
    pub(crate) fn wait_disconnected(self, name: &Name, limit: Duration) -> bool {
        let begun = Instant::now();
        while self.is_of(name) {
            if begun.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_device_is_parsed_from_loop_or_nbd_name() {
        for name in ["loop0", "loop17", "nbd3"] {
            assert_eq!(Device::of(Path::new(name)).unwrap().name(), name);
        }
        for wrong in ["loop", "nbd0p1", "loop-control", "sda", "nbd4294967296"] {
            assert_eq!(Device::of(Path::new(wrong)), None, "{wrong}");
        }
    }
}
