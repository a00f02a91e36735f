//! The state of a remap device in the labels beneath it: `docs/formats/remap.md`.

use kind::Summary;
use meta::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCKS_MAX, Layout};

/// Version of the record that this code writes, and the only version that it reads.
const VERSION: u32 = 1;

const UNFINISHED: u32 = 1;
const PAUSED: u32 = 2;

/// Greatest address on the lower at which the data blocks may end.
const END_MAX: u64 = 1 << 62;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    version: U32,
    flags: U32,
    vault: [u8; 16],
    block_bytes: U64,
    blocks: U64,
    places: U64,
    start: U64,
}

/// Bytes of the encoded state of a remap device.
pub const RECORD_BYTES: usize = size_of::<Raw>();

const _: () = assert!(RECORD_BYTES == 56);

/// The state of a remap device in labels: its vault, and the sizes for which the device was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// UUID of the vault with the map; `None` while the vault is being created, when the device has no data yet.
    pub vault: Option<Uuid>,
    /// Whether a command has paused packing.
    pub paused: bool,
    /// Sizes of the device and of its lower, as they were when the device was created.
    pub layout: Layout,
}

/// Describes the encoded state of a remap device for people.
///
/// # Errors
/// The reason why `bytes` are no valid record of a remap device.
pub fn describe(bytes: &[u8]) -> Result<Summary, String> {
    let Record { vault, layout, .. } = Record::decode(bytes)?;
    let Layout { block_bytes, blocks, places, .. } = layout;
    let made = if vault.is_some() { "" } else { ", map being made" };
    Ok(Summary::whole(format!("{blocks} blocks of {block_bytes}, {places} physical{made}")))
}

impl Record {
    /// Encodes the state of the device for labels.
    pub fn encode(&self) -> Vec<u8> {
        let flag = |set, bit| if set { bit } else { 0 };
        let Layout { block_bytes, blocks, places, start } = self.layout;
        let flags = flag(self.vault.is_none(), UNFINISHED) | flag(self.paused, PAUSED);
        let raw = Raw {
            version: VERSION.into(),
            flags: flags.into(),
            vault: self.vault.map_or([0; 16], |vault| vault.0),
            block_bytes: block_bytes.into(),
            blocks: blocks.into(),
            places: places.into(),
            start: start.into(),
        };
        raw.as_bytes().to_vec()
    }

    /// Decodes the state of a remap device from a label.
    ///
    /// # Errors
    /// The reason why `bytes` are no valid record of a remap device.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let raw = Raw::ref_from_bytes(bytes)
            .map_err(|_| format!("{} bytes are no remap record", bytes.len()))?;
        if raw.version.get() != VERSION {
            return Err(format!("record version {}; {VERSION} is supported", raw.version));
        }
        let flags = raw.flags.get();
        let unfinished = flags & UNFINISHED != 0;
        if flags & !(UNFINISHED | PAUSED) != 0 || (unfinished && raw.vault != [0; 16]) {
            return Err(format!("invalid flags {flags:#x}"));
        }
        let (block_bytes, blocks) = (raw.block_bytes.get(), raw.blocks.get());
        let (places, start) = (raw.places.get(), raw.start.get());
        let is_block = (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes)
            && block_bytes.is_power_of_two();
        if !is_block || !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(format!("invalid block count {blocks} or block size {block_bytes}"));
        }
        let end = places.checked_mul(block_bytes).and_then(|bytes| bytes.checked_add(start));
        if places == 0 || end.is_none_or(|end| end > END_MAX) || start % block_bytes != 0 {
            return Err(format!("invalid range of {places} physical blocks from byte {start}"));
        }
        let layout = Layout { block_bytes, blocks, places, start };
        let vault = (!unfinished).then_some(Uuid(raw.vault));
        Ok(Self { vault, paused: flags & PAUSED != 0, layout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let layout =
            Layout { block_bytes: 0x1_0000, blocks: 0x0201, places: 0x03, start: 0x10_0000 };
        Record { vault: Some(Uuid([0x11; 16])), paused: true, layout }
    }

    #[test]
    fn remap_record_encodes_to_golden_bytes() {
        let mut golden = vec![0; 56];
        golden[8..24].fill(0x11);
        for (at, byte) in [(0, 1), (4, 2), (26, 1), (32, 1), (33, 2), (40, 3), (50, 0x10)] {
            golden[at] = byte;
        }
        assert_eq!(sample().encode(), golden);
        assert_eq!(Record::decode(&golden), Ok(sample()));
        let unfinished = Record { vault: None, paused: false, ..sample() };
        assert_eq!(Record::decode(&unfinished.encode()), Ok(unfinished));
    }

    #[test]
    fn decode_rejects_malformed_remap_record() {
        let good = sample().encode();
        // Version; unknown flags, unfinished with a vault; block; blocks; places; start.
        let wrong =
            [(0, 2), (4, 4), (4, 1), (24, 1), (26, 0), (33, 0), (39, 1), (40, 0), (47, 9), (48, 1)];
        for (at, value) in wrong {
            let mut bytes = good.clone();
            bytes[at] = value;
            // This takes two changed bytes.
            if at == 33 {
                bytes[32] = 0;
            }
            assert!(Record::decode(&bytes).is_err(), "{value} at {at}");
        }
        for len in 0..good.len() {
            assert!(Record::decode(&good[..len]).is_err(), "{len} bytes");
        }
    }
}
