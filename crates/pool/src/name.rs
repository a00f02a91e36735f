//! Names of vdisks and snapshots: `POOL/VDISK`, `…@SNAPSHOT`, `…@SNAPSHOT+CLONE`.

use std::fmt;

use block::{Error, Result, error};
use crc_fast::CrcAlgorithm;

use crate::NUMBER_MAX;
use crate::rows::KEY_BYTES_MAX;

/// Maximum length in bytes of the name of a vdisk, with all `@` and `+` in it, and of a label.
pub const NAME_BYTES_MAX: usize = 64;

/// Length in bytes of the short key of a label; the number of its vdisk comes before it.
const LABEL_KEY_BYTES: usize = KEY_BYTES_MAX - size_of::<u64>();

/// Returns the short key of a text: its first bytes, filled up with zeros, then the checksum of all of it.
fn short_key<const N: usize>(text: &str) -> [u8; N] {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, text.as_bytes());
    let mut key = [0; N];
    let (front, back) = key.split_at_mut(N - size_of::<u64>());
    let len = text.len().min(front.len());
    front[..len].copy_from_slice(&text.as_bytes()[..len]);
    back.copy_from_slice(&sum.to_be_bytes());
    key
}

/// Checks one part of a name. `what` names the part in the error.
fn check_part(part: &str, what: &str) -> Result<()> {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    if part.len() > NAME_BYTES_MAX {
        return Err(too_long(part, what));
    }
    if is_part(part) {
        return Ok(());
    }
    let step = match part.find(['@', '+', '/']) {
        Some(_) => "leave out `@`, `+` and `/`, which separate the parts of a name",
        None => "choose a name of letters, digits, `-`, `_` and `.`",
    };
    let message = format!(
        "{part:?} is no name of {what}: it has 1 to {NAME_BYTES_MAX} letters a-z, digits, - _ and \
         ., and begins with a letter or digit"
    );
    Err(error!(Invalid, "{message}").next(step))
}

fn too_long(text: &str, what: &str) -> Error {
    let len = text.len();
    error!(
        Limit,
        "the name of {what} {text:?} has {len} bytes; at most {NAME_BYTES_MAX} are possible"
    )
    .next("choose a shorter name")
}

/// The label of a snapshot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Label(String);

impl Label {
    /// Parses a label.
    ///
    /// # Errors
    /// `Invalid` or `Limit`, with the next step.
    pub fn parse(text: &str) -> Result<Self> {
        check_part(text, "a snapshot")?;
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let message =
                format!("{text:?} is no label: digits alone are the number of a snapshot");
            return Err(error!(Invalid, "{message}").next("put a letter into the label"));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the key of the label behind the number of its vdisk.
    pub fn key(&self) -> [u8; LABEL_KEY_BYTES] {
        short_key(&self.0)
    }

    /// Returns the text of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A reference to a snapshot of a vdisk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotRef {
    /// By its number.
    Number(u64),
    /// By its label.
    Label(Label),
}

impl SnapshotRef {
    /// Parses the part of a name behind an `@`.
    ///
    /// # Errors
    /// `Invalid` or `Limit`, with the next step.
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Label::parse(text).map(Self::Label);
        }
        let number = text.parse().ok().filter(|number| (1..NUMBER_MAX).contains(number));
        match number.filter(|number: &u64| number.to_string() == text) {
            Some(number) => Ok(Self::Number(number)),
            None => Err(error!(
                Invalid,
                "{text:?} is no number of a snapshot: it is 1 to {}, without zeros in front",
                NUMBER_MAX - 1
            )
            .next("list the snapshots for their numbers")),
        }
    }
}

impl fmt::Display for SnapshotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Label(label) => fmt::Display::fmt(label, f),
        }
    }
}

/// The name of a vdisk: one part, or `…@SNAPSHOT+CLONE` for a clone that was made when its name was first opened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VdiskName(String);

impl VdiskName {
    /// Parses the name of a vdisk.
    ///
    /// # Errors
    /// `Invalid` or `Limit`, with the next step.
    pub fn parse(text: &str) -> Result<Self> {
        let name = VersionName::parse(text)?;
        match name.snapshot {
            None => Ok(name.vdisk),
            Some(_) => Err(error!(Invalid, "{text:?} is a snapshot, and a vdisk is expected")
                .next("name the vdisk before the last `@`, or clone the snapshot")),
        }
    }

    /// Parses the name of a vdisk that is to be made: one part.
    ///
    /// # Errors
    /// `Invalid` or `Limit`, with the next step.
    pub fn parse_new(text: &str) -> Result<Self> {
        check_part(text, "a vdisk")?;
        Ok(Self(text.to_owned()))
    }

    /// Returns the snapshot from which a clone with this name is made when the name is first opened: its vdisk, and the
    /// snapshot. `None` for a name of one part.
    pub fn origin(&self) -> Option<(Self, SnapshotRef)> {
        let (version, _) = self.0.rsplit_once('+')?;
        let (vdisk, snapshot) = version.rsplit_once('@')?;
        let snapshot = SnapshotRef::parse(snapshot).ok()?;
        Some((Self(vdisk.to_owned()), snapshot))
    }

    /// Returns the key of the name in the table of names.
    pub fn key(&self) -> [u8; KEY_BYTES_MAX] {
        short_key(&self.0)
    }

    /// Returns the text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VdiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a version: a vdisk, or one of its snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionName {
    /// Name of the vdisk.
    pub vdisk: VdiskName,
    /// The snapshot; `None` for the head.
    pub snapshot: Option<SnapshotRef>,
}

impl VersionName {
    /// Parses the name of a version, without its pool.
    ///
    /// # Errors
    /// `Invalid` or `Limit`, with the next step.
    pub fn parse(text: &str) -> Result<Self> {
        let (first, mut rest) = text.split_once('@').map_or((text, None), |(a, b)| (a, Some(b)));
        check_part(first, "a vdisk")?;
        let mut vdisk = first.len();
        let mut snapshot = None;
        while let Some(behind) = rest {
            let (part, next) = behind.split_once('@').map_or((behind, None), |(a, b)| (a, Some(b)));
            match part.split_once('+') {
                Some((of, clone)) => {
                    SnapshotRef::parse(of)?;
                    check_part(clone, "a clone")?;
                    vdisk += 1 + part.len();
                }
                None if next.is_some() => return Err(snapshot_of_snapshot(text, part)),
                None => snapshot = Some(SnapshotRef::parse(part)?),
            }
            rest = next;
        }
        let vdisk = &text[..vdisk];
        if vdisk.len() > NAME_BYTES_MAX {
            return Err(too_long(vdisk, "the vdisk"));
        }
        Ok(Self { vdisk: VdiskName(vdisk.to_owned()), snapshot })
    }
}

fn snapshot_of_snapshot(text: &str, part: &str) -> Error {
    error!(
        Invalid,
        "{text:?} names a snapshot of the snapshot {part:?}; only vdisks have snapshots"
    )
    .next(format!("clone it: `…@{part}+NAME`"))
}

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            None => fmt::Display::fmt(&self.vdisk, f),
            Some(snapshot) => write!(f, "{}@{snapshot}", self.vdisk),
        }
    }
}

/// The name of an export of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportName {
    /// Name of the pool's device.
    pub pool: String,
    /// The version.
    pub version: VersionName,
}

impl ExportName {
    /// Parses `POOL/VERSION`.
    ///
    /// # Errors
    /// `Invalid` or `Limit`, with the next step.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((pool, version)) = text.split_once('/') else {
            return Err(error!(Invalid, "{text:?} names no pool")
                .next("write POOL/VDISK, for example vms/web"));
        };
        check_part(pool, "a pool")?;
        Ok(Self { pool: pool.to_owned(), version: VersionName::parse(version)? })
    }
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.version)
    }
}
