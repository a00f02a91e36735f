//! The sizes of a remap device, and its objects.

use block::ByteRange;
use kind::home::Objects;
use zerocopy::little_endian::U64;

/// Least size of a block of a remap device, in bytes.
pub const BLOCK_BYTES_MIN: u64 = 4096;

/// Greatest size of a block of a remap device, in bytes.
pub const BLOCK_BYTES_MAX: u64 = 1 << 20;

/// Default size of a block of a remap device, in bytes.
pub const BLOCK_BYTES_DEFAULT: u64 = 64 << 10;

/// Most blocks of a remap device.
pub const BLOCKS_MAX: u64 = 1 << 36;

/// The sizes of a remap device and of its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of a block of the device, a power of two.
    pub block_bytes: u64,
    /// Number of blocks that clients see.
    pub blocks: u64,
    /// Number of data blocks.
    pub places: u64,
}

/// Declares the objects of a remap device with `blocks` blocks of `block_bytes` bytes, over a lower of `lower_bytes` bytes:
/// the map, and the bitmap of the data blocks in use. The objects are on the same lower unless they are `apart`.
pub fn objects(block_bytes: u64, blocks: u64, lower_bytes: u64, apart: bool) -> Objects {
    let with = |places: u64| {
        let objects = Objects::new().array::<U64>(blocks).bitmap(places.max(1));
        objects.aligned(block_bytes)
    };
    let places = lower_bytes / block_bytes;
    if apart {
        return with(places);
    }
    // The room with fewer data blocks is not larger, so they have space behind it.
    let room = with(places).room_bytes(lower_bytes);
    with(lower_bytes.saturating_sub(room) / block_bytes)
}

impl Layout {
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
        self.range(place, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn map_of_remap_takes_small_part_of_disk() {
        // A tebibyte in blocks of 64 KiB: 16 bytes for each, and the log.
        let room = objects(64 << 10, 1 << 24, 1024 * GIB, false).room_bytes(1024 * GIB);
        assert!((256 << 20..350 << 20).contains(&room), "{room}");
        assert_eq!(room % (64 << 10), 0);
    }

    #[test]
    fn remap_layout_of_few_blocks_fits_small_disk() {
        let room = objects(4096, 12, 256 << 10, false).room_bytes(256 << 10);
        assert!((256 << 10) - room >= 12 * 4096, "{room}");
    }
}
