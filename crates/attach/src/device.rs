//! A device of a name, whichever driver of the kernel it has.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, Result};

use crate::loops::{LOOK, Loop};
use crate::name::Name;
use crate::nbd::Nbd;

const BLOCK_DEVICES: &str = "/sys/block";

/// A block device that Cairn serves, or could.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// On the file of a FUSE mount.
    Loop(Loop),
    /// Of the kernel's NBD client.
    Nbd(Nbd),
}

impl Device {
    /// What the kernel calls it.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Loop(Loop(number)) => format!("loop{number}"),
            Self::Nbd(Nbd(number)) => format!("nbd{number}"),
        }
    }

    /// `/dev/loopN`, `/dev/nbdN`
    pub(crate) fn path(self) -> PathBuf {
        Path::new("/dev").join(self.name())
    }

    /// What the kernel shows of it.
    pub(crate) fn sysfs(self) -> PathBuf {
        Path::new(BLOCK_DEVICES).join(self.name())
    }

    /// The device of that path, if it is one.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let number = |driver| name.strip_prefix(driver)?.parse().ok();
        let nbd = || number("nbd").map(|number| Self::Nbd(Nbd(number)));
        number("loop").map(|number| Self::Loop(Loop(number))).or_else(nbd)
    }

    /// Every device of that name.
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

    /// Takes it for this process alone; `None` if somebody has mounted it, or part of it, or built
    /// another device on it.
    pub(crate) fn alone(self) -> Result<Option<File>> {
        let opened = File::options().read(true).custom_flags(libc::O_EXCL).open(self.path());
        match opened {
            Ok(device) => Ok(Some(device)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
            Err(error) => Err(Error::io(&error, self.path().display())),
        }
    }

    /// Takes it away from whoever serves it: a loop device when its last user has closed it, the other
    /// at once.
    pub(crate) fn let_go(self) -> Result<()> {
        match self {
            Self::Loop(device) => device.let_go(),
            Self::Nbd(device) => device.disconnect(),
        }
    }

    /// Whether it was taken away already, and goes with its last user.
    pub(crate) fn is_leaving(self) -> bool {
        match self {
            Self::Loop(device) => device.is_leaving(),
            Self::Nbd(_) => false,
        }
    }

    /// [`Device::let_go`] for one that this process has open, alone.
    pub(crate) fn clear(self, alone: File) -> Result<()> {
        match self {
            Self::Loop(device) => device.clear(alone),
            // It is open until then, so that nobody mounts it in between.
            Self::Nbd(device) => device.disconnect().inspect(|()| drop(alone)),
        }
    }

    /// Lets it be as large as what is behind it is now.
    pub(crate) fn resize(self) -> Result<()> {
        match self {
            Self::Loop(device) => device.resize(),
            Self::Nbd(_) => {
                let why = "the kernel's NBD client asks for the size once";
                Err(Error::new(ErrorKind::Unsupported, why).next("detach and attach"))
            }
        }
    }

    /// Waits until it is that name's no more; whether it is so.
    pub(crate) fn is_off(self, name: &Name, limit: Duration) -> bool {
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
    fn a_name_and_its_device() {
        for name in ["loop0", "loop17", "nbd3"] {
            assert_eq!(Device::of(Path::new(name)).unwrap().name(), name);
        }
        for wrong in ["loop", "nbd0p1", "loop-control", "sda", "nbd4294967296"] {
            assert_eq!(Device::of(Path::new(wrong)), None, "{wrong}");
        }
    }
}
