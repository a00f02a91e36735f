//! Parsing of a server's replies in the transmission phase.

use block::EXTENTS_MAX;

use super::bytes::{Reader, text};
use super::constants::{
    ChunkKind, EXTENDED_REPLY_BYTES, EXTENDED_REPLY_MAGIC, Errno, MAX_STRING_BYTES, ReplyFlags,
    SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_BYTES, STRUCTURED_REPLY_MAGIC,
};
use super::error::{ProtocolError, Result, invalid, over_limit};
use super::export::ReplyStyle;
use super::reply::{Extent, MAX_STATUS_EXTENTS};

/// Length in bytes of the longest payload of an error chunk: the longest message, an offset, and room for unknown
/// fields.
const MAX_ERROR_BYTES: u64 = MAX_STRING_BYTES as u64 + 1024;

/// One message of an NBD server in the transmission phase: a simple reply, or one chunk of a reply.
///
/// The codec parses one message at a time. The caller must check the rules that concern several messages: the cookie
/// is that of a request in flight; no message with this cookie follows the one with `done`; data and holes lie inside
/// the request's range, do not overlap, and cover the range when a read succeeds; [`Body::Simple`] is no reply to a
/// read in a session with structured replies; an extended reply has the offset of its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyMessage<'a> {
    /// The number that the client gave to the request of this reply.
    pub cookie: u64,
    /// The offset of the request, which only an extended reply has.
    pub offset: Option<u64>,
    /// Whether this message is the last one of the reply.
    pub done: bool,
    /// The content of the message after its header.
    pub body: Body<'a>,
}

/// The content of a server's message after its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// The request has succeeded, in a simple reply. If the request was a read, its whole payload follows the
    /// message.
    Simple,
    /// The reply ends. The request has succeeded if no error came in an earlier chunk.
    None,
    /// Bytes of a read, in a chunk of the reply. They follow the message in the stream.
    Data {
        /// Address in the export of the first byte.
        offset: u64,
        /// Number of data bytes, not zero.
        len: u32,
    },
    /// A hole in the range of a read: its bytes are zeros, and no bytes follow the message.
    Hole {
        /// Address in the export of the hole's first byte.
        offset: u64,
        /// Number of bytes in the hole, not zero.
        len: u32,
    },
    /// The extents of a metadata context, from the offset of the block status request on.
    Status {
        /// The number of the metadata context.
        context: u32,
        /// The extents of the context, at least one and at most [`EXTENTS_MAX`].
        extents: Extents<'a>,
        /// Length of the further extents beyond [`EXTENTS_MAX`], in bytes. They follow the message in the stream, and
        /// the caller must skip them.
        more: u32,
    },
    /// The request failed.
    Error {
        /// The error number in the server's reply.
        errno: Errno,
        /// The error message in the server's reply; may be empty.
        message: &'a str,
        /// Address in the export of the first byte that failed; `None` if the server does not report it.
        offset: Option<u64>,
    },
}

/// The extents of a block status, in the form of the protocol. No extent has the length zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extents<'a> {
    bytes: &'a [u8],
    wide: bool,
}

impl Extents<'_> {
    /// Iterates over the extents of the block status, in order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + use<'_> {
        let mut reader = Reader::new(self.bytes);
        let wide = self.wide;
        std::iter::from_fn(move || {
            let (length, status) = if wide {
                (reader.u64()?, reader.u64()?)
            } else {
                (reader.u32()?.into(), reader.u32()?.into())
            };
            Some(Extent { length, status })
        })
    }
}

/// The header of a structured or extended chunk.
struct ChunkHeader {
    flags: ReplyFlags,
    kind: ChunkKind,
    cookie: u64,
    offset: Option<u64>,
    payload: u64,
    len: usize,
}

impl<'a> ReplyMessage<'a> {
    /// Parses the server's message at the start of `input`. Returns the message and its length in bytes; `None` if
    /// more bytes are needed.
    ///
    /// The bytes of data are no part of the message, so that they can be received directly into their final buffer.
    /// Nor are the extents of a block status beyond [`EXTENTS_MAX`]. Everything else is a part of the message, and no
    /// message is longer than 128 KiB. Data and holes of more than `max_payload` bytes are an error.
    pub fn parse(
        input: &'a [u8],
        style: ReplyStyle,
        max_payload: u32,
    ) -> Result<Option<(Self, usize)>> {
        let Some(magic) = Reader::new(input).u32() else { return Ok(None) };
        let expected = match style {
            ReplyStyle::Simple => SIMPLE_REPLY_MAGIC,
            ReplyStyle::Structured => STRUCTURED_REPLY_MAGIC,
            ReplyStyle::Extended => EXTENDED_REPLY_MAGIC,
        };
        let chunk = magic == expected && style != ReplyStyle::Simple;
        let simple = magic == SIMPLE_REPLY_MAGIC && style != ReplyStyle::Extended;
        if chunk {
            return Self::parse_chunk(input, style, max_payload);
        }
        if simple {
            return Ok(Self::parse_simple(input));
        }
        let (found, expected) = (magic.into(), expected.into());
        Err(ProtocolError::BadMagic { what: "reply", found, expected })
    }

    /// Parses a simple reply. Returns `None` if more bytes are needed.
    fn parse_simple(input: &[u8]) -> Option<(Self, usize)> {
        let mut reader = Reader::new(input);
        let (_magic, error, cookie) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let body = match error {
            0 => Body::Simple,
            number => Body::Error { errno: Errno::from_wire(number), message: "", offset: None },
        };
        Some((Self { cookie, offset: None, done: true, body }, SIMPLE_REPLY_BYTES))
    }

    fn parse_chunk(
        input: &'a [u8],
        style: ReplyStyle,
        max_payload: u32,
    ) -> Result<Option<(Self, usize)>> {
        let Some(header) = ChunkHeader::parse(input, style) else { return Ok(None) };
        // Unknown flags must be ignored (section "Structured reply flags").
        let done = header.flags.has(ReplyFlags::DONE);
        let inline = header.inline_bytes(style, done)?;
        let Some(payload) = Reader::new(&input[header.len..]).bytes(inline) else {
            return Ok(None);
        };
        let body = header.body(Reader::new(payload), max_payload)?;
        let ChunkHeader { cookie, offset, len, .. } = header;
        Ok(Some((Self { cookie, offset, done, body }, len + inline)))
    }
}

impl ChunkHeader {
    /// Parses a chunk header. Returns `None` if more bytes are needed.
    fn parse(input: &[u8], style: ReplyStyle) -> Option<Self> {
        let mut reader = Reader::new(input);
        let _magic = reader.u32()?;
        let (flags, kind) = (ReplyFlags(reader.u16()?), ChunkKind(reader.u16()?));
        let cookie = reader.u64()?;
        let (offset, payload, len) = if style == ReplyStyle::Extended {
            (Some(reader.u64()?), reader.u64()?, EXTENDED_REPLY_BYTES)
        } else {
            (None, reader.u32()?.into(), STRUCTURED_REPLY_BYTES)
        };
        Some(Self { flags, kind, cookie, offset, payload, len })
    }

    /// Returns the number of payload bytes that belong to the message. Checks everything that can be checked with the
    /// header alone, so that the caller never waits for more bytes than are allowed.
    fn inline_bytes(&self, style: ReplyStyle, done: bool) -> Result<usize> {
        let extended = style == ReplyStyle::Extended;
        let (least, most, step) = match self.kind {
            ChunkKind::NONE if !done => {
                let rule = "must have NBD_REPLY_FLAG_DONE";
                return Err(invalid("flags field of an NBD_REPLY_TYPE_NONE", self.flags.0, rule));
            }
            ChunkKind::NONE => (0, 0, 1),
            // The length of the data itself is checked with its offset, in `content_length`.
            ChunkKind::OFFSET_DATA => return self.length_within(9, u64::MAX, 1).map(|()| 8),
            ChunkKind::OFFSET_HOLE => (12, 12, 1),
            ChunkKind::BLOCK_STATUS if !extended => (12, 4 + 8 * MAX_STATUS_EXTENTS as u64, 8),
            ChunkKind::BLOCK_STATUS_EXT if extended => (24, 8 + 16 * MAX_STATUS_EXTENTS as u64, 16),
            ChunkKind::ERROR_OFFSET => (14, MAX_ERROR_BYTES, 1),
            kind if kind.is_error() => (6, MAX_ERROR_BYTES, 1),
            kind => {
                let rule = "must be a kind that was negotiated";
                return Err(invalid("kind of a reply chunk", kind.0, rule));
            }
        };
        self.length_within(least, most, step)?;
        Ok(self.payload.min(self.heard_bytes()) as usize)
    }

    /// Returns the greatest number of payload bytes that belong to the message: of a block status, those of
    /// [`EXTENTS_MAX`] extents.
    fn heard_bytes(&self) -> u64 {
        match self.kind {
            ChunkKind::BLOCK_STATUS => 4 + 8 * EXTENTS_MAX as u64,
            ChunkKind::BLOCK_STATUS_EXT => 8 + 16 * EXTENTS_MAX as u64,
            _ => u64::MAX,
        }
    }

    fn length_within(&self, least: u64, most: u64, step: u64) -> Result<()> {
        if self.payload > most {
            return Err(over_limit("length of a reply chunk", self.payload, most));
        }
        if self.payload < least || !(self.payload - least).is_multiple_of(step) {
            return Err(self.misfit());
        }
        Ok(())
    }

    fn misfit(&self) -> ProtocolError {
        invalid("length of a reply chunk", self.payload, "must fit the fields of its kind")
    }

    /// Parses the payload that belongs to the message. For a chunk with data that is only their offset.
    fn body<'a>(&self, mut payload: Reader<'a>, max_payload: u32) -> Result<Body<'a>> {
        let short = self.misfit();
        match self.kind {
            ChunkKind::NONE => Ok(Body::None),
            ChunkKind::OFFSET_DATA => {
                let offset = payload.u64().ok_or(short)?;
                Ok(Body::Data { offset, len: content_length(self.payload - 8, max_payload)? })
            }
            ChunkKind::OFFSET_HOLE => {
                let (Some(offset), Some(len)) = (payload.u64(), payload.u32()) else {
                    return Err(short);
                };
                Ok(Body::Hole { offset, len: content_length(len.into(), max_payload)? })
            }
            ChunkKind::BLOCK_STATUS | ChunkKind::BLOCK_STATUS_EXT => self.status(payload),
            _ => self.error(payload),
        }
    }

    fn status<'a>(&self, mut payload: Reader<'a>) -> Result<Body<'a>> {
        let wide = self.kind == ChunkKind::BLOCK_STATUS_EXT;
        let context = payload.u32().unwrap_or_default();
        let count = if wide { payload.u32().unwrap_or_default() } else { 0 };
        let extents = Extents { bytes: payload.rest(), wide };
        // A count of zero means that only the length gives the number of extents.
        if count != 0 && u64::from(count) * 16 + 8 != self.payload {
            let rule = "must agree with the length of the chunk";
            return Err(invalid("number of extents", count, rule));
        }
        if extents.iter().any(|extent| extent.length == 0) {
            return Err(invalid("length of an extent", 0_u64, "must not be zero"));
        }
        let more = self.payload.saturating_sub(self.heard_bytes()) as u32;
        Ok(Body::Status { context, extents, more })
    }

    /// Parses an error chunk. An unknown error kind is an error too (section "Structured reply types").
    fn error<'a>(&self, mut payload: Reader<'a>) -> Result<Body<'a>> {
        let number = payload.u32().unwrap_or_default();
        if number == 0 {
            return Err(invalid("number of an error", 0_u64, "must not be zero"));
        }
        let len = payload.u16().unwrap_or_default();
        let over = |rest| over_limit("length of an error message", len, self.payload - rest);
        let message = payload.bytes(len.into()).ok_or_else(|| over(6))?;
        let offset = match self.kind {
            ChunkKind::ERROR_OFFSET => Some(payload.u64().ok_or_else(|| over(14))?),
            _ => None,
        };
        // An invalid message text is dropped; it does not justify closing the connection.
        let message = text(message).unwrap_or_default();
        Ok(Body::Error { errno: Errno::from_wire(number), message, offset })
    }
}

/// Returns the length of data or of a hole, if it is above zero and at most `max_payload`.
fn content_length(len: u64, max_payload: u32) -> Result<u32> {
    if len == 0 {
        return Err(invalid("length of a hole", 0_u64, "must not be zero"));
    }
    match u32::try_from(len) {
        Ok(len) if len <= max_payload => Ok(len),
        _ => Err(over_limit("length of the data or hole in a reply", len, max_payload)),
    }
}
