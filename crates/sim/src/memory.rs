//! Persistent memory of simulated processes, which outlives them, and the death of a process during a write to it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use block::env::{Lasting, PersistentMemory};
use block::{Error, ErrorKind, Result};

/// Number of a simulated process. All processes of a simulated world share its clock, network and disks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ProcessId(pub u64);

/// The persistent memory of all processes in a simulated world, by name.
#[derive(Default)]
pub(crate) struct AllMemory {
    is_kept: Cell<bool>,
    held: RefCell<BTreeMap<String, Rc<Held>>>,
    death: Rc<Cell<Death>>,
}

/// The planned death of a simulated process during a write to persistent memory.
#[derive(Clone, Copy, Default)]
enum Death {
    #[default]
    Never,
    /// The process that makes the `writes`-th write from now on dies in that write, after at most `bytes` bytes were
    /// stored.
    At { writes: u64, bytes: usize },
    /// The process of the running task has died, although the task has not returned yet.
    Now,
}

struct Held {
    bytes: Rc<RefCell<Vec<u8>>>,
    /// The last process that got the memory. `had` is the handle of that process.
    owner: Cell<ProcessId>,
    had: RefCell<Weak<Memory>>,
}

impl AllMemory {
    /// From now on, keeps persistent memory when its process ends, as under a supervisor.
    pub fn keep(&self) {
        self.is_kept.set(true);
    }

    pub fn is_kept(&self) -> bool {
        self.is_kept.get()
    }

    pub fn kill_at(&self, writes: u64, bytes: usize) {
        self.death.set(Death::At { writes, bytes });
    }

    /// Whether the process of the running task has died in a write to persistent memory.
    pub fn is_death_due(&self) -> bool {
        matches!(self.death.get(), Death::Now)
    }

    /// Cancels the planned death of a process.
    pub fn forget_death(&self) {
        self.death.set(Death::Never);
    }

    /// Returns the persistent memory called `name` to `process`. Memory with a new name has `bytes` bytes, all zeros.
    ///
    /// # Errors
    /// `Unsupported` if the simulated world has no supervisor that keeps memory; `InUse` if `process` has the memory
    /// already.
    pub fn get(&self, name: &str, bytes: u64, process: ProcessId) -> Result<PersistentMemory> {
        if !self.is_kept() {
            let words = format!("{name}: this simulated machine has no supervisor");
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        let mut all = self.held.borrow_mut();
        let known = all.contains_key(name);
        let held = all.entry(name.to_owned()).or_insert_with(|| {
            let bytes = Rc::new(RefCell::new(vec![0; bytes as usize]));
            Rc::new(Held { bytes, owner: Cell::new(process), had: RefCell::default() })
        });
        let left = known && held.owner.replace(process) != process;
        if !left && held.had.borrow().strong_count() > 0 {
            return Err(Error::new(
                ErrorKind::InUse,
                format!("{name}: this persistent memory is in use already"),
            ));
        }
        let memory = Rc::new(Memory { bytes: held.bytes.clone(), death: self.death.clone() });
        *held.had.borrow_mut() = Rc::downgrade(&memory);
        Ok(PersistentMemory { memory, left })
    }
}

/// The handle of one simulated process to persistent memory.
struct Memory {
    bytes: Rc<RefCell<Vec<u8>>>,
    death: Rc<Cell<Death>>,
}

impl Memory {
    /// Returns how many of the `len` bytes of a write are stored: fewer than `len` if the process dies in the write.
    fn reach(&self, len: usize) -> usize {
        match self.death.get() {
            Death::Never => len,
            Death::At { writes: 0 | 1, bytes } => {
                self.death.set(Death::Now);
                bytes.min(len)
            }
            Death::At { writes, bytes } => {
                self.death.set(Death::At { writes: writes - 1, bytes });
                len
            }
            Death::Now => 0,
        }
    }
}

impl Lasting for Memory {
    fn len(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.borrow();
        let found = bytes.get(at as usize..).and_then(|bytes| bytes.get(..into.len()));
        into.copy_from_slice(found.ok_or_else(|| past_end(at, into.len()))?);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.borrow_mut();
        let into = bytes.get_mut(at as usize..).and_then(|bytes| bytes.get_mut(..from.len()));
        let into = into.ok_or_else(|| past_end(at, from.len()))?;
        let reach = self.reach(from.len());
        into[..reach].copy_from_slice(&from[..reach]);
        Ok(())
    }
}

fn past_end(at: u64, len: usize) -> Error {
    Error::new(ErrorKind::Invalid, format!("{len} bytes at {at} end past the persistent memory"))
}
