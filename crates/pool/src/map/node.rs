//! Nodes: the header, the descriptors of columns, and the checks that every node passes when it is read.

use std::rc::Rc;

use block::{Result, bail, error};
use crc_fast::CrcAlgorithm;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::columns::{BitWriter, Buffer, Column, PUT_BITS_MAX, SLACK_BYTES, Shape, Values};
use super::root::{Form, TreeKind};
use super::run::Number;
use crate::{Address, BLOCK_BYTES, NUMBER_MAX};

/// Size of a node in bytes.
pub const NODE_BYTES: usize = BLOCK_BYTES as usize;

/// Bytes of the header of a node, before the descriptors of its columns.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();

/// Bytes of the descriptor of a column: width and base.
pub(super) const DESCRIPTOR_BYTES: usize = 9;

/// Largest number of levels of a tree.
pub const LEVELS_MAX: u8 = 12;

/// Columns of a leaf of runs that are reserved: index of another origin, length in bytes.
const RESERVED: u16 = 0x300;

/// Largest number of columns of a node.
const COLUMNS_MAX: usize = 11;

const MAGIC: [u8; 4] = *b"CNOD";
const VERSION: u8 = 1;

/// Key of an item: words that are compared from the first to the last.
pub type Key = [u64; 4];

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    level: u8,
    sum_bytes: u8,
    line: U64,
    birth: [u8; 6],
    items: U16,
    columns: U16,
    used: U16,
    extra: U16,
    value_bytes: U16,
}

const _: () = assert!(size_of::<Header>() == 32);

/// Returns the bytes of a number of 48 bits.
pub(super) fn number_bytes(number: Number) -> [u8; 6] {
    debug_assert!(number <= NUMBER_MAX);
    number.to_le_bytes()[..6].try_into().expect("six bytes")
}

/// Returns the number of 48 bits in `bytes`.
pub(super) fn number_from(bytes: &[u8; 6]) -> Number {
    let mut all = [0; 8];
    all[..6].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// A pointer to a node, as its parent or the descriptor of its tree has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// No item below has a smaller key.
    pub key: Key,
    /// Physical address of the node.
    pub address: Address,
    /// Physical address of a second copy of the node.
    pub second: Option<Address>,
    /// Checksum of the node's bytes.
    pub checksum: u64,
    /// Birth of the node.
    pub birth: Number,
    /// Newest birth of a run below; 0 in trees without runs.
    pub newest: Number,
}

/// The position in a tree that a node must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Tree of the node.
    pub form: Form,
    /// Level of the node: 0 for a leaf.
    pub level: u8,
    /// Smallest possible key of an item below.
    pub low: Key,
    /// Key behind all items below; `None` at the right edge of the tree.
    pub high: Option<Key>,
}

/// A node in memory. All its bytes are checked, so its items are read without further checks.
pub struct Node {
    pub(super) bytes: Buffer,
    pub(super) columns: [Column; COLUMNS_MAX],
    pub(super) items: usize,
    /// First byte behind the columns: that of the checksums of a leaf of runs, or of the rows.
    pub(super) tail: usize,
    /// Which columns are present, as bits.
    pub(super) present: u16,
    checksum: u64,
}

/// Returns the checksum of a node's bytes: CRC-64/NVME.
pub fn node_checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

impl Node {
    /// Decodes and checks the node that `pointer` names, at `place` in its tree.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not those of this node, or violate the format; `Unsupported` if they need a newer
    /// version of this code.
    ///
    /// # Panics
    /// If `bytes` does not have the size of a node.
    pub fn open(bytes: &[u8], pointer: &Pointer, place: &Place) -> Result<Rc<Self>> {
        assert_eq!(bytes.len(), NODE_BYTES, "a node has its size");
        let checksum = node_checksum(bytes);
        if checksum != pointer.checksum {
            bail!(
                Corrupt,
                "the node at {:?} does not have the checksum of its parent",
                pointer.address
            );
        }
        let mut node = Self {
            bytes: [0; NODE_BYTES + SLACK_BYTES],
            columns: [Column::default(); COLUMNS_MAX],
            items: 0,
            tail: HEADER_BYTES,
            present: 0,
            checksum,
        };
        node.bytes[..NODE_BYTES].copy_from_slice(bytes);
        if place.level == 0
            && place.form.kind.has_runs()
            && node.header().columns.get() & RESERVED != 0
        {
            bail!(
                Unsupported,
                "the node at {:?} has columns that this Cairn does not know",
                pointer.address
            );
        }
        let at = |why: String| error!(Corrupt, "the node at {:?} {why}", pointer.address);
        node.check_head(pointer, place)?;
        node.read_columns(place).map_err(at)?;
        match place {
            Place { level: 1.., .. } => node.check_pointers(place).map_err(at)?,
            Place { form: Form { kind: TreeKind::Dead, .. }, .. } => {
                node.check_dead(place).map_err(at)?;
            }
            Place { form: Form { kind: TreeKind::Table, .. }, .. } => {
                node.check_rows(place).map_err(at)?;
            }
            _ => {
                node.check_kinds()?;
                node.check_runs(place).map_err(at)?;
            }
        }
        Ok(Rc::new(node))
    }

    fn header(&self) -> &Header {
        Header::ref_from_prefix(&self.bytes).expect("a node is longer than its header").0
    }

    /// Checks that a node that was decoded earlier belongs to `pointer` at `place`.
    ///
    /// # Errors
    /// `Corrupt` with the field that differs.
    pub fn check_head(&self, pointer: &Pointer, place: &Place) -> Result<()> {
        let (header, form, address) = (self.header(), &place.form, pointer.address);
        if header.magic != MAGIC {
            bail!(Corrupt, "the bytes at {address:?} are not a node");
        }
        if header.version != VERSION {
            let version = header.version;
            bail!(
                Unsupported,
                "the node at {address:?} has version {version}; this Cairn reads {VERSION}"
            );
        }
        if self.checksum != pointer.checksum {
            bail!(Corrupt, "the node at {address:?} does not have the checksum of its parent");
        }
        let is_leaf_of_runs = place.level == 0 && form.kind.has_runs();
        let sum_bytes = if is_leaf_of_runs { form.sums.bytes() } else { 0 };
        let fields = [
            ("tree kind", u64::from(header.kind), u64::from(form.kind.number())),
            ("level", u64::from(header.level), u64::from(place.level)),
            ("line", header.line.get(), form.line),
            ("birth", number_from(&header.birth), pointer.birth),
            ("checksum width", u64::from(header.sum_bytes), u64::from(sum_bytes)),
        ];
        for (field, is, should) in fields {
            if is != should {
                bail!(Corrupt, "the node at {address:?} has {field} {is}, not {should}");
            }
        }
        Ok(())
    }

    fn read_columns(&mut self, place: &Place) -> std::result::Result<(), String> {
        let header = self.header();
        let (items, used) = (header.items.get() as usize, header.used.get() as usize);
        let (present, extra) = (header.columns.get(), header.extra.get());
        let allowed = place.form.columns(place.level);
        let value_bytes = if place.level == 0 { place.form.value_bytes } else { 0 };
        if items == 0
            || used > NODE_BYTES
            || present & !allowed != 0
            || header.value_bytes.get() != value_bytes
        {
            return Err(format!("has {items} items, {used} bytes and columns {present:#x}"));
        }
        let start = HEADER_BYTES + DESCRIPTOR_BYTES * present.count_ones() as usize;
        let width_of = |n: usize| usize::from(self.bytes[HEADER_BYTES + n * DESCRIPTOR_BYTES]);
        let widths = || (0..present.count_ones() as usize).map(width_of);
        let stride: usize = widths().sum();
        let end = start + (items * stride).div_ceil(8);
        if widths().any(|width| width > 64) || end > used {
            return Err(format!("has items of {stride} bits, beyond its end"));
        }
        let (mut bit, mut descriptor) = (start * 8, HEADER_BYTES);
        for column in (0..COLUMNS_MAX).filter(|column| present >> column & 1 == 1) {
            let width = u32::from(self.bytes[descriptor]);
            let base = &self.bytes[descriptor + 1..descriptor + DESCRIPTOR_BYTES];
            let base = u64::from_le_bytes(base.try_into().expect("eight bytes"));
            self.columns[column] = Column::new(base, bit, stride, width);
            if !self.columns[column].is_sound(&self.bytes, items) {
                return Err(format!("has a number of more than 64 bits in column {column}"));
            }
            (bit, descriptor) = (bit + width as usize, descriptor + DESCRIPTOR_BYTES);
        }
        (self.items, self.tail, self.present) = (items, end, present);
        let tail_bytes = place.form.tail_bytes(place.level, items, extra);
        if tail_bytes.is_none_or(|tail_bytes| end + tail_bytes != used) {
            return Err(format!("uses {used} bytes, which its items do not"));
        }
        match self.bytes[used..].iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err("has bytes behind its end".to_owned()),
        }
    }

    /// The bytes that a disk holds.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..NODE_BYTES]
    }

    /// Checksum of the bytes, for the parent.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Number of items, 1 or more.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Level of the node: 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.header().level
    }

    /// Number of the first snapshot that can see the node.
    pub fn birth(&self) -> Number {
        number_from(&self.header().birth)
    }

    /// Value of the field at offset 28: the number of checksums, or the bytes of a key.
    pub(super) fn extra(&self) -> u16 {
        self.header().extra.get()
    }

    #[inline]
    pub(super) fn number(&self, column: usize, item: usize) -> u64 {
        self.columns[column].get(&self.bytes, item)
    }

    /// Returns the physical address in a pair of columns.
    #[inline]
    pub(super) fn address(&self, extent: usize, item: usize) -> Option<Address> {
        let offset = u32::try_from(self.number(extent + 1, item)).ok()?;
        Address::new(self.number(extent, item), offset)
    }
}

/// The parts of a new node besides its items.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub form: Form,
    pub level: u8,
    pub birth: Number,
}

/// Encodes a node.
///
/// # Panics
/// If the items do not fit.
pub(super) fn encode<const N: usize>(
    head: Head,
    shape: &Shape<N>,
    items: impl Iterator<Item = Values<N>> + Clone,
    tails: &[u8],
) -> Rc<Node> {
    let index = items.clone().next().and_then(|values| values.index).map(|(column, _)| column);
    let mut node = Node {
        bytes: [0; NODE_BYTES + SLACK_BYTES],
        columns: [Column::default(); COLUMNS_MAX],
        items: shape.items,
        tail: 0,
        present: 0,
        checksum: 0,
    };
    let present = (0..N).filter(|column| shape.is_present(*column, index));
    let start = HEADER_BYTES + DESCRIPTOR_BYTES * present.clone().count();
    let stride: usize = present.clone().map(|column| shape.width(column) as usize).sum();
    let end = start + (shape.items * stride).div_ceil(8);
    assert!(end + tails.len() <= NODE_BYTES, "the items of a node fit");
    let (mut bit, mut descriptor) = (start * 8, HEADER_BYTES);
    // The columns with bits: number, base, width, and first bit in the item.
    let mut wide = [(0, 0, 0, 0); N];
    let (mut count, mut shift) = (0, 0);
    for column in present {
        let (base, width) = (shape.base(column), shape.width(column));
        node.bytes[descriptor] = width as u8;
        node.bytes[descriptor + 1..descriptor + DESCRIPTOR_BYTES]
            .copy_from_slice(&base.to_le_bytes());
        node.columns[column] = Column::new(base, bit, stride, width);
        node.present |= 1 << column;
        if width > 0 {
            wide[count] = (column, base, width, shift);
            (count, shift) = (count + 1, shift + width);
        }
        (bit, descriptor) = (bit + width as usize, descriptor + DESCRIPTOR_BYTES);
    }
    let mut writer = BitWriter::new(start);
    let is_short = shift <= PUT_BITS_MAX;
    for values in items {
        let mut bits = 0;
        for (column, base, width, shift) in &wide[..count] {
            let is_used = values.unused >> *column & 1 == 0;
            let number = if is_used { values.numbers[*column] - base } else { 0 };
            match is_short {
                true => bits |= number << shift,
                false => writer.put(&mut node.bytes, number, *width),
            }
        }
        if is_short {
            writer.put(&mut node.bytes, bits, shift);
        }
    }
    debug_assert_eq!(writer.end(), end, "the items have the bits of their shape");
    node.bytes[end..end + tails.len()].copy_from_slice(tails);
    node.tail = end;
    let is_leaf_of_runs = head.level == 0 && head.form.kind.has_runs();
    let sum_bytes = if is_leaf_of_runs { head.form.sums.bytes() } else { 0 };
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        kind: head.form.kind.number(),
        level: head.level,
        sum_bytes,
        line: head.form.line.into(),
        birth: number_bytes(head.birth),
        items: (shape.items as u16).into(),
        columns: node.present.into(),
        used: ((end + tails.len()) as u16).into(),
        extra: match sum_bytes {
            0 => head.form.key_bytes.into(),
            _ => ((tails.len() / sum_bytes as usize) as u16).into(),
        },
        value_bytes: U16::new(if head.level == 0 { head.form.value_bytes } else { 0 }),
    };
    node.bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    node.checksum = node_checksum(&node.bytes[..NODE_BYTES]);
    Rc::new(node)
}
