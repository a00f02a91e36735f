//! The encoding of the superblock of an allocator.

use meta::Uuid;
use meta::ring::{Owner, Position, Ring, Root};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::areas::RootStructure;
use super::prelude::{Prelude, SLOT_BYTES, Wrong, damaged, seal};
use crate::unknown::flags;
use crate::{ALLOCATORS_MAX, Address, COUNT_MAX, DESCRIPTOR_BYTES, Descriptor, NUMBER_MAX};

/// Magic number at the start of a superblock of an allocator.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"CAIRNALC";

/// Number of descriptors of tables in a superblock.
pub const TABLES: usize = 24;

flags! {
    /// Flags of a superblock.
    SuperblockFlags {
        /// The allocator was closed in order: no record follows the tail of its log.
        CLOSED = 0,
    }
}

/// The content of a superblock of an allocator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Number of the allocator.
    pub allocator: u32,
    /// UUID of the pool.
    pub pool: Uuid,
    /// Number of this superblock: each later one of the allocator has a higher number.
    pub sequence: u64,
    /// Number of the opening that wrote it.
    pub opening: u64,
    /// Random number of the opening.
    pub draw: u64,
    /// Number of the checkpoint.
    pub checkpoint: u64,
    /// UUID of the log.
    pub log: Uuid,
    /// Number of the log's first extent.
    pub log_extent: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Root of the log: its tail, and the highest flushed number.
    pub log_root: Root,
    /// End of the numbers in reserve: no number from here on was used.
    pub numbers_end: u64,
    /// Blocks in use for data.
    pub data_blocks: u64,
    /// Blocks in use for nodes.
    pub node_blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Time when it was written, in seconds from 1970, for people.
    pub written_unix_s: u64,
    /// Flags.
    pub flags: SuperblockFlags,
    /// Descriptors of the tables, by number of the table.
    pub tables: [Descriptor; TABLES],
    /// Bits of features that this version does not know. It may read the pool, but must not write it.
    pub unknown_read_only: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    prelude: Prelude,
    opening: U64,
    draw: U64,
    checkpoint: U64,
    log: [u8; 16],
    log_extent: U64,
    log_bytes: U64,
    tail_offset: U64,
    tail_number: U64,
    tail_previous: U64,
    tail_opening: U64,
    flushed: U64,
    numbers_end: U64,
    data_blocks: U64,
    node_blocks: U64,
    free_blocks: U64,
    written_unix_s: U64,
    flags: U32,
    rest: [u8; 812],
    tables: [[u8; DESCRIPTOR_BYTES]; TABLES],
}

const _: () = assert!(size_of::<Raw>() == SLOT_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, tables) == 1024);

impl Superblock {
    /// Encodes the superblock as the bytes of its slot.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let Root { tail, flushed } = self.log_root;
        let (pair, unknown) = (self.allocator, self.unknown_read_only);
        let raw = Raw {
            prelude: Prelude::new(SUPERBLOCK_MAGIC, pair, self.pool, self.sequence, unknown),
            opening: self.opening.into(),
            draw: self.draw.into(),
            checkpoint: self.checkpoint.into(),
            log: self.log.0,
            log_extent: self.log_extent.into(),
            log_bytes: self.log_bytes.into(),
            tail_offset: tail.offset.into(),
            tail_number: tail.number.into(),
            tail_previous: tail.previous.into(),
            tail_opening: tail.opening.into(),
            flushed: flushed.into(),
            numbers_end: self.numbers_end.into(),
            data_blocks: self.data_blocks.into(),
            node_blocks: self.node_blocks.into(),
            free_blocks: self.free_blocks.into(),
            written_unix_s: self.written_unix_s.into(),
            flags: self.flags.0.into(),
            rest: [0; 812],
            tables: self.tables,
        };
        let mut slot: [u8; SLOT_BYTES] = zerocopy::transmute!(raw);
        seal(&mut slot);
        slot
    }

    /// Decodes the superblock of this allocator of this pool in a slot.
    ///
    /// # Errors
    /// The reason why the slot cannot be used.
    pub fn decode(bytes: &[u8], pool: Uuid, allocator: u32) -> Result<Self, Wrong> {
        let prelude = Prelude::read(bytes, SUPERBLOCK_MAGIC, allocator, Some(pool))?;
        let (raw, _) = Raw::ref_from_prefix(bytes).expect("a slot has its length");
        if raw.rest.iter().any(|byte| *byte != 0) {
            return Err(damaged("unknown fields are not zero"));
        }
        let superblock = raw.read(prelude);
        superblock.check().map_err(damaged)?;
        Ok(superblock)
    }

    /// Returns the ring of the allocator's log.
    ///
    /// # Errors
    /// A description of the fault in its length.
    pub fn ring(&self) -> Result<Ring, String> {
        Ring::new(self.log, self.log_bytes, Owner::PoolLog)
    }

    fn check(&self) -> Result<(), String> {
        self.ring()?;
        let Root { tail, flushed } = self.log_root;
        if !(1..=ALLOCATORS_MAX).contains(&self.allocator) {
            return Err(format!("an allocator {} is impossible", self.allocator));
        }
        let numbers = [self.opening, self.checkpoint, tail.opening];
        if let Some(wrong) = numbers.into_iter().find(|n| !(1..=NUMBER_MAX).contains(n)) {
            return Err(format!("an opening or checkpoint {wrong} is impossible"));
        }
        let counts = [
            tail.offset,
            tail.number,
            flushed,
            self.numbers_end,
            self.data_blocks,
            self.node_blocks,
            self.free_blocks,
            self.written_unix_s,
        ];
        if let Some(wrong) = counts.into_iter().find(|count| *count > COUNT_MAX) {
            return Err(format!("a counter has the impossible value {wrong}"));
        }
        if self.log_extent > Address::EXTENT_MAX {
            return Err(format!("a log in extent {} is impossible", self.log_extent));
        }
        let is_sector = tail.offset.is_multiple_of(meta::ring::SECTOR_BYTES as u64);
        if !is_sector || tail.number == 0 || flushed < tail.number - 1 {
            return Err(format!("the tail {tail:?} with flushed number {flushed} is impossible"));
        }
        if tail.opening > self.opening {
            return Err(format!("tail of opening {} in opening {}", tail.opening, self.opening));
        }
        Ok(())
    }
}

impl Raw {
    fn read(&self, prelude: &Prelude) -> Superblock {
        let tail = Position {
            offset: self.tail_offset.get(),
            number: self.tail_number.get(),
            previous: self.tail_previous.get(),
            opening: self.tail_opening.get(),
        };
        Superblock {
            allocator: prelude.pair.get(),
            pool: Uuid(prelude.pool),
            sequence: prelude.sequence.get(),
            opening: self.opening.get(),
            draw: self.draw.get(),
            checkpoint: self.checkpoint.get(),
            log: Uuid(self.log),
            log_extent: self.log_extent.get(),
            log_bytes: self.log_bytes.get(),
            log_root: Root { tail, flushed: self.flushed.get() },
            numbers_end: self.numbers_end.get(),
            data_blocks: self.data_blocks.get(),
            node_blocks: self.node_blocks.get(),
            free_blocks: self.free_blocks.get(),
            written_unix_s: self.written_unix_s.get(),
            flags: SuperblockFlags(self.flags.get()),
            tables: self.tables,
            unknown_read_only: prelude.read_only_compatible.get(),
        }
    }
}

impl super::store::Encoded for Superblock {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        self.encode()
    }

    fn decode(bytes: &[u8], pool: Uuid, pair: u32) -> Result<Self, Wrong> {
        Self::decode(bytes, pool, pair)
    }
}

impl RootStructure for Superblock {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn conflicts_with(&self, other: &Self) -> bool {
        self.opening == other.opening && self.draw != other.draw
    }
}
