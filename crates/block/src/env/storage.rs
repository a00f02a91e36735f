//! Disks, as the world gives them.

use std::path::PathBuf;

use super::Ticket;
use crate::{Buf, ByteRange, Extent, Result};

/// How to open a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// Where it is.
    pub path: PathBuf,
    /// A file (`false`) or a block device (`true`).
    pub device: bool,
    /// Whether writes will be refused.
    pub read_only: bool,
    /// Makes a file of this size if there is none.
    pub create: Option<u64>,
    /// Past the page cache or through it.
    pub cache: CacheMode,
}

/// Whether the kernel's page cache takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// O_DIRECT; an open that cannot have it fails.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// An open disk. Locked against every other opener for as long as one of its requests is in flight.
pub trait Storage {
    /// The facts, as they were when it was opened.
    fn facts(&self) -> &StorageFacts;
    /// Allows operations up to `size`: the disk has grown since it was opened.
    fn has_grown(&self, size: u64) {
        let _ = size;
    }
    /// Returns the present size in bytes by the quickest way. That of a block device is the size at its opening.
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
    /// Begins one operation, aligned as the facts say.
    fn start(&self, io: DiskIo) -> Ticket;
    /// Returns the allocation of `range`: at most `max` extents from its start.
    ///
    /// # Errors
    /// `Unsupported` where the file system cannot say.
    fn extents(&self, range: ByteRange, max: usize) -> Result<Vec<Extent>>;
}

/// The present state of an open disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageNow {
    /// Bytes.
    pub size: u64,
    /// Where its file is.
    pub place: Place,
}

/// Where the file of an open disk is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// At the path by which it was opened.
    There,
    /// At another path; that path leads to another file, or to none.
    Elsewhere,
    /// At no path: the file was deleted, and ends with this process. Until then it can be copied from this path.
    Deleted(String),
}

/// Facts about an open disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageFacts {
    /// Bytes.
    pub size: u64,
    /// Unit of offsets and lengths, in bytes.
    pub block_size: u32,
    /// Whether O_DIRECT is in force.
    pub direct: bool,
    /// Whether ranges can be zeroed without sending zeros.
    pub zeroes: bool,
    /// Whether a discard gives space back.
    pub discard: bool,
    /// Whether it reads as zeros afterwards.
    pub discard_zeroes: bool,
    /// Whether this open created it, or would.
    pub created: bool,
    /// Which one it is, by whatever name it is opened: its path, absolute and without links.
    pub identity: String,
    /// In words: `O_DIRECT`, `through the page cache`.
    pub words: String,
}

/// An operation on an open disk.
#[derive(Debug)]
pub enum DiskIo {
    /// Fills the buffer from `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// Where to.
        into: Buf,
    },
    /// Stores the buffer at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// From where.
        data: Buf,
        /// Durable at completion.
        fua: bool,
    },
    /// Makes the range read as zeros; gives the space back if `unmap`.
    Zero {
        /// Which bytes.
        range: ByteRange,
        /// Whether the space may be given back.
        unmap: bool,
    },
    /// Gives the space back.
    Discard {
        /// Which bytes.
        range: ByteRange,
    },
    /// Makes durable what completed before.
    Flush,
}
