//! The bitmap of dirty regions. After a crash, the mirror makes its members equal in these regions.
//!
//! A region is durably in the bitmap before a write to the region is sent to a member. The region leaves the bitmap
//! when writes to it have ceased. While the region is in the bitmap, a write only checks one bit.

use std::cell::{Cell, RefCell};

use block::ByteRange;

use super::regions::{Bitmap, Regions};

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

/// The bitmap of dirty regions of a running mirror.
pub struct Intent {
    regions: Regions,
    maps: RefCell<Maps>,
    /// Number of client writes that no update of the state has used yet, at most [`CREDIT_MAX`].
    credit: Cell<u64>,
    /// Number of the last successive checks that have found no client write.
    idle_looks: Cell<u32>,
    /// Whether a task runs that regularly checks the bitmap for regions without client writes.
    pub is_watched: Cell<bool>,
}

struct Maps {
    /// Regions that the next state of the mirror must record as dirty.
    wanted: Bitmap,
    /// Regions that are durably in the bitmap in the labels of every member in sync.
    durable: Bitmap,
    /// Regions with client writes since the last check for regions without writes.
    touched: Bitmap,
}

impl Intent {
    /// Returns an empty bitmap of dirty regions.
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

    /// Returns the division of the mirror into regions.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Records that a client writes to `range` now. Returns whether the regions of `range` are durably in the bitmap.
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

    /// Counts a client write, as credit for an update of the mirror's state that removes regions.
    #[inline]
    pub fn count_write(&self) {
        self.credit.set((self.credit.get() + 1).min(CREDIT_MAX));
    }

    /// Adds the regions of `range` to the wanted bitmap, and the regions behind them that the next [`WRITES_PER_STATE`]
    /// sequential writes of this length reach. So sequential writes share updates of the mirror's state.
    pub fn want(&self, range: ByteRange) {
        let (first, last) = self.regions.of(range);
        let ahead = range.len() * WRITES_PER_STATE / self.regions.region_bytes();
        let last = (last + ahead as usize).min(self.regions.count() - 1);
        let mut maps = self.maps.borrow_mut();
        (first..=last).for_each(|region| maps.wanted.insert(region));
    }

    /// Returns the regions that the next state of the mirror must record as dirty.
    pub fn wanted(&self) -> Bitmap {
        self.maps.borrow().wanted.clone()
    }

    /// Records that the bitmap `map` is durable in the labels of every member in sync.
    pub fn made_durable(&self, map: Bitmap) {
        self.maps.borrow_mut().durable = map;
    }

    /// Returns the regions that may leave the bitmap if all members are flushed now and clients do not write to the
    /// regions meanwhile. `busy` returns whether a byte range has writes in flight.
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

    /// Removes the regions in `quiet` from the bitmap, except regions with client writes since the call of
    /// [`Intent::quiet`]. Returns whether a region was removed: the caller must then write the next state of the mirror
    /// before it releases the lock of the superblock writer.
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

    /// Whether the bitmap has no dirty regions.
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

    /// Records a client write to `range` in the bitmap. Returns whether the mirror had to write a state for the write.
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
    fn bitmap_drops_region_after_writes_cease() {
        let intent = intent();
        assert!(write(&intent, at(3, 4096)) && write(&intent, at(5, 4096)));
        assert!(intent.quiet(|_| false).is_empty(), "there have been writes since the last look");
        write(&intent, at(5, 4096));
        let quiet = intent.quiet(|_| false);
        assert_eq!(quiet.iter().collect::<Vec<_>>(), [3]);
        assert!(intent.quiet(|range| range == at(3, REGION)).iter().eq([5]));
        write(&intent, at(3, 4096));
        assert!(!intent.leave(&quiet, |_| false));
        assert!(intent.wanted().has(3), "it was written meanwhile");
        intent.quiet(|_| false);
        assert!(intent.leave(&intent.quiet(|_| false), |_| false));
        assert!(intent.is_empty() && !intent.covers(at(3, 4096)));
    }

    #[test]
    fn bitmap_updates_are_limited_by_number_of_client_writes() {
        let intent = intent();
        let mut states = 0;
        // Single writes in random places, with a check after each few.
        for n in 0..20_000_u64 {
            states += u64::from(write(&intent, at(n * 7919 % 1000, 4096)));
            if n % 50 == 0 {
                let quiet = intent.quiet(|_| false);
                states += u64::from(intent.leave(&quiet, |_| false));
            }
        }
        // One state for each region, those that may leave at the beginning, and one for eighty writes.
        let paid = REGIONS_AT_ONCE + 1 + 20_000 / WRITES_PER_STATE;
        assert!((1000..=1000 + paid).contains(&states), "{states}");
        (0..IDLE_LOOKS).for_each(|_| drop(intent.quiet(|_| false)));
        let quiet = intent.quiet(|_| false);
        assert_eq!(quiet.len(), intent.wanted().len(), "all leave when there are no writes at all");
    }

    #[test]
    fn bitmap_update_credit_of_busy_clients_is_limited() {
        let intent = intent();
        for n in 0..1000 {
            write(&intent, at(n, 4096));
        }
        // Many writes to one place.
        (0..1_000_000).for_each(|_| {
            write(&intent, at(0, 4096));
        });
        intent.quiet(|_| false);
        intent.covers(at(0, 4096));
        let left = intent.quiet(|_| false).len();
        assert_eq!(left as u64, REGIONS_AT_ONCE);
    }

    #[test]
    fn sequential_writes_share_bitmap_updates() {
        let intent = intent();
        let states: u64 = (0..1000).map(|n| u64::from(write(&intent, at(n, REGION)))).sum();
        assert!(states <= 25, "{states} states for 1000 writes");
    }
}
