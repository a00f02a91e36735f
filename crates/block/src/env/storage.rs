//! Disks of the environment: how a disk is opened, the facts about an open disk, and its operations.

use std::path::PathBuf;

use super::Ticket;
use crate::{Buf, ByteRange, Extent, Result};

/// Parameters for opening a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// Path of the disk's file or block device.
    pub path: PathBuf,
    /// Whether the disk is a block device (`true`) or a file (`false`).
    pub device: bool,
    /// Whether writes to the disk are refused.
    pub read_only: bool,
    /// Size in bytes of the file that is created if the path leads to no file; `None` if no file may be created.
    pub create: Option<u64>,
    /// Whether a file may end inside a block. Such a file is used through the page cache.
    pub odd_size: bool,
    /// Use of the kernel's page cache for the disk.
    pub cache: CacheMode,
}

/// Use of the kernel's page cache for a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// O_DIRECT: requests do not use the page cache. The open fails if the file system does not support O_DIRECT.
    Direct,
    /// Requests go through the page cache.
    Buffered,
}

/// An open disk. It is locked against all other openers until it is closed and its last operation has completed.
pub trait Storage {
    /// Returns the facts about the disk as they were when it was opened.
    fn facts(&self) -> &StorageFacts;
    /// Allows operations up to byte `size` of a disk that has grown since it was opened.
    fn has_grown(&self, size: u64) {
        let _ = size;
    }
    /// Returns the present size of the disk in bytes by the quickest method. For a block device this is the size at
    /// the time of opening.
    fn size_now(&self) -> u64;
    /// Returns the present size of the disk's file, and whether the file still has its path, in two system calls.
    ///
    /// # Errors
    /// Errors of the system.
    fn look(&self) -> Result<StorageNow>;
    /// Switches the disk between O_DIRECT and the kernel's page cache, as the facts `facts` of another opening of the
    /// same disk demand. No operation may be in flight.
    ///
    /// # Errors
    /// Errors of the system.
    fn set_cache(&self, facts: &StorageFacts) -> Result<()> {
        let _ = facts;
        Ok(())
    }
    /// Starts `io` on the disk. Its offset, length and buffer must be aligned as the disk's facts demand. If the file of
    /// the disk ends inside a block, the other bytes of that block read as zeros, and writes to them are dropped.
    fn start(&self, io: DiskIo) -> Ticket;
    /// Returns the allocation state of `range` on the disk: at most `max` extents, from the start of the range.
    ///
    /// # Errors
    /// `Unsupported` if the file system cannot report the allocation.
    fn extents(&self, range: ByteRange, max: usize) -> Result<Vec<Extent>>;
}

/// Present size of an open disk, and whether its file still has its path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageNow {
    /// Present size of the disk in bytes.
    pub size: u64,
    /// Whether the file of the disk still has the path by which it was opened.
    pub place: PathState,
}

/// Whether the file of an open disk still has the path by which it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathState {
    /// The file still has the path by which it was opened.
    There,
    /// The file is at another path; the original path leads to another file, or to none.
    Elsewhere,
    /// The file was deleted, and its space is freed when this process ends. Until then the file can be copied from
    /// this path.
    Deleted(String),
}

/// Facts about an open disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageFacts {
    /// Size of the disk in bytes. It is a multiple of the block size unless the disk was opened with
    /// [`Open::odd_size`].
    pub size: u64,
    /// Unit of offsets and lengths of operations on the disk, in bytes.
    pub block_size: u32,
    /// Whether the disk is open with O_DIRECT.
    pub direct: bool,
    /// Whether the disk can zero a range without receiving zeros as data.
    pub zeroes: bool,
    /// Whether a discard frees space of the disk.
    pub discard: bool,
    /// Whether a discarded range of the disk reads as zeros.
    pub discard_zeroes: bool,
    /// Whether this opening of the disk created its file; in a probe, whether an opening would create the file.
    pub created: bool,
    /// Identity of the disk, the same for all of its names: its absolute path without links.
    pub identity: String,
    /// Description of how the disk is accessed, for the operator: `O_DIRECT`, `through the page cache`.
    pub words: String,
}

/// An operation on an open disk.
#[derive(Debug)]
pub enum DiskIo {
    /// Reads bytes of the disk from `offset` into a buffer, until the buffer is full.
    Read {
        /// First byte of the disk to read.
        offset: u64,
        /// Buffer for the bytes that are read.
        into: Buf,
    },
    /// Writes the bytes of a buffer to the disk at `offset`.
    Write {
        /// First byte of the disk to write.
        offset: u64,
        /// Buffer with the bytes to write.
        data: Buf,
        /// Whether the write must be durable at completion.
        fua: bool,
    },
    /// Makes `range` of the disk read as zeros, and may free the space of the range.
    Zero {
        /// Bytes of the disk to zero.
        range: ByteRange,
        /// Whether the space of the range may be freed.
        unmap: bool,
    },
    /// Frees the space of `range` on the disk.
    Discard {
        /// Bytes of the disk to discard.
        range: ByteRange,
    },
    /// Makes all operations durable that completed on the disk before.
    Flush,
}
