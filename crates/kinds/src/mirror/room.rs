//! The room behind the data of each member for a copy of the mirror's store, as in `docs/formats/mirror.md`.

use block::ByteRange;
use meta::home::Objects;
use meta::vault::page::PAGE_BYTES;

use super::MEMBERS_MAX;
use super::regions::{REGION_BYTES_MIN, Regions};

/// Least size in bytes of a member with a room. The maps of smaller mirrors are fine enough in labels.
pub const MEMBER_BYTES_MIN: u64 = 2 << 20;

/// Greatest size in bytes of a region with its mark in a store.
pub const REGION_BYTES_MOST: u64 = 4 << 20;

/// Least number of regions for which a store has bits.
const CAPACITY_MIN: u64 = 8192;

/// Memory in bytes that caches pages of the store.
const CACHE_BYTES: u64 = 1 << 20;

/// The store of a mirror: the sizes of its parts, which depend only on the size of its smallest member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreSizes {
    lower_bytes: u64,
}

impl StoreSizes {
    /// Returns the sizes for members of `lowers` bytes.
    ///
    /// # Panics
    /// If there are no members.
    pub fn of(lowers: impl Iterator<Item = u64>) -> Self {
        Self { lower_bytes: lowers.min().expect("a mirror has members") }
    }

    /// Returns the number of regions for which each bitmap has bits.
    pub fn capacity(self) -> u64 {
        self.lower_bytes.div_ceil(REGION_BYTES_MOST).max(CAPACITY_MIN)
    }

    fn objects(self) -> Objects {
        let bits = self.capacity();
        Objects::new().bitmap(bits).bitmap(bits * MEMBERS_MAX as u64).cached(CACHE_BYTES)
    }

    /// Returns the bytes of a copy of the store.
    pub fn bytes(self) -> u64 {
        self.objects().room_bytes(self.lower_bytes)
    }

    /// Returns the bytes of the log of the store.
    pub fn log_bytes(self) -> u64 {
        self.objects().log_bytes(self.lower_bytes)
    }

    /// Returns the bytes of the buffer pool that an open store reserves.
    pub fn standing_bytes(self) -> usize {
        self.objects().standing_bytes(self.lower_bytes)
    }

    /// Returns the size in bytes of the smallest regions of a mirror of `size` bytes for which the store has bits.
    pub fn smallest_region(self, size: u64) -> u64 {
        size.div_ceil(self.capacity()).next_power_of_two().max(REGION_BYTES_MIN)
    }

    /// Returns the division of a mirror of `size` bytes into regions of `region_bytes` bytes, or larger ones if the store
    /// has too few bits.
    ///
    /// # Errors
    /// As [`Regions::new`].
    pub fn division(self, size: u64, region_bytes: u64) -> Result<Regions, String> {
        Regions::new(size, region_bytes.max(self.smallest_region(size)))
    }
}

/// Memory in bytes that caches pages of a store.
pub const fn cache_bytes() -> usize {
    CACHE_BYTES as usize
}

/// Returns the room on a member of `lower_bytes` bytes: the last pages of the member.
pub fn range(lower_bytes: u64) -> ByteRange {
    let bytes = StoreSizes::of([lower_bytes].into_iter()).bytes();
    let start = lower_bytes.saturating_sub(bytes);
    ByteRange::new(start - start % PAGE_BYTES as u64, bytes).expect("a room has bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_has_regions_of_at_most_four_mib_at_any_member_size() {
        for shift in 20..52 {
            for bytes in [1 << shift, (1 << shift) + (77 << 12)] {
                let (sizes, room) = (StoreSizes::of([bytes].into_iter()), range(bytes));
                assert!(room.end() <= bytes && room.start() > bytes / 4 * 3, "{bytes}: {room}");
                assert!(sizes.smallest_region(room.start()) <= REGION_BYTES_MOST);
                let regions = sizes.division(room.start(), 1 << 20).unwrap();
                assert!(regions.count() as u64 <= sizes.capacity(), "{bytes}");
            }
        }
    }

    #[test]
    fn store_rooms_of_format() {
        let room = |shift: u32| range(1 << shift).len();
        assert_eq!([23, 30, 40, 46].map(room), [344_064, 344_064, 5_480_448, 105_349_120]);
    }
}
