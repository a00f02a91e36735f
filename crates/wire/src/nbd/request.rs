//! Requests of a client in the transmission phase.

use super::bytes::Reader;
use super::constants::{
    Command, CommandFlags, EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC, MAX_PAYLOAD_BYTES,
    REQUEST_BYTES, REQUEST_MAGIC,
};
use super::error::{Result, over_limit, require_magic};
use super::export::ReplyStyle;

/// The header of an NBD request: the request without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// The operation of the request.
    pub command: Command,
    /// The modifiers of the request, with `PAYLOAD_LEN` as it was received.
    pub flags: CommandFlags,
    /// The number that the client gave to the request. Every reply to the request has the same number.
    pub cookie: u64,
    /// First byte of the request's range.
    pub offset: u64,
    /// Length of the request's range, or of its payload if `PAYLOAD_LEN` is set.
    pub length: u64,
}

impl RequestHeader {
    /// Parses the request header at the start of `input`. Returns the header and its length in bytes; `None` if more
    /// bytes are needed.
    ///
    /// Only a fault after which the position in the stream is lost is an error. [`super::check`] decides whether the
    /// request may be carried out. In either case a payload of [`payload_bytes`](Self::payload_bytes) follows, which
    /// the caller must take off the stream.
    pub fn parse(input: &[u8], style: ReplyStyle) -> Result<Option<(Self, usize)>> {
        let mut reader = Reader::new(input);
        let Some(magic) = reader.u32() else { return Ok(None) };
        let extended = style == ReplyStyle::Extended;
        let expected = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        require_magic("request", magic.into(), expected.into())?;
        let Some((header, len)) = Self::fields(reader, extended) else { return Ok(None) };
        let payload = header.payload_length(style);
        if payload > u64::from(MAX_PAYLOAD_BYTES) {
            return Err(over_limit("payload of a request", payload, MAX_PAYLOAD_BYTES));
        }
        Ok(Some((header, len)))
    }

    fn fields(mut reader: Reader<'_>, extended: bool) -> Option<(Self, usize)> {
        let flags = CommandFlags(reader.u16()?);
        let command = Command::from_wire(reader.u16()?);
        let cookie = reader.u64()?;
        let offset = reader.u64()?;
        let (length, len) = if extended {
            (reader.u64()?, EXTENDED_REQUEST_BYTES)
        } else {
            (reader.u32()?.into(), REQUEST_BYTES)
        };
        Some((Self { command, flags, cookie, offset, length }, len))
    }

    /// Returns the length in bytes of the payload that follows the request header: at most [`MAX_PAYLOAD_BYTES`] for
    /// a header that was parsed.
    ///
    /// After a compact header only a write has a payload. After an extended header any request with `PAYLOAD_LEN` has
    /// one (section "Request message").
    pub fn payload_bytes(&self, style: ReplyStyle) -> u32 {
        u32::try_from(self.payload_length(style)).unwrap_or(u32::MAX)
    }

    fn payload_length(&self, style: ReplyStyle) -> u64 {
        let has_payload = match style {
            ReplyStyle::Extended => self.flags.has(CommandFlags::PAYLOAD_LEN),
            ReplyStyle::Simple | ReplyStyle::Structured => self.command == Command::Write,
        };
        if has_payload { self.length } else { 0 }
    }

    /// Encodes the request header into `out`, and returns its length in bytes. A write with an extended header gets
    /// `PAYLOAD_LEN`. A length that a compact header cannot hold is an error.
    pub fn encode(
        &self,
        style: ReplyStyle,
        out: &mut [u8; EXTENDED_REQUEST_BYTES],
    ) -> Result<usize> {
        let extended = style == ReplyStyle::Extended;
        let mut flags = self.flags;
        if extended && self.command == Command::Write {
            flags |= CommandFlags::PAYLOAD_LEN;
        }
        let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        out[0..4].copy_from_slice(&magic.to_be_bytes());
        out[4..6].copy_from_slice(&flags.0.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_wire().to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        if extended {
            out[24..32].copy_from_slice(&self.length.to_be_bytes());
            return Ok(EXTENDED_REQUEST_BYTES);
        }
        let length = u32::try_from(self.length).map_err(|_| {
            over_limit("length of a request with a compact header", self.length, u32::MAX)
        })?;
        out[24..28].copy_from_slice(&length.to_be_bytes());
        Ok(REQUEST_BYTES)
    }
}
