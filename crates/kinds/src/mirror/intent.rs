//! Where writes may be on their way: what a mirror that was not closed in order has to compare.
//!
//! A region is durably in the map before a write to it is sent, and leaves it when nobody writes there any
//! more. While it is in the map, a write costs a look at a bit.

use std::cell::{Cell, RefCell};

use block::ByteRange;

use super::regions::{Bitmap, Regions};

/// States of labels are written for the map at most once for so many writes of clients, but for the
/// regions that are new to it. Each is two writes of a label, so these stay below 3 for 100.
pub const WRITES_PER_STATE: u64 = 80;

/// How many regions may leave the map at once, and before there have been writes to pay for it. What is paid beyond
/// that is forgotten: clients that have been busy and are not any more would pay for them again one by one.
const REGIONS_AT_ONCE: u64 = 128;

/// So many writes are remembered.
const CREDIT_MAX: u64 = WRITES_PER_STATE * (REGIONS_AT_ONCE + 1);

/// After so many looks without any write all regions leave the map, whatever that costs.
const IDLE_LOOKS: u32 = 6;

/// The map of all, while the mirror runs.
pub struct Intent {
    regions: Regions,
    maps: RefCell<Maps>,
    /// Writes of clients that have not paid for a state yet.
    credit: Cell<u64>,
    /// Looks in a row that have found no write.
    idle_looks: Cell<u32>,
    /// Whether somebody looks after it.
    pub is_watched: Cell<bool>,
}

struct Maps {
    /// What is to be in the map.
    wanted: Bitmap,
    /// What is in it on every member in sync.
    durable: Bitmap,
    /// Where there have been writes since the last look.
    touched: Bitmap,
}

impl Intent {
    /// An empty map.
    pub fn new(regions: Regions) -> Self {
        let none = || Bitmap::none(regions.count());
        Self {
            regions,
            maps: RefCell::new(Maps { wanted: none(), durable: none(), touched: none() }),
            credit: Cell::new(CREDIT_MAX),
            idle_looks: Cell::new(0),
            is_watched: Cell::new(false),
        }
    }

    /// What the map is about.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Notes a write; whether the map has its regions durably.
    #[inline]
    pub fn covers(&self, range: ByteRange) -> bool {
        let (first, last) = self.regions.of(range);
        let Maps { durable, touched, .. } = &mut *self.maps.borrow_mut();
        let mut covered = true;
        for region in first..=last {
            touched.insert(region);
            covered &= durable.has(region);
        }
        covered
    }

    /// A write of a client is on its way: it pays for a part of a state.
    #[inline]
    pub fn count_write(&self) {
        self.credit.set((self.credit.get() + 1).min(CREDIT_MAX));
    }

    /// Wants the regions of a range in the map: and as many behind them as writes in a row of this length
    /// would come to, so that they do not write a state each.
    pub fn want(&self, range: ByteRange) {
        let (first, last) = self.regions.of(range);
        let ahead = range.len() * WRITES_PER_STATE / self.regions.region_bytes();
        let last = (last + ahead as usize).min(self.regions.count() - 1);
        let mut maps = self.maps.borrow_mut();
        (first..=last).for_each(|region| maps.wanted.insert(region));
    }

    /// What is to be in the map.
    pub fn wanted(&self) -> Bitmap {
        self.maps.borrow().wanted.clone()
    }

    /// A state with this map is on every member in sync.
    pub fn made_durable(&self, map: Bitmap) {
        self.maps.borrow_mut().durable = map;
    }

    /// The regions that may leave the map if they are flushed now, and nobody writes there meanwhile.
    /// `busy`: whether somebody writes to a range now.
    pub fn quiet(&self, busy: impl Fn(ByteRange) -> bool) -> Bitmap {
        let Maps { wanted, touched, .. } = &mut *self.maps.borrow_mut();
        let looks = if touched.is_empty() { self.idle_looks.get() + 1 } else { 0 };
        self.idle_looks.set(looks);
        let most = match looks >= IDLE_LOOKS {
            true => wanted.len(),
            false => (self.credit.get() / WRITES_PER_STATE).saturating_sub(1) as usize,
        };
        let mut quiet = Bitmap::none(self.regions.count());
        let left = wanted.iter().filter(|region| !touched.has(*region));
        let left = left.filter(|region| !busy(self.regions.range(*region)));
        left.take(most).for_each(|region| quiet.insert(region));
        touched.clear();
        quiet
    }

    /// Takes regions out, but for those that have been written to since they were found quiet. Whether
    /// there was one to take; then the next state must be written before anybody else takes the turn.
    pub fn leave(&self, quiet: &Bitmap, busy: impl Fn(ByteRange) -> bool) -> bool {
        let Maps { wanted, durable, touched } = &mut *self.maps.borrow_mut();
        let mut states = 1;
        for region in quiet.iter() {
            if !touched.has(region) && !busy(self.regions.range(region)) {
                wanted.remove(region);
                durable.remove(region);
                states += 1;
            }
        }
        self.credit.set(self.credit.get().saturating_sub(states * WRITES_PER_STATE));
        states > 1
    }

    /// Whether there is nothing in the map.
    pub fn is_empty(&self) -> bool {
        self.maps.borrow().wanted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = 1 << 20;

    fn at(region: u64, len: u64) -> ByteRange {
        ByteRange::new(region * REGION, len).unwrap()
    }

    fn intent() -> Intent {
        Intent::new(Regions::new(1000 * REGION, REGION).unwrap())
    }

    /// A write, and the state that it needs.
    fn write(intent: &Intent, range: ByteRange) -> bool {
        intent.count_write();
        if intent.covers(range) {
            return false;
        }
        intent.want(range);
        intent.made_durable(intent.wanted());
        assert!(intent.covers(range));
        true
    }

    #[test]
    fn a_region_leaves_when_nobody_writes_there() {
        let intent = intent();
        assert!(write(&intent, at(3, 4096)) && write(&intent, at(5, 4096)));
        assert!(intent.quiet(|_| false).is_empty(), "there have been writes since the last look");
        write(&intent, at(5, 4096));
        let quiet = intent.quiet(|_| false);
        assert_eq!(quiet.iter().collect::<Vec<_>>(), [3]);
        assert!(intent.quiet(|range| range == at(3, REGION)).iter().eq([5]));
        write(&intent, at(3, 4096));
        assert!(!intent.leave(&quiet, |_| false));
        assert!(intent.wanted().has(3), "somebody has written there meanwhile");
        intent.quiet(|_| false);
        assert!(intent.leave(&intent.quiet(|_| false), |_| false));
        assert!(intent.is_empty() && !intent.covers(at(3, 4096)));
    }

    #[test]
    fn writes_pay_for_regions_that_leave() {
        let intent = intent();
        let mut states = 0;
        // Single writes all over, and a look after each few.
        for n in 0..20_000_u64 {
            states += u64::from(write(&intent, at(n * 7919 % 1000, 4096)));
            if n % 50 == 0 {
                let quiet = intent.quiet(|_| false);
                states += u64::from(intent.leave(&quiet, |_| false));
            }
        }
        // Each region once, what may leave at the beginning, and one for eighty writes.
        let paid = REGIONS_AT_ONCE + 1 + 20_000 / WRITES_PER_STATE;
        assert!((1000..=1000 + paid).contains(&states), "{states}");
        (0..IDLE_LOOKS).for_each(|_| drop(intent.quiet(|_| false)));
        let quiet = intent.quiet(|_| false);
        assert_eq!(quiet.len(), intent.wanted().len(), "all leave when nobody writes at all");
    }

    #[test]
    fn what_busy_clients_have_paid_is_not_spent_when_they_are_slow() {
        let intent = intent();
        for n in 0..1000 {
            write(&intent, at(n, 4096));
        }
        // All in one place, for long.
        (0..1_000_000).for_each(|_| {
            write(&intent, at(0, 4096));
        });
        intent.quiet(|_| false);
        intent.covers(at(0, 4096));
        let left = intent.quiet(|_| false).len();
        assert_eq!(left as u64, REGIONS_AT_ONCE);
    }

    #[test]
    fn writes_in_a_row_share_states() {
        let intent = intent();
        let states: u64 = (0..1000).map(|n| u64::from(write(&intent, at(n, REGION)))).sum();
        assert!(states <= 25, "{states} states for 1000 writes");
    }
}
