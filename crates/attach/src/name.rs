//! Names of attached exports, and the paths that belong to a name.

use std::fmt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use block::{Error, Result, error};

use crate::FILE;
use crate::sys::FILE_NAME_BYTES;

/// Directory that has, for each attached export, a link to its block device.
pub const DEVICES: &str = "/dev/cairn";

/// Directory with the mount points, sockets and lock files of attached exports.
pub const RUNTIME: &str = "/run/cairn/attach";

/// Maximum length of the name of an attached export in bytes: the same as for the name of an export.
pub const NAME_MAX_BYTES: usize = 64;

const MARK: &str = "cairn:";

/// Number of bytes of a name that fit into the name field of a loop device after the prefix, with a zero byte at the
/// end.
const MARKED_BYTES: usize = FILE_NAME_BYTES - 1 - MARK.len();

/// Separator between the beginning of a too long name and its hash; no name contains this character.
const CUT: char = '~';

/// Length of a hash in a mark, in hexadecimal digits.
const HASH_BYTES: usize = 16;

/// The name under which an export is attached: that of its link in `/dev/cairn`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name(String);

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let first = text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if first && text.chars().all(known) && text.len() <= NAME_MAX_BYTES {
            return Ok(Self(text.to_owned()));
        }
        Err(error!(
            Invalid,
            "{text:?} cannot be a name in {DEVICES}: a name is a letter or digit, then letters, \
             digits, '-', '_' and '.', at most {NAME_MAX_BYTES} bytes"
        ))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Name {
    /// Returns the name under which an export is attached by default: that of the export. In the name of a volume, such
    /// as `vms/web@monday`, a dash stands for each character that a name cannot have.
    ///
    /// # Errors
    /// `Invalid` if the name is longer than [`NAME_MAX_BYTES`].
    pub fn of_export(export: &str) -> Result<Self> {
        export.replace(['/', '@', '+'], "-").parse()
    }

    /// Returns the path of the link to the block device: `/dev/cairn/NAME`.
    pub fn link(&self) -> PathBuf {
        Path::new(DEVICES).join(&self.0)
    }

    /// Returns the path of the mount point for the FUSE mount of this name.
    pub fn mount_point(&self) -> PathBuf {
        Path::new(RUNTIME).join(&self.0)
    }

    /// Returns the path of the file in the FUSE mount to which the loop device is connected.
    pub fn file(&self) -> PathBuf {
        self.mount_point().join(FILE)
    }

    /// Returns the mark by which the block device of this name is recognized. The path of the file, which the kernel
    /// shows as well, changes once the mount has ended. For a name that is too long for the kernel, the mark is its
    /// beginning and a hash.
    pub(crate) fn mark(&self) -> String {
        if self.0.len() <= MARKED_BYTES {
            return format!("{MARK}{}", self.0);
        }
        let kept = &self.0[..MARKED_BYTES - CUT.len_utf8() - HASH_BYTES];
        format!("{MARK}{kept}{CUT}{:0HASH_BYTES$x}", hash(&self.0))
    }

    /// Returns the path of the socket on which the server of this name listens for the kernel's NBD client.
    pub fn socket(&self) -> PathBuf {
        Path::new(RUNTIME).join(format!(".{}.sock", self.0))
    }

    /// Returns the path of the file that counts, for this name, the requests that the kernel sent again after the
    /// server was killed.
    pub fn counts(&self) -> PathBuf {
        Path::new(RUNTIME).join(format!(".{}.resent", self.0))
    }

    /// Returns the path of the lock file by which one process claims this name. No name begins with a dot, so this path
    /// is no mount point.
    pub(crate) fn lock(&self) -> PathBuf {
        Path::new(RUNTIME).join(format!(".{}.lock", self.0))
    }
}

/// Returns the 64-bit FNV-1a hash of `text`. All versions of Cairn must compute the same hash.
fn hash(text: &str) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Creates the directory [`RUNTIME`], which only root can access.
///
/// # Errors
/// Errors of the system; `Denied` if other users could write to the directory.
pub(crate) fn make_runtime() -> Result<()> {
    let failed = |error: &std::io::Error| Error::io(error, format_args!("making {RUNTIME}"));
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(RUNTIME).map_err(|error| failed(&error))?;
    let found = std::fs::symlink_metadata(RUNTIME).map_err(|error| failed(&error))?;
    if !found.is_dir() || found.uid() != 0 || found.mode() & 0o022 != 0 {
        return Err(error!(Denied, "{RUNTIME} is not a directory that only root can write")
            .next("remove that entry"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attached_device_name_is_one_path_component() {
        let is = |text: &str| text.parse::<Name>().is_ok();
        assert!(is("home") && is("a.b-c_9") && is(&"x".repeat(64)));
        for wrong in ["", ".", "..", ".home.lock", "a/b", "-a", "a b", "ä", &"x".repeat(65)] {
            assert!(!is(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn loop_device_mark_distinguishes_long_device_names() {
        let mark = |text: &str| text.parse::<Name>().unwrap().mark();
        assert_eq!(mark("home"), "cairn:home");
        assert_eq!(mark(&"x".repeat(57)), format!("cairn:{}", "x".repeat(57)));
        let (long, other) = (mark(&"x".repeat(64)), mark(&("x".repeat(63) + "y")));
        assert_eq!(long, format!("cairn:{}~b96a5acbb56db825", "x".repeat(40)));
        assert!(long.len() < FILE_NAME_BYTES && long != other);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c, "the published value");
    }
}
