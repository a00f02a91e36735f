//! Rows of vdisks, of their trees, and of their further origins.

use meta::Uuid;
use zerocopy::big_endian::U64 as BigU64;
use zerocopy::little_endian::{U32, U64};

use super::stored::{Opaque, StoredUuid, Text, row};
use crate::name::VdiskName;
use crate::unknown::{flags, kinds};
use crate::{ALLOCATORS_MAX, BLOCK_BYTES, COUNT_MAX, DESCRIPTOR_BYTES, Descriptor, NUMBER_MAX};

/// Maximum number of trees in the list of a version.
pub const TREES_MAX: u32 = 16;

/// Index of the tree of a line's dead entries among the trees of its head.
pub const DEAD_ENTRIES_INDEX: u64 = TREES_MAX as u64;

/// The number in keys of trees that stands for the head: beyond every snapshot.
pub const HEAD: u64 = NUMBER_MAX;

/// Maximum size in bytes of a vdisk.
pub const VDISK_BYTES_MAX: u64 = 1 << 48;

/// Maximum index of a further origin.
const ORIGIN_INDEX_MAX: u64 = u16::MAX as u64;

flags! {
    /// Flags of a vdisk.
    VdiskFlags {
        /// The head has not changed since its newest snapshot; without one, since the vdisk was made.
        UNCHANGED = 0,
        /// Each flush takes a snapshot.
        SNAPSHOT_WITH_FLUSH = 8,
        /// Each write takes a snapshot.
        SNAPSHOT_WITH_WRITE = 9,
        /// The head is not written.
        READ_ONLY = 10,
        /// Its data are gone after the next start.
        EPHEMERAL = 16,
        /// A hole in its trees hides an origin, so no fold drops it.
        HOLES_HIDE_ORIGIN = 17,
    }
}

kinds! {
    /// State of a vdisk.
    VdiskState {
        /// It has a name and a head.
        LIVE = 1,
        /// A pass frees it.
        REMOVING = 2,
        /// Its head is gone; snapshots of it are still held.
        REMOVED = 3,
        /// A rollback gave its name to another line. Its head is gone; its snapshots have names.
        REPLACED = 4,
    }
}

kinds! {
    /// Kind of the checksums of blocks.
    SumKind {
        /// CRC-32C, 4 bytes.
        CRC32C = 1,
        /// CRC-64/NVME, 8 bytes.
        CRC64 = 2,
        /// Tag of a cipher, 16 bytes.
        TAG = 3,
    }
}

kinds! {
    /// Use of a read-only origin device.
    Fill {
        /// Blocks are read from the origin each time.
        NONE = 0,
        /// Blocks that were read are kept.
        KEEP = 1,
        /// All blocks are fetched in the background.
        FETCH = 2,
    }
}

kinds! {
    /// Cipher of the tags of blocks.
    Cipher {
        /// The vdisk is not encrypted.
        NONE = 0,
        /// AES-256-GCM-SIV.
        AES_GCM_SIV = 1,
        /// AES-256-XTS, and HMAC-SHA-256 over the encrypted bytes.
        AES_XTS_HMAC = 2,
        /// XChaCha20-Poly1305.
        XCHACHA20_POLY1305 = 3,
    }
}

row! {
    /// A vdisk.
    VdiskRow of Vdisks, zeros 123;
    key {
        /// Number of the vdisk, which is also the line of its trees.
        vdisk: u64 as BigU64,
    }
    value {
        /// UUID of the line.
        line: Uuid as StoredUuid,
        /// Name; empty once it is removed.
        name: String as Text,
        /// Flags.
        flags: VdiskFlags as U32,
        /// State.
        state: VdiskState as u8,
        /// Kind of the checksums of blocks.
        sum_kind: SumKind as u8,
        /// Bytes of a checksum: 4, 8 or 16.
        sum_bytes: u8 as u8,
        /// Use of the origin device.
        fill: Fill as u8,
        /// Bytes of a block.
        block_bytes: u32 as U32,
        /// Number of the allocator that owns it.
        owner: u32 as U32,
        /// Epoch of the owner.
        epoch: u64 as U64,
        /// Identity of the host that has it open; zeros for none.
        holder: [u8; 16] as Opaque<16>,
        /// Id of its key; zeros for none.
        key_id: [u8; 16] as Opaque<16>,
        /// Size in bytes.
        size: u64 as U64,
        /// Vdisk of its origin; 0 for none.
        origin: u64 as U64,
        /// Number of the snapshot that is its origin.
        origin_number: u64 as U64,
        /// Identity of a read-only device with the blocks that its trees lack; zeros for none.
        origin_device: [u8; 16] as Opaque<16>,
        /// Bytes that are reserved for it.
        reservation: u64 as U64,
        /// Bytes that it may hold; 0 for no limit.
        quota: u64 as U64,
        /// Number of the next snapshot.
        next_number: u64 as U64,
        /// End of the snapshot numbers in reserve.
        numbers_end: u64 as U64,
        /// Number of the newest snapshot that is kept; 0 for none.
        newest_kept: u64 as U64,
        /// Number of snapshots that are kept.
        snapshots: u64 as U64,
        /// Blocks that the head alone holds.
        own_blocks: u64 as U64,
        /// Blocks that the head shares.
        shared_blocks: u64 as U64,
        /// Blocks of nodes.
        node_blocks: u64 as U64,
        /// Blocks that folds have yet to find.
        unfound_blocks: u64 as U64,
        /// Blocks in dead entries.
        dead_blocks: u64 as U64,
        /// Time when it was made, in seconds from 1970.
        made_unix_s: u64 as U64,
        /// Time when it was removed, in seconds from 1970; 0 if it was not.
        removed_unix_s: u64 as U64,
        /// Microseconds between two snapshots; 0 for none by time.
        cadence_us: u64 as U64,
        /// Rule: keep so many of the newest snapshots; 0 for no such rule.
        keep_last: u64 as U64,
        /// Rule: keep one snapshot for each so many seconds; 0 for no such rule.
        keep_interval_s: u64 as U64,
        /// The newest mark of another part.
        mark: [u8; 32] as Opaque<32>,
        /// Room for a composition.
        composition: [u8; 32] as Opaque<32>,
        /// First line that had the name, if a rollback gave the name to another line; else 0.
        family: u64 as U64,
        /// Number of trees of the head.
        trees: u32 as U32,
        /// Cipher of the tags.
        cipher: Cipher as u8,
    }
}

impl VdiskRow {
    fn check(&self) -> Result<(), String> {
        let Self { vdisk, size, next_number, numbers_end, newest_kept, .. } = self;
        let wrong = |words: String| Err(format!("vdisk {vdisk}: {words}"));
        if *vdisk == 0 || self.state.0 == 0 || !matches!(self.sum_bytes, 4 | 8 | 16) {
            return wrong(format!("checksums of {} bytes or its state", self.sum_bytes));
        }
        if self.state == VdiskState::LIVE || !self.name.is_empty() {
            let name = VdiskName::parse(&self.name);
            name.map_err(|error| format!("vdisk {vdisk}: {}", error.message()))?;
        }
        if self.block_bytes != BLOCK_BYTES {
            return wrong(format!("blocks of {} bytes", self.block_bytes));
        }
        if !size.is_multiple_of(BLOCK_BYTES.into()) || *size > VDISK_BYTES_MAX {
            return wrong(format!("a size of {size} bytes"));
        }
        if !(1..=ALLOCATORS_MAX).contains(&self.owner) || !(1..=NUMBER_MAX).contains(&self.epoch) {
            return wrong(format!("owner {} in epoch {}", self.owner, self.epoch));
        }
        let in_order = newest_kept < next_number && next_number <= numbers_end;
        if !in_order || *numbers_end > NUMBER_MAX || self.origin_number >= NUMBER_MAX {
            return wrong(format!("next snapshot {next_number} of {numbers_end}"));
        }
        if self.trees > TREES_MAX {
            return wrong(format!("{} trees", self.trees));
        }
        let counts = [
            self.reservation,
            self.quota,
            self.snapshots,
            self.own_blocks,
            self.shared_blocks,
            self.node_blocks,
            self.unfound_blocks,
            self.dead_blocks,
            self.made_unix_s,
            self.removed_unix_s,
            self.cadence_us,
            self.keep_last,
            self.keep_interval_s,
        ];
        match counts.into_iter().find(|count| *count > COUNT_MAX) {
            Some(count) => wrong(format!("the counter {count}")),
            None => Ok(()),
        }
    }

    /// Returns the number of the first line that had the name.
    pub fn first_line(&self) -> u64 {
        if self.family == 0 { self.vdisk } else { self.family }
    }
}

row! {
    /// A line that had a name before a rollback gave the name to another one.
    LineRow of Lines, zeros 0;
    key {
        /// First line that had the name.
        family: u64 as BigU64,
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
    }
    value {
        /// Time of the rollback, in seconds from 1970.
        replaced_unix_s: u64 as U64,
    }
}

impl LineRow {
    fn check(&self) -> Result<(), String> {
        let Self { family, vdisk, replaced_unix_s } = self;
        match *family != 0 && family <= vdisk && *replaced_unix_s <= COUNT_MAX {
            true => Ok(()),
            false => Err(format!("line {vdisk} of family {family} is impossible")),
        }
    }
}

row! {
    /// A tree of a version, or the tree of the dead entries of a line.
    TreeRow of Trees, zeros 0;
    key {
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
        /// Last snapshot that has the tree in its list; [`HEAD`] for the head.
        last: u64 as BigU64,
        /// Index in the list, the newest tree first; [`DEAD_ENTRIES_INDEX`] for the dead entries.
        index: u64 as BigU64,
    }
    value {
        /// Newest birth that counts in it for the last snapshot.
        newest_birth: u64 as U64,
        /// Descriptor of the tree.
        descriptor: Descriptor as Opaque<DESCRIPTOR_BYTES>,
    }
}

impl TreeRow {
    fn check(&self) -> Result<(), String> {
        let Self { vdisk, last, index, newest_birth, .. } = self;
        let is_index = *index < TREES_MAX.into() || (*index, *last) == (DEAD_ENTRIES_INDEX, HEAD);
        if *vdisk == 0 || !(1..=HEAD).contains(last) || !is_index || *newest_birth > NUMBER_MAX {
            return Err(format!("tree {index} of vdisk {vdisk} up to {last} is impossible"));
        }
        match self.descriptor == [0; DESCRIPTOR_BYTES] {
            true => Err(format!("tree {index} of vdisk {vdisk} up to {last} is empty")),
            false => Ok(()),
        }
    }
}

row! {
    /// A tree of a settled snapshot. The list has all blocks of the snapshot, those of its origins included.
    SettledRow of Settled, zeros 0;
    key {
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
        /// Number of the snapshot.
        number: u64 as BigU64,
        /// Index in the list, the newest tree first.
        index: u64 as BigU64,
    }
    value {
        /// Newest birth that counts in it.
        newest_birth: u64 as U64,
        /// Descriptor of the tree.
        descriptor: Descriptor as Opaque<DESCRIPTOR_BYTES>,
    }
}

impl SettledRow {
    fn check(&self) -> Result<(), String> {
        let Self { vdisk, number, index, newest_birth, .. } = self;
        let is_index = *index < TREES_MAX.into();
        if *vdisk == 0 || !(1..HEAD).contains(number) || !is_index || newest_birth > number {
            return Err(format!(
                "tree {index} of snapshot {number} of vdisk {vdisk} is impossible"
            ));
        }
        match self.descriptor == [0; DESCRIPTOR_BYTES] {
            true => Err(format!("tree {index} of snapshot {number} of vdisk {vdisk} is empty")),
            false => Ok(()),
        }
    }
}

row! {
    /// A further origin of a vdisk, which runs name by its index.
    OriginRow of Origins, zeros 8;
    key {
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
        /// Index of the origin, 1 or more.
        index: u64 as BigU64,
    }
    value {
        /// Vdisk of the origin.
        origin: u64 as U64,
        /// Number of the snapshot.
        number: u64 as U64,
        /// Number of the hold that keeps it.
        hold: u64 as U64,
        /// UUID of the origin's line.
        line: Uuid as StoredUuid,
    }
}

impl OriginRow {
    fn check(&self) -> Result<(), String> {
        let Self { vdisk, index, origin, number, hold, .. } = self;
        let is_index = (1..=ORIGIN_INDEX_MAX).contains(index);
        if [*vdisk, *origin, *hold].contains(&0) || !is_index || !(1..HEAD).contains(number) {
            return Err(format!("origin {index} of vdisk {vdisk} is impossible"));
        }
        Ok(())
    }
}
