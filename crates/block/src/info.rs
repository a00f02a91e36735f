//! Facts about a device, computed once when the graph is built.

use crate::BUF_MAX_BYTES;

/// What a device is and can do. A value, not a trait per capability: whoever stands above copies it
/// and narrows a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// Bytes, a multiple of `block_size`.
    pub size: u64,
    /// Every range is a multiple of this many bytes, a power of two from 512 to 65536.
    pub block_size: u32,
    /// Requests of this many bytes are carried out best; a multiple of `block_size`.
    pub preferred_io: u32,
    /// The longest read or write in bytes, a multiple of `block_size`; longer ones are split above.
    pub max_transfer: u32,
    /// The address of every payload is a multiple of this many bytes; 1 where any will do.
    pub buf_align: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether a completed write may be lost with power until a flush.
    pub volatile_cache: bool,
    /// Whether FUA costs less than a write and a flush.
    pub native_fua: bool,
    /// Whether zeros can be written without sending them.
    pub native_zeroes: bool,
    /// Whether a discard does anything.
    pub discard: bool,
    /// Whether a range reads as zeros after its discard.
    pub discard_zeroes: bool,
    /// Whether answered writes outlive this process (not: power).
    pub survives_process: bool,
    /// Whether no write lands once nobody waits for it any more: a network may hold one, and let it
    /// land on top of a newer one. What is not fenced is no member of a redundant device.
    pub fenced: bool,
}

impl Info {
    /// A plain disk of `size` bytes that can do what NBD can ask for.
    pub const fn disk(size: u64, block_size: u32) -> Self {
        Self {
            size,
            block_size,
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
        }
    }

    /// What is true of a device that stands on both: the larger block, the weaker promise. It may be that one takes
    /// less at once than a block of the other: then the longest transfer is 0.
    /// The size is left as it is; the device above computes its own.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let block_size = self.block_size.max(other.block_size);
        let most = self.max_transfer.min(other.max_transfer);
        Self {
            size: self.size,
            block_size,
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
        }
    }

    /// The facts that hold over all of `lowers`; `None` if there are none.
    pub fn over<'a>(lowers: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        lowers.into_iter().fold(None, |all: Option<Self>, one| {
            Some(all.map_or_else(|| one.clone(), |all| all.and(one)))
        })
    }
}

/// What one request may need of a device, so that the graph can keep it in reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// The most children in flight at once.
    pub children: u32,
    /// The most bytes of buffers beside the request's own, as a multiple of its length.
    pub scratch_copies: u32,
}

impl Needs {
    /// A device without lower ones.
    pub const LEAF: Self = Self { children: 0, scratch_copies: 0 };

    /// Up to `children` at once, without buffers of its own.
    pub const fn children(children: u32) -> Self {
        Self { children, scratch_copies: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_whole_blocks_of_both() {
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
