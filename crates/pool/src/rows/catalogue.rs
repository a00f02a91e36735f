//! Rows of the catalogue: names, and the owners of vdisks and slabs.

use meta::Uuid;
use zerocopy::big_endian::U64 as BigU64;
use zerocopy::little_endian::U64;

use super::stored::{ByteIn8, HalfIn8, Opaque, StoredUuid, Text, row};
use super::vdisk::HEAD;
use crate::name::VdiskName;
use crate::unknown::kinds;
use crate::{ALLOCATORS_MAX, Address, COUNT_MAX, NUMBER_MAX};

kinds! {
    /// State of a name.
    NameState {
        /// The name of a vdisk.
        LIVE = 1,
        /// The name of a removed vdisk. Opening it creates nothing.
        GONE = 2,
    }
}

row! {
    /// A name of a vdisk. [`VdiskName::key`] makes the short key.
    NameRow of Names, zeros 0;
    key {
        /// Short key of the name.
        key: [u8; 32] as Opaque<32>,
    }
    value {
        /// The name.
        name: String as Text,
        /// Number of the vdisk.
        vdisk: u64 as U64,
        /// State.
        state: NameState as ByteIn8,
        /// Highest snapshot number that the name ever had.
        highest_number: u64 as U64,
        /// Time of the last change, in seconds from 1970.
        changed_unix_s: u64 as U64,
    }
}

impl NameRow {
    fn check(&self) -> Result<(), String> {
        let name = VdiskName::parse(&self.name).map_err(|error| error.message().to_owned())?;
        if name.key() != self.key {
            return Err(format!("the name {name} has another key"));
        }
        let is_number = self.highest_number < HEAD && self.changed_unix_s <= COUNT_MAX;
        match is_number && self.vdisk != 0 && self.state.0 != 0 {
            true => Ok(()),
            false => Err(format!("the name {name} of vdisk {} is impossible", self.vdisk)),
        }
    }
}

fn check_owner(owner: u32, epoch: u64) -> Result<(), String> {
    match (1..=ALLOCATORS_MAX).contains(&owner) && (1..=NUMBER_MAX).contains(&epoch) {
        true => Ok(()),
        false => Err(format!("the owner {owner} in epoch {epoch} is impossible")),
    }
}

row! {
    /// The owner of a vdisk.
    OwnerRow of Owners, zeros 0;
    key {
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
    }
    value {
        /// Number of the allocator.
        owner: u32 as HalfIn8,
        /// Epoch of the owner.
        epoch: u64 as U64,
        /// UUID of the line.
        line: Uuid as StoredUuid,
    }
}

impl OwnerRow {
    fn check(&self) -> Result<(), String> {
        check_owner(self.owner, self.epoch)?;
        match self.vdisk {
            0 => Err("a vdisk 0 is impossible".to_owned()),
            _ => Ok(()),
        }
    }
}

row! {
    /// A claimed slab.
    SlabRow of Slabs, zeros 0;
    key {
        /// Number of the slab: its first extent divided by the extents of a slab.
        slab: u64 as BigU64,
    }
    value {
        /// Number of the allocator.
        owner: u32 as HalfIn8,
        /// Epoch of the catalogue at the claim.
        epoch: u64 as U64,
        /// Number of the claim.
        generation: u64 as U64,
    }
}

impl SlabRow {
    fn check(&self) -> Result<(), String> {
        check_owner(self.owner, self.epoch)?;
        match self.slab <= Address::EXTENT_MAX && (1..=NUMBER_MAX).contains(&self.generation) {
            true => Ok(()),
            false => Err(format!("slab {} of claim {}", self.slab, self.generation)),
        }
    }
}

kinds! {
    /// State of an allocator.
    AllocatorState {
        /// It is in use.
        IN_USE = 1,
        /// It has left: its extents may be claimed.
        LEFT = 2,
    }
}

row! {
    /// An allocator of the pool.
    AllocatorRow of Allocators, zeros 0;
    key {
        /// Number of the allocator.
        allocator: u64 as BigU64,
    }
    value {
        /// State.
        state: AllocatorState as ByteIn8,
        /// Identity of the host that runs it; zeros on one machine.
        host: [u8; 16] as Opaque<16>,
        /// Incarnation of that host.
        incarnation: u64 as U64,
        /// Time of the last change, in seconds from 1970.
        changed_unix_s: u64 as U64,
    }
}

impl AllocatorRow {
    fn check(&self) -> Result<(), String> {
        let Self { allocator, state, incarnation, changed_unix_s, .. } = self;
        let is_number = (1..=u64::from(ALLOCATORS_MAX)).contains(allocator);
        let counts = [*incarnation, *changed_unix_s];
        match is_number && state.0 != 0 && counts.iter().all(|count| *count <= COUNT_MAX) {
            true => Ok(()),
            false => Err(format!("allocator {allocator} with {counts:?} is impossible")),
        }
    }
}
