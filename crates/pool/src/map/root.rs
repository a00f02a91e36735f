//! The descriptor of a tree, and the properties that all its nodes share.

use block::{Result, bail};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::node::{
    HEADER_BYTES, LEVELS_MAX, NODE_BYTES, Place, Pointer, number_bytes, number_from,
};
use crate::Address;

/// Largest number of bytes of a key of a table.
pub const KEY_BYTES_MAX: u16 = 32;

/// Largest number of bytes of a value of a table, so that a node has four rows at least.
pub const VALUE_BYTES_MAX: u16 = ((NODE_BYTES - HEADER_BYTES) / 4) as u16 - KEY_BYTES_MAX;

/// Kind of a tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TreeKind {
    /// The bottom of a version's list of trees.
    Base,
    /// Changes above another tree, with the birth of the first overwrite.
    Change,
    /// The changes between two checkpoints, with every birth that a snapshot between them can see.
    Interval,
    /// The dead entries of a line.
    Dead,
    /// Rows of fixed width.
    Table,
}

impl TreeKind {
    const ALL: [Self; 5] = [Self::Base, Self::Change, Self::Interval, Self::Dead, Self::Table];

    /// The number that disks hold.
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Whether leaves of such trees hold runs of blocks.
    pub const fn has_runs(self) -> bool {
        matches!(self, Self::Base | Self::Change | Self::Interval)
    }
}

/// Kind and width of the checksums of blocks in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SumKind {
    /// No checksums, in trees without runs.
    None,
    /// CRC-32C, four bytes.
    Crc32c,
    /// CRC-64/NVME, eight bytes.
    Crc64,
    /// A tag of an encryption, sixteen bytes.
    Tag,
}

impl SumKind {
    const ALL: [Self; 4] = [Self::None, Self::Crc32c, Self::Crc64, Self::Tag];

    /// Bytes of the checksum of a block.
    pub const fn bytes(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Crc32c => 4,
            Self::Crc64 => 8,
            Self::Tag => 16,
        }
    }

    fn from_bytes(kind: u8, bytes: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u8 == kind && it.bytes() == bytes)
    }
}

/// The properties that all nodes of a tree share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Kind of the tree.
    pub kind: TreeKind,
    /// Line that owns the tree; 0 for tables of an allocator.
    pub line: u64,
    /// Checksums of blocks.
    pub sums: SumKind,
    /// Bytes of a key of a table; otherwise 0.
    pub key_bytes: u16,
    /// Bytes of a value of a table; otherwise 0.
    pub value_bytes: u16,
}

impl Form {
    /// A tree of runs.
    pub const fn runs(kind: TreeKind, line: u64, sums: SumKind) -> Self {
        Self { kind, line, sums, key_bytes: 0, value_bytes: 0 }
    }

    /// The tree of the dead entries of a line.
    pub const fn dead(line: u64) -> Self {
        Self::runs(TreeKind::Dead, line, SumKind::None)
    }

    /// A table.
    pub const fn table(line: u64, key_bytes: u16, value_bytes: u16) -> Self {
        Self { kind: TreeKind::Table, line, sums: SumKind::None, key_bytes, value_bytes }
    }

    /// Columns that a node of this level may have, as bits.
    pub(super) fn columns(&self, level: u8) -> u16 {
        match (level, self.kind) {
            (1.., _) => 0x7ff,
            (0, TreeKind::Change) => 0xff,
            (0, TreeKind::Base | TreeKind::Interval) => 0xbf,
            (0, TreeKind::Dead) => 0x3f,
            (0, TreeKind::Table) => 0,
        }
    }

    /// Bytes behind the columns of a node with so many items; `None` if the header contradicts the tree.
    pub(super) fn tail_bytes(&self, level: u8, items: usize, extra: u16) -> Option<usize> {
        match (level, self.kind) {
            (0, kind) if kind.has_runs() => {
                Some(usize::from(extra) * usize::from(self.sums.bytes()))
            }
            _ if extra != self.key_bytes => None,
            (0, TreeKind::Table) => Some(items * usize::from(self.key_bytes + self.value_bytes)),
            _ => Some(0),
        }
    }

    fn is_sound(&self) -> bool {
        let has_sums = self.sums != SumKind::None;
        let is_table = self.kind == TreeKind::Table;
        has_sums == self.kind.has_runs()
            && is_table == (self.key_bytes > 0)
            && (is_table || self.value_bytes == 0)
            && self.key_bytes <= KEY_BYTES_MAX
            && self.value_bytes <= VALUE_BYTES_MAX
    }
}

/// A filter that helps lookups. This code makes none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Filter {
    /// Physical address in the form that disks hold; 0 for no filter.
    pub address: u64,
    /// Checksum of the filter.
    pub checksum: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Kind of the filter.
    pub kind: u32,
}

/// The descriptor of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Properties of all nodes.
    pub form: Form,
    /// Pointer to the root, and the number of levels; `None` for a tree without items.
    pub top: Option<(Pointer, u8)>,
    /// Number of items.
    pub items: u64,
    /// Number of blocks that the items cover; of dead entries, only blocks of data.
    pub blocks: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Read-only compatible flags that this code does not know. A tree with such a flag must not be changed.
    pub unknown_read_only: u16,
    /// Filter for lookups.
    pub filter: Filter,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRoot {
    address: U64,
    second: U64,
    checksum: U64,
    line: U64,
    birth: [u8; 6],
    kind: u8,
    levels: u8,
    newest: [u8; 6],
    sum_kind: u8,
    sum_bytes: u8,
    items: U64,
    blocks: U64,
    nodes: U64,
    key_bytes: U16,
    value_bytes: U16,
    read_only_compatible: U16,
    incompatible: U16,
    zero: [u8; 16],
    filter_address: U64,
    filter_checksum: U64,
    filter_bytes: U32,
    filter_kind: U32,
    rest: [u8; 8],
}

const _: () = assert!(size_of::<RawRoot>() == Root::BYTES);

impl Root {
    /// Length in bytes of the encoded descriptor.
    pub const BYTES: usize = 128;

    /// A tree without items.
    pub const fn empty(form: Form) -> Self {
        let filter = Filter { address: 0, checksum: 0, bytes: 0, kind: 0 };
        Self { form, top: None, items: 0, blocks: 0, nodes: 0, unknown_read_only: 0, filter }
    }

    /// Returns the pointer to the root node with its place, if the tree has items.
    pub fn root(&self) -> Option<(Pointer, Place)> {
        let (pointer, levels) = self.top?;
        Some((pointer, Place { form: self.form, level: levels - 1, low: [0; 4], high: None }))
    }

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (form, filter) = (&self.form, &self.filter);
        let pointer = self.top.map(|(pointer, _)| pointer);
        let raw = RawRoot {
            address: pointer.map_or(0, |it| it.address.bits()).into(),
            second: pointer.and_then(|it| it.second).map_or(0, Address::bits).into(),
            checksum: pointer.map_or(0, |it| it.checksum).into(),
            line: form.line.into(),
            birth: number_bytes(pointer.map_or(0, |it| it.birth)),
            kind: form.kind.number(),
            levels: self.top.map_or(0, |(_, levels)| levels),
            newest: number_bytes(pointer.map_or(0, |it| it.newest)),
            sum_kind: form.sums as u8,
            sum_bytes: form.sums.bytes(),
            items: self.items.into(),
            blocks: self.blocks.into(),
            nodes: self.nodes.into(),
            key_bytes: form.key_bytes.into(),
            value_bytes: form.value_bytes.into(),
            read_only_compatible: self.unknown_read_only.into(),
            incompatible: 0.into(),
            zero: [0; 16],
            filter_address: filter.address.into(),
            filter_checksum: filter.checksum.into(),
            filter_bytes: filter.bytes.into(),
            filter_kind: filter.kind.into(),
            rest: [0; 8],
        };
        zerocopy::transmute!(raw)
    }

    /// Decodes a descriptor.
    ///
    /// # Errors
    /// `Corrupt` for values outside the format; `Unsupported` for an incompatible flag.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let raw: RawRoot = zerocopy::transmute!(*bytes);
        let flags = raw.incompatible.get();
        if flags != 0 {
            bail!(Unsupported, "a tree has flags {flags:#x}, which this Cairn does not know");
        }
        let kind = TreeKind::from_number(raw.kind);
        let sums = SumKind::from_bytes(raw.sum_kind, raw.sum_bytes);
        let (Some(kind), Some(sums)) = (kind, sums) else {
            bail!(Corrupt, "a tree has kind {} and checksums of {} bytes", raw.kind, raw.sum_bytes);
        };
        let (key_bytes, value_bytes) = (raw.key_bytes.get(), raw.value_bytes.get());
        let form = Form { kind, line: raw.line.get(), sums, key_bytes, value_bytes };
        let address = Address::from_bits(raw.address.get());
        let is_empty = raw.levels == 0;
        let counts = [raw.items.get(), raw.nodes.get(), raw.address.get()];
        let is_counted = counts.iter().all(|count| (*count == 0) == is_empty);
        let is_bare = !is_empty || Self::empty(form).encode()[..72] == bytes[..72];
        let is_padded = raw.zero == [0; 16] && raw.rest == [0; 8];
        if !form.is_sound() || !is_counted || !is_bare || !is_padded || raw.levels > LEVELS_MAX {
            bail!(Corrupt, "the descriptor of a tree of line {} is damaged", form.line);
        }
        let second = Some(raw.second.get()).filter(|bits| *bits != 0).map(Address::from_bits);
        let pointer = Pointer {
            key: [0; 4],
            address,
            second,
            checksum: raw.checksum.get(),
            birth: number_from(&raw.birth),
            newest: number_from(&raw.newest),
        };
        Ok(Self {
            form,
            top: (!is_empty).then_some((pointer, raw.levels)),
            items: raw.items.get(),
            blocks: raw.blocks.get(),
            nodes: raw.nodes.get(),
            unknown_read_only: raw.read_only_compatible.get(),
            filter: Filter {
                address: raw.filter_address.get(),
                checksum: raw.filter_checksum.get(),
                bytes: raw.filter_bytes.get(),
                kind: raw.filter_kind.get(),
            },
        })
    }
}
