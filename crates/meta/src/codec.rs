//! The encoding of one copy of a label.

use std::collections::BTreeMap;
use std::fmt;

use block::seeded::{self, Bug};
use block::{Error, STATE_BYTES_MAX, error};
use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::place::DATA_START;
use crate::{Cell, Label, Machine, NAME_BYTES_MAX, Uuid};

mod past;

pub use past::{PAST_BYTES_MAX, PAST_MAX};

/// Magic number at the start of each copy of a label.
pub const MAGIC: [u8; 8] = *b"CAIRNLBL";

/// Format version of labels that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Length in bytes of the header of a label, before the spec.
pub const HEADER_BYTES: usize = size_of::<Header>();

/// Maximum length in bytes of one encoded copy of a label.
pub const COPY_BYTES_MAX: usize = 256 << 10;

/// Maximum length in bytes of the spec in a label.
pub const SPEC_BYTES_MAX: usize = 128 << 10;

/// Maximum number of cells in one label.
pub const CELLS_MAX: usize = 4096;

/// Divisor of the number of data bytes of every labelled disk, whatever its block size.
const DATA_ALIGN: u64 = 64 << 10;

/// Maximum number of data bytes of a disk. With both label areas, such a disk still fits into the largest possible
/// file.
const DATA_BYTES_MAX: u64 = 1 << 62;

/// Highest valid sequence, epoch and broadcast in a label. Counting up by one never reaches this value. A label with a
/// higher value is rejected, because its successor might not exist.
pub const COUNT_MAX: u64 = 1 << 62;

/// Compatible feature bit: a list of past specs follows the cells.
const PAST: u64 = 1;

const OPEN: u32 = 1;
const FORMING: u32 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    checksum: U32,
    length: U32,
    block_size: U32,
    compatible: U64,
    read_only_compatible: U64,
    incompatible: U64,
    sequence: U64,
    epoch: U64,
    disk: [u8; 16],
    graph: [u8; 16],
    data_start: U64,
    data_bytes: U64,
    written_unix_s: U64,
    state: U32,
    spec_bytes: U32,
    cells: U32,
    zero: U32,
    machine: [u8; 16],
    disk_name: [u8; NAME_BYTES_MAX],
    graph_name: [u8; NAME_BYTES_MAX],
    host: [u8; NAME_BYTES_MAX],
    broadcast: U64,
    acked_broadcast: U64,
    rest: [u8; 152],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CellHeader {
    sequence: U64,
    length: U32,
    zero: U32,
    name: [u8; NAME_BYTES_MAX],
}

const _: () = assert!(size_of::<Header>() == 512 && size_of::<CellHeader>() == 80);

/// Position of the checksum in a copy. The checksum does not cover these bytes.
const CHECKSUM: std::ops::Range<usize> = 12..16;

/// The reason why the bytes of a label area are no valid label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The bytes do not begin with the magic number of labels: they hold no label.
    NoMagic,
    /// An intact label with this format version, which this code does not know.
    Version(u32),
    /// An intact label with these feature bits, which this code does not know and which a reader must know.
    Features(u64),
    /// The label is corrupt, or exceeds a limit; the text describes the fault.
    Damaged(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("no label"),
            Self::Version(version) => {
                write!(f, "a label of version {version}; this Cairn reads only version {VERSION}")
            }
            Self::Features(bits) => {
                write!(f, "a label with features that this Cairn does not know (bits {bits:#x})")
            }
            Self::Damaged(why) => write!(f, "a damaged label: {why}"),
        }
    }
}

/// Computes the checksum that a copy of a label must have, ignoring the checksum field in `copy`.
///
/// # Panics
/// If `copy` is shorter than a header.
pub fn checksum(copy: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&copy[..CHECKSUM.start]);
    digest.update(&[0; 4]);
    digest.update(&copy[CHECKSUM.end..]);
    digest.finalize() as u32
}

/// Computes the checksum of a copy of a label, and writes it into the header of the copy.
pub(crate) fn seal(copy: &mut [u8]) {
    let sum = checksum(copy);
    copy[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

fn name_field(name: &str) -> [u8; NAME_BYTES_MAX] {
    let mut field = [0; NAME_BYTES_MAX];
    field[..name.len()].copy_from_slice(name.as_bytes());
    field
}

impl Label {
    /// Encodes the label as the bytes of one copy. Of the earlier specs, includes the newest that fit: at most
    /// [`PAST_MAX`] in at most [`PAST_BYTES_MAX`].
    ///
    /// # Errors
    /// `Limit` if the label does not fit; the message names the part that is too long.
    ///
    /// # Panics
    /// If a name or a cell is longer than its own limit. Code that makes names and cells checks these limits.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let too_much = |what: &str, is: usize, most: usize| {
            let graph = &self.graph_name;
            Err(error!(Limit, "the label of {graph:?} has {is} {what}; at most {most} fit"))
        };
        if self.spec.len() > SPEC_BYTES_MAX {
            return too_much("bytes of spec", self.spec.len(), SPEC_BYTES_MAX);
        }
        if self.cells.len() > CELLS_MAX {
            return too_much("cells", self.cells.len(), CELLS_MAX);
        }
        let mut copy = vec![0; HEADER_BYTES];
        copy.extend_from_slice(self.spec.as_bytes());
        for (name, cell) in &self.cells {
            assert!(cell.bytes.len() <= STATE_BYTES_MAX, "the cell of device {name:?} is too long");
            let header = CellHeader {
                sequence: cell.sequence.into(),
                length: (cell.bytes.len() as u32).into(),
                zero: 0.into(),
                name: name_field(name),
            };
            copy.extend_from_slice(header.as_bytes());
            copy.extend_from_slice(&cell.bytes);
        }
        if copy.len() > COPY_BYTES_MAX {
            return too_much("bytes", copy.len(), COPY_BYTES_MAX);
        }
        let compatible = if past::encode(&self.past, &mut copy) { PAST } else { 0 };
        let header = self.header(copy.len(), compatible);
        copy[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        seal(&mut copy);
        Ok(copy)
    }

    fn header(&self, length: usize, compatible: u64) -> Header {
        let open = if self.holder.is_some() { OPEN } else { 0 };
        let provisioning = if self.provisioning { FORMING } else { 0 };
        let host = self.holder.as_ref().map_or("", |machine| &machine.host);
        Header {
            magic: MAGIC,
            version: VERSION.into(),
            checksum: 0.into(),
            length: (length as u32).into(),
            block_size: self.block_size.into(),
            compatible: compatible.into(),
            read_only_compatible: self.unknown_read_only.into(),
            incompatible: 0.into(),
            sequence: self.sequence.into(),
            epoch: self.epoch.into(),
            disk: self.disk.0,
            graph: self.graph.0,
            data_start: DATA_START.into(),
            data_bytes: self.data_bytes.into(),
            written_unix_s: self.written_unix_s.into(),
            state: (open | provisioning).into(),
            spec_bytes: (self.spec.len() as u32).into(),
            cells: (self.cells.len() as u32).into(),
            zero: 0.into(),
            machine: self.holder.as_ref().map_or([0; 16], |machine| machine.id),
            disk_name: name_field(&self.disk_name),
            graph_name: name_field(&self.graph_name),
            host: name_field(host),
            broadcast: self.broadcast.into(),
            acked_broadcast: self.acked_broadcast.into(),
            rest: [0; 152],
        }
    }

    /// Decodes the copy of a label at the beginning of `bytes`.
    ///
    /// # Errors
    /// The reason why the copy cannot be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, Wrong> {
        let copy = whole(bytes)?;
        let (header, rest) =
            Header::ref_from_prefix(copy).map_err(|_| damaged("the label is truncated"))?;
        let version = header.version.get();
        if version != VERSION {
            return Err(Wrong::Version(version));
        }
        if header.incompatible.get() != 0 {
            return Err(Wrong::Features(header.incompatible.get()));
        }
        header.check()?;
        let spec_bytes = header.spec_bytes.get() as usize;
        if spec_bytes > SPEC_BYTES_MAX.min(rest.len()) {
            return Err(damaged(format_args!("a spec of {spec_bytes} bytes does not fit")));
        }
        let (spec, cells) = rest.split_at(spec_bytes);
        let spec = std::str::from_utf8(spec).map_err(|_| damaged("the spec is not UTF-8"))?;
        let (cells, rest) = decode_cells(cells, header.cells.get())?;
        let compatible = header.compatible.get();
        let (past, rest) = match compatible & PAST {
            0 => (Vec::new(), rest),
            _ => past::decode(rest)?,
        };
        if !rest.is_empty() && compatible & !PAST == 0 {
            return Err(damaged(format_args!("{} bytes follow the end of the label", rest.len())));
        }
        let state = header.state.get();
        let holder = match state & OPEN {
            0 => None,
            _ => Some(Machine { host: name(&header.host, "machine")?, id: header.machine }),
        };
        Ok(Self {
            sequence: header.sequence.get(),
            epoch: header.epoch.get(),
            broadcast: header.broadcast.get(),
            acked_broadcast: header.acked_broadcast.get(),
            disk: Uuid(header.disk),
            disk_name: name(&header.disk_name, "disk")?,
            graph: Uuid(header.graph),
            graph_name: name(&header.graph_name, "graph")?,
            data_bytes: header.data_bytes.get(),
            block_size: header.block_size.get(),
            written_unix_s: header.written_unix_s.get(),
            holder,
            provisioning: state & FORMING != 0,
            spec: spec.to_owned(),
            cells,
            past: past.into(),
            unknown_read_only: header.read_only_compatible.get(),
        })
    }
}

/// Returns the copy of a label at the beginning of `bytes`, of any version, if its checksum is right.
fn whole(bytes: &[u8]) -> Result<&[u8], Wrong> {
    if !bytes.starts_with(&MAGIC) {
        return Err(Wrong::NoMagic);
    }
    let (header, _) =
        Header::ref_from_prefix(bytes).map_err(|_| damaged("the label is truncated"))?;
    let length = header.length.get() as usize;
    if !(HEADER_BYTES..=COPY_BYTES_MAX.min(bytes.len())).contains(&length) {
        return Err(damaged(format_args!("the header has an impossible length, {length} bytes")));
    }
    let copy = &bytes[..length];
    if header.checksum.get() != checksum(copy) && !seeded::on(Bug::LabelUnchecked) {
        return Err(damaged("the checksum is wrong"));
    }
    Ok(copy)
}

fn damaged(why: impl fmt::Display) -> Wrong {
    Wrong::Damaged(why.to_string())
}

impl Header {
    fn check(&self) -> Result<(), Wrong> {
        let block = self.block_size.get();
        if !block.is_power_of_two() || !(512..=65536).contains(&block) {
            return Err(damaged(format_args!("the block size of {block} bytes is impossible")));
        }
        if self.data_start.get() != DATA_START {
            return Err(damaged(format_args!("the data start {} is impossible", self.data_start)));
        }
        let data = self.data_bytes.get();
        if data == 0 || !data.is_multiple_of(DATA_ALIGN) || data > DATA_BYTES_MAX {
            return Err(damaged(format_args!("the data length of {data} bytes is impossible")));
        }
        let (sequence, epoch) = (self.sequence.get(), self.epoch.get());
        if !(1..=COUNT_MAX).contains(&sequence) || epoch > COUNT_MAX {
            return Err(damaged(format_args!(
                "sequence {sequence} or epoch {epoch} is impossible"
            )));
        }
        let (round, complete) = (self.broadcast.get(), self.acked_broadcast.get());
        if complete > round || round > COUNT_MAX {
            return Err(damaged(format_args!(
                "broadcast {round} with acknowledged broadcast {complete} is impossible"
            )));
        }
        let state = self.state.get();
        if state & !(OPEN | FORMING) != 0 || self.zero.get() != 0 {
            return Err(damaged(format_args!("the state bits {state:#x} are unknown")));
        }
        Ok(())
    }
}

pub(crate) fn name(field: &[u8; NAME_BYTES_MAX], what: &str) -> Result<String, Wrong> {
    let end = field.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match std::str::from_utf8(&field[..end]) {
        Ok(text) if end > 0 && !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(damaged(format_args!("the name of the {what} is empty or invalid"))),
    }
}

/// Decodes `count` cells of devices at the beginning of `bytes`. Returns the cells, and the bytes after them.
fn decode_cells(mut bytes: &[u8], count: u32) -> Result<(BTreeMap<String, Cell>, &[u8]), Wrong> {
    if count as usize > CELLS_MAX {
        return Err(damaged(format_args!("{count} cells; at most {CELLS_MAX} are possible")));
    }
    let mut cells: BTreeMap<String, Cell> = BTreeMap::new();
    for _ in 0..count {
        let (header, rest) = CellHeader::ref_from_prefix(bytes)
            .map_err(|_| damaged("the list of cells is truncated"))?;
        let length = header.length.get() as usize;
        if length > STATE_BYTES_MAX.min(rest.len()) || header.zero.get() != 0 {
            return Err(damaged(format_args!("a cell has an impossible length, {length} bytes")));
        }
        let name = name(&header.name, "device")?;
        if cells.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(damaged(format_args!("the cell of device {name:?} is out of order")));
        }
        let sequence = header.sequence.get();
        if !(1..=COUNT_MAX).contains(&sequence) {
            return Err(damaged(format_args!(
                "the cell of device {name:?} has the impossible sequence {sequence}"
            )));
        }
        let (state, after) = rest.split_at(length);
        cells.insert(name, Cell { sequence, bytes: state.to_vec() });
        bytes = after;
    }
    Ok((cells, bytes))
}

#[cfg(test)]
mod tests;
