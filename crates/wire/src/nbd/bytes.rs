//! Reading of big-endian numbers and of strings from received bytes.

use super::constants::MAX_STRING_BYTES;

/// A position in the received bytes of a message. Each method that reads bytes returns `None` if too few remain.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Returns `bytes` as a string; `None` if they are no valid string of the protocol: UTF-8 without NUL, at most
/// [`MAX_STRING_BYTES`] (section "Conventions").
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > MAX_STRING_BYTES || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// Returns the longest prefix of `text` that has at most `max` bytes.
pub(crate) fn truncated(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
