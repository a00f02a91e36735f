//! State that outlives this process: bytes in memfds whose descriptors the supervisor holds.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;

use block::{Error, Result, bail};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::fdstore;

/// Passes `bytes` to the service manager's descriptor store under `name`. Returns whether there is a service manager.
///
/// # Errors
/// Errors of the system.
pub(crate) fn leave(name: &str, bytes: &[u8]) -> Result<bool> {
    let failed = |error| {
        Error::io(&error, format_args!("{name}: storing {} bytes for the next", bytes.len()))
    };
    let memory = memfd_create("cairn", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL);
    // Kernels before 6.3 do not know the second flag, and need none.
    let memory = memory.or_else(|_| memfd_create("cairn", MemfdFlags::CLOEXEC));
    let mut file = File::from(memory.map_err(|error| failed(error.into()))?);
    file.write_all(bytes).map_err(failed)?;
    fdstore::fdstore_put(name, file.as_fd())
}

/// Takes the bytes that an earlier process passed to the descriptor store under `name`. Their memory is emptied
/// first, so that no other process can take the same bytes, even if it gets the descriptor.
///
/// # Errors
/// `NotFound` if no earlier process left bytes under `name`; `Limit` if there are more than `most` bytes; errors of
/// the system.
pub(crate) fn take(name: &str, most: usize) -> Result<Vec<u8>> {
    let failed = |error| {
        Error::io(&error, format_args!("{name}: reading the state of the previous process"))
    };
    let left = fdstore::take_named(name)?;
    let mut file = File::from(left.file);
    let mut bytes = Vec::new();
    file.rewind().map_err(failed)?;
    let read = Read::by_ref(&mut file).take(most as u64 + 1).read_to_end(&mut bytes);
    file.set_len(0).map_err(failed)?;
    fdstore::take_from_manager(name)?;
    read.map_err(failed)?;
    if bytes.len() > most {
        bail!(Limit, "{name}: the previous process left more than {most} bytes, which are ignored");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn left(name: &str, bytes: &[u8]) -> File {
        let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(bytes).unwrap();
        fdstore::leave([(name.to_owned(), file.try_clone().unwrap().into())]);
        file
    }

    #[test]
    fn stored_state_is_returned_only_once_to_next_process() {
        let mut held = left("papers-once", b"state");
        assert_eq!(take("papers-once", 5).unwrap(), b"state");
        let mut again = Vec::new();
        held.rewind().unwrap();
        held.read_to_end(&mut again).unwrap();
        assert!(again.is_empty(), "whoever holds it holds nothing: {again:?}");
        assert_eq!(take("papers-once", 5).unwrap_err().kind(), ErrorKind::NotFound);
        let held = left("papers-long", b"states");
        assert_eq!(take("papers-long", 5).unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!(held.metadata().unwrap().len(), 0);
    }
}
