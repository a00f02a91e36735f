//! Freed blocks to discard on the device below.

use std::collections::BTreeMap;

use super::Taken;
use super::bits::Bits;
use crate::Address;

/// Blocks that are ready, with old bytes on the device below.
#[derive(Default)]
pub struct Discards {
    /// Blocks to discard, by extent.
    stale: BTreeMap<u64, Bits>,
    /// Blocks with a running discard. They are not ready.
    running: Vec<Taken>,
}

impl Discards {
    /// Notes that blocks of an extent with `extent_blocks` blocks are ready.
    pub fn add(&mut self, taken: Taken, extent_blocks: u32) {
        let bits = self.stale.entry(taken.address.extent());
        let bits = bits.or_insert_with(|| Bits::new(extent_blocks));
        bits.set(taken.address.offset(), taken.blocks as u32, true);
    }

    /// Notes that blocks are in use again.
    pub fn remove(&mut self, taken: Taken) {
        let extent = taken.address.extent();
        if let Some(bits) = self.stale.get_mut(&extent) {
            bits.set(taken.address.offset(), taken.blocks as u32, false);
            if bits.count() == 0 {
                self.stale.remove(&extent);
            }
        }
    }

    /// Whether an extent has blocks to discard.
    pub fn has(&self, extent: u64) -> bool {
        self.stale.contains_key(&extent)
    }

    /// Returns the first run of blocks to discard. Its discard runs until [`Discards::end`].
    pub fn begin(&mut self) -> Option<Taken> {
        let (extent, bits) = self.stale.first_key_value()?;
        let (block, blocks) = bits.next_run(0).expect("a bitmap without blocks is removed");
        let address = Address::new(*extent, block).expect("an extent of the pool");
        let taken = Taken { address, blocks: u64::from(blocks) };
        self.remove(taken);
        self.running.push(taken);
        Some(taken)
    }

    /// Ends the discard of a run.
    pub fn end(&mut self, taken: Taken) {
        self.running.retain(|run| *run != taken);
    }

    /// Returns the runs with a running discard.
    pub fn running(&self) -> &[Taken] {
        &self.running
    }
}
