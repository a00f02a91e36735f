//! What a hand does to a disk, beside what its seed draws.

use super::store::Store;
use super::{SECTOR, SimDisk};

/// All that a disk held at one moment.
#[derive(Clone)]
pub struct Image(Store);

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

    /// What it holds now, cache and all.
    pub fn image(&self) -> Image {
        Image(self.store.borrow().clone())
    }

    /// It holds what it held then, or another disk did: somebody has put it back.
    pub fn put_back(&self, image: &Image) {
        *self.store.borrow_mut() = image.0.clone();
    }
}
