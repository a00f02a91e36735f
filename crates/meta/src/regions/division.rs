//! The division of a device into regions of equal size.

use block::{ByteRange, Result, bail};

/// Least size of a region in bytes.
pub const REGION_BYTES_MIN: u64 = 4096;

/// The division of a device into regions of the same size, except that the last region may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    size: u64,
    region_bytes: u64,
}

impl Division {
    /// Divides a device of `size` bytes into regions of `region_bytes` bytes.
    ///
    /// # Errors
    /// `Invalid` if the device is empty, or `region_bytes` is not a power of two of at least [`REGION_BYTES_MIN`].
    pub fn new(size: u64, region_bytes: u64) -> Result<Self> {
        if size == 0 {
            bail!(Invalid, "a device of 0 bytes has no regions");
        }
        if !region_bytes.is_power_of_two() || region_bytes < REGION_BYTES_MIN {
            bail!(
                Invalid,
                "regions of {region_bytes} bytes; a power of two of at least {REGION_BYTES_MIN} is needed"
            );
        }
        Ok(Self { size, region_bytes })
    }

    /// Returns the number of regions.
    pub fn count(&self) -> u64 {
        self.size.div_ceil(self.region_bytes)
    }

    /// Returns the size of a region in bytes.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the byte range of the region with this number.
    ///
    /// # Panics
    /// If the device has no region with this number.
    pub fn range(&self, region: u64) -> ByteRange {
        let start = region * self.region_bytes;
        let end = self.size.min(start.saturating_add(self.region_bytes));
        ByteRange::between(start, end).expect("a region has bytes")
    }

    /// Returns the numbers of the first and the last region that a byte range touches.
    ///
    /// # Panics
    /// If the range ends behind the device.
    #[inline]
    pub fn of(&self, range: ByteRange) -> (u64, u64) {
        assert!(range.end() <= self.size, "{range} ends behind the {} bytes", self.size);
        let shift = self.region_bytes.trailing_zeros();
        (range.start() >> shift, (range.end() - 1) >> shift)
    }
}
