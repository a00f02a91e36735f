//! The encoding of the header of a pool.

use meta::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::areas::RootStructure;
use super::prelude::{Prelude, SLOT_BYTES, Wrong, damaged, seal};
use crate::geometry::Geometry;
use crate::{ALLOCATORS_MAX, BLOCK_BYTES, COUNT_MAX, NUMBER_MAX};

/// Magic number at the start of the header of a pool.
pub const HEADER_MAGIC: [u8; 8] = *b"CAIRNPOL";

/// Maximum number of extents of a slab.
const SLAB_EXTENTS_MAX: u32 = 4096;

/// The content of the header of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// UUID of the pool.
    pub pool: Uuid,
    /// Number of this header: each later one of the pool has a higher number.
    pub sequence: u64,
    /// Sizes and places of the parts of the pool.
    pub geometry: Geometry,
    /// Number of extents that an allocator claims together.
    pub slab_extents: u32,
    /// The largest number of an allocator.
    pub allocators: u32,
    /// Number of the allocator that keeps the catalogue.
    pub keeper: u32,
    /// Epoch of the catalogue.
    pub epoch: u64,
    /// Time when the pool was made, in seconds from 1970.
    pub made_unix_s: u64,
    /// Bits of features that this version does not know. It may read the pool, but must not write it.
    pub unknown_read_only: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    prelude: Prelude,
    bytes: U64,
    far: U64,
    extent_bytes: U64,
    extents: U64,
    slab_extents: U32,
    allocators: U32,
    keeper: U32,
    block_bytes: U32,
    epoch: U64,
    made_unix_s: U64,
    rest: [u8; 3960],
}

const _: () = assert!(size_of::<Raw>() == SLOT_BYTES);

impl Header {
    /// Encodes the header as the bytes of its slot.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let Geometry { bytes, far, extent_bytes, extents } = self.geometry;
        let unknown = self.unknown_read_only;
        let raw = Raw {
            prelude: Prelude::new(HEADER_MAGIC, 0, self.pool, self.sequence, unknown),
            bytes: bytes.into(),
            far: far.into(),
            extent_bytes: extent_bytes.into(),
            extents: extents.into(),
            slab_extents: self.slab_extents.into(),
            allocators: self.allocators.into(),
            keeper: self.keeper.into(),
            block_bytes: BLOCK_BYTES.into(),
            epoch: self.epoch.into(),
            made_unix_s: self.made_unix_s.into(),
            rest: [0; 3960],
        };
        let mut slot: [u8; SLOT_BYTES] = zerocopy::transmute!(raw);
        seal(&mut slot);
        slot
    }

    /// Decodes the header in a slot. `pool` is the UUID that the pool must have, if it is known.
    ///
    /// # Errors
    /// The reason why the slot cannot be used.
    pub fn decode(bytes: &[u8], pool: Option<Uuid>) -> Result<Self, Wrong> {
        let prelude = Prelude::read(bytes, HEADER_MAGIC, 0, pool)?;
        let (raw, _) = Raw::ref_from_prefix(bytes).expect("a slot has its length");
        let block_bytes = raw.block_bytes.get();
        if block_bytes != BLOCK_BYTES {
            return Err(damaged(format_args!("blocks of {block_bytes} bytes are impossible")));
        }
        if raw.rest.iter().any(|byte| *byte != 0) {
            return Err(damaged("unknown fields are not zero"));
        }
        let header = Self {
            pool: Uuid(prelude.pool),
            sequence: prelude.sequence.get(),
            geometry: Geometry {
                bytes: raw.bytes.get(),
                far: raw.far.get(),
                extent_bytes: raw.extent_bytes.get(),
                extents: raw.extents.get(),
            },
            slab_extents: raw.slab_extents.get(),
            allocators: raw.allocators.get(),
            keeper: raw.keeper.get(),
            epoch: raw.epoch.get(),
            made_unix_s: raw.made_unix_s.get(),
            unknown_read_only: prelude.read_only_compatible.get(),
        };
        header.check().map_err(damaged)?;
        Ok(header)
    }

    fn check(&self) -> Result<(), String> {
        self.geometry.check()?;
        let Self { slab_extents, allocators, keeper, epoch, .. } = self;
        if !slab_extents.is_power_of_two() || *slab_extents > SLAB_EXTENTS_MAX {
            return Err(format!("slabs of {slab_extents} extents are impossible"));
        }
        if !(1..=ALLOCATORS_MAX).contains(allocators) || !(1..=*allocators).contains(keeper) {
            return Err(format!("{allocators} allocators with keeper {keeper} are impossible"));
        }
        if !(1..=NUMBER_MAX).contains(epoch) || self.made_unix_s > COUNT_MAX {
            return Err(format!("the epoch {epoch} or the time is impossible"));
        }
        Ok(())
    }
}

impl super::store::Encoded for Header {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        self.encode()
    }

    fn decode(bytes: &[u8], pool: Uuid, _: u32) -> Result<Self, Wrong> {
        Self::decode(bytes, Some(pool))
    }
}

impl RootStructure for Header {
    fn sequence(&self) -> u64 {
        self.sequence
    }
}
