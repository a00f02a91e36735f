//! The users of a block device: mounts, swap, block devices built on it, and processes that have the device open.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::device::Device;

/// Maximum number of processes that a message names; further ones are only counted.
const NAMED_MAX: usize = 5;

/// The users of a block device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Users {
    /// Mounts of the block device or of its partitions: path of the device or partition, and mount point.
    pub mounts: Vec<(PathBuf, PathBuf)>,
    /// Paths of the block device or of its partitions that are used as swap.
    pub swaps: Vec<PathBuf>,
    /// Names of the block devices that are built on this device or its partitions.
    pub holders: Vec<String>,
    /// Processes that have the block device or one of its partitions open: process id and name.
    pub processes: Vec<(u32, String)>,
}

impl Users {
    /// Whether no user of the block device was found.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether one of the users keeps the block device until an operator ends it: a mount, swap or a device on it.
    pub(crate) fn stay(&self) -> bool {
        !(self.mounts.is_empty() && self.swaps.is_empty() && self.holders.is_empty())
    }

    /// Returns the users of the block device `device`. `link` is the path of a link to the device, which mounts may
    /// use.
    pub(crate) fn of(device: Device, link: &Path) -> Self {
        let parts = parts(device);
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            mounts: mounts(&read("/proc/self/mountinfo"), &parts, link),
            swaps: swaps(&read("/proc/swaps"), &parts),
            holders: holders(&parts),
            processes: processes(&parts),
        }
    }
}

/// A block device, or one of its partitions.
struct Part {
    path: PathBuf,
    sysfs: PathBuf,
    /// Device number, as in `7:3`.
    number: String,
}

/// Returns the block device and its partitions.
fn parts(device: Device) -> Vec<Part> {
    let whole = device.sysfs();
    let below = std::fs::read_dir(&whole).into_iter().flatten().flatten().map(|e| e.path());
    let partitions = below.filter(|path| path.join("partition").exists());
    let part = |sysfs: PathBuf| Part {
        path: Path::new("/dev").join(sysfs.file_name().unwrap_or_default()),
        number: std::fs::read_to_string(sysfs.join("dev")).unwrap_or_default().trim().to_owned(),
        sysfs,
    };
    std::iter::once(whole.clone()).chain(partitions).map(part).collect()
}

/// Returns the mounts of `parts` in the text of `/proc/self/mountinfo`, with lines such as `36 35 7:3 / /srv rw,noatime
/// shared:1 - ext4 /dev/loop3 rw`. A file system on several devices has a device number of its own, and its line has
/// only the name of one device.
fn mounts(mountinfo: &str, parts: &[Part], link: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut all = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut fields = left.split(' ').skip(2);
        let (number, at) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        let source = unescaped(right.split(' ').nth(1).unwrap_or_default());
        let is = |part: &&Part| {
            part.number == number || part.path == Path::new(&source) || link == Path::new(&source)
        };
        if let Some(part) = parts.iter().find(is) {
            all.push((part.path.clone(), PathBuf::from(unescaped(at))));
        }
    }
    all
}

/// Replaces octal escapes such as `\040`, as which the kernel writes blanks in its lists.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn swaps(swaps: &str, parts: &[Part]) -> Vec<PathBuf> {
    let names = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let is_part = |path: &PathBuf| parts.iter().any(|part| part.path == *path);
    names.map(|name| PathBuf::from(unescaped(name))).filter(is_part).collect()
}

fn holders(parts: &[Part]) -> Vec<String> {
    let entries =
        parts.iter().filter_map(|part| std::fs::read_dir(part.sysfs.join("holders")).ok());
    let names = entries.flatten().flatten().map(|entry| entry.file_name());
    let mut all: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    all.sort();
    all.dedup();
    all
}

/// Returns the processes, except this one, that have the block device or a partition of it open.
fn processes(parts: &[Part]) -> Vec<(u32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = numbers.filter(|pid: &u32| *pid != std::process::id());
    let has_open = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        targets.any(|target| parts.iter().any(|part| part.path == target))
    };
    let mut all: Vec<_> = others.filter(has_open).map(|pid| (pid, command(pid))).collect();
    all.sort();
    all
}

fn command(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    text.trim().to_owned()
}

impl fmt::Display for Users {
    /// Writes the part of a message that follows the name of the block device: `is mounted on /srv; is open in process
    /// 71 (dd). Next: ...`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        let mut next = Vec::new();
        for (_, at) in &self.mounts {
            words.push(format!("is mounted on {}", at.display()));
            next.push(format!("umount {}", at.display()));
        }
        for swap in &self.swaps {
            words.push("is used as swap".to_owned());
            next.push(format!("swapoff {}", swap.display()));
        }
        if !self.holders.is_empty() {
            words.push(format!("is part of {}", self.holders.join(", ")));
            next.push(format!("stop {}", self.holders.join(", ")));
        }
        for (pid, name) in self.processes.iter().take(NAMED_MAX) {
            words.push(format!("is open in process {pid} ({name})"));
        }
        if self.processes.len() > NAMED_MAX {
            words.push(format!("and in {} more processes", self.processes.len() - NAMED_MAX));
        }
        if !self.processes.is_empty() && next.is_empty() {
            next.push("end the processes that have the device open".to_owned());
        }
        if words.is_empty() {
            words.push("is in use, perhaps mounted in another mount namespace".to_owned());
            next.push("list the mount namespaces with lsns -t mnt".to_owned());
        }
        write!(f, "{}. Next: {}", words.join("; "), next.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, number: &str) -> Part {
        Part {
            path: Path::new("/dev").join(name),
            sysfs: Path::new("/sys/block").join(name),
            number: number.to_owned(),
        }
    }

    #[test]
    fn mounts_finds_device_by_number_and_name() {
        let text = "36 35 7:3 / /srv rw,noatime shared:1 - ext4 /dev/loop3 rw\n\
                    37 35 259:1 / /a\\040b rw - xfs /dev/loop3p1 rw\n\
                    38 35 0:44 / /pool rw - btrfs /dev/cairn/home rw\n\
                    39 35 7:4 / /other rw - ext4 /dev/loop4 rw\n\
                    a line that is none\n";
        let parts = [part("loop3", "7:3"), part("loop3p1", "259:1")];
        let found = mounts(text, &parts, Path::new("/dev/cairn/home"));
        let at: Vec<_> = found.iter().map(|(_, at)| at.display().to_string()).collect();
        assert_eq!(at, ["/srv", "/a b", "/pool"]);
        assert_eq!(found[1].0, Path::new("/dev/loop3p1"));
    }

    #[test]
    fn users_message_names_users_and_next_step() {
        let mut users = Users::default();
        assert!(users.is_empty());
        assert_eq!(
            users.to_string(),
            "is in use, perhaps mounted in another mount namespace. Next: list the mount \
             namespaces with lsns -t mnt"
        );
        users.processes = vec![(71, "dd".into())];
        assert_eq!(
            users.to_string(),
            "is open in process 71 (dd). Next: end the processes that have the device open"
        );
        users.mounts = vec![("/dev/loop3".into(), "/srv".into())];
        assert_eq!(
            users.to_string(),
            "is mounted on /srv; is open in process 71 (dd). Next: umount /srv"
        );
    }

    #[test]
    fn swaps_finds_device_used_as_swap() {
        let text = "Filename Type Size Used Priority\n/dev/loop3 partition 1 0 -2\n";
        assert_eq!(swaps(text, &[part("loop3", "7:3")]), [Path::new("/dev/loop3")]);
        assert!(swaps(text, &[part("loop4", "7:4")]).is_empty());
    }
}
