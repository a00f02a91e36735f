//! The layout of a remap device on its lower: the positions of the vault and of the data blocks.

use block::{ByteRange, Info};
use meta::vault::ObjectKind;
use meta::vault::geometry::{Geometry, LOG_BYTES_MAX, LOG_BYTES_MIN};
use meta::vault::page::PAGE_BYTES;

/// Least size of a block of a remap device, in bytes.
pub const BLOCK_BYTES_MIN: u64 = 4096;

/// Greatest size of a block of a remap device, in bytes.
pub const BLOCK_BYTES_MAX: u64 = 1 << 20;

/// Default size of a block of a remap device, in bytes.
pub const BLOCK_BYTES_DEFAULT: u64 = 64 << 10;

/// Most blocks of a remap device.
pub const BLOCKS_MAX: u64 = 1 << 36;

/// Bytes of an entry of the map of blocks in the vault.
const ENTRY_BYTES: u32 = 8;

/// Bytes of the log of a new vault for each byte of its map. A checkpoint writes each page of the map at most once, and
/// comes when 5/8 of the log are in use: with records of one page, it adds at most a tenth to their bytes.
const LOG_PER_MAP: u64 = 16;

/// Largest share of the log of a new vault in the lower with the data: one byte in this many.
const LOG_PART: u64 = 32;

/// The sizes of the vault of a new device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VaultSize {
    /// The vault with its log, in complete blocks of the device.
    pub bytes: u64,
    /// The log.
    pub log_bytes: u64,
}

/// The sizes of a remap device and of its lower, as they were when the device was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of a block of the device, a power of two.
    pub block_bytes: u64,
    /// Number of blocks that clients see.
    pub blocks: u64,
    /// Number of data blocks on the lower.
    pub places: u64,
    /// Offset on the lower of the first data block.
    pub start: u64,
}

impl Layout {
    /// Returns the layout of a new device with `blocks` blocks of `block_bytes` bytes over the lower `data`, and the
    /// size of its vault. The vault is at the start of `data`, or on another lower if `apart`.
    pub fn new(block_bytes: u64, blocks: u64, data: &Info, apart: bool) -> (Self, VaultSize) {
        let log_bytes = log_bytes(blocks, data.size);
        let bytes = vault_bytes(blocks, data.size / block_bytes, log_bytes);
        let vault = VaultSize { bytes: bytes.next_multiple_of(block_bytes), log_bytes };
        let start = if apart { 0 } else { vault.bytes };
        let places = data.size.saturating_sub(start) / block_bytes;
        (Self { block_bytes, blocks, places, start }, vault)
    }

    /// Returns the number of bytes that clients see.
    pub fn size(&self) -> u64 {
        self.blocks * self.block_bytes
    }

    /// Returns the number of the block that contains the byte at this address.
    pub fn block_of(&self, byte: u64) -> u64 {
        byte / self.block_bytes
    }

    /// Returns the byte range of `count` blocks from block `block` on, as clients see it.
    pub fn range(&self, block: u64, count: u64) -> ByteRange {
        let start = block * self.block_bytes;
        ByteRange::new(start, count * self.block_bytes).expect("a range of blocks has bytes")
    }

    /// Returns the byte range on the lower of `count` data blocks, from the data block with number `place` on.
    pub fn places(&self, place: u64, count: u64) -> ByteRange {
        let start = self.start + place * self.block_bytes;
        ByteRange::new(start, count * self.block_bytes).expect("a range of blocks has bytes")
    }
}

/// Returns the size in bytes of the log of a vault that holds the map of `blocks` blocks, over a lower of `data_bytes`
/// bytes.
fn log_bytes(blocks: u64, data_bytes: u64) -> u64 {
    let map = (blocks * u64::from(ENTRY_BYTES)).next_power_of_two();
    let share = data_bytes / LOG_PART;
    let most = (share - share % PAGE_BYTES as u64).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
    (LOG_PER_MAP * map).clamp(LOG_BYTES_MIN, most)
}

/// Returns the size in bytes of a vault with a map of `blocks` blocks, a bitmap of `places` data blocks, and a log.
fn vault_bytes(blocks: u64, places: u64, log_bytes: u64) -> u64 {
    let map = ObjectKind::Array.pages(ENTRY_BYTES, blocks);
    let taken = ObjectKind::Bitmap.pages(0, places.max(1));
    // One page is the directory.
    Geometry::bytes_for(1 + map + taken, log_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn map_of_remap_takes_small_part_of_disk() {
        let disk = Info::disk(1024 * GIB, 512);
        // A tebibyte in blocks of 64 KiB: 16 bytes for each, and the log.
        let (layout, vault) = Layout::new(64 << 10, 1 << 24, &disk, false);
        assert!((256 << 20..350 << 20).contains(&vault.bytes), "{vault:?}");
        assert_eq!(layout.start, vault.bytes);
        assert_eq!(layout.places, (disk.size - vault.bytes) >> 16);
        assert!(layout.places(layout.places - 1, 1).end() <= disk.size);
        let (layout, _) = Layout::new(64 << 10, 1 << 24, &disk, true);
        assert_eq!((layout.start, layout.places), (0, 1 << 24));
    }

    #[test]
    fn remap_layout_of_few_blocks_fits_small_disk() {
        let (layout, vault) = Layout::new(4096, 12, &Info::disk(256 << 10, 512), false);
        assert!(layout.places >= 12, "{vault:?} leaves {}", layout.places);
        assert_eq!(Layout::new(4096, 12, &Info::disk(4096, 512), false).0.places, 0);
    }
}
