//! Memory that outlives this process: memfds whose descriptors the supervisor holds too.
//!
//! They are read and written by system calls, which take a microsecond each. A mapping could be truncated by another
//! process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use block::env::{Lasting, PersistentMemory};
use block::{Error, Result, bail, error};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::fdstore;

/// The persistent memory that this process uses, by name.
#[derive(Default)]
pub(crate) struct PersistentMemories(RefCell<BTreeMap<String, Rc<Memory>>>);

struct Memory {
    name: String,
    file: File,
    len: u64,
}

impl PersistentMemories {
    /// Returns the memory that an earlier process left under `name`, or new memory with `bytes` zeros.
    pub(crate) fn get(&self, name: &str, bytes: u64) -> Result<PersistentMemory> {
        if let Some(known) = self.0.borrow().get(name) {
            if Rc::strong_count(known) > 1 {
                bail!(InUse, "{name}: this persistent memory is in use already");
            }
            return Ok(PersistentMemory { memory: known.clone(), left: false });
        }
        let left = fdstore::take(|left| left.name == name).map(|left| File::from(left.file));
        let was_left = left.is_some();
        let file = match left {
            Some(file) => file,
            None => make(name, bytes)?,
        };
        let len = file.metadata().map_err(|error| Error::io(&error, name))?.len();
        let memory = Rc::new(Memory { name: name.to_owned(), file, len });
        self.0.borrow_mut().insert(name.to_owned(), memory.clone());
        Ok(PersistentMemory { memory, left: was_left })
    }

    /// Passes all persistent memory of this process to the descriptor store again.
    pub(crate) fn fdstore_put_again(&self) -> Result<()> {
        let all = self.0.borrow();
        all.iter().try_for_each(|(name, memory)| {
            fdstore::fdstore_put(name, memory.file.as_fd()).map(drop)
        })
    }

    /// Removes all persistent memory of this process from the descriptor store.
    ///
    /// # Errors
    /// The first error of the system. All removals are tried.
    pub(crate) fn fdstore_remove(&self) -> Result<()> {
        // A failed removal must not prevent the others.
        let told: Vec<_> = self.0.take().keys().map(|name| fdstore::withdraw(name)).collect();
        told.into_iter().collect()
    }
}

/// Creates memory of a fixed size, and passes it to the descriptor store under `name`.
fn make(name: &str, bytes: u64) -> Result<File> {
    let failed = |error: std::io::Error| {
        Error::io(&error, format_args!("{name}: creating {bytes} bytes of persistent memory"))
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("cairn", flags).map_err(|error| failed(error.into()))?);
    file.set_len(bytes).map_err(failed)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| failed(error.into()))?;
    if !fdstore::fdstore_put(name, file.as_fd())? {
        bail!(Unsupported, "{name}: no supervisor keeps memory for the next process");
    }
    Ok(file)
}

impl Memory {
    fn check(&self, at: u64, len: usize) -> Result<()> {
        match at.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(error!(
                Invalid,
                "{}: {len} bytes at {at} end past the memory's {} bytes", self.name, self.len
            )),
        }
    }
}

impl Lasting for Memory {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.check(at, into.len())?;
        self.file.read_exact_at(into, at).map_err(|error| Error::io(&error, &self.name))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.check(at, bytes.len())?;
        self.file.write_all_at(bytes, at).map_err(|error| Error::io(&error, &self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn persistent_memory_keeps_bytes_and_size_for_next_process() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("test", flags).unwrap());
        file.set_len(4096).unwrap();
        file.write_all_at(b"left", 4092).unwrap();
        fdstore::leave([("memory-test".to_owned(), file.into())]);
        let all = PersistentMemories::default();
        let PersistentMemory { memory, left } = all.get("memory-test", 1 << 20).unwrap();
        assert_eq!((memory.len(), left), (4096, true), "whatever is asked for");
        let mut bytes = [0; 4];
        memory.read(4092, &mut bytes).unwrap();
        assert_eq!(bytes, *b"left");
        for past in [4093, u64::MAX] {
            assert_eq!(memory.write(past, b"past").unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert_eq!(all.get("memory-test", 4096).err().unwrap().kind(), ErrorKind::InUse);
        memory.write(0, b"here").unwrap();
        drop(memory);
        let again = all.get("memory-test", 4096).unwrap();
        again.memory.read(0, &mut bytes).unwrap();
        assert_eq!((bytes, again.left), (*b"here", false), "one memory within a process");
    }

    #[test]
    fn persistent_memory_is_refused_without_service_manager() {
        // No test of this crate runs under a service manager.
        let all = PersistentMemories::default();
        assert_eq!(all.get("nothing", 4096).err().unwrap().kind(), ErrorKind::Unsupported);
    }
}
