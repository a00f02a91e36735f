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
    /// The largest block size in bytes of the devices that the request may reach. A device may widen the request to
    /// complete blocks.
    pub block: u32,
}

impl Reserve {
    /// The reserve without slots and buffers.
    pub const NONE: Self = Self { slots: 0, copies: 0, block: 0 };

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
        let copies = ways.saturating_mul(most(|reserve| reserve.copies));
        Self {
            slots: needs.children.saturating_mul(most(|reserve| reserve.slots)).saturating_add(1),
            copies: needs.scratch_copies.saturating_add(copies),
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

    /// Returns the bytes of the buffer pool that this reserve takes for a request of `len` bytes.
    #[inline]
    pub(super) fn bytes(&self, len: u64) -> usize {
        if self.copies == 0 {
            return 0;
        }
        // A range that begins and ends inside blocks reaches into one more block at either end.
        let wide = len as usize + 2 * self.block as usize;
        self.copies as usize * wide.min(BUF_MAX_BYTES).next_power_of_two()
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
            _ => 0,
        }
    }
}
