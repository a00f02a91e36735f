//! The space of one allocator: which blocks of its extents are in use, and when a freed block may be given away. No I/O.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | extents, and which of their blocks are in use |
//! | `streams.rs` | where new blocks come from |
//! | `bits.rs` | bitmaps of the blocks of an extent |
//! | `waiting.rs` | freed blocks that are not given away yet |
//! | `discards.rs` | freed blocks to discard on the device below |
//! | `rows.rs` | the rows of a checkpoint |
//!
//! A block is free for new data in three places, and they differ in time. *Ready* blocks may be given away now. *Waiting*
//! blocks are free by a record or a root that is not proven, or a read that began before may still use them. The rows on
//! disk are those of the last cut.

pub(crate) mod bits;
mod discards;
mod rows;
mod streams;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use block::seeded::{self, Bug};

use crate::extent::Content;
use crate::geometry::Geometry;
use crate::rows::{ExtentRow, ExtentState, FREE_ROW_BLOCKS, PlaceKind};
use crate::{ALLOCATORS_MAX, Address};
use bits::Bits;
use waiting::Waiting;

use discards::Discards;
pub use rows::SpaceRows;
use streams::{End, SPACE_RESERVE, STREAMS};
pub use waiting::Reading;

/// An extent in use.
#[derive(Clone, Debug)]
struct Extent {
    content: Content,
    generation: u64,
    /// First block that was never used since the claim.
    frontier: u32,
    /// The frontier at the last cut, for the rows of the running checkpoint.
    frontier_at_cut: u32,
    /// Blocks that may be given away now.
    ready: Bits,
    /// Free blocks by the rows of the last checkpoint, and by what happened up to the last cut.
    stored: Bits,
    /// Whether the running checkpoint ends its use: no block of it is in use.
    is_leaving: bool,
}

impl Extent {
    /// Makes all blocks ready, in an extent whose blocks in use are not in rows.
    fn open_all(&mut self, blocks: u32) {
        self.frontier = blocks;
        self.ready.set(1, blocks - 1, true);
    }

    /// Whether no block is in use, by the rows and in memory, and all may be given away.
    fn is_empty(&self) -> bool {
        let below = self.frontier - 1;
        self.frontier == self.frontier_at_cut
            && below > 0
            && self.stored.count() == below
            && self.ready.count() == below
    }
}

/// Blocks in use and free blocks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Blocks with data.
    pub data: u64,
    /// Blocks with nodes.
    pub nodes: u64,
    /// Blocks without either, those in extents of no use included.
    pub free: u64,
}

/// The part of a pool that claims extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claims {
    /// Records, for data.
    Data,
    /// Checkpoints, for nodes.
    Nodes,
}

/// Adjacent blocks that were given away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Address of the first block.
    pub address: Address,
    /// Number of blocks, 1 or more.
    pub blocks: u64,
}

/// A change of a stored bitmap that happened after the cut of the running checkpoint.
#[derive(Clone, Copy, Debug)]
struct Late {
    address: Address,
    blocks: u64,
    is_free: bool,
}

/// The space of an allocator.
pub struct Space {
    geometry: Geometry,
    owner: u32,
    extents: BTreeMap<u64, Extent>,
    /// Numbers of extents without content, with their next generation.
    unused: BTreeMap<u64, u64>,
    /// The ends of the streams of new blocks.
    ends: [End; STREAMS],
    /// Blocks that second copies of nodes of the tables of space may take in the running checkpoint.
    space_seconds: u64,
    waiting: Waiting,
    /// Present if the pool discards freed blocks below.
    discards: Option<Discards>,
    counts: Counts,
    /// Rows on disk that the running checkpoint must write again: of extents, and of free blocks.
    changed: BTreeMap<u64, BTreeSet<u32>>,
    /// Changes of stored bitmaps since the cut.
    late: Vec<Late>,
    is_cut: bool,
    /// Whether an opening replays the log.
    is_replaying: bool,
    /// Claimed extents whose headers are not written yet.
    claimed: Vec<u64>,
    /// Number of blocks that became ready since the opening, by which a waiting write notices a change.
    given: u64,
}

impl Space {
    /// Creates the space of an allocator that has all extents of a pool. The log and the far area hold nothing else.
    /// `discards`: whether the pool discards freed blocks on the device below.
    ///
    /// # Panics
    /// If the number of the allocator is out of range.
    pub fn new(geometry: Geometry, owner: u32, log: std::ops::Range<u64>, discards: bool) -> Self {
        assert!((1..=ALLOCATORS_MAX).contains(&owner), "allocator {owner}");
        let mut space = Self {
            geometry,
            owner,
            extents: BTreeMap::new(),
            unused: (0..geometry.extents).map(|extent| (extent, 1)).collect(),
            ends: [End::default(); STREAMS],
            space_seconds: 0,
            waiting: Waiting::default(),
            discards: discards.then(Discards::default),
            counts: Counts::default(),
            changed: BTreeMap::new(),
            late: Vec::new(),
            is_cut: false,
            is_replaying: true,
            claimed: Vec::new(),
            given: 0,
        };
        for extent in log {
            space.claim(extent, Content::LOG);
        }
        for extent in (0..geometry.extents).filter(|extent| geometry.overlaps_far(*extent)) {
            space.claim(extent, Content::FAR_AREA);
        }
        space.claimed.clear();
        let usable = space.unused.len() as u64 * u64::from(geometry.extent_blocks() - 1);
        space.counts.free = usable;
        space
    }

    /// Takes a row of the table of extents.
    ///
    /// # Errors
    /// A description of a row that contradicts the pool.
    pub fn load_extent(&mut self, row: &ExtentRow) -> Result<(), String> {
        let blocks = self.geometry.extent_blocks();
        let is_inside = row.extent < self.geometry.extents && row.frontier <= blocks;
        if !is_inside || row.owner != self.owner || row.place != row.extent {
            return Err(format!("extent {} with frontier {}", row.extent, row.frontier));
        }
        if matches!(row.content, Content::LOG | Content::FAR_AREA) {
            return Ok(());
        }
        if self.unused.remove(&row.extent).is_none() {
            return Err(format!("extent {} twice, or in the log", row.extent));
        }
        if row.frontier == 1 && row.content != Content::SPACE {
            // It has no content, and may get another one.
            self.unused.insert(row.extent, row.generation + 1);
            return Ok(());
        }
        let mut extent = Extent {
            content: row.content,
            generation: row.generation,
            frontier: row.frontier,
            frontier_at_cut: row.frontier,
            ready: Bits::new(blocks),
            stored: Bits::new(blocks),
            is_leaving: false,
        };
        if row.content == Content::SPACE {
            extent.open_all(blocks);
        }
        self.extents.insert(row.extent, extent);
        self.count_used(row.content, u64::from(row.frontier - 1));
        Ok(())
    }

    /// Notes that a node of the tables of space is in use, after the rows of the extents were taken.
    ///
    /// # Errors
    /// A description of an address that no such node can have.
    pub fn load_space_node(&mut self, address: Address) -> Result<(), String> {
        let extent = self.extents.get_mut(&address.extent());
        let extent = extent.filter(|extent| {
            extent.content == Content::SPACE && extent.ready.is_set(address.offset())
        });
        let Some(extent) = extent else { return Err(format!("a node at {address:?}")) };
        extent.ready.set(address.offset(), 1, false);
        self.count_used(Content::SPACE, 1);
        Ok(())
    }

    /// Takes a row of the table of free blocks. The rows of the extents come first.
    ///
    /// # Errors
    /// A description of a row that contradicts the extents.
    pub fn load_free(&mut self, extent: u64, row: u32, bitmap: &[u8; 64]) -> Result<(), String> {
        let wrong = || format!("free blocks in row {row} of extent {extent}");
        let Some(it) = self.extents.get_mut(&extent) else { return Err(wrong()) };
        let start = row * FREE_ROW_BLOCKS;
        let mut count = 0;
        for bit in
            (0..FREE_ROW_BLOCKS).filter(|bit| bitmap[*bit as usize / 8] >> (bit % 8) & 1 == 1)
        {
            let block = start + bit;
            if block == 0 || block >= it.frontier {
                return Err(wrong());
            }
            it.ready.set(block, 1, true);
            it.stored.set(block, 1, true);
            count += 1;
        }
        let content = it.content;
        self.count_freed(content, count);
        Ok(())
    }

    fn count_used(&mut self, content: Content, blocks: u64) {
        match content {
            Content::DATA => self.counts.data += blocks,
            Content::NODES | Content::SPACE => self.counts.nodes += blocks,
            _ => return,
        }
        self.counts.free -= blocks;
    }

    fn count_freed(&mut self, content: Content, blocks: u64) {
        match content {
            Content::DATA => self.counts.data -= blocks,
            Content::NODES | Content::SPACE => self.counts.nodes -= blocks,
            _ => return,
        }
        self.counts.free += blocks;
    }

    /// Returns the numbers of blocks in use.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of free blocks that data can take now. The other free blocks are kept for nodes, or wait.
    pub fn free_for_data(&self) -> u64 {
        let end = self.geometry.extent_blocks();
        let unused = self.unused.len().saturating_sub(self.node_reserve()) as u64;
        self.room_in(Content::DATA) + unused * u64::from(end - 1)
    }

    /// Returns the number of free blocks in the extents with this content.
    fn room_in(&self, content: Content) -> u64 {
        let end = self.geometry.extent_blocks();
        let is_open = |it: &&Extent| it.content == content && !it.is_leaving;
        let room = |it: &Extent| u64::from(it.ready.count() + end - it.frontier);
        self.extents.values().filter(is_open).map(room).sum()
    }

    /// Returns the number of free blocks that nodes can take now.
    pub fn free_for_nodes(&self) -> u64 {
        let unused = self.unused.len().saturating_sub(SPACE_RESERVE) as u64;
        self.room_in(Content::NODES) + unused * u64::from(self.geometry.extent_blocks() - 1)
    }

    /// Returns the first byte on the device of a block; `None` if its extent has no such block.
    pub fn byte_of(&self, address: Address) -> Option<u64> {
        self.geometry.byte_of(address)
    }

    fn claim(&mut self, number: u64, content: Content) {
        let generation = self.unused.remove(&number).expect("an unused extent is claimed");
        let blocks = self.geometry.extent_blocks();
        let mut extent = Extent {
            content,
            generation,
            frontier: 1,
            frontier_at_cut: 1,
            ready: Bits::new(blocks),
            stored: Bits::new(blocks),
            is_leaving: false,
        };
        if content == Content::SPACE {
            extent.open_all(blocks);
        }
        self.extents.insert(number, extent);
        self.claimed.push(number);
        self.change(number);
    }

    fn change(&mut self, extent: u64) -> &mut BTreeSet<u32> {
        self.changed.entry(extent).or_default()
    }

    /// Returns the extents that were claimed since the last call for it, for data or for nodes. Their headers are
    /// written with the first record or root that names one of their blocks, and the rows of those for data are in that
    /// record.
    pub fn take_claimed(&mut self, claims: Claims) -> Vec<ExtentRow> {
        let extents = &self.extents;
        let is_wanted = |number: &mut u64| {
            (extents[number].content == Content::DATA) == (claims == Claims::Data)
        };
        let taken: Vec<u64> = self.claimed.extract_if(.., is_wanted).collect();
        taken.into_iter().map(|number| self.row(number, &self.extents[&number], 0)).collect()
    }

    fn row(&self, number: u64, extent: &Extent, free_blocks: u32) -> ExtentRow {
        ExtentRow {
            extent: number,
            state: ExtentState::OPEN,
            content: extent.content,
            place_kind: PlaceKind::DEVICE,
            owner: self.owner,
            generation: extent.generation,
            free_blocks,
            frontier: extent.frontier_at_cut,
            place: number,
            object: [0; 16],
        }
    }

    /// Notes in the stored bitmaps that blocks are in use or free. `is_of_checkpoint`: whether the running checkpoint
    /// contains the change, although it happens after the cut.
    fn store(&mut self, address: Address, blocks: u64, is_free: bool, is_of_checkpoint: bool) {
        if self.is_cut && !is_of_checkpoint {
            self.late.push(Late { address, blocks, is_free });
            return;
        }
        let number = address.extent();
        let Some(extent) = self.extents.get_mut(&number) else { return };
        if extent.content == Content::SPACE {
            return;
        }
        let (first, end) = (address.offset(), address.offset() + blocks as u32);
        // Records are acknowledged in the order of their blocks, so skipped blocks are those of refused writes.
        let frontier = extent.frontier_at_cut;
        if first > frontier {
            extent.stored.set(frontier, first - frontier, true);
        }
        extent.stored.set(first, end - first, is_free);
        extent.frontier_at_cut = frontier.max(end);
        let rows = first.min(frontier) / FREE_ROW_BLOCKS..=(end - 1) / FREE_ROW_BLOCKS;
        self.change(number).extend(rows);
    }

    /// Takes blocks that a record names, in a replay. Skipped blocks below the frontier are free.
    ///
    /// # Errors
    /// A description of blocks outside of the extents, or in use already.
    pub fn replay_take(&mut self, address: Address, blocks: u64) -> Result<(), String> {
        let wrong = || format!("{blocks} blocks at {address:?}");
        let end = u64::from(address.offset()) + blocks;
        let Some(extent) = self.extents.get_mut(&address.extent()) else { return Err(wrong()) };
        if address.offset() == 0 || end > u64::from(self.geometry.extent_blocks()) {
            return Err(wrong());
        }
        let (first, end) = (address.offset(), end as u32);
        let behind = extent.frontier;
        if let Some(discards) = &mut self.discards {
            discards.remove(Taken { address, blocks });
        }
        if end > behind {
            if first > behind {
                extent.ready.set(behind, first - behind, true);
            }
            extent.frontier = end;
        }
        if first < behind {
            let below = end.min(behind) - first;
            if !extent.ready.is_all(first, below) {
                return Err(wrong());
            }
            extent.ready.set(first, below, false);
        }
        let content = extent.content;
        self.count_used(content, blocks);
        Ok(())
    }

    /// Claims an extent that a record states to be claimed, in a replay.
    ///
    /// # Errors
    /// A description of an extent that is in use.
    pub fn replay_claim(&mut self, row: &ExtentRow) -> Result<(), String> {
        match self.unused.contains_key(&row.extent) {
            true => {
                self.unused.insert(row.extent, row.generation);
                self.claim(row.extent, row.content);
                self.claimed.clear();
                Ok(())
            }
            // The last checkpoint has the claim, too.
            false if self.claims(row) => Ok(()),
            false => Err(format!("extent {}", row.extent)),
        }
    }

    /// Whether the extent of a claim has this claim or a later one.
    fn claims(&self, row: &ExtentRow) -> bool {
        self.extents.get(&row.extent).is_some_and(|extent| extent.generation >= row.generation)
    }

    /// Gives back blocks that no record names, because their write was refused.
    pub fn untake(&mut self, address: Address, blocks: u64) {
        let Some(extent) = self.extents.get(&address.extent()) else { return };
        self.count_freed(extent.content, blocks);
        self.make_ready(Taken { address, blocks });
    }

    /// Notes that a record with blocks from [`Space::take_data`] or [`Space::replay_take`] is acknowledged.
    pub fn acknowledged(&mut self, address: Address, blocks: u64) {
        self.store(address, blocks, false, false);
    }

    /// Frees blocks that record `record` has freed. They are given away when the record is proven, and the reads that
    /// began before have ended.
    pub fn free_by_record(&mut self, address: Address, blocks: u64, record: u64) {
        self.freed(address, blocks, false);
        if self.is_replaying {
            // A later record may name the blocks again, because this one was proven before.
            return self.make_ready(Taken { address, blocks });
        }
        if let Some(discards) = &mut self.discards
            && seeded::on(Bug::DiscardedUnproven)
        {
            discards.add(Taken { address, blocks }, self.geometry.extent_blocks());
        }
        self.waiting.by_record(Taken { address, blocks }, record);
    }

    /// Frees blocks in the running checkpoint. They are given away when its root counts, and the reads that began
    /// before have ended.
    pub fn free_by_root(&mut self, address: Address, blocks: u64) {
        self.freed(address, blocks, true);
        self.waiting.by_root(Taken { address, blocks });
    }

    fn freed(&mut self, address: Address, blocks: u64, is_of_checkpoint: bool) {
        let content = self.extents.get(&address.extent()).map(|extent| extent.content);
        self.count_freed(content.expect("freed blocks are in an extent"), blocks);
        self.store(address, blocks, true, is_of_checkpoint);
    }

    /// Ends the replay of the log.
    pub fn replayed(&mut self) {
        self.is_replaying = false;
    }

    /// Whether freed blocks wait for the proof of a record.
    pub fn needs_proof(&self) -> bool {
        self.waiting.needs_proof()
    }

    /// Notes that all records up to `record` are proven.
    pub fn proven(&mut self, record: u64) {
        self.waiting.proven(record);
        self.give();
    }

    /// Begins a read. No address that is free later is given away until the read has ended.
    pub fn begin_read(&mut self) -> Reading {
        self.waiting.begin_read()
    }

    /// Ends a read.
    pub fn end_read(&mut self, reading: Reading) {
        self.waiting.end_read(reading);
        self.give();
    }

    /// Makes the blocks ready that nothing holds back any more.
    fn give(&mut self) {
        while let Some(taken) = self.waiting.next_ready() {
            self.make_ready(taken);
            self.given += taken.blocks;
        }
    }

    /// Makes blocks ready. Only data is discarded: a checkpoint counts on the free blocks for its nodes.
    fn make_ready(&mut self, taken: Taken) {
        let content = self.set_ready(taken, true);
        if let Some(discards) = &mut self.discards
            && content == Content::DATA
        {
            discards.add(taken, self.geometry.extent_blocks());
        }
    }

    fn use_ready(&mut self, taken: Taken) {
        self.set_ready(taken, false);
        if let Some(discards) = &mut self.discards {
            discards.remove(taken);
        }
    }

    fn set_ready(&mut self, Taken { address, blocks }: Taken, value: bool) -> Content {
        let extent = self.extents.get_mut(&address.extent()).expect("the extent is in use");
        extent.ready.set(address.offset(), blocks as u32, value);
        extent.content
    }

    /// Whether the pool discards freed blocks on the device below.
    pub fn discards(&self) -> bool {
        self.discards.is_some()
    }

    /// Returns the next run of free blocks to discard. It is not given away until [`Space::end_discard`].
    pub fn begin_discard(&mut self) -> Option<Taken> {
        let taken = self.discards.as_mut()?.begin()?;
        self.set_ready(taken, false);
        Some(taken)
    }

    /// Notes that the discard of a run from [`Space::begin_discard`] has ended.
    pub fn end_discard(&mut self, taken: Taken) {
        if let Some(discards) = &mut self.discards {
            discards.end(taken);
        }
        self.set_ready(taken, true);
        self.given += taken.blocks;
    }

    /// Returns the number of blocks that became ready since the opening.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Returns the bytes of the pool on its device.
    pub fn pool_bytes(&self) -> u64 {
        self.geometry.bytes
    }

    /// Returns the number of blocks of an extent.
    pub fn extent_blocks(&self) -> u32 {
        self.geometry.extent_blocks()
    }

    /// Returns all runs of blocks in use, with the content of their extents, for a check.
    pub fn used(&self) -> Vec<(Content, Taken)> {
        let mut all = Vec::new();
        for (number, extent) in &self.extents {
            if matches!(extent.content, Content::LOG | Content::FAR_AREA) {
                continue;
            }
            let mut waiting = self.waiting.of_extent(*number, self.geometry.extent_blocks());
            let running = self.discards.iter().flat_map(Discards::running);
            for Taken { address, blocks } in running.filter(|run| run.address.extent() == *number) {
                waiting.set(address.offset(), *blocks as u32, true);
            }
            let mut block = 1;
            while block < extent.frontier {
                let is_free = |block: u32| extent.ready.is_set(block) || waiting.is_set(block);
                if is_free(block) {
                    block += 1;
                    continue;
                }
                let end = (block..extent.frontier).find(|block| is_free(*block));
                let end = end.unwrap_or(extent.frontier);
                let address = Address::new(*number, block).expect("an extent of the pool");
                all.push((extent.content, Taken { address, blocks: u64::from(end - block) }));
                block = end;
            }
        }
        all
    }
}
