//! Encoding of a server's replies in the transmission phase.

use std::ops::Deref;

use super::bytes::truncated;
use super::constants::{
    ChunkKind, EXTENDED_REPLY_BYTES, EXTENDED_REPLY_MAGIC, Errno, MAX_STRING_BYTES, ReplyFlags,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};
use super::export::ReplyStyle;
use super::request::RequestHeader;

/// Most extents in one chunk with block status, sent or received: one MiB of them with 32-bit lengths.
pub const MAX_STATUS_EXTENTS: usize = 1 << 17;

/// Length in bytes of the longest head: an extended chunk header, an offset, and the length of a hole.
const MAX_HEAD_BYTES: usize = EXTENDED_REPLY_BYTES + 12;

/// Longest extent that is sent with a 32-bit length, a multiple of every block size. The protocol permits to shorten
/// a longer extent.
const MAX_COMPACT_EXTENT: u64 = 0xffff_0000;

/// The bytes of an NBD reply before its payload. The caller sends the head and the payload in one vectored write.
#[derive(Clone, Copy)]
pub struct Head {
    bytes: [u8; MAX_HEAD_BYTES],
    len: usize,
}

impl Head {
    const fn new() -> Self {
        Self { bytes: [0; MAX_HEAD_BYTES], len: 0 }
    }

    fn with(mut self, field: &[u8]) -> Self {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }
}

impl Deref for Head {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The encoder of the reply to one NBD request.
///
/// It encodes replies for every form of session. [`Reply::chunks`] encodes replies in several chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    style: ReplyStyle,
    cookie: u64,
    offset: u64,
}

impl Reply {
    /// Creates the encoder of the reply to `request`.
    pub const fn new(request: &RequestHeader, style: ReplyStyle) -> Self {
        Self { style, cookie: request.cookie, offset: request.offset }
    }

    /// Returns the encoder of a reply in several chunks; `None` if the session has no structured replies.
    pub const fn chunks(self) -> Option<Chunks> {
        match self.style {
            ReplyStyle::Simple => None,
            ReplyStyle::Structured => Some(Chunks { reply: self, extended: false }),
            ReplyStyle::Extended => Some(Chunks { reply: self, extended: true }),
        }
    }

    /// Encodes the reply to a request that has succeeded and returns no payload.
    pub fn done(self) -> Head {
        match self.chunks() {
            None => self.simple(0),
            Some(chunks) => chunks.head(ChunkKind::NONE, true, 0),
        }
    }

    /// Encodes the head of the reply to a read that has succeeded. Exactly the `len` requested bytes must follow the
    /// head.
    pub fn whole_read(self, len: u32) -> Head {
        match self.chunks() {
            None => self.simple(0),
            Some(chunks) => chunks.data(self.offset, len, true),
        }
    }

    /// Appends to `out` the reply to a request that has failed. The message is for people; a simple reply leaves it
    /// out.
    pub fn error(self, errno: Errno, message: &str, out: &mut Vec<u8>) {
        match self.chunks() {
            None => out.extend_from_slice(&self.simple(errno.to_wire())),
            Some(chunks) => chunks.put_error(errno, message, out),
        }
    }

    /// Encodes a simple reply (section "Simple reply message").
    fn simple(self, error: u32) -> Head {
        Head::new()
            .with(&SIMPLE_REPLY_MAGIC.to_be_bytes())
            .with(&error.to_be_bytes())
            .with(&self.cookie.to_be_bytes())
    }
}

/// A run of bytes of the export with one status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Number of bytes in the run, not zero.
    pub length: u64,
    /// Status of the bytes in the metadata context.
    pub status: u64,
}

/// The encoder of the reply to one NBD request in several chunks.
///
/// The caller sets `last` on exactly one chunk, which it sends last. Data and holes may come in any order, but must
/// not overlap, and must lie inside the request's range (section "Structured reply chunk message").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunks {
    reply: Reply,
    extended: bool,
}

impl Chunks {
    /// Encodes the head of a chunk with data. The `len` bytes from address `offset` on, at least one, must follow the
    /// head. `last` may be set only if the request cannot fail any more.
    pub fn data(self, offset: u64, len: u32, last: bool) -> Head {
        let payload = u64::from(len) + 8;
        self.head(ChunkKind::OFFSET_DATA, last, payload).with(&offset.to_be_bytes())
    }

    /// Encodes a chunk with a hole: `len` bytes from address `offset` on, at least one, that read as zeros. No bytes
    /// follow.
    pub fn hole(self, offset: u64, len: u32, last: bool) -> Head {
        self.head(ChunkKind::OFFSET_HOLE, last, 12)
            .with(&offset.to_be_bytes())
            .with(&len.to_be_bytes())
    }

    /// Appends to `out` a chunk with the extents of one metadata context, from the offset of the request on.
    ///
    /// Encodes at most [`MAX_STATUS_EXTENTS`] extents, and without extended headers none after the first extent of 4
    /// GiB or more. The client can send another request for the rest.
    ///
    /// # Panics
    ///
    /// If `extents` is empty, because the protocol has no such reply.
    pub fn block_status(self, context: u32, extents: &[Extent], last: bool, out: &mut Vec<u8>) {
        assert!(!extents.is_empty(), "a block status reply has at least one extent");
        let extents = &extents[..extents.len().min(MAX_STATUS_EXTENTS)];
        if self.extended {
            let payload = 8 + 16 * extents.len() as u64;
            out.extend_from_slice(&self.head(ChunkKind::BLOCK_STATUS_EXT, last, payload));
            out.extend_from_slice(&context.to_be_bytes());
            out.extend_from_slice(&(extents.len() as u32).to_be_bytes());
            for extent in extents {
                out.extend_from_slice(&extent.length.to_be_bytes());
                out.extend_from_slice(&extent.status.to_be_bytes());
            }
            return;
        }
        let long = extents.iter().position(|extent| extent.length > MAX_COMPACT_EXTENT);
        let extents = &extents[..long.map_or(extents.len(), |index| index + 1)];
        let payload = 4 + 8 * extents.len() as u64;
        out.extend_from_slice(&self.head(ChunkKind::BLOCK_STATUS, last, payload));
        out.extend_from_slice(&context.to_be_bytes());
        for extent in extents {
            let length = extent.length.min(MAX_COMPACT_EXTENT) as u32;
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&(extent.status as u32).to_be_bytes());
        }
    }

    /// Encodes the last chunk of the reply, after chunks without `last`.
    pub fn done(self) -> Head {
        self.reply.done()
    }

    fn put_error(self, errno: Errno, message: &str, out: &mut Vec<u8>) {
        let message = truncated(message, MAX_STRING_BYTES);
        let payload = 6 + message.len() as u64;
        out.extend_from_slice(&self.head(ChunkKind::ERROR, true, payload));
        out.extend_from_slice(&errno.to_wire().to_be_bytes());
        out.extend_from_slice(&(message.len() as u16).to_be_bytes());
        out.extend_from_slice(message.as_bytes());
    }

    /// Encodes a chunk header (sections "Structured reply chunk message" and "Extended reply chunk message").
    fn head(self, kind: ChunkKind, last: bool, payload: u64) -> Head {
        let magic = if self.extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        let flags = if last { ReplyFlags::DONE } else { ReplyFlags::NONE };
        let head = Head::new()
            .with(&magic.to_be_bytes())
            .with(&flags.0.to_be_bytes())
            .with(&kind.0.to_be_bytes())
            .with(&self.reply.cookie.to_be_bytes());
        if self.extended {
            head.with(&self.reply.offset.to_be_bytes()).with(&payload.to_be_bytes())
        } else {
            head.with(&(payload as u32).to_be_bytes())
        }
    }
}
