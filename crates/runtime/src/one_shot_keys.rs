//! Keys that cannot be read a second time from their source, of two sorts: keys that a client has passed to this
//! process, and the volume keys of open devices, stored for the next process. The stored keys are in memory that even
//! the kernel does not map (`memfd_secret`), and whose descriptors the supervisor holds.
//!
//! One of the few modules with unsafe code: that system call, and mappings while a key is copied.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::{Error, KeySource, Result, SECRET_BYTES_MAX, Secret, bail, error};

use crate::{fdstore, secrets};

/// Prefix of a stored key's name, before the name of the device.
const PREFIX: &str = "key/";

/// Length in bytes of the mapping of a stored key: the length of the key, and the longest key.
const MAPPED_BYTES: usize = 2 * 4096;
const LENGTH_BYTES: usize = 4;

const _: () = assert!(LENGTH_BYTES + SECRET_BYTES_MAX <= MAPPED_BYTES, "the longest key fits");

/// Keys that clients have passed to this process, by device.
static GIVEN: Mutex<BTreeMap<String, Secret>> = Mutex::new(BTreeMap::new());

fn all_given() -> MutexGuard<'static, BTreeMap<String, Secret>> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a key or a passphrase from a file, for the device `full_name`, such as `home/safe`. The device gets this key when
/// it is opened, instead of a passphrase from the terminal.
///
/// # Errors
/// Errors of reading the file.
pub fn give_key(full_name: &str, file: &Path) -> Result<()> {
    let key = secrets::file(file, &KeySource::File(file.to_owned()), |_| {})?;
    all_given().insert(full_name.to_owned(), key);
    Ok(())
}

/// Returns a copy of the key that [`give_key`] has read for the device `full_name`; `None` if there is none.
pub(crate) fn given(full_name: &str) -> Result<Option<Secret>> {
    all_given().get(full_name).map(|given| Secret::copy_of(given.bytes())).transpose()
}

/// Stores the key of the open device `full_name` for the next process, and drops a key that [`give_key`] has read for it.
///
/// # Errors
/// `Unsupported` if the kernel has no `memfd_secret`; errors of the system.
pub(crate) fn keep(full_name: &str, key: &Secret) -> Result<()> {
    if kept(full_name).is_ok_and(|kept| kept.is_some_and(|kept| kept.bytes() == key.bytes())) {
        // A new descriptor at each opening would fill the store of a service manager.
        all_given().remove(full_name);
        return fdstore_put_again();
    }
    let memory = secret_memory(full_name)?;
    let mut mapping = Mapping::of(memory.as_fd())?;
    let bytes = mapping.bytes_mut();
    bytes[..LENGTH_BYTES].copy_from_slice(&(key.bytes().len() as u32).to_be_bytes());
    bytes[LENGTH_BYTES..][..key.bytes().len()].copy_from_slice(key.bytes());
    let name = format!("{PREFIX}{full_name}");
    fdstore::fdstore_put(&name, memory.as_fd())?;
    while fdstore::take(|left| left.name == name).is_some() {}
    fdstore::leave([(name, memory)]);
    all_given().remove(full_name);
    Ok(())
}

/// Returns the key that an earlier process or this process has stored for the device `full_name`; `None` if there is none.
///
/// # Errors
/// `Corrupt` if the stored memory contains no valid key; errors of the system.
pub(crate) fn kept(full_name: &str) -> Result<Option<Secret>> {
    let Some(memory) = fdstore::copy_of(&format!("{PREFIX}{full_name}"))? else { return Ok(None) };
    let mut mapping = Mapping::of(memory.as_fd())?;
    let bytes = mapping.bytes_mut();
    let (len, bytes) = bytes
        .split_first_chunk::<LENGTH_BYTES>()
        .expect("the mapping is longer than its length field");
    let len = u32::from_be_bytes(*len) as usize;
    if len > SECRET_BYTES_MAX {
        bail!(Corrupt, "the key stored for {full_name} is damaged");
    }
    Secret::copy_of(&bytes[..len]).map(Some)
}

/// Passes the stored keys of all open devices to the present descriptor store again.
///
/// # Errors
/// Errors of the system.
pub(crate) fn fdstore_put_again() -> Result<()> {
    fdstore::each_left(PREFIX, |name, memory| fdstore::fdstore_put(name, memory).map(drop))
}

/// Wipes the stored keys of all open devices, and removes them from the descriptor store.
///
/// # Errors
/// Errors of the system.
pub(crate) fn fdstore_remove() -> Result<()> {
    let told = fdstore::each_left(PREFIX, |name, memory| {
        Mapping::of(memory)?.bytes_mut().fill(0);
        fdstore::withdraw(name)
    });
    while fdstore::take(|left| left.name.starts_with(PREFIX)).is_some() {}
    told
}

/// Creates memory that is never swapped out, is in no core dump, and cannot be read by other processes or by the
/// kernel.
fn secret_memory(full_name: &str) -> Result<OwnedFd> {
    // SAFETY: no memory is passed; the result is a descriptor, or below zero.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Err(error!(
            Unsupported,
            "the key of {full_name} cannot be kept for the next process: {error} (memfd_secret)"
        )
        .next("start the kernel with secretmem.enable=1; or key = file:PATH or credential:NAME"));
    }
    // SAFETY: it was opened just now, and has no other owner.
    let memory = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // SAFETY: no memory is passed.
    match unsafe { libc::ftruncate(memory.as_raw_fd(), MAPPED_BYTES as i64) } {
        0 => Ok(memory),
        _ => Err(failed()),
    }
}

fn failed() -> Error {
    Error::io(&io::Error::last_os_error(), "allocating or mapping memory for a key")
}

/// Memory of a stored key, mapped into this process while the key is copied.
struct Mapping(NonNull<u8>);

impl Mapping {
    fn of(memory: BorrowedFd<'_>) -> Result<Self> {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, memory.as_raw_fd());
        let len = rustix::fs::fstat(memory).map_err(|error| Error::io(&error.into(), PREFIX))?;
        if len.st_size < MAPPED_BYTES as i64 {
            bail!(Corrupt, "the memory of a stored key has {} bytes: too few", len.st_size);
        }
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), MAPPED_BYTES, protection, libc::MAP_SHARED, fd, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(failed());
        }
        Ok(Self(NonNull::new(at.cast()).expect("the kernel maps no memory at address zero")))
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped with this length, which a file of such memory keeps for good. `&mut self` makes this
        // the only slice of this process, and no other process writes while one of us lives.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), MAPPED_BYTES) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length, and no slice is left.
        let unmapped = unsafe { libc::munmap(self.0.as_ptr().cast(), MAPPED_BYTES) };
        debug_assert_eq!(unmapped, 0, "a mapping of this process can be unmapped");
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the test looks at this process from outside")]
mod tests {
    use super::*;

    #[test]
    fn one_shot_key_is_dropped_when_stored_for_next_process() {
        let path = std::env::temp_dir().join(format!("cairn-given-{}", std::process::id()));
        std::fs::write(&path, b"hunter2").unwrap();
        give_key("home/safe", &path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for _ in 0..2 {
            let given = given("home/safe").unwrap().expect("it was given");
            assert_eq!(given.bytes(), b"hunter2");
        }
        assert!(given("home/other").unwrap().is_none() && kept("home/safe").unwrap().is_none());
        for volume_key in [b"once", b"more"] {
            keep("home/safe", &Secret::copy_of(volume_key).unwrap()).unwrap();
            assert!(given("home/safe").unwrap().is_none(), "it is not needed again");
            let kept = kept("home/safe").unwrap().expect("it is held");
            assert_eq!(kept.bytes(), volume_key);
        }
        let copy = fdstore::copy_of("key/home/safe").unwrap().unwrap();
        // Not even a read of the file itself returns it.
        let mut bytes = [0; 8];
        assert!(rustix::io::pread(&copy, &mut bytes, 0).is_err());
        fdstore_remove().unwrap();
        assert!(kept("home/safe").unwrap().is_none());
        let wiped = Mapping::of(copy.as_fd()).unwrap().bytes_mut().iter().all(|byte| *byte == 0);
        assert!(wiped, "whoever holds it still holds nothing");
    }
}
