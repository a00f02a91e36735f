//! What a hand does to a disk, beside what its seed draws.

use super::{SECTOR, SimDisk};

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
}
