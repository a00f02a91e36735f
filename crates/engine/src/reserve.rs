//! Reserves: the most slots and buffers that one request needs in a node and below it. The plan of a graph computes the
//! reserves before any device is made. The engine sets the reserve of a client's request aside before the request
//! begins.

use block::{BUF_MAX_BYTES, Needs, Op, Place, Result, Table, error};

use super::share::Need;
use super::{REQUEST_SLOTS_MAX, TRANSFER_MIN_BYTES, WINDOW};

/// The resources that the engine sets aside for a request before it begins the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// Number of slots for the request and all of its children.
    pub slots: u32,
    /// Number of buffers for the request and its children, besides the buffer of its payload. Each buffer has the
    /// length of the request, rounded up to complete blocks.
    pub copies: u32,
    /// Number of buffer bytes for the request and its children that do not depend on the length of the request.
    pub fixed_bytes: usize,
    /// The largest block size in bytes of the devices that the request may reach. A device may widen the request to
    /// complete blocks.
    pub block: u32,
}

impl Reserve {
    /// The reserve without slots and buffers.
    pub const NONE: Self = Self { slots: 0, copies: 0, fixed_bytes: 0, block: 0 };

    /// Returns the reserve for a request to a device with blocks of `block` bytes, over lowers with the reserves
    /// `below`. Each child may have the length of the complete request, unless the device divides requests.
    pub fn of_device(needs: Needs, block: u32, below: &[Self]) -> Self {
        let ways = if needs.divides { needs.children.min(1) } else { needs.children };
        Self::over(needs, ways, block, below)
    }

    /// Returns the reserve for a request to a table, over lowers with the reserves `below`. All parts of the request
    /// together have its length. A table of one linear segment never splits a request.
    pub fn of_table(table: &Table, block: u32, below: &[Self]) -> Self {
        let mut segments = table.segments();
        let is_whole = segments.len() == 1
            && segments.all(|segment| matches!(segment.place, Place::Linear(_)));
        let parts = if is_whole { 1 } else { WINDOW as u32 };
        Self::of_device(Needs::parts(parts), block, below)
    }

    fn over(needs: Needs, ways: u32, block: u32, below: &[Self]) -> Self {
        let most = |of: fn(&Self) -> u32| below.iter().map(of).max().unwrap_or(0);
        let fixed = below.iter().map(|reserve| reserve.fixed_bytes).max().unwrap_or(0);
        let copies = ways.saturating_mul(most(|reserve| reserve.copies));
        Self {
            slots: needs.children.saturating_mul(most(|reserve| reserve.slots)).saturating_add(1),
            copies: needs.scratch_copies.saturating_add(copies),
            // Each child may need its own, also where the children divide the length of the request.
            fixed_bytes: fixed
                .saturating_mul(needs.children as usize)
                .saturating_add(needs.scratch_bytes as usize),
            block: most(|reserve| reserve.block).max(block),
        }
    }

    /// Checks that an engine with a buffer pool of `pool_bytes` bytes can admit a request to the device `name` with
    /// this reserve. The request has 1 MiB, or `max_transfer` bytes if that is less.
    ///
    /// # Errors
    /// `Limit` if the request needs too many slots, or too many bytes of buffers.
    pub fn check(&self, name: &str, max_transfer: u32, pool_bytes: usize) -> Result<()> {
        let too_much = |need: String, most: String| {
            Err(error!(Limit, "one request through {name} may need {need}; the limit is {most}")
                .next("stack fewer devices that split requests or copy bytes"))
        };
        if self.slots > REQUEST_SLOTS_MAX {
            let slots = |count| format!("{count} slots");
            return too_much(slots(self.slots), slots(REQUEST_SLOTS_MAX));
        }
        let bytes = self.bytes(u64::from(max_transfer.min(TRANSFER_MIN_BYTES)));
        let most = Self::bytes_max(pool_bytes);
        if bytes > most {
            return too_much(format!("{bytes} bytes of buffers"), format!("{most} bytes"));
        }
        Ok(())
    }

    /// Returns the most bytes of a buffer pool of `pool_bytes` bytes that one request may reserve, so that the pool has
    /// room for other requests.
    pub(super) fn bytes_max(pool_bytes: usize) -> usize {
        pool_bytes / 2
    }

    /// Returns the most bytes of a buffer pool of `pool_bytes` bytes that all devices of a graph may hold permanently
    /// ([`Needs::standing_bytes`]). Beside them, the pool has room for the largest reserve of one request and for the
    /// longest payload.
    pub fn standing_max(pool_bytes: usize) -> usize {
        pool_bytes / 4
    }

    /// Returns the bytes of the buffer pool that this reserve takes for a request of `len` bytes.
    #[inline]
    pub(super) fn bytes(&self, len: u64) -> usize {
        if self.copies == 0 {
            return self.fixed_bytes;
        }
        // A range that begins and ends inside blocks reaches into one more block at either end.
        let wide = len as usize + 2 * self.block as usize;
        let copies = self.copies as usize * wide.min(BUF_MAX_BYTES).next_power_of_two();
        copies.saturating_add(self.fixed_bytes)
    }

    /// Returns the slots and buffer bytes that this reserve takes for `op`.
    #[inline]
    pub(super) fn need(&self, op: &Op) -> Need {
        Need { slots: self.slots.into(), bytes: self.bytes_for(op) }
    }

    /// Returns the bytes of the buffer pool that this reserve takes for `op`. A long request without payload is
    /// processed in pieces of the length of the longest payload.
    #[inline]
    fn bytes_for(&self, op: &Op) -> usize {
        match op.range() {
            Some(range) if self.copies > 0 => self.bytes(range.len().min(BUF_MAX_BYTES as u64)),
            _ => self.fixed_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_counts_bytes_that_do_not_depend_on_request_length() {
        let page = Needs { children: 1, scratch_bytes: 4096, ..Needs::LEAF };
        let disk = Reserve::of_device(Needs::LEAF, 512, &[]);
        let map = Reserve::of_device(page, 512, &[disk]);
        assert_eq!((disk.bytes(1 << 20), map.bytes(512), map.bytes(1 << 20)), (0, 4096, 4096));
        assert_eq!(map.need(&Op::Flush).bytes, 4096, "a flush may read metadata too");
        // Each of the parts in flight has bytes of its own, though all parts together have the length of the request.
        let divided = Reserve::of_device(Needs::parts(3), 512, &[map]);
        assert_eq!(divided.bytes(1 << 20), 3 * 4096);
        let both = Needs { children: 2, scratch_copies: 1, scratch_bytes: 512, ..Needs::LEAF };
        let both = Reserve::of_device(both, 512, &[map, disk]);
        assert_eq!(both.bytes(1 << 20), (2 << 20) + 512 + 2 * 4096);
    }

    #[test]
    fn reserve_of_fixed_bytes_beyond_limit_is_refused() {
        let half = Needs { scratch_bytes: 1 << 20, ..Needs::LEAF };
        let fits = Reserve::of_device(half, 512, &[]);
        assert!(fits.check("d", 4096, 2 << 20).is_ok());
        let two = Reserve::of_device(Needs::children(2), 512, &[fits]);
        assert!(two.check("d", 4096, 2 << 20).is_err());
        let many = Needs { scratch_bytes: u32::MAX, ..Needs::children(u32::MAX) };
        let deep = (0..8).fold(fits, |below, _| Reserve::of_device(many, 512, &[below]));
        assert!(deep.check("d", 4096, usize::MAX).is_err(), "the sum saturates");
    }
}
