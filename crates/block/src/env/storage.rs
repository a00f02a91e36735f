//! Disks, as the environment provides them.

use std::path::PathBuf;

use super::Ticket;
use crate::{Buf, ByteRange, Extent, Result};

/// Parameters for opening a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// Path of the disk.
    pub path: PathBuf,
    /// Whether it is a block device (`true`) or a file (`false`).
    pub device: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Size of the file to create if there is none.
    pub create: Option<u64>,
    /// Use of the kernel's page cache.
    pub cache: CacheMode,
}

/// Use of the kernel's page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// O_DIRECT. The open fails if the kernel does not support it.
    Direct,
    /// I/O through the page cache.
    Buffered,
}

/// An open disk. It is locked against all other openers as long as one of its requests is in flight.
pub trait Storage {
    /// Returns the facts as they were when it was opened.
    fn facts(&self) -> &StorageFacts;
    /// Allows operations up to `size`: the disk has grown since it was opened.
    fn has_grown(&self, size: u64) {
        let _ = size;
    }
    /// Returns the present size in bytes by the quickest way. For a block device this is the size at its opening.
    fn size_now(&self) -> u64;
    /// Returns the present size and place of the file, in two system calls.
    ///
    /// # Errors
    /// The system's.
    fn look(&self) -> Result<StorageNow>;
    /// Switches between O_DIRECT and the kernel's page cache, as `facts` of the same disk demand. No operation may be
    /// in flight.
    ///
    /// # Errors
    /// The system's.
    fn set_cache(&self, facts: &StorageFacts) -> Result<()> {
        let _ = facts;
        Ok(())
    }
    /// Starts one operation, aligned as the facts demand.
    fn start(&self, io: DiskIo) -> Ticket;
    /// Returns the allocation of `range`: at most `max` extents from its start.
    ///
    /// # Errors
    /// `Unsupported` if the file system cannot report it.
    fn extents(&self, range: ByteRange, max: usize) -> Result<Vec<Extent>>;
}

/// The present state of an open disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageNow {
    /// Size in bytes.
    pub size: u64,
    /// Position of its file.
    pub place: Place,
}

/// Position of the file of an open disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// The path by which it was opened.
    There,
    /// Another path; the original path leads to another file, or to none.
    Elsewhere,
    /// No path: the file was deleted, and ends with this process. Until then it can be copied from this path.
    Deleted(String),
}

/// Facts about an open disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageFacts {
    /// Size in bytes.
    pub size: u64,
    /// Unit of offsets and lengths, in bytes.
    pub block_size: u32,
    /// Whether O_DIRECT is in force.
    pub direct: bool,
    /// Whether ranges can be zeroed without sending zeros.
    pub zeroes: bool,
    /// Whether a discard gives space back.
    pub discard: bool,
    /// Whether a discarded range reads as zeros.
    pub discard_zeroes: bool,
    /// Whether this open created the disk, or would create it.
    pub created: bool,
    /// Identity of the disk under all of its names: its path, absolute and without links.
    pub identity: String,
    /// Description: `O_DIRECT`, `through the page cache`.
    pub words: String,
}

/// An operation on an open disk.
#[derive(Debug)]
pub enum DiskIo {
    /// Fills the buffer from `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// Destination.
        into: Buf,
    },
    /// Stores the buffer at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// Source.
        data: Buf,
        /// Whether the write must be durable at completion.
        fua: bool,
    },
    /// Makes the range read as zeros; gives the space back if `unmap`.
    Zero {
        /// Bytes to zero.
        range: ByteRange,
        /// Whether the space may be given back.
        unmap: bool,
    },
    /// Gives the space back.
    Discard {
        /// Bytes to discard.
        range: ByteRange,
    },
    /// Makes all operations durable that have completed before.
    Flush,
}
