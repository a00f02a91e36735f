//! Facts about a device, computed once when the graph is built.

use crate::BUF_MAX_BYTES;

/// Size, block size and abilities of a device. All abilities are in one value, not in a trait for each: a device
/// above copies the value and narrows a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// Size of the device in bytes, a multiple of `block_size`.
    pub size: u64,
    /// Block size of the device in bytes, a power of two from 512 to 65536. The range of every request consists of
    /// whole blocks.
    pub block_size: u32,
    /// Number of bytes at the end of the last block that are no part of the data: a file may end inside a block. They
    /// read as zeros, and writes to them are dropped. 0 for all other devices.
    pub padding: u32,
    /// Best length of a request to the device in bytes, a multiple of `block_size`.
    pub preferred_io: u32,
    /// Longest read or write of the device in bytes, a multiple of `block_size`; longer requests are split above.
    pub max_transfer: u32,
    /// Alignment in bytes that the device demands of every payload's address; 1 if it demands none.
    pub buf_align: u32,
    /// Whether the device refuses writes.
    pub read_only: bool,
    /// Whether a completed write to the device may be lost at a power cut, until a flush.
    pub volatile_cache: bool,
    /// Whether a write with FUA costs less than a write and a flush.
    pub native_fua: bool,
    /// Whether the device can zero a range without receiving zeros as data.
    pub native_zeroes: bool,
    /// Whether the device carries out a discard; otherwise it ignores one.
    pub discard: bool,
    /// Whether a range of the device reads as zeros after a discard of the range.
    pub discard_zeroes: bool,
    /// Whether acknowledged writes to the device survive the end of this process (not a loss of power).
    pub survives_process: bool,
    /// Whether a request to the device that its upper stopped waiting for can no longer write. A network may delay a
    /// write, which then lands on newer bytes. A device without a fence cannot be a member of a redundant device.
    pub fenced: bool,
    /// Number of copies of each byte that the device offers to reads that avoid others, from 1 to
    /// [`crate::COPIES_MAX`]. A device that does not pass on the copies of its lowers has 1.
    pub copies: u32,
}

impl Info {
    /// Returns the facts about a plain disk of `size` bytes with all abilities that NBD can use.
    pub const fn disk(size: u64, block_size: u32) -> Self {
        Self {
            size,
            block_size,
            padding: 0,
            preferred_io: 4096,
            max_transfer: BUF_MAX_BYTES as u32,
            buf_align: 512,
            read_only: false,
            volatile_cache: true,
            native_fua: true,
            native_zeroes: true,
            discard: true,
            discard_zeroes: false,
            survives_process: true,
            fenced: true,
            copies: 1,
        }
    }

    /// Returns the number of bytes of data that clients see: the size without the padding.
    pub const fn data_bytes(&self) -> u64 {
        self.size - self.padding as u64
    }

    /// Combines the facts about two lowers for a device over both: the larger block size, the weaker abilities, the
    /// larger number of copies (that of a table; a redundant device computes its own). If the longest transfer of one lower is shorter than a block of the other, `max_transfer` becomes 0. The size is
    /// that of `self`; the device above computes its own.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let block_size = self.block_size.max(other.block_size);
        let most = self.max_transfer.min(other.max_transfer);
        Self {
            size: self.size,
            block_size,
            padding: 0,
            preferred_io: self.preferred_io.max(other.preferred_io),
            max_transfer: most - most % block_size,
            buf_align: self.buf_align.max(other.buf_align),
            read_only: self.read_only || other.read_only,
            volatile_cache: self.volatile_cache || other.volatile_cache,
            native_fua: self.native_fua && other.native_fua,
            native_zeroes: self.native_zeroes && other.native_zeroes,
            discard: self.discard && other.discard,
            discard_zeroes: self.discard_zeroes && other.discard_zeroes,
            survives_process: self.survives_process && other.survives_process,
            fenced: self.fenced && other.fenced,
            copies: self.copies.max(other.copies),
        }
    }

    /// Combines the facts about all `lowers` for a device over them, as [`Info::and`] does; `None` if there are no
    /// lowers.
    pub fn over<'a>(lowers: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        lowers.into_iter().fold(None, |all: Option<Self>, one| {
            Some(all.map_or_else(|| one.clone(), |all| all.and(one)))
        })
    }
}

/// Resources that a device may need: for one request, so that the graph can reserve them before the request begins, and
/// permanently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Most requests to lowers that one request has in flight at the same time.
    pub children: u32,
    /// Most buffer bytes that one request needs beyond its own buffer, as a multiple of the request's length.
    pub scratch_copies: u32,
    /// Most buffer bytes that one request needs besides, whatever its length: a page of metadata that the device reads,
    /// for example. A buffer counts with its length, rounded up to a power of two of at least [`crate::BUF_ALIGN`].
    pub scratch_bytes: u32,
    /// Bytes of the buffer pool that the device holds or reserves from its opening on, without a request. The sum over a
    /// graph has a limit.
    pub standing_bytes: u32,
    /// Whether the requests to lowers that belong to one request have together at most its length.
    pub divides: bool,
}

impl Needs {
    /// The needs of a device without lowers.
    pub const LEAF: Self = Self {
        children: 0,
        scratch_copies: 0,
        scratch_bytes: 0,
        standing_bytes: 0,
        divides: false,
    };

    /// Returns the needs of a device whose requests have up to `children` requests to lowers in flight, and no
    /// buffers beyond their own.
    pub const fn children(children: u32) -> Self {
        Self { children, ..Self::LEAF }
    }

    /// Returns the needs of a device that divides a request into up to `parts` requests to lowers, which are in flight
    /// at the same time.
    pub const fn parts(parts: u32) -> Self {
        Self { children: parts, divides: true, ..Self::LEAF }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combined_transfer_limit_is_multiple_of_both_block_sizes() {
        let both = |block_size, max_transfer| {
            let other = Info { max_transfer, ..Info::disk(1 << 20, 512) };
            Info::disk(1 << 20, block_size).and(&other).max_transfer
        };
        for (block_size, max_transfer, most) in
            [(512, 6656, 6656), (4096, 6656, 4096), (4096, 4096, 4096), (4096, 3584, 0)]
        {
            assert_eq!(both(block_size, max_transfer), most, "{block_size} and {max_transfer}");
        }
    }
}
