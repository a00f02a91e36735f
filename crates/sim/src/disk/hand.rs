//! What a hand does to a disk, beside what its seed draws.

use std::rc::Rc;

use block::ByteRange;

use super::store::{Payload, Pending, Store};
use super::{DiskConfig, Faults, Flight, SECTOR, SimDisk, sectors};
use crate::SimWorld;

/// All that a disk held at one moment.
#[derive(Clone)]
pub struct Image(Store);

impl Image {
    /// The writes that a power cut at that moment could lose, in the order in which they took effect.
    pub fn open_writes(&self) -> Vec<u64> {
        self.0.writes_in_order(&[])
    }

    /// What a power cut leaves of it, if it keeps of each open write the sectors that `keeps` names: by the
    /// number of the write, and of the sector.
    #[must_use]
    pub fn cut(&self, keeps: impl Fn(u64, u64) -> bool) -> Self {
        let mut store = self.0.clone();
        store.keep(keeps);
        Self(store)
    }

    /// A number that tells what is on the medium from anything else.
    pub fn digest(&self) -> u64 {
        self.0.digest()
    }
}

impl SimDisk {
    /// What a failed flush leaves: nothing of the cache. The next flush succeeds.
    pub fn lose_cache(&self) {
        self.lossy.set(true);
        self.store.borrow_mut().drop_cache();
    }

    /// Turns a bit of the byte at `offset` over on the medium; `false` if nothing was ever written
    /// there.
    pub fn rot(&self, offset: u64) -> bool {
        self.store.borrow_mut().rot(offset / SECTOR, offset % SECTOR)
    }

    /// Another program has filled these bytes with `byte`, durably.
    pub fn overwrite(&self, range: ByteRange, byte: u8) {
        let payload = Payload::Bytes(vec![byte; range.len() as usize].into());
        let pending = Pending { write: u64::MAX, sectors: sectors(range), payload };
        let mut store = self.store.borrow_mut();
        store.apply(&pending, |_| true);
        store.persist_write(&pending);
    }

    /// What it holds now, cache and all.
    pub fn image(&self) -> Image {
        Image(self.store.borrow().clone())
    }

    /// The same, with every write that is in flight as if it had just taken effect: what a power cut now has
    /// to choose from.
    pub fn image_in_flight(&self) -> Image {
        let mut store = self.store.borrow().clone();
        let flights = self.flights.borrow();
        let writes = flights.iter().filter(|(_, flight): &(&u64, &Flight)| !flight.half);
        for pending in writes.filter_map(|(id, flight)| self.pending(*id, flight)) {
            store.apply(&pending, |_| true);
        }
        Image(store)
    }

    /// Returns a disk of another world with the bytes that it has now, and without faults.
    pub fn copy_into(&self, world: &SimWorld) -> Rc<Self> {
        let config = DiskConfig { faults: Faults::default(), ..self.config.clone() };
        let copy = Self::new(world, self.number, config);
        copy.short.set(self.short.get());
        copy.put_back(&self.image());
        copy
    }

    /// It holds what it held then, or another disk did: somebody has put it back.
    pub fn put_back(&self, image: &Image) {
        let mut store = image.0.clone();
        // Of a write that was in flight then, this is all there will be: the next flush covers it.
        store.complete_all(self.clock.tick());
        *self.store.borrow_mut() = store;
    }
}
