//! Changes that a test makes to a simulated disk directly, besides the faults that follow from the seed.

use std::rc::Rc;

use block::ByteRange;

use super::store::{Payload, Pending, Store};
use super::{DiskConfig, Faults, Flight, SECTOR, SimDisk, sectors};
use crate::SimWorld;

/// A copy of the content of a simulated disk at one moment: medium and cache.
#[derive(Clone)]
pub struct Image(Store);

impl Image {
    /// Returns the numbers of the cached writes in the image, which a power cut could lose, in the order in which they
    /// completed.
    pub fn open_writes(&self) -> Vec<u64> {
        self.0.writes_in_order(&[])
    }

    /// Returns the numbers of the writes that were in flight in the image, which a kill could lose.
    pub fn writes_in_flight(&self) -> Vec<u64> {
        self.0.writes_in_flight()
    }

    /// Returns the image after a power cut. A sector of a cached write survives if `keeps` returns `true` for the
    /// number of the write and the number of the sector.
    #[must_use]
    pub fn cut(&self, keeps: impl Fn(u64, u64) -> bool) -> Self {
        let mut store = self.0.clone();
        store.keep(keeps);
        Self(store)
    }

    /// Returns a hash of the medium in the image, without the cache.
    pub fn digest(&self) -> u64 {
        self.0.digest()
    }
}

impl SimDisk {
    /// Drops all cached writes of the disk, as a failed flush does. The next flush succeeds.
    pub fn lose_cache(&self) {
        self.lossy.set(true);
        self.store.borrow_mut().drop_cache();
    }

    /// Flips a bit of the byte at the address `offset` on the medium of the disk. Returns `false` if the medium has no
    /// bytes there yet.
    pub fn rot(&self, offset: u64) -> bool {
        self.store.borrow_mut().rot(offset / SECTOR, offset % SECTOR)
    }

    /// Makes the sector with byte `offset` unreadable until the next write to it.
    pub fn spoil(&self, offset: u64) {
        self.store.borrow_mut().spoil(offset / SECTOR);
    }

    /// Enlarges the disk by `bytes` bytes of zeros, while no process has it open.
    pub fn enlarge(&self, bytes: u64) {
        self.grown.set(self.grown.get() + bytes);
    }

    /// Overwrites a byte range of the disk with `byte`, durably, as another program might.
    pub fn overwrite(&self, range: ByteRange, byte: u8) {
        let payload = Payload::Bytes(vec![byte; range.len() as usize].into());
        let pending = Pending { write: u64::MAX, sectors: sectors(range), payload };
        let mut store = self.store.borrow_mut();
        store.apply(&pending, |_| true);
        store.persist_write(&pending);
    }

    /// Returns a copy of the disk's present content: medium and cache.
    pub fn image(&self) -> Image {
        Image(self.store.borrow().clone())
    }

    /// Returns a copy of the disk's present content, with all writes in flight in the cache. A power cut now would
    /// leave a subset of the cached writes.
    pub fn image_in_flight(&self) -> Image {
        let mut store = self.store.borrow().clone();
        let flights = self.flights.borrow();
        let writes = flights.iter().filter(|(_, flight): &(&u64, &Flight)| !flight.half);
        for pending in writes.filter_map(|(id, flight)| self.pending(*id, flight)) {
            store.apply(&pending, |_| true);
        }
        Image(store)
    }

    /// Creates a disk in another simulated world, with the present bytes of this disk and without faults.
    pub fn copy_into(&self, world: &SimWorld) -> Rc<Self> {
        let config = DiskConfig {
            size: self.whole_size(),
            faults: Faults::default(),
            ..self.config.clone()
        };
        let copy = Self::new(world, self.number, config);
        copy.short.set(self.short.get());
        copy.put_back(&self.image());
        copy
    }

    /// Replaces the content of the disk by `image`, a copy of this disk's or another disk's content.
    pub fn put_back(&self, image: &Image) {
        let mut store = image.0.clone();
        // A write that was in flight in the image makes no further progress, so the next flush covers it.
        store.complete_all(self.clock.tick());
        *self.store.borrow_mut() = store;
    }
}
