//! The opening of a disk: its flags, its lock, and the facts about it.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use block::env::{CacheMode, Open, StorageFacts};
use block::seeded::{self, Bug};
use block::{BUF_ALIGN, Error, ErrorKind, Result};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Stat, fallocate, fstat, fstatfs, ftruncate, linkat,
};

use crate::sys;

const TMPFS: i64 = 0x0102_1994;
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;
const BTRFS: i64 = 0x9123_683e;
const F2FS: i64 = 0xf2f5_2010;
const FUSE: i64 = 0x6573_5546;

/// A disk that was opened and locked, with the facts about it.
pub(crate) struct Opened {
    pub(crate) file: OwnedFd,
    pub(crate) seeker: Option<OwnedFd>,
    pub(crate) facts: StorageFacts,
    pub(crate) inline: bool,
    pub(crate) foreign: bool,
    pub(crate) punch: bool,
    pub(crate) zero_range: bool,
}

/// Opens and locks the disk that `open` describes, and finds the facts about it.
pub(crate) fn open(open: &Open) -> Result<Opened> {
    if open.device { device(open) } else { file(open) }
}

/// Returns the error for a disk that cannot be used as `open` demands.
fn refused(open: &Open, kind: ErrorKind, words: impl Display) -> Error {
    Error::new(kind, format!("{}: {words}", open.path.display()))
}

trait Tried<T> {
    fn tried(self, open: &Open, what: &str) -> Result<T>;
}

impl<T, E: Into<io::Error>> Tried<T> for Result<T, E> {
    fn tried(self, open: &Open, what: &str) -> Result<T> {
        let path = open.path.display();
        self.map_err(|error| {
            let error = error.into();
            let failed = Error::io(&error, format_args!("{path}: {what}"));
            match error.raw_os_error() {
                Some(libc::EROFS) => {
                    failed.next("mount the file system read-write, or set read_only = true")
                }
                _ => failed,
            }
        })
    }
}

/// Sets the size of a new file to `size` bytes.
fn set_len(open: &Open, file: &OwnedFd, size: u64) -> Result<()> {
    ftruncate(file, size).map_err(|error| Error::size(&error.into(), open.path.display(), size))
}

fn access(open: &Open) -> i32 {
    if open.read_only { libc::O_RDONLY } else { libc::O_RDWR }
}

fn file(open: &Open) -> Result<Opened> {
    // Without O_DIRECT at first: a tmpfs does not need it, and other file systems may refuse it.
    let (file, created) = open_or_create(open)?;
    let stat = fstat(&file).tried(open, "stat")?;
    must_be_regular(open, &stat)?;
    lock(open, &file, &stat)?;
    // Inspected under the lock: another process may have changed the size before.
    inspect(open, file, created)
}

/// Returns the facts about the disk that an opening would find. Takes no lock, and leaves no file behind.
pub(crate) fn probe(open: &Open) -> Result<StorageFacts> {
    if open.device {
        let file = sys::open(&open.path, libc::O_RDONLY, 0).tried(open, "open")?;
        return Ok(inspect_device(open, file)?.facts);
    }
    let opened = match (sys::open(&open.path, access(open), 0), open.create) {
        (Err(error), Some(size)) if error.raw_os_error() == Some(libc::ENOENT) => {
            let file = unnamed(open).tried(open, "checking the directory")?;
            set_len(open, &file, size)?;
            inspect(open, file, true)?
        }
        (other, _) => {
            let file = other.tried(open, "open")?;
            must_be_regular(open, &fstat(&file).tried(open, "stat")?)?;
            inspect(open, file, false)?
        }
    };
    Ok(opened.facts)
}

/// Fails if the file of a disk is another object of the file system, such as a block device.
fn must_be_regular(open: &Open, stat: &Stat) -> Result<()> {
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => Ok(()),
        libc::S_IFBLK => {
            let next = format!("use path = {:?} instead of file", open.path);
            Err(refused(open, ErrorKind::Invalid, "is a block device").next(next))
        }
        _ => {
            let next = "use file for a file, or path for a block device";
            Err(refused(open, ErrorKind::Invalid, "is not a regular file").next(next))
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

fn inspect(open: &Open, file: OwnedFd, created: bool) -> Result<Opened> {
    let fd = file.as_raw_fd();
    let size = fstat(&file).tried(open, "stat")?.st_size as u64;
    let kind = fstatfs(&file).tried(open, "statfs")?.f_type;
    let inline = kind == TMPFS;
    let may_direct = open.cache == CacheMode::Direct && !inline;
    if may_direct {
        set_direct(open, fd, kind)?;
    }
    let direct_block = match sys::direct_align(&file) {
        // Slices begin at multiples of the block size, so memory is aligned to the same number.
        Some((offset, memory)) => offset.max(memory),
        None => BUF_ALIGN as u32,
    };
    // With O_DIRECT a write cannot end inside a block.
    let is_odd = open.odd_size && size > 0 && !size.is_multiple_of(u64::from(direct_block));
    let direct = may_direct && !is_odd;
    if may_direct && !direct {
        sys::set_flags(fd, libc::O_DIRECT, false).tried(open, "O_DIRECT")?;
    }
    let block_size = if direct { direct_block } else { 512 };
    if size == 0 || !open.odd_size && !size.is_multiple_of(u64::from(block_size)) {
        let whole = size.next_multiple_of(block_size.into()).max(block_size.into());
        let words = match open.odd_size {
            true => "has 0 bytes; a disk has at least one".to_owned(),
            false => format!("has {size} bytes; a disk has a multiple of {block_size} above zero"),
        };
        let next = format!("truncate -s {whole} (or larger), or name another file");
        return Err(refused(open, ErrorKind::Invalid, words).next(next));
    }
    // A hole past the end of the file: this tests the call without writing.
    let punch_mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let beyond = size.next_multiple_of(BUF_ALIGN as u64);
    let punch = !open.read_only && fallocate(&file, punch_mode, beyond, BUF_ALIGN as u64).is_ok();
    let zero_range = !open.read_only && matches!(kind, EXT4 | XFS | BTRFS | F2FS);
    // A file system in user space answers a query for holes from another process, and would block the core
    // meanwhile.
    let foreign = kind == FUSE;
    // Opened through the descriptor: the path may name another file by now.
    let itself = format!("/proc/self/fd/{fd}");
    let seeker = match foreign {
        true => None,
        false => {
            let again = sys::open(itself.as_ref(), libc::O_RDONLY, 0);
            Some(again.tried(open, "opening the file again for block status")?)
        }
    };
    let words = match (inline, direct) {
        (true, _) => "in memory (tmpfs)",
        (false, true) => "O_DIRECT",
        (false, false) if is_odd && may_direct => {
            "through the page cache, because the file ends inside a block"
        }
        (false, false) => "through the page cache",
    };
    let facts = StorageFacts {
        size,
        block_size,
        direct,
        zeroes: punch || zero_range,
        discard: punch,
        discard_zeroes: punch,
        created,
        identity: identity(&open.path),
        words: words.to_owned(),
    };
    Ok(Opened { file, seeker, facts, inline, foreign, punch, zero_range })
}

/// Returns the absolute path of a file without links. If the file does not exist, returns the path that it would get.
fn identity(path: &Path) -> String {
    let made = || {
        let directory = std::fs::canonicalize(directory_of(path)).ok()?;
        Some(directory.join(path.file_name()?))
    };
    let found = std::fs::canonicalize(path).ok().or_else(made);
    found.unwrap_or_else(|| path.to_owned()).display().to_string()
}

fn open_or_create(open: &Open) -> Result<(OwnedFd, bool)> {
    let mut created = false;
    // Three rounds, in case another process creates or removes the file between two calls.
    for _ in 0..3 {
        match sys::open(&open.path, access(open), 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) && open.create.is_some() => {}
            other => return other.map(|file| (file, created)).tried(open, "open"),
        }
        let Some(size) = open.create.filter(|_| !open.read_only) else { break };
        created = create(open, size)?;
    }
    Err(refused(open, ErrorKind::NotFound, "does not exist and cannot be created"))
}

/// Creates the file with a size of `size` bytes. Returns `false` if the path exists.
///
/// The file gets its name after its size. So a kill between the two leaves no empty file, which the next start would
/// refuse. On a file system without unnamed files, the file gets its name first.
fn create(open: &Open, size: u64) -> Result<bool> {
    let named = || sys::open(&open.path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600);
    let created = match unnamed(open) {
        Ok(file) => set_len(open, &file, size).and_then(|()| {
            let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
            let linked = linkat(CWD, itself, CWD, &open.path, AtFlags::SYMLINK_FOLLOW);
            linked.map_err(io::Error::from).tried(open, "create")
        }),
        Err(_) => named().tried(open, "create").and_then(|file| set_len(open, &file, size)),
    };
    match created {
        Err(error) if error.os_code() == Some(libc::EEXIST) => Ok(false),
        other => other.map(|()| true),
    }
}

/// Creates a file without a name in the directory of the path.
fn unnamed(open: &Open) -> io::Result<OwnedFd> {
    sys::open(directory_of(&open.path), libc::O_RDWR | libc::O_TMPFILE, 0o600)
}

fn set_direct(open: &Open, fd: RawFd, kind: i64) -> Result<()> {
    match sys::set_flags(fd, libc::O_DIRECT, true) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let words = format!("{} has no O_DIRECT; set cache = \"buffered\"", kind_words(kind));
            Err(refused(open, ErrorKind::Unsupported, words))
        }
        other => other.tried(open, "O_DIRECT"),
    }
}

fn kind_words(kind: i64) -> String {
    match kind {
        EXT4 => "ext4".to_owned(),
        XFS => "xfs".to_owned(),
        BTRFS => "btrfs".to_owned(),
        F2FS => "f2fs".to_owned(),
        0x6969 => "nfs".to_owned(),
        FUSE => "a fuse file system".to_owned(),
        0x794c_7630 => "overlayfs".to_owned(),
        _ => format!("a file system of type {kind:#x}"),
    }
}

fn device(open: &Open) -> Result<Opened> {
    let direct = open.cache == CacheMode::Direct;
    let flags = access(open) | libc::O_EXCL | if direct { libc::O_DIRECT } else { 0 };
    let file = match sys::open(&open.path, flags, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let holder = device_holder(&open.path);
            let (words, next) = match holder {
                Some(holder) => (
                    format!("is in use: {holder} has the block device open"),
                    "stop that process, or name another disk",
                ),
                None => (
                    "is in use: the block device is mounted, or part of another device".to_owned(),
                    "unmount the block device, or name another disk",
                ),
            };
            return Err(refused(open, ErrorKind::InUse, words).next(next));
        }
        other => other.tried(open, "open")?,
    };
    inspect_device(open, file)
}

fn inspect_device(open: &Open, file: OwnedFd) -> Result<Opened> {
    let direct = open.cache == CacheMode::Direct;
    let invalid = |words| Err(refused(open, ErrorKind::Invalid, words));
    let stat = fstat(&file).tried(open, "stat")?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFBLK {
        return invalid("is not a block device; name a regular file with file = PATH");
    }
    let sizes = sys::device_size(file.as_raw_fd());
    let (size, logical) = sizes.tried(open, "reading the size")?;
    if size == 0 {
        return invalid("has 0 bytes: the block device has no medium or is not set up");
    }
    let block_size = match sys::direct_align(&file) {
        Some((offset, memory)) if direct => offset.max(memory),
        _ => logical,
    };
    // Punching a hole in a device zeroes the range and gives its space back, in the device itself.
    let punch = !open.read_only && queue_limit(stat.st_rdev, "write_zeroes_max_bytes") > 0;
    let facts = StorageFacts {
        size,
        block_size,
        direct,
        zeroes: punch,
        discard: punch,
        discard_zeroes: punch,
        created: false,
        identity: identity(&open.path),
        words: if direct { "O_DIRECT" } else { "through the page cache" }.to_owned(),
    };
    // The kernel zeroes a range of any device; if it must, it writes zeros.
    let zero_range = !open.read_only;
    Ok(Opened { file, seeker: None, facts, inline: false, foreign: false, punch, zero_range })
}

fn queue_limit(device: u64, name: &str) -> u64 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    // The queue of a partition is one level up.
    ["queue", "../queue"]
        .iter()
        .find_map(|queue| {
            std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/{name}")).ok()
        })
        .and_then(|words| words.trim().parse().ok())
        .unwrap_or(0)
}

/// Time to wait for a lock that no living process holds. The kernel keeps the lock of a killed process until the I/O of
/// its ring has ended, and a flush that has begun may take many seconds on a slow disk. The wait blocks the core, so the
/// wait for one disk is shorter than the watchdog's limit of 15 s.
const LOCK_WAIT: Duration = Duration::from_secs(12);

/// Pause between two tries for such a lock in the first second, and after it.
const LOCK_RESTS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

fn lock(open: &Open, file: &OwnedFd, stat: &Stat) -> Result<()> {
    if seeded::on(Bug::ServedUnlocked) {
        return Ok(());
    }
    let mut waited = Duration::ZERO;
    while waited < LOCK_WAIT {
        match sys::lock(file.as_raw_fd(), !open.read_only) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {}
            other => return other.tried(open, "lock"),
        }
        if let Some(holder) = file_holder(stat) {
            let error = refused(open, ErrorKind::InUse, format_args!("is in use by {holder}"));
            return Err(error.next("stop that process, or name another disk"));
        }
        let rest = LOCK_RESTS[usize::from(waited >= Duration::from_secs(1))];
        std::thread::sleep(rest);
        waited += rest;
    }
    let words = "is in use by unfinished I/O of an ended process, or by another machine; try again";
    Err(refused(open, ErrorKind::InUse, words))
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn process_words(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim())
}

/// Returns the process that holds a lock on the file with this inode.
fn file_holder(stat: &Stat) -> Option<String> {
    let (major, minor) = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
    let place = format!(" {major:02x}:{minor:02x}:{} ", stat.st_ino);
    let holds = |entry: std::fs::DirEntry| {
        std::fs::read_to_string(entry.path()).is_ok_and(|words| {
            words.lines().any(|line| line.starts_with("lock:") && line.contains(&place))
        })
    };
    processes()
        .find(|pid| {
            let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
            infos.into_iter().flatten().flatten().any(holds)
        })
        .map(process_words)
}

/// Returns a process that has the device open.
fn device_holder(path: &Path) -> Option<String> {
    let device = std::fs::metadata(path).ok()?.rdev();
    let is_it = |entry: std::fs::DirEntry| {
        std::fs::metadata(entry.path()).is_ok_and(|found| found.rdev() == device)
    };
    processes()
        .find(|pid| {
            let fds = std::fs::read_dir(format!("/proc/{pid}/fd"));
            fds.into_iter().flatten().flatten().any(is_it)
        })
        .map(process_words)
}
