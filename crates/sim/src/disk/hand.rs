//! Changes that a test makes to a disk directly, besides the faults that follow from the seed.

use std::rc::Rc;

use block::ByteRange;

use super::store::{Payload, Pending, Store};
use super::{DiskConfig, Faults, Flight, SECTOR, SimDisk, sectors};
use crate::SimWorld;

/// The content of a disk at one moment: its medium and its cache.
#[derive(Clone)]
pub struct Image(Store);

impl Image {
    /// Returns the writes that a power cut at the moment of the image could lose, in the order of their completion.
    pub fn open_writes(&self) -> Vec<u64> {
        self.0.writes_in_order(&[])
    }

    /// Returns the image after a power cut. A sector of a write that is not durable survives if `keeps` returns
    /// `true`; its arguments are the numbers of the write and of the sector.
    #[must_use]
    pub fn cut(&self, keeps: impl Fn(u64, u64) -> bool) -> Self {
        let mut store = self.0.clone();
        store.keep(keeps);
        Self(store)
    }

    /// Returns a hash of the medium.
    pub fn digest(&self) -> u64 {
        self.0.digest()
    }
}

impl SimDisk {
    /// Drops the cache of the disk, as a failed flush does. The next flush succeeds.
    pub fn lose_cache(&self) {
        self.lossy.set(true);
        self.store.borrow_mut().drop_cache();
    }

    /// Flips a bit of the byte at `offset` on the medium. Returns `false` if nothing was written there yet.
    pub fn rot(&self, offset: u64) -> bool {
        self.store.borrow_mut().rot(offset / SECTOR, offset % SECTOR)
    }

    /// Fills a range with `byte`, durably, as another program would.
    pub fn overwrite(&self, range: ByteRange, byte: u8) {
        let payload = Payload::Bytes(vec![byte; range.len() as usize].into());
        let pending = Pending { write: u64::MAX, sectors: sectors(range), payload };
        let mut store = self.store.borrow_mut();
        store.apply(&pending, |_| true);
        store.persist_write(&pending);
    }

    /// Returns its content now, with the cache.
    pub fn image(&self) -> Image {
        Image(self.store.borrow().clone())
    }

    /// Returns its content with every write in flight in the cache: a power cut now leaves a subset of these
    /// writes.
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

    /// Restores `image`, which is an earlier one of this disk or one of another disk.
    pub fn put_back(&self, image: &Image) {
        let mut store = image.0.clone();
        // A write that was in flight in the image makes no further progress, so the next flush covers it.
        store.complete_all(self.clock.tick());
        *self.store.borrow_mut() = store;
    }
}
