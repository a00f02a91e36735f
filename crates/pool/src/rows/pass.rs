//! Rows of passes that have not ended, and of frees in extents of other allocators.

use zerocopy::big_endian::U64 as BigU64;
use zerocopy::little_endian::U64;

use super::stored::{HalfIn8, Opaque, StoredAddress, row};
use crate::unknown::kinds;
use crate::{
    ALLOCATORS_MAX, Address, COUNT_MAX, DESCRIPTOR_BYTES, Descriptor, EXTENT_BLOCKS_MAX, NUMBER_MAX,
};

kinds! {
    /// Kind of a pass.
    PassKind {
        /// Folds change trees into the trees below.
        FOLD = 1,
        /// Settles a snapshot on which others depend.
        SETTLE = 2,
        /// Removes snapshots by their dead entries.
        REMOVE = 3,
        /// Removes a version without a successor by its trees.
        REMOVE_LAST = 4,
        /// Passes discards to the device below.
        DISCARD = 5,
        /// Compares reachable with allocated blocks.
        MARK = 6,
        /// Moves blocks out of extents.
        MOVE = 7,
    }
}

row! {
    /// The position of a pass.
    PassRow of Passes, zeros 0;
    key {
        /// Kind of the pass, as a number of 8 bytes.
        kind: u64 as BigU64,
        /// Number of the vdisk; 0 for a pass over the pool.
        vdisk: u64 as BigU64,
        /// Number of the pass.
        pass: u64 as BigU64,
    }
    value {
        /// First snapshot of its range.
        first: u64 as U64,
        /// Last snapshot of its range.
        last: u64 as U64,
        /// Flags, none of which is known yet.
        flags: u64 as U64,
        /// Key that it handles next, filled up with zeros.
        position: [u8; 32] as Opaque<32>,
        /// Descriptor of its result; zeros without one.
        result: Descriptor as Opaque<DESCRIPTOR_BYTES>,
        /// Nodes in reserve for it.
        nodes: u64 as U64,
    }
}

impl PassRow {
    /// Returns the kind of the pass.
    pub fn pass_kind(&self) -> PassKind {
        PassKind(self.kind as u8)
    }

    fn check(&self) -> Result<(), String> {
        let Self { kind, pass, first, last, .. } = self;
        let is_kind = (1..=u64::from(u8::MAX)).contains(kind);
        if !is_kind || *pass == 0 || first > last || *last > NUMBER_MAX {
            return Err(format!("pass {pass} of kind {kind} over {first} to {last} is impossible"));
        }
        match self.flags == 0 && self.nodes <= COUNT_MAX {
            true => Ok(()),
            false => Err(format!("pass {pass} has flags {:#x}", self.flags)),
        }
    }
}

row! {
    /// Counters of the foreign frees that are exchanged with another allocator.
    PeerRow of Peers, zeros 0;
    key {
        /// Number of the other allocator.
        peer: u64 as BigU64,
    }
    value {
        /// Highest number of a free for it.
        sent: u64 as U64,
        /// Up to this number it has them flushed.
        confirmed: u64 as U64,
        /// Highest number of its frees that is applied here.
        applied: u64 as U64,
    }
}

fn check_peer(peer: u64) -> Result<(), String> {
    match (1..=u64::from(ALLOCATORS_MAX)).contains(&peer) {
        true => Ok(()),
        false => Err(format!("an allocator {peer} is impossible")),
    }
}

impl PeerRow {
    fn check(&self) -> Result<(), String> {
        check_peer(self.peer)?;
        match self.confirmed <= self.sent && self.sent.max(self.applied) <= COUNT_MAX {
            true => Ok(()),
            false => Err(format!("foreign frees: {self:?}")),
        }
    }
}

row! {
    /// A free in an extent of another allocator that it has not confirmed.
    ForeignFreeRow of ForeignFrees, zeros 0;
    key {
        /// Number of the other allocator.
        peer: u64 as BigU64,
        /// Number of the free.
        number: u64 as BigU64,
    }
    value {
        /// Address of the first block.
        address: Address as StoredAddress,
        /// Number of blocks.
        blocks: u32 as HalfIn8,
    }
}

impl ForeignFreeRow {
    fn check(&self) -> Result<(), String> {
        check_peer(self.peer)?;
        let Self { number, address, blocks, .. } = self;
        match (1..=COUNT_MAX).contains(number) && is_run(*address, *blocks) {
            true => Ok(()),
            false => Err(format!("foreign free {number} of {blocks} blocks at {address:?}")),
        }
    }
}

/// Returns whether a run of blocks can lie at an address: behind a header, and within the largest extent.
pub(crate) fn is_run(address: Address, blocks: u32) -> bool {
    let end = u64::from(address.offset()) + u64::from(blocks);
    address.offset() != 0 && blocks != 0 && end <= EXTENT_BLOCKS_MAX.into()
}
