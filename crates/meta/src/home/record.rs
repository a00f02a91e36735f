//! The codec of the state in labels of a device with objects, as in `docs/formats/state.md`.

use block::ByteRange;
use block::units::write_size;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Uuid;
use crate::vault::page::PAGE_BYTES;

/// Version of the state that this code writes, and the only one that it reads.
pub const VERSION: u32 = 2;

/// Most ranges of a room. A device can grow as often, less one.
pub const RANGES_MAX: usize = 64;

/// Most fixed options of a device.
pub const FIXED_MAX: usize = 8;

/// Most bytes of the own state of a kind.
pub const OWN_BYTES_MAX: usize = 512;

/// Most bytes of the name of a kind, and of the name and the value of a fixed option.
const TEXT_BYTES_MAX: usize = 64;

/// Greatest address at which a range may end.
const END_MAX: u64 = 1 << 62;

const UNFINISHED: u32 = 1;

/// The place of the room for the objects of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Before the data, on the same lower.
    Before = 1,
    /// Behind the data, on the same lower.
    Behind = 2,
    /// On the second lower.
    Apart = 3,
}

/// The state in labels of a device with objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Name of the kind, which owns the objects.
    pub kind: String,
    /// UUID of the vault; `None` while it is being made, when the device has no data yet.
    pub vault: Option<Uuid>,
    /// Bytes of the lower with the data, when the room was last computed.
    pub lower_bytes: u64,
    /// Place of the room.
    pub place: Place,
    /// Bytes of the journal at the beginning of the room; 0 without one.
    pub journal_bytes: u64,
    /// The ranges of the room, in the order of its bytes.
    pub ranges: Vec<ByteRange>,
    /// Options with their values at the making of the device, in the order of their names.
    pub fixed: Vec<(String, String)>,
    /// The own state of the kind.
    pub own: Vec<u8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    version: U32,
    flags: U32,
    vault: [u8; 16],
    lower_bytes: U64,
    place: U16,
    ranges: U16,
    fixed: U16,
    own: U16,
    journal_bytes: U64,
}

const _: () = assert!(size_of::<Head>() == 48);

const _: () = assert!(
    size_of::<Head>()
        + 16 * RANGES_MAX
        + (2 * FIXED_MAX + 1) * (TEXT_BYTES_MAX + 1)
        + OWN_BYTES_MAX
        <= block::STATE_BYTES_MAX
);

impl Record {
    /// Encodes the state for labels.
    ///
    /// # Panics
    /// If a list or a text is beyond its limit.
    pub fn encode(&self) -> Vec<u8> {
        let head = Head {
            version: VERSION.into(),
            flags: if self.vault.is_none() { UNFINISHED } else { 0 }.into(),
            vault: self.vault.map_or([0; 16], |vault| vault.0),
            lower_bytes: self.lower_bytes.into(),
            place: (self.place as u16).into(),
            ranges: count(self.ranges.len(), RANGES_MAX),
            fixed: count(self.fixed.len(), FIXED_MAX),
            own: count(self.own.len(), OWN_BYTES_MAX),
            journal_bytes: self.journal_bytes.into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        for range in &self.ranges {
            bytes.extend(range.start().to_le_bytes());
            bytes.extend(range.len().to_le_bytes());
        }
        let fixed = self.fixed.iter().flat_map(|(name, value)| [name, value]);
        for text in [&self.kind].into_iter().chain(fixed) {
            assert!(text.len() <= TEXT_BYTES_MAX, "{text:?} is too long for the state");
            bytes.push(text.len() as u8);
            bytes.extend(text.as_bytes());
        }
        bytes.extend(&self.own);
        bytes
    }

    /// Decodes the state from a label.
    ///
    /// # Errors
    /// The reason why `bytes` are no valid state.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (head, rest) = Head::ref_from_prefix(bytes)
            .map_err(|_| format!("{} bytes are no state of a device with objects", bytes.len()))?;
        if head.version.get() != VERSION {
            return Err(format!("record version {}; {VERSION} is supported", head.version));
        }
        let is_unfinished = head.flags.get() == UNFINISHED;
        if head.flags.get() & !UNFINISHED != 0 || (is_unfinished && head.vault != [0; 16]) {
            return Err(format!("invalid flags {:#x}", head.flags));
        }
        let mut rest = Rest(rest);
        let place = match head.place.get() {
            1 => Place::Before,
            2 => Place::Behind,
            3 => Place::Apart,
            other => return Err(format!("invalid place {other}")),
        };
        let lower_bytes = head.lower_bytes.get();
        let ranges = (0..checked(head.ranges, 1, RANGES_MAX, "ranges")?).map(|_| rest.range());
        let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        let end = if place == Place::Apart { END_MAX } else { lower_bytes };
        check_ranges(&ranges, end.min(END_MAX))?;
        let (journal_bytes, room) = (head.journal_bytes.get(), bytes_of(&ranges));
        if journal_bytes >= room || !journal_bytes.is_multiple_of(PAGE_BYTES as u64) {
            return Err(format!("a journal of {journal_bytes} bytes in a room of {room}"));
        }
        let kind = rest.text()?;
        let fixed = (0..checked(head.fixed, 0, FIXED_MAX, "fixed options")?)
            .map(|_| Ok((rest.text()?, rest.text()?)));
        let fixed = fixed.collect::<Result<Vec<(String, String)>, String>>()?;
        if !fixed.is_sorted_by(|one, next| one.0 < next.0) {
            return Err("the fixed options are not in the order of their names".to_owned());
        }
        let own = rest.0.to_vec();
        if own.len() != checked(head.own, 0, OWN_BYTES_MAX, "bytes of own state")? {
            return Err(format!("{} bytes of own state; {} are stated", own.len(), head.own));
        }
        let vault = (!is_unfinished).then_some(Uuid(head.vault));
        Ok(Self { kind, vault, lower_bytes, place, journal_bytes, ranges, fixed, own })
    }

    /// Returns the value of an option with which the device was made, if its state has one.
    pub fn fixed_value(&self, name: &str) -> Option<&str> {
        let fixed = self.fixed.iter().find(|(fixed, _)| fixed == name);
        fixed.map(|(_, value)| value.as_str())
    }

    /// Returns the number of bytes of the room.
    pub fn room_bytes(&self) -> u64 {
        bytes_of(&self.ranges)
    }

    /// Describes the state for people.
    pub fn words(&self) -> String {
        let place = match self.place {
            Place::Before => "before the data",
            Place::Behind => "behind the data",
            Place::Apart => "on the second device",
        };
        let made = if self.vault.is_some() { "" } else { ", being made" };
        let fixed: String =
            self.fixed.iter().map(|(name, value)| format!("{name} {value}, ")).collect();
        format!("{fixed}{} of metadata {place}{made}", write_size(self.room_bytes()))
    }
}

/// Returns the number of bytes in all `ranges`, which do not overlap.
pub(super) fn bytes_of(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.len()).sum()
}

fn count(len: usize, most: usize) -> U16 {
    assert!(len <= most, "{len} of at most {most}");
    (len as u16).into()
}

fn checked(number: U16, least: usize, most: usize, of: &str) -> Result<usize, String> {
    let number = usize::from(number.get());
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(format!("{number} {of}; {least} to {most} are possible"))
}

/// Checks that `ranges` consist of pages, end at `end` at most, and do not overlap.
fn check_ranges(ranges: &[ByteRange], end: u64) -> Result<(), String> {
    let page = PAGE_BYTES as u64;
    let is_valid = |range: &ByteRange| {
        range.end() <= end && range.start().is_multiple_of(page) && range.len().is_multiple_of(page)
    };
    if let Some(range) = ranges.iter().find(|range| !is_valid(range)) {
        return Err(format!("invalid range {range} of the room"));
    }
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.start());
    match sorted.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        Some(pair) => Err(format!("the ranges {} and {} of the room overlap", pair[0], pair[1])),
        None => Ok(()),
    }
}

/// The bytes behind the head that are not decoded yet.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], String> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or("the state ends too early".to_owned())?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, String> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    fn range(&mut self) -> Result<ByteRange, String> {
        let (start, len) = (self.number()?, self.number()?);
        ByteRange::new(start, len)
            .ok_or_else(|| format!("invalid range of {len} bytes from byte {start}"))
    }

    fn text(&mut self) -> Result<String, String> {
        let len = usize::from(self.take(1)?[0]);
        if len > TEXT_BYTES_MAX {
            return Err(format!("a text of {len} bytes; {TEXT_BYTES_MAX} are possible"));
        }
        let text = std::str::from_utf8(self.take(len)?);
        text.map(str::to_owned).map_err(|_| "a text is not in UTF-8".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        Record {
            kind: "remap".to_owned(),
            vault: Some(Uuid([0x11; 16])),
            lower_bytes: 0x30_0000,
            place: Place::Before,
            journal_bytes: 0x1000,
            ranges: vec![
                ByteRange::new(0, 0x2000).unwrap(),
                ByteRange::new(0x20_0000, 0x1000).unwrap(),
            ],
            fixed: vec![("block".to_owned(), "4KiB".to_owned())],
            own: vec![7],
        }
    }

    #[test]
    fn state_with_objects_encodes_to_golden_bytes() {
        let mut golden = vec![0; 98];
        golden[8..24].fill(0x11);
        for (at, byte) in [(0, 2), (26, 0x30), (32, 1), (34, 2), (36, 1), (38, 1), (41, 0x10)] {
            golden[at] = byte;
        }
        for (at, byte) in [(57, 0x20), (66, 0x20), (73, 0x10)] {
            golden[at] = byte;
        }
        golden[80..].copy_from_slice(b"\x05remap\x05block\x044KiB\x07");
        assert_eq!(sample().encode(), golden);
        assert_eq!(Record::decode(&golden), Ok(sample()));
        let unfinished = Record { vault: None, ..sample() };
        assert_eq!(Record::decode(&unfinished.encode()), Ok(unfinished));
    }

    #[test]
    fn decode_rejects_malformed_state_with_objects() {
        let good = sample().encode();
        // Version; unknown flags, unfinished with a vault; place; counts; an odd journal, one without a vault; a range beyond the lower, one of odd bytes, two that
        // overlap, an empty one; a length of a text.
        let wrong = [
            (0, 1),
            (4, 2),
            (4, 1),
            (32, 4),
            (34, 0),
            (36, 2),
            (38, 2),
            (40, 1),
            (41, 0x30),
            (55, 1),
            (49, 1),
            (66, 0),
            (57, 0),
            (80, 65),
        ];
        for (at, value) in wrong {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(Record::decode(&bytes).is_err(), "{value} at {at}");
        }
        for len in 0..good.len() {
            assert!(Record::decode(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(Record::decode(&[&good[..], &[0]].concat()).is_err());
    }
}
