//! The limit of label writes that clear dirty regions. A label write costs more than a client's write, so regions are cleared
//! in labels only as fast as clients write, or once they do not write any more.

use std::cell::Cell;

/// Number of client writes for each update of the mirror's state that removes regions from the bitmap; updates that add
/// regions are not limited. An update writes each label twice, so removals cost less than 3 writes of each label for
/// 100 client writes.
pub const WRITES_PER_STATE: u64 = 80;

/// Most regions that may leave the bitmap in one update while clients write, and before the first client write. More
/// credit is not saved: after a busy time, clients with few writes would cause an update for each single region.
const REGIONS_AT_ONCE: u64 = 128;

/// Largest credit for updates that remove regions, in client writes.
const CREDIT_MAX: u64 = WRITES_PER_STATE * (REGIONS_AT_ONCE + 1);

/// Number of successive checks without a client write between them, after which all regions leave the bitmap, whatever
/// the credit.
const IDLE_LOOKS: u32 = 6;

/// The credit for label writes that clear dirty regions.
pub struct Credit {
    /// Number of client writes that no update of the state has used yet, at most [`CREDIT_MAX`].
    writes: Cell<u64>,
    /// Number of the last successive checks that have found no client write.
    idle_looks: Cell<u32>,
}

impl Default for Credit {
    fn default() -> Self {
        Self { writes: Cell::new(CREDIT_MAX), idle_looks: Cell::new(0) }
    }
}

impl Credit {
    /// Counts a client write.
    #[inline]
    pub fn count_write(&self) {
        self.writes.set((self.writes.get() + 1).min(CREDIT_MAX));
        self.idle_looks.set(0);
    }

    /// Returns the most regions that may be cleared now. Counts the call as a check.
    pub fn look(&self) -> usize {
        self.idle_looks.set(self.idle_looks.get().saturating_add(1));
        match self.idle_looks.get() > IDLE_LOOKS {
            true => usize::MAX,
            false => (self.writes.get() / WRITES_PER_STATE).saturating_sub(1) as usize,
        }
    }

    /// Uses the credit for an update that removes `regions` regions.
    pub fn spend(&self, regions: usize) {
        let writes = (regions as u64 + 1).saturating_mul(WRITES_PER_STATE);
        self.writes.set(self.writes.get().saturating_sub(writes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_permits_one_cleared_region_for_eighty_writes() {
        let (credit, mut cleared, mut updates) = (Credit::default(), 0, 0);
        for n in 0..20_000 {
            credit.count_write();
            if n % 50 == 0 && credit.look() > 0 {
                let most = credit.look().min(3);
                credit.spend(most);
                (cleared, updates) = (cleared + most as u64, updates + 1);
            }
        }
        assert!(cleared + updates <= REGIONS_AT_ONCE + 1 + 20_000 / WRITES_PER_STATE);
        assert!(cleared >= REGIONS_AT_ONCE, "{cleared}");
    }

    #[test]
    fn credit_of_busy_clients_is_limited_and_ends_with_their_writes() {
        let credit = Credit::default();
        (0..1_000_000).for_each(|_| credit.count_write());
        for _ in 0..IDLE_LOOKS {
            assert_eq!(credit.look() as u64, REGIONS_AT_ONCE);
        }
        assert_eq!(credit.look(), usize::MAX, "clients do not write any more");
        credit.count_write();
        assert_eq!(credit.look() as u64, REGIONS_AT_ONCE);
    }
}
