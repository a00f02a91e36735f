//! Keys and passphrases, in memory that is locked, left out of core dumps, and wiped when it is dropped; and the
//! words of a spec that name the source of a key.
//!
//! One of the few modules with unsafe code: each secret has a memory mapping of its own, which the kernel must lock
//! and leave out of core dumps.
#![allow(unsafe_code)]

use std::fmt;
use std::hint::black_box;
use std::io;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::str::FromStr;

use zeroize::Zeroize;

use crate::{Error, Result, error};

/// Length of the longest key or passphrase, in bytes. A longer file was probably named by mistake.
pub const SECRET_BYTES_MAX: usize = 4096;

const PAGE: usize = 4096;

/// Secret bytes: never swapped out, in no core dump, and wiped when they are dropped. Their address is a multiple of
/// 4096 and does not change.
pub struct Secret {
    memory: NonNull<u8>,
    len: usize,
    mapped: usize,
}

// SAFETY: the mapping belongs to this value alone and is tied to no thread.
unsafe impl Send for Secret {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for Secret {}

impl Secret {
    /// Creates a secret of `len` zeros.
    ///
    /// # Errors
    /// `Limit` if the kernel refuses to map or lock more memory.
    pub fn zeroed(len: usize) -> Result<Self> {
        let mapped = len.max(1).next_multiple_of(PAGE);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(refused("mapping"));
        }
        let memory = NonNull::new(at.cast()).expect("the kernel maps no memory at address zero");
        let secret = Self { memory, len, mapped };
        // SAFETY: the mapping was made just now, with this length.
        let locked = unsafe { libc::mlock(at, mapped) };
        // SAFETY: as above; both pieces of advice change no byte of this process.
        let hidden = unsafe {
            libc::madvise(at, mapped, libc::MADV_DONTDUMP)
                | libc::madvise(at, mapped, libc::MADV_WIPEONFORK)
        };
        match (locked, hidden) {
            (0, 0) => Ok(secret),
            _ => Err(refused("locking")),
        }
    }

    /// Creates a secret with a copy of `bytes`. The caller must wipe the original.
    ///
    /// # Errors
    /// As [`Secret::zeroed`].
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        let mut secret = Self::zeroed(bytes.len())?;
        secret.bytes_mut().copy_from_slice(bytes);
        Ok(secret)
    }

    /// Returns the bytes of the secret for reading.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of a mapping that lives as long as `self`, zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }

    /// Returns the bytes of the secret for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }

    /// Shortens the secret to its first `len` bytes, and wipes the others.
    pub fn truncate(&mut self, len: usize) {
        let len = len.min(self.len);
        self.bytes_mut()[len..].zeroize();
        self.len = len;
    }

    /// Removes the newline at the end of the secret, if there is one: editors and `echo` add a newline to a file.
    #[must_use]
    pub fn without_newline(mut self) -> Self {
        if self.bytes().ends_with(b"\n") {
            self.truncate(self.len - 1);
        }
        self
    }

    /// Whether both secrets have the same bytes. The duration of the comparison depends only on their lengths.
    pub fn same(&self, other: &Self) -> bool {
        let differ = |all: u8, (one, two): (&u8, &u8)| black_box(all | (one ^ two));
        self.len == other.len && self.bytes().iter().zip(other.bytes()).fold(0, differ) == 0
    }
}

/// Bytes of locked memory that must remain available for keys when other memory is locked.
const LEFT_FOR_KEYS: usize = 256 << 10;

/// Memory pages that are left out of core dumps, and locked if the limit of locked memory allows it.
struct Hidden {
    start: *mut libc::c_void,
    len: usize,
}

/// Runs `work` on `memory`, from which secrets could be derived. While `work` runs, the memory is left out of core
/// dumps, and is locked if the limit of locked memory allows it. Pages that `memory` shares with other data are
/// neither. The caller must erase the memory.
pub fn while_hidden<T, R>(memory: &mut [T], work: impl FnOnce(&mut [T]) -> R) -> R {
    let (from, bytes) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory));
    let skipped = from.align_offset(PAGE).min(bytes);
    let len = (bytes - skipped) / PAGE * PAGE;
    let hidden = Hidden { start: from.wrapping_add(skipped).cast(), len };
    hidden.hide();
    work(memory)
}

impl Hidden {
    fn hide(&self) {
        // SAFETY: whole pages of a slice that outlives `self`; neither call changes a byte of them.
        let locked = unsafe {
            libc::madvise(self.start, self.len, libc::MADV_DONTDUMP);
            libc::mlock(self.start, self.len) == 0
        };
        if locked && Secret::zeroed(LEFT_FOR_KEYS).is_err() {
            self.unlock();
        }
    }

    fn unlock(&self) {
        // SAFETY: as above. Pages that are not locked stay so.
        unsafe { libc::munlock(self.start, self.len) };
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.unlock();
        // SAFETY: as above.
        unsafe { libc::madvise(self.start, self.len, libc::MADV_DODUMP) };
    }
}

fn refused(what: &str) -> Error {
    let error = io::Error::last_os_error();
    error!(Limit, "{what} memory for a key failed: {error}; keys must be in locked memory")
        .next("raise the limit of locked memory (ulimit -l, LimitMEMLOCK=)")
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.len = self.mapped;
        self.bytes_mut().zeroize();
        // SAFETY: mapped by `zeroed` with this length, and no slice of it is left.
        let unmapped = unsafe { libc::munmap(self.memory.as_ptr().cast(), self.mapped) };
        debug_assert_eq!(unmapped, 0, "a mapping of this process can be unmapped");
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Source of a key or passphrase, as a spec names it: `file:PATH`, `fd:N`, `credential:NAME`, `ask`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// The path of a file that holds the key.
    File(PathBuf),
    /// The number of a file descriptor that the process got at its start. The descriptor is read to its end, once.
    Fd(i32),
    /// The name of a credential of the service manager: a file in `$CREDENTIALS_DIRECTORY`.
    Credential(String),
    /// The terminal, where the operator types the passphrase.
    Ask,
}

impl FromStr for KeySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, rest) = text.split_once(':').unwrap_or((text, ""));
        match word {
            "file" if rest.is_empty() => {
                Err("the key source \"file:\" needs a path: file:PATH".to_owned())
            }
            "file" => Ok(Self::File(rest.into())),
            "fd" => match rest.parse::<u16>() {
                Ok(number) => Ok(Self::Fd(number.into())),
                Err(_) => Err(format!(
                    "the key source \"fd:\" needs a number from 0 to {}: fd:NUMBER",
                    u16::MAX
                )),
            },
            "credential" if rest.is_empty() || rest.contains('/') || rest.starts_with('.') => {
                Err("the key source \"credential:\" needs a name that has no \"/\" and does not \
                     begin with a dot"
                    .to_owned())
            }
            "credential" => Ok(Self::Credential(rest.to_owned())),
            "ask" if text == "ask" => Ok(Self::Ask),
            // The text may contain a passphrase that was put here by mistake, so it is not repeated.
            _ => Err(
                "a key source is file:PATH, fd:NUMBER, credential:NAME or ask; never write the key \
                 itself into the spec"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Fd(number) => write!(f, "fd:{number}"),
            Self::Credential(name) => write!(f, "credential:{name}"),
            Self::Ask => f.write_str("ask"),
        }
    }
}

/// A description of a key or passphrase that a device needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Source of the key or passphrase.
    pub source: KeySource,
    /// Prompt for the operator: `passphrase for home/safe`.
    pub prompt: String,
    /// Whether the operator must type the passphrase twice, because the passphrase is new.
    pub twice: bool,
    /// Device that needs the key or passphrase, with the name of its graph: `home/safe`.
    pub full_name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kernel's flags of the mapping that holds `at`.
    #[allow(clippy::disallowed_methods, reason = "the kernel's view of this process is a file")]
    fn flags_of(at: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let parse = |text| usize::from_str_radix(text, 16).ok();
            Some((parse(from)?..parse(to)?).contains(&at))
        };
        let mut lines = maps.lines().skip_while(|line| holds(line) != Some(true));
        lines.find(|line| line.starts_with("VmFlags:")).unwrap_or_default().to_owned()
    }

    #[test]
    fn key_memory_is_locked_and_excluded_from_core_dumps() {
        let secret = Secret::copy_of(b"hunter2").unwrap();
        let flags = flags_of(secret.bytes().as_ptr() as usize);
        for flag in ["lo", "dd", "wf"] {
            assert!(flags.split(' ').any(|one| one == flag), "{flag} in {flags}");
        }
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn hidden_memory_is_locked_and_excluded_from_dumps_during_call() {
        let mut memory = vec![7_u8; 64 * PAGE];
        let at = memory.as_ptr() as usize + 8 * PAGE;
        let during = while_hidden(&mut memory, |memory| {
            memory[0] = 8;
            flags_of(at)
        });
        for flag in ["lo", "dd"] {
            assert!(during.split(' ').any(|one| one == flag), "{flag} in {during}");
            assert!(!flags_of(at).split(' ').any(|one| one == flag), "{flag} afterwards");
        }
        assert!(memory[0] == 8 && memory[1..].iter().all(|byte| *byte == 7));
        while_hidden(&mut [0_u8; 3], |_| ());
        while_hidden::<u8, _>(&mut [], |_| ());
    }

    #[test]
    fn key_truncate_wipes_removed_bytes() {
        let mut secret = Secret::copy_of(b"hunter2\n").unwrap().without_newline();
        assert_eq!(secret.bytes(), b"hunter2");
        secret.truncate(2);
        secret.len = 8;
        assert_eq!(secret.bytes(), b"hu\0\0\0\0\0\0");
    }

    #[test]
    fn key_comparison_checks_bytes_and_length() {
        let secret = |bytes: &[u8]| Secret::copy_of(bytes).unwrap();
        assert!(secret(b"").same(&secret(b"")));
        assert!(secret(b"abc").same(&secret(b"abc")));
        assert!(!secret(b"abc").same(&secret(b"abd")));
        assert!(!secret(b"abc").same(&secret(b"ab")));
    }

    #[test]
    fn key_source_parses_valid_text_and_hides_invalid_text() {
        for text in ["file:/etc/key", "file:a:b", "fd:0", "fd:65535", "credential:disk", "ask"] {
            assert_eq!(text.parse::<KeySource>().unwrap().to_string(), text);
        }
        let wrong =
            ["", "file:", "fd:", "fd:-1", "fd:65536", "credential:", "credential:a/b", "ask:x"];
        for text in wrong.into_iter().chain(["credential:..", "hunter2", "FILE:x"]) {
            let words = text.parse::<KeySource>().unwrap_err();
            assert!(!words.contains("hunter2"), "{words}");
        }
    }
}
