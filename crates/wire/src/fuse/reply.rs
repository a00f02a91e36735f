//! Replies to requests of the kernel.

use super::constants::{
    CONGESTION, INIT_EXT, INIT_FLAGS, MAJOR, MAX_BACKGROUND, MAX_WRITE_BYTES, MINOR_MIN,
    MINOR_SPOKEN, Node, OPEN_FLAGS, PAGE_BYTES, VALID_S, VOLUME_NAME,
};
use super::request::Init;

/// Length in bytes of the longest FUSE reply without the payload of a read: a header (16 bytes) and an entry (128).
pub const REPLY_MAX_BYTES: usize = HEADER_BYTES + 128;

const HEADER_BYTES: usize = 16;

/// The attributes of a volume that the kernel requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Preferred alignment of requests to the volume, and the unit in which its space is freed, in bytes.
    pub block_bytes: u32,
    /// Whether the volume refuses writes.
    pub read_only: bool,
}

/// A FUSE reply in the form in which the server writes it to `/dev/fuse`. The payload of a read follows the reply.
#[derive(Clone, Copy)]
pub struct Reply {
    bytes: [u8; REPLY_MAX_BYTES],
    len: usize,
}

impl Reply {
    fn new(unique: u64) -> Self {
        let mut reply = Self { bytes: [0; REPLY_MAX_BYTES], len: 0 };
        reply.u32(0);
        reply.u32(0);
        reply.u64(unique);
        reply
    }

    /// Returns the bytes of the reply that the server writes to `/dev/fuse`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Creates a reply of success without data to the request with number `unique`.
    pub fn done(unique: u64) -> Self {
        Self::new(unique).sealed(0)
    }

    /// Creates a reply of failure with `errno` (above zero) to the request with number `unique`.
    ///
    /// # Panics
    /// If `errno` is no valid error number: the kernel would close the connection as broken.
    pub fn error(unique: u64, errno: i32) -> Self {
        assert!((1..512).contains(&errno), "errno {errno}");
        let mut reply = Self::new(unique);
        reply.bytes[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        reply.sealed(0)
    }

    /// Creates the reply to a read, without its payload of `len` bytes, which follows the reply.
    pub fn read(unique: u64, len: u32) -> Self {
        Self::new(unique).sealed(len)
    }

    /// Creates the reply to a successful write of `len` bytes.
    pub fn written(unique: u64, len: u32) -> Self {
        let mut reply = Self::new(unique);
        reply.u32(len);
        reply.u32(0);
        reply.sealed(0)
    }

    /// Creates the reply to INIT. It limits the length of reads and writes to `max_bytes`, rounded down to pages, and
    /// to [`MAX_WRITE_BYTES`]. Returns `None` if the kernel's protocol is too old.
    ///
    /// # Panics
    /// If `max_bytes` is less than a page.
    pub fn init(unique: u64, init: &Init, max_bytes: u32) -> Option<Self> {
        let pages = max_bytes.min(MAX_WRITE_BYTES) as usize / PAGE_BYTES;
        assert!(pages > 0, "the limit of {max_bytes} bytes for FUSE transfers is less than a page");
        if init.major != MAJOR || init.minor < MINOR_MIN {
            return None;
        }
        let mut reply = Self::new(unique);
        reply.u32(MAJOR);
        reply.u32(init.minor.min(MINOR_SPOKEN));
        reply.u32(init.max_readahead);
        reply.u32(init.flags & (INIT_FLAGS | INIT_EXT));
        reply.u16(MAX_BACKGROUND);
        reply.u16(CONGESTION);
        reply.u32((pages * PAGE_BYTES) as u32);
        // Granularity of times: one nanosecond.
        reply.u32(1);
        reply.u16(pages as u16);
        reply.zeros(2 + 4 + 7 * 4);
        Some(reply.sealed(0))
    }

    /// Creates a reply with the attributes of `node`.
    pub fn attributes(unique: u64, node: Node, facts: &Facts) -> Self {
        let mut reply = Self::new(unique);
        reply.u64(VALID_S);
        reply.zeros(8);
        reply.attr(node, facts);
        reply.sealed(0)
    }

    /// Creates the reply to a successful lookup of the volume's file.
    pub fn entry(unique: u64, facts: &Facts) -> Self {
        let mut reply = Self::new(unique);
        reply.u64(Node::Volume.number());
        // Generation: zero, because the number never belongs to another node.
        reply.u64(0);
        reply.u64(VALID_S);
        reply.u64(VALID_S);
        reply.zeros(8);
        reply.attr(Node::Volume, facts);
        reply.sealed(0)
    }

    /// Creates the reply to the opening of the volume's file, or of the root directory. The file bypasses the page
    /// cache. The reply has no handle.
    pub fn opened(unique: u64, directory: bool) -> Self {
        let mut reply = Self::new(unique);
        reply.u64(0);
        reply.u32(if directory { 0 } else { OPEN_FLAGS });
        reply.u32(0);
        reply.sealed(0)
    }

    /// Creates a reply with the facts about the mounted file system: it is as large as the volume, and has no free
    /// space.
    pub fn statfs(unique: u64, facts: &Facts) -> Self {
        let mut reply = Self::new(unique);
        reply.u64(facts.size_bytes / u64::from(facts.block_bytes));
        // Free blocks, blocks free for ordinary users, nodes, free nodes.
        reply.zeros(16);
        reply.u64(1);
        reply.u64(0);
        reply.u32(facts.block_bytes);
        reply.u32(255);
        reply.u32(facts.block_bytes);
        reply.zeros(7 * 4);
        reply.sealed(0)
    }

    /// Creates a reply with the names in the root directory, from number `offset` on. It has as many names as fit
    /// into `room` bytes.
    pub fn names(unique: u64, offset: u64, room: u32) -> Self {
        const DIRECTORY: u32 = 4;
        const FILE: u32 = 8;
        let all = [
            (Node::Root, DIRECTORY, "."),
            (Node::Root, DIRECTORY, ".."),
            (Node::Volume, FILE, VOLUME_NAME),
        ];
        let mut reply = Self::new(unique);
        let from = usize::try_from(offset).unwrap_or(all.len());
        for (number, (node, kind, name)) in all.iter().enumerate().skip(from) {
            let whole = (24 + name.len()).next_multiple_of(8);
            if reply.len - HEADER_BYTES + whole > room as usize {
                break;
            }
            reply.u64(node.number());
            reply.u64(number as u64 + 1);
            reply.u32(name.len() as u32);
            reply.u32(*kind);
            reply.put(name.as_bytes());
            reply.zeros(whole - 24 - name.len());
        }
        reply.sealed(0)
    }

    fn attr(&mut self, node: Node, facts: &Facts) {
        const DIRECTORY: u32 = 0o040_500;
        const FILE: u32 = 0o100_400;
        let (mode, size, links) = match node {
            Node::Root => (DIRECTORY, 0, 2),
            Node::Volume => (FILE | if facts.read_only { 0 } else { 0o200 }, facts.size_bytes, 1),
        };
        self.u64(node.number());
        self.u64(size);
        self.u64(size.div_ceil(512));
        // Three times, in seconds and in nanoseconds: none is kept.
        self.zeros(3 * 8 + 3 * 4);
        self.u32(mode);
        self.u32(links);
        // User, group, device: root's.
        self.zeros(3 * 4);
        self.u32(facts.block_bytes);
        self.u32(0);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    fn zeros(&mut self, count: usize) {
        self.len += count;
    }

    /// Writes the total length into the header: that of the reply, and the `following` bytes of payload.
    fn sealed(mut self, following: u32) -> Self {
        let len = self.len as u32 + following;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self
    }
}
