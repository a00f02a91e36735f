//! The simulated disks that are plugged in, by path, and their open handles.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::env::{CacheMode, DiskIo, Open, PathState, Storage, StorageFacts, StorageNow, Ticket};
use block::seeded::{self, Bug};
use block::{ByteRange, Error, ErrorKind, Extent, Result};

use super::SimDisk;
use crate::counters::Count;

/// All simulated disks of a world, each at the path where code under test opens it.
#[derive(Default)]
pub(crate) struct Disks(RefCell<BTreeMap<PathBuf, Rc<SimDisk>>>);

impl Disks {
    pub fn plug(&self, path: PathBuf, disk: Rc<SimDisk>) {
        self.0.borrow_mut().insert(path, disk);
    }

    pub fn unplug(&self, path: &Path) {
        self.0.borrow_mut().remove(path);
    }

    pub fn find(&self, open: &Open) -> Result<Rc<SimDisk>> {
        self.0.borrow().get(&open.path).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("{}: no simulated disk is plugged in at this path", open.path.display()),
            )
        })
    }

    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub fn each(&self, mut each: impl FnMut(&SimDisk)) {
        self.0.borrow().values().for_each(|disk| each(disk));
    }
}

/// Numbers of open handles of a simulated disk, for writing and for reading only. A power cut sets both numbers to
/// zero; the disk no longer counts handles from before the cut.
#[derive(Default)]
pub(super) struct Openers {
    writers: Cell<u32>,
    readers: Cell<u32>,
    power: Cell<u64>,
}

impl Openers {
    pub fn close_all(&self) {
        self.writers.set(0);
        self.readers.set(0);
        self.power.set(self.power.get() + 1);
    }

    fn side(&self, read_only: bool) -> &Cell<u32> {
        if read_only { &self.readers } else { &self.writers }
    }
}

impl SimDisk {
    pub(crate) fn facts_for(&self, open: &Open) -> StorageFacts {
        StorageFacts {
            size: self.whole_size(),
            block_size: self.config.profile.block_size(),
            direct: open.device && open.cache == CacheMode::Direct,
            zeroes: self.config.zeroes,
            discard: self.config.discard,
            discard_zeroes: self.config.discard_zeroes,
            created: false,
            identity: open.path.display().to_string(),
            words: format!("simulated, {:?}", self.config.profile),
        }
    }

    /// Opens the simulated disk, for one writer or for several readers. An opening for writing fails while operations
    /// of earlier handles are in flight. `created`: this opening has created the file.
    pub(crate) fn open(self: &Rc<Self>, open: &Open, created: bool) -> Result<Rc<dyn Storage>> {
        let openers = &self.openers;
        let shared = open.read_only && openers.writers.get() == 0;
        let free = openers.writers.get() == 0 && openers.readers.get() == 0;
        let is_locked = !seeded::on(Bug::ServedUnlocked) && !self.flights.borrow().is_empty();
        if !(shared || free && !is_locked) {
            self.count(Count::Locked);
            let words = format!("{}: another process has the disk open", open.path.display());
            return Err(Error::new(ErrorKind::InUse, words));
        }
        let side = openers.side(open.read_only);
        side.set(side.get() + 1);
        Ok(Rc::new(Opened {
            disk: self.clone(),
            facts: StorageFacts { created, ..self.facts_for(open) },
            read_only: open.read_only,
            power: openers.power.get(),
        }))
    }
}

struct Opened {
    disk: Rc<SimDisk>,
    facts: StorageFacts,
    read_only: bool,
    power: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let openers = &self.disk.openers;
        if openers.power.get() == self.power {
            let side = openers.side(self.read_only);
            side.set(side.get() - 1);
        }
    }
}

impl Storage for Opened {
    fn facts(&self) -> &StorageFacts {
        &self.facts
    }

    fn size_now(&self) -> u64 {
        self.disk.size()
    }

    fn look(&self) -> Result<StorageNow> {
        Ok(StorageNow { size: self.size_now(), place: PathState::There })
    }

    fn start(&self, io: DiskIo) -> Ticket {
        self.disk.begin(io)
    }

    fn extents(&self, range: ByteRange, max: usize) -> Result<Vec<Extent>> {
        Ok(self.disk.status(range, max))
    }
}
