//! The encoding of the items in a record. Their content belongs to the owner of the ring.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length in bytes of the header of an item, before its content.
pub const ITEM_HEADER_BYTES: usize = size_of::<Raw>();

/// Divisor of the length of an item.
const ITEM_ALIGN: usize = 8;

const TO_OPEN: u16 = 1;
const TO_WRITE: u16 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: U16,
    flags: U16,
    length: U32,
}

const _: () = assert!(ITEM_HEADER_BYTES == 8);

/// The rule for a reader that does not know a type or a flag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MustKnow {
    /// The reader skips it.
    No,
    /// The reader may open the ring's owner, but must not write to it.
    ToWrite,
    /// The reader must not open the ring's owner.
    ToOpen,
}

/// One item of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// Type of the item; the owner of the ring defines it.
    pub kind: u16,
    /// Rule for a reader that does not know the type.
    pub must_know: MustKnow,
    /// Content of the item; its length is a multiple of 8.
    pub content: &'a [u8],
}

impl<'a> Item<'a> {
    /// Appends the encoded item to `to`.
    ///
    /// # Panics
    /// If the type is 0, or the length of the content is no multiple of 8.
    pub fn encode(&self, to: &mut Vec<u8>) {
        encode_item(to, self.kind, self.must_know, |to| to.extend_from_slice(self.content));
    }

    /// Decodes the first item in `bytes`. Returns the item, and the bytes behind it.
    ///
    /// # Errors
    /// A description of the fault in the item.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), String> {
        let (raw, rest) = Raw::ref_from_prefix(bytes).map_err(|_| "an item is truncated")?;
        let (kind, length) = (raw.kind.get(), raw.length.get() as usize);
        let content = length.checked_sub(ITEM_HEADER_BYTES).filter(|content| {
            *content <= rest.len() && length.is_multiple_of(ITEM_ALIGN) && kind != 0
        });
        let Some(content) = content else {
            return Err(format!("an item of type {kind} has the impossible length {length}"));
        };
        let must_know = match raw.flags.get() {
            0 => MustKnow::No,
            TO_WRITE => MustKnow::ToWrite,
            TO_OPEN => MustKnow::ToOpen,
            flags => return Err(format!("an item of type {kind} has unknown flags {flags:#x}")),
        };
        let (content, rest) = rest.split_at(content);
        Ok((Self { kind, must_know, content }, rest))
    }
}

/// Appends an encoded item to `to`. `content` appends the content of the item.
///
/// # Panics
/// As [`Item::encode`].
pub fn encode_item(
    to: &mut Vec<u8>,
    kind: u16,
    must_know: MustKnow,
    content: impl FnOnce(&mut Vec<u8>),
) {
    let flags = match must_know {
        MustKnow::No => 0,
        MustKnow::ToWrite => TO_WRITE,
        MustKnow::ToOpen => TO_OPEN,
    };
    let begin = to.len();
    let mut raw = Raw { kind: kind.into(), flags: flags.into(), length: 0.into() };
    to.extend_from_slice(raw.as_bytes());
    content(to);
    let length = to.len() - begin;
    assert!(kind != 0 && length.is_multiple_of(ITEM_ALIGN), "type {kind}, {length} bytes");
    raw.length = u32::try_from(length).expect("an item is shorter than 4 GiB").into();
    to[begin..][..ITEM_HEADER_BYTES].copy_from_slice(raw.as_bytes());
}

/// Decodes all items of a record, in order.
///
/// # Errors
/// A description of the first faulty item, or of a count that differs from `count`.
pub fn items(mut bytes: &[u8], count: u32) -> Result<Vec<Item<'_>>, String> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (item, rest) = Item::decode(bytes)?;
        all.push(item);
        bytes = rest;
    }
    match all.len() == count as usize {
        true => Ok(all),
        false => Err(format!("the record has {} items, not {count}", all.len())),
    }
}
