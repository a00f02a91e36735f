//! The header in the first block of an extent.

use crc_fast::{CrcAlgorithm, Digest};
use meta::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::root::Wrong;
use crate::unknown::{flags, kinds};
use crate::{ALLOCATORS_MAX, Address, BLOCK_BYTES, COUNT_MAX, NUMBER_MAX};

/// Magic number at the start of an extent header.
pub const EXTENT_MAGIC: [u8; 8] = *b"CAIRNEXT";

/// Format version of extent headers that this code writes, and the only one that it reads.
const VERSION: u32 = 1;

/// Position of the checksum in an extent header. The checksum does not cover these bytes.
const CHECKSUM: std::ops::Range<usize> = 16..24;

kinds! {
    /// Content of an extent.
    Content {
        /// Data of vdisks.
        DATA = 1,
        /// Nodes of trees.
        NODES = 2,
        /// The log of an allocator; such an extent has no header.
        LOG = 3,
        /// The far area with superblocks; such an extent has no header.
        FAR_AREA = 4,
        /// Nodes of the tables of extents and of free blocks. Only these trees have the information which blocks are in use.
        SPACE = 5,
    }
}

flags! {
    /// Flags of an extent header. None is known yet.
    ExtentFlags {}
}

/// The content of an extent header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtentHeader {
    /// Content of the extent: data or nodes.
    pub content: Content,
    /// Flags.
    pub flags: ExtentFlags,
    /// Number of the allocator that owns the extent.
    pub owner: u32,
    /// UUID of the pool.
    pub pool: Uuid,
    /// Number of the extent.
    pub extent: u64,
    /// Number of the claim: each later claim of the extent has a higher one.
    pub generation: u64,
    /// Epoch of the catalogue at the claim.
    pub epoch: u64,
    /// Opening of the owner at the claim.
    pub opening: u64,
    /// Time of the claim, in seconds from 1970, for people.
    pub claimed_unix_s: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    content: u8,
    zero: [u8; 3],
    checksum: U64,
    flags: U32,
    owner: U32,
    pool: [u8; 16],
    extent: U64,
    generation: U64,
    epoch: U64,
    opening: U64,
    claimed_unix_s: U64,
    rest: [u8; 4008],
}

const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES as usize);

/// Computes the checksum that an extent header must have, ignoring its checksum field.
///
/// # Panics
/// If `bytes` are fewer than a block.
pub fn extent_checksum(bytes: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&bytes[..CHECKSUM.start]);
    digest.update(&[0; 8]);
    digest.update(&bytes[CHECKSUM.end..BLOCK_BYTES as usize]);
    digest.finalize()
}

fn damaged(why: impl std::fmt::Display) -> Wrong {
    Wrong::Damaged(why.to_string())
}

impl ExtentHeader {
    /// Encodes the header as the first block of its extent.
    pub fn encode(&self) -> [u8; BLOCK_BYTES as usize] {
        let raw = Raw {
            magic: EXTENT_MAGIC,
            version: VERSION.into(),
            content: self.content.0,
            zero: [0; 3],
            checksum: 0.into(),
            flags: self.flags.0.into(),
            owner: self.owner.into(),
            pool: self.pool.0,
            extent: self.extent.into(),
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            opening: self.opening.into(),
            claimed_unix_s: self.claimed_unix_s.into(),
            rest: [0; 4008],
        };
        let mut block: [u8; BLOCK_BYTES as usize] = zerocopy::transmute!(raw);
        let sum = extent_checksum(&block);
        block[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Decodes the header of this extent of this pool.
    ///
    /// # Errors
    /// The reason why the block cannot be used.
    pub fn decode(bytes: &[u8], pool: Uuid, extent: u64) -> Result<Self, Wrong> {
        if !bytes.starts_with(&EXTENT_MAGIC) {
            return Err(Wrong::NoMagic);
        }
        let (raw, _) =
            Raw::ref_from_prefix(bytes).map_err(|_| damaged("the bytes are truncated"))?;
        if raw.checksum.get() != extent_checksum(bytes) {
            return Err(damaged("the checksum is wrong"));
        }
        if raw.version.get() != VERSION {
            return Err(Wrong::Version(raw.version.get()));
        }
        if raw.pool != pool.0 {
            return Err(Wrong::Foreign(Uuid(raw.pool)));
        }
        let header = raw.read();
        if header.extent != extent {
            return Err(damaged(format_args!("header of extent {} in {extent}", header.extent)));
        }
        if raw.zero != [0; 3] || raw.rest.iter().any(|byte| *byte != 0) {
            return Err(damaged("unknown fields are not zero"));
        }
        header.check().map_err(damaged)?;
        Ok(header)
    }

    fn check(&self) -> Result<(), String> {
        let Self { content, owner, generation, epoch, opening, .. } = self;
        if [0, Content::LOG.0, Content::FAR_AREA.0].contains(&content.0) {
            return Err(format!("an extent with content {} has no header", content.0));
        }
        if !(1..=ALLOCATORS_MAX).contains(owner) || self.extent > Address::EXTENT_MAX {
            return Err(format!("extent {} of allocator {owner} is impossible", self.extent));
        }
        let numbers = [*generation, *epoch, *opening];
        if numbers.iter().any(|number| !(1..=NUMBER_MAX).contains(number)) {
            return Err(format!(
                "generation {generation}, epoch {epoch} or opening {opening} is impossible"
            ));
        }
        if self.claimed_unix_s > COUNT_MAX {
            return Err(format!("the time {} is impossible", self.claimed_unix_s));
        }
        Ok(())
    }
}

impl Raw {
    fn read(&self) -> ExtentHeader {
        ExtentHeader {
            content: Content(self.content),
            flags: ExtentFlags(self.flags.get()),
            owner: self.owner.get(),
            pool: Uuid(self.pool),
            extent: self.extent.get(),
            generation: self.generation.get(),
            epoch: self.epoch.get(),
            opening: self.opening.get(),
            claimed_unix_s: self.claimed_unix_s.get(),
        }
    }
}
