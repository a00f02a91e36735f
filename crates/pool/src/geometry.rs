//! Places of the areas and extents of a pool on its device.

use block::{Error, ErrorKind};

use crate::{Address, BLOCK_BYTES};

/// Bytes of an area: 128 pairs of slots for superblocks.
pub const AREA_BYTES: u64 = 1 << 20;

/// Minimum length in bytes of a pool.
pub const POOL_BYTES_MIN: u64 = 16 << 20;

/// Maximum length in bytes of a pool.
pub const POOL_BYTES_MAX: u64 = 1 << 62;

/// Minimum length in bytes of an extent.
pub const EXTENT_BYTES_MIN: u64 = 1 << 20;

/// Maximum length in bytes of an extent.
pub const EXTENT_BYTES_MAX: u64 = 1 << 30;

/// Number of extents that a new pool has at most, unless its extents have the maximum length.
const EXTENTS_OF_NEW_POOL: u64 = 16384;

/// Divisor of the length of a pool for the length of an allocator's log.
const LOG_PARTS: u64 = 64;

/// Sizes and places of the parts of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of the pool on its device, a multiple of [`AREA_BYTES`].
    pub bytes: u64,
    /// First byte of the far area.
    pub far: u64,
    /// Bytes of an extent, a power of two.
    pub extent_bytes: u64,
    /// Number of extents, including an extent that overlaps the far area.
    pub extents: u64,
}

impl Geometry {
    /// Returns the geometry of a new pool on a device of this length.
    ///
    /// # Errors
    /// `NoSpace` or `Limit` if the device is too small or too large.
    pub fn new(device_bytes: u64) -> block::Result<Self> {
        let wrong = |kind, limit: &str, bytes: u64| {
            let message = format!("a pool on {device_bytes} bytes is impossible; {limit} {bytes}");
            Err(Error::new(kind, message).next("put the pool on a device of another size"))
        };
        if device_bytes < POOL_BYTES_MIN {
            return wrong(ErrorKind::NoSpace, "it needs at least", POOL_BYTES_MIN);
        }
        if device_bytes > POOL_BYTES_MAX {
            return wrong(ErrorKind::Limit, "it takes at most", POOL_BYTES_MAX);
        }
        let bytes = device_bytes - device_bytes % AREA_BYTES;
        let far = bytes - AREA_BYTES;
        let room = far - AREA_BYTES;
        let fits = |extent: &u64| room / extent <= EXTENTS_OF_NEW_POOL;
        let sizes = (EXTENT_BYTES_MIN.ilog2()..=EXTENT_BYTES_MAX.ilog2()).map(|bit| 1_u64 << bit);
        let extent_bytes = { sizes }.find(fits).unwrap_or(EXTENT_BYTES_MAX);
        Ok(Self { bytes, far, extent_bytes, extents: room / extent_bytes })
    }

    /// Returns the geometry of a pool of `bytes` bytes with its far area at byte `far`, whether it has grown or not.
    ///
    /// # Errors
    /// The reason why these sizes are impossible.
    pub fn of(bytes: u64, far: u64, extent_bytes: u64) -> Result<Self, String> {
        // A pool that has not grown ends with the far area.
        let is_grown = far.checked_add(AREA_BYTES) != Some(bytes);
        let end = if is_grown { bytes } else { far };
        let extents = end.saturating_sub(AREA_BYTES) / extent_bytes.max(1);
        let geometry = Self { bytes, far, extent_bytes, extents };
        geometry.check().map(|()| geometry)
    }

    /// Returns the geometry of the pool after its device has grown to this length. The far area stays in its place.
    /// `None` if the device has no room for a further extent.
    pub fn grown(&self, device_bytes: u64) -> Option<Self> {
        let device_bytes = device_bytes.min(POOL_BYTES_MAX);
        let bytes = device_bytes - device_bytes % AREA_BYTES;
        let extents = bytes.saturating_sub(AREA_BYTES) / self.extent_bytes;
        // The far area lies in one position of the grid, whose extent is of no use.
        let of_far = (self.far - AREA_BYTES) / self.extent_bytes;
        let useless = u64::from((self.extents..extents).contains(&of_far));
        (extents > self.extents + useless).then_some(Self { bytes, extents, ..*self })
    }

    /// Returns the bytes of an allocator's log in this pool: complete extents.
    pub fn log_bytes(&self) -> u64 {
        let part = (self.bytes / LOG_PARTS).min(meta::ring::RING_BYTES_MAX);
        part.next_multiple_of(self.extent_bytes)
    }

    /// Returns the number of blocks in an extent.
    pub fn extent_blocks(&self) -> u32 {
        (self.extent_bytes / u64::from(BLOCK_BYTES)) as u32
    }

    /// Returns the first byte on the device of a position of the grid, which is that of the extent with this number
    /// until the extent is moved.
    pub fn extent_start(&self, position: u64) -> u64 {
        AREA_BYTES + position * self.extent_bytes
    }

    /// Returns whether the position of the grid overlaps the far area. An extent there holds nothing else.
    pub fn overlaps_far(&self, position: u64) -> bool {
        let start = self.extent_start(position);
        start < self.far + AREA_BYTES && self.far < start + self.extent_bytes
    }

    /// Returns the first byte on the device of a block, if its extent is in the pool and at the position of its
    /// number.
    pub fn byte_of(&self, address: Address) -> Option<u64> {
        let is_inside = address.extent() < self.extents && address.offset() < self.extent_blocks();
        let within = u64::from(address.offset()) * u64::from(BLOCK_BYTES);
        is_inside.then(|| self.extent_start(address.extent()) + within)
    }

    /// Checks the sizes against their limits and each other. The error is a description of the fault.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { bytes, far, extent_bytes, extents } = *self;
        let is_length = (POOL_BYTES_MIN..=POOL_BYTES_MAX).contains(&bytes);
        if !is_length || !bytes.is_multiple_of(AREA_BYTES) {
            return Err(format!("a length of {bytes} bytes is impossible"));
        }
        let is_extent = (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes);
        if !is_extent || !extent_bytes.is_power_of_two() {
            return Err(format!("extents of {extent_bytes} bytes are impossible"));
        }
        let last = bytes - AREA_BYTES;
        if !far.is_multiple_of(AREA_BYTES) || !(AREA_BYTES + extent_bytes..=last).contains(&far) {
            return Err(format!("a far area at byte {far} of {bytes} is impossible"));
        }
        let most = last / extent_bytes;
        if !(1..=most).contains(&extents) {
            return Err(format!(
                "{extents} extents of {extent_bytes} bytes in a pool of {bytes} are impossible"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_geometry_equals_table_of_format_document() {
        let rows = [
            (16 << 20, 1 << 20, 14),
            (16 << 30, 1 << 20, 16382),
            (64 << 30, 4 << 20, 16383),
            (1 << 40, 64 << 20, 16383),
            (16 << 40, 1 << 30, 16383),
        ];
        for (bytes, extent_bytes, extents) in rows {
            let geometry = Geometry::new(bytes).unwrap();
            assert_eq!((geometry.extent_bytes, geometry.extents), (extent_bytes, extents));
            assert_eq!(geometry.far, bytes - AREA_BYTES);
        }
        let logs = [16_u64 << 20, 16 << 30, 64 << 30, 1 << 40]
            .map(|bytes| Geometry::new(bytes).unwrap().log_bytes());
        assert_eq!(logs, [1 << 20, 256 << 20, 1 << 30, 1 << 30]);
    }

    #[test]
    fn pool_geometry_is_valid_and_leaves_areas_alone_for_any_device() {
        let odd = [(16 << 20) + 4096, (100 << 20) - 512, (5 << 40) + 77 * 4096, POOL_BYTES_MAX];
        for bytes in odd {
            let geometry = Geometry::new(bytes).unwrap();
            let Geometry { bytes, far, extent_bytes, .. } = geometry;
            assert_eq!(Geometry::of(bytes, far, extent_bytes), Ok(geometry));
            let last = geometry.extents - 1;
            assert!(!geometry.overlaps_far(last), "{geometry:?}");
            assert!(geometry.extent_start(last) + geometry.extent_bytes <= geometry.far);
            let log = geometry.log_bytes();
            assert!(log.is_multiple_of(geometry.extent_bytes), "{log}");
            assert!(log <= meta::ring::RING_BYTES_MAX);
        }
        assert!(Geometry::new(POOL_BYTES_MIN - 1).is_err());
        assert!(Geometry::new(POOL_BYTES_MAX + 1).is_err());
    }

    #[test]
    fn grown_pool_keeps_far_area_and_gives_overlapping_extent_to_it() {
        let before = Geometry::new(64 << 30).unwrap();
        assert_eq!(before.grown(before.bytes + (1 << 20)), None, "less than an extent");
        let after = before.grown(128 << 30).unwrap();
        assert_eq!((after.far, after.extent_bytes), (before.far, before.extent_bytes));
        assert_eq!(Geometry::of(after.bytes, after.far, after.extent_bytes), Ok(after));
        let overlapping: Vec<_> = (0..after.extents).filter(|n| after.overlaps_far(*n)).collect();
        assert_eq!(overlapping, [before.extents]);
        let end = Address::new(after.extents, 0).unwrap();
        assert_eq!(after.byte_of(end), None);
        let block = Address::new(2, 3).unwrap();
        assert_eq!(after.byte_of(block), Some((1 << 20) + (8 << 20) + 3 * 4096));
        assert_eq!(after.byte_of(Address::new(2, after.extent_blocks()).unwrap()), None);
    }

    #[test]
    fn pool_geometry_check_rejects_impossible_sizes() {
        let good = Geometry::new(64 << 30).unwrap();
        let wrong = [
            Geometry { bytes: 0, ..good },
            Geometry { bytes: good.bytes + 4096, ..good },
            Geometry { far: good.far + 4096, ..good },
            Geometry { far: 1 << 20, ..good },
            Geometry { far: good.bytes, ..good },
            Geometry { extent_bytes: 3 << 20, ..good },
            Geometry { extent_bytes: 1 << 19, ..good },
            Geometry { extent_bytes: 1 << 31, ..good },
            Geometry { extents: 0, ..good },
            Geometry { extents: good.extents + 1, ..good },
        ];
        for geometry in wrong {
            assert!(geometry.check().is_err(), "{geometry:?}");
        }
    }
}
