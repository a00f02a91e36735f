//! The encoding of a directory entry of a vault: the properties of an object, and its pages.

use std::fmt;

use block::{Error, bail};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::number::PageNumber;
use super::page::CONTENT_BYTES;
use super::superblock::COUNT_MAX;
use crate::NAME_BYTES_MAX;

/// Length in bytes of one encoded directory entry.
pub const ENTRY_BYTES: usize = size_of::<Raw>();

/// Maximum number of runs of consecutive pages that one object may have.
pub const RUNS_MAX: usize = 48;

/// Object number of the directory, which owns the pages that hold the directory entries.
pub const DIRECTORY: u64 = 0;

const KIND_VERSION: u16 = 1;
const ADVISORY: u32 = 1;

/// Kind of an object of a vault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ObjectKind {
    /// A small state, which is read and written as one value; the length of the object is in bytes.
    Cell,
    /// Records of equal size; the length of the object is the number of records.
    Array,
    /// Bits; the length of the object is the number of bits.
    Bitmap,
    /// Log entries, appended at the end and trimmed at the front; the length of the log is in bytes.
    Log,
}

impl ObjectKind {
    const ALL: [Self; 4] = [Self::Cell, Self::Array, Self::Bitmap, Self::Log];

    fn number(self) -> u16 {
        self as u16 + 1
    }

    /// Returns the number of pages that an object of this kind needs for `length`. `record_bytes` is used only for an
    /// array.
    pub fn pages(self, record_bytes: u32, length: u64) -> u64 {
        let content = CONTENT_BYTES as u64;
        match self {
            Self::Array => length.div_ceil(content / u64::from(record_bytes)),
            Self::Bitmap => {
                (length.div_ceil(8) + super::bitmap::BITMAP_HEADER_BYTES).div_ceil(content)
            }
            Self::Cell => (length + super::cell::CELL_HEADER_BYTES).div_ceil(content),
            Self::Log => (length + super::log::LOG_HEADER_BYTES).div_ceil(content),
        }
    }
}

/// A run of consecutive pages of a vault that belong to one object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// Number of the first page of the run.
    pub first: u32,
    /// Number of pages in the run.
    pub pages: u32,
}

impl Run {
    /// Returns the number of the page after the last page of the run.
    pub fn end(self) -> u64 {
        u64::from(self.first) + u64::from(self.pages)
    }
}

/// The directory entry of one object of a vault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Number of the object. The vault never gives the same number to another object.
    pub number: u64,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Whether a crash may undo the latest changes of the object. Such objects hold statistics and hints.
    pub advisory: bool,
    /// Name of the device that the object belongs to.
    pub owner: String,
    /// Number by which the owner finds the object among its objects.
    pub role: u32,
    /// Size of each record of an array in bytes, else 0.
    pub record_bytes: u32,
    /// Length of the object: number of records of an array, number of bits of a bitmap, else bytes.
    pub length: u64,
    /// Number of the vault's epoch in which the object was created.
    pub epoch: u64,
    /// The runs of pages that hold the content of the object, in the order of its bytes.
    pub runs: Vec<Run>,
}

/// The content of one slot of the directory of a vault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Slot {
    /// A slot that never had an object.
    Unused,
    /// The former slot of a deleted object with this number.
    Gone(u64),
    /// The slot of an existing object, with its entry.
    Entry(Entry),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRun {
    first: U32,
    pages: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    number: U64,
    kind: U16,
    version: U16,
    flags: U32,
    owner: [u8; NAME_BYTES_MAX],
    role: U32,
    record_bytes: U32,
    length: U64,
    epoch: U64,
    runs: U32,
    zero: U32,
    run: [RawRun; RUNS_MAX],
    rest: [u8; 12],
}

const _: () = assert!(ENTRY_BYTES == 508 && CONTENT_BYTES.is_multiple_of(ENTRY_BYTES));

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, kind, owner, role, .. } = self;
        write!(f, "object {number} ({kind:?} {role} of {owner:?})")
    }
}

impl Entry {
    /// Returns the number of pages of the object.
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.pages)).sum()
    }

    /// Returns the number, in the vault, of the page with index `index` in the object; `None` beyond its last page.
    pub fn page(&self, index: u64) -> Option<PageNumber> {
        let mut before = 0;
        for run in &self.runs {
            if index < before + u64::from(run.pages) {
                return Some(u64::from(run.first) + index - before);
            }
            before += u64::from(run.pages);
        }
        None
    }

    /// Checks that `owner` is a valid name of a device that owns objects.
    ///
    /// # Errors
    /// `Invalid` for an empty or too long name, or one with a NUL byte.
    pub fn check_owner(owner: &str) -> Result<(), Error> {
        if owner.is_empty() || owner.len() > NAME_BYTES_MAX || owner.contains('\0') {
            bail!(Invalid, "owner {owner:?}: 1 to {NAME_BYTES_MAX} bytes without NUL are needed");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let array = self.kind == ObjectKind::Array;
        let possible = if array { 1..=CONTENT_BYTES as u32 } else { 0..=0 };
        if !possible.contains(&self.record_bytes) {
            return Err(format!("{self} has impossible records of {} bytes", self.record_bytes));
        }
        if self.length == 0 || self.length > COUNT_MAX || self.runs.iter().any(|run| run.pages == 0)
        {
            return Err(format!("{self} has bad length {} or an empty run of pages", self.length));
        }
        let needed = self.kind.pages(self.record_bytes, self.length);
        if needed != self.pages() {
            return Err(format!("{self} has {} pages and needs {needed}", self.pages()));
        }
        Ok(())
    }
}

impl Slot {
    /// Encodes the content of the slot.
    ///
    /// # Panics
    /// If an entry exceeds its limits. Code that makes entries checks them.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut raw = Raw::read_from_bytes(&[0; ENTRY_BYTES]).expect("an entry has its length");
        match self {
            Self::Unused => {}
            Self::Gone(number) => raw.number = (*number).into(),
            Self::Entry(entry) => {
                raw.number = entry.number.into();
                raw.kind = entry.kind.number().into();
                raw.version = KIND_VERSION.into();
                raw.flags = if entry.advisory { ADVISORY } else { 0 }.into();
                raw.owner[..entry.owner.len()].copy_from_slice(entry.owner.as_bytes());
                raw.role = entry.role.into();
                raw.record_bytes = entry.record_bytes.into();
                raw.length = entry.length.into();
                raw.epoch = entry.epoch.into();
                raw.runs = (entry.runs.len() as u32).into();
                for (raw, run) in raw.run.iter_mut().zip(&entry.runs) {
                    *raw = RawRun { first: run.first.into(), pages: run.pages.into() };
                }
            }
        }
        zerocopy::transmute!(raw)
    }

    /// Decodes the content of a slot.
    ///
    /// # Errors
    /// A description of the fault in the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let raw = Raw::ref_from_bytes(bytes).map_err(|_| "the entry has a wrong length")?;
        let number = raw.number.get();
        if number > COUNT_MAX {
            return Err(format!("object number {number} is above the limit"));
        }
        match (number, raw.kind.get()) {
            (0, 0) => return Ok(Self::Unused),
            (0, _) => return Err("an object has no number".to_owned()),
            (_, 0) => return Ok(Self::Gone(number)),
            _ => {}
        }
        let kind = ObjectKind::ALL.into_iter().find(|kind| kind.number() == raw.kind.get());
        let (Some(kind), KIND_VERSION) = (kind, raw.version.get()) else {
            let (kind, version) = (raw.kind, raw.version);
            return Err(format!("object {number} has unknown kind {kind} or version {version}"));
        };
        let (flags, runs) = (raw.flags.get(), raw.runs.get() as usize);
        if flags & !ADVISORY != 0 || runs > RUNS_MAX || raw.zero.get() != 0 {
            return Err(format!("object {number} has unknown flags {flags:#x} or {runs} runs"));
        }
        let run = |raw: &RawRun| Run { first: raw.first.get(), pages: raw.pages.get() };
        let entry = Entry {
            number,
            kind,
            advisory: flags & ADVISORY != 0,
            owner: crate::codec::name(&raw.owner, "device")
                .map_err(|_| format!("object {number} has an owner without a valid name"))?,
            role: raw.role.get(),
            record_bytes: raw.record_bytes.get(),
            length: raw.length.get(),
            epoch: raw.epoch.get(),
            runs: raw.run[..runs].iter().map(run).collect(),
        };
        entry.check()?;
        Ok(Self::Entry(entry))
    }
}
