//! Streams of new blocks: for data, for nodes, for second copies of nodes, and for the tables of space.

use block::{Result, error};

use super::{Counts, Space, Taken};
use crate::Address;
use crate::extent::Content;

/// Part of the extents that data does not take, for the nodes of checkpoints: one of so many, two at least.
const NODE_RESERVE_PARTS: u64 = 64;
const NODE_RESERVE_MIN: usize = 2;

/// Extents that nodes do not take, for the tables of space.
pub(super) const SPACE_RESERVE: usize = 1;

/// A sequence of new blocks, each in the order of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    Data,
    Nodes,
    /// Second copies of nodes. They are in other extents than the first ones.
    Seconds,
}

/// Number of streams that end in extents of their own.
pub(super) const STREAMS: usize = 3;

impl Stream {
    fn content(self) -> Content {
        match self {
            Self::Data => Content::DATA,
            Self::Nodes | Self::Seconds => Content::NODES,
        }
    }
}

/// The place where a stream goes on.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct End {
    /// The extent that gives blocks at its frontier.
    pub open: Option<u64>,
    /// The extent and block from which the search for holes goes on.
    hole: (u64, u32),
}

impl Space {
    /// Continues in the extents with room at their frontiers.
    pub fn loaded(&mut self) {
        let blocks = self.geometry.extent_blocks();
        for (number, extent) in &self.extents {
            if extent.frontier == blocks {
                continue;
            }
            let has_nodes = self.ends[Stream::Nodes as usize].open.is_some();
            let stream = match extent.content {
                Content::DATA => Stream::Data,
                Content::NODES if has_nodes => Stream::Seconds,
                Content::NODES => Stream::Nodes,
                _ => continue,
            };
            self.ends[stream as usize].open = Some(*number);
        }
    }

    /// Returns the number of extents that data do not take: enough for the nodes of a first checkpoint of a pool full of
    /// data, and for a checkpoint that writes all present nodes anew.
    pub(super) fn node_reserve(&self) -> usize {
        let first = (self.geometry.extents / NODE_RESERVE_PARTS) as usize;
        let anew = (self.counts.nodes * 3 / 2).div_ceil(u64::from(self.geometry.extent_blocks()));
        first.max(NODE_RESERVE_MIN + anew as usize)
    }

    /// Takes up to `most` adjacent blocks for data: in order, then from holes.
    ///
    /// # Errors
    /// `NoSpace` if no block is free for data.
    pub fn take_data(&mut self, most: u64) -> Result<Taken> {
        let reserve = self.node_reserve();
        self.take(Stream::Data, most, reserve, None).ok_or_else(|| {
            let Counts { data, nodes, .. } = self.counts;
            error!(
                NoSpace,
                "the pool is full: {data} blocks of 4096 bytes have data, {nodes} have maps, and the rest is \
                 kept for maps"
            )
            .next("remove vdisks or snapshots, discard unused bytes, or make the pool larger")
        })
    }

    /// Takes a block for a node.
    ///
    /// # Errors
    /// `NoSpace` if no block is free.
    pub fn take_node(&mut self) -> Result<Address> {
        let taken = self.take(Stream::Nodes, 1, SPACE_RESERVE, None);
        let taken = taken.ok_or_else(|| error!(NoSpace, "the pool has no free block"))?;
        Ok(taken.address)
    }

    /// Takes a block for a second copy of the node at `first`, in another extent. Returns `None` if no such block is free,
    /// besides the extents that are kept for first copies.
    pub fn take_second(&mut self, first: Address) -> Option<Address> {
        let reserve = self.node_reserve();
        Some(self.take(Stream::Seconds, 1, reserve, Some(first.extent()))?.address)
    }

    /// Claims extents for the nodes of the tables of space until `nodes` blocks are ready in such extents. The rows of
    /// the running checkpoint have the claims. `doubles`: whether the nodes have second copies. For these, only extents
    /// are claimed that are not kept for first copies.
    ///
    /// # Errors
    /// `NoSpace` if no extent is free.
    pub fn prepare_space_nodes(&mut self, nodes: u64, doubles: bool) -> Result<()> {
        let seconds = if doubles { nodes } else { 0 };
        loop {
            let of_space = self.extents.values().filter(|extent| extent.content == Content::SPACE);
            let (extents, ready) = of_space.fold((0, 0), |(extents, ready), extent| {
                (extents + 1, ready + u64::from(extent.ready.count()))
            });
            let is_enough = ready >= nodes + seconds && extents > u64::from(doubles);
            let may_claim = ready < nodes || self.unused.len() > self.node_reserve();
            if is_enough || !may_claim {
                self.space_seconds = (ready - nodes).min(seconds);
                return Ok(());
            }
            let Some((number, _)) = self.unused.first_key_value() else {
                return Err(error!(NoSpace, "the pool has no free extent for its tables"));
            };
            self.claim(*number, Content::SPACE);
        }
    }

    /// Takes a block for a node of the tables of space.
    ///
    /// # Errors
    /// `NoSpace` if [`Space::prepare_space_nodes`] has prepared too few.
    pub fn take_space_node(&mut self) -> Result<Address> {
        self.take_of_space(None).ok_or_else(|| {
            error!(NoSpace, "the tables of free space need more nodes than expected")
        })
    }

    /// Takes a block for a second copy of the node of the tables of space at `first`, in another extent. Returns `None` if
    /// none was prepared.
    pub fn take_second_space_node(&mut self, first: Address) -> Option<Address> {
        self.space_seconds = self.space_seconds.checked_sub(1)?;
        self.take_of_space(Some(first.extent()))
    }

    fn take_of_space(&mut self, avoid: Option<u64>) -> Option<Address> {
        let taken = self.find_hole(Content::SPACE, (0, 0), 1, avoid)?;
        self.use_ready(taken);
        self.count_used(Content::SPACE, 1);
        Some(taken.address)
    }

    fn take(
        &mut self,
        stream: Stream,
        most: u64,
        reserve: usize,
        avoid: Option<u64>,
    ) -> Option<Taken> {
        let is_avoided = avoid.is_some() && avoid == self.ends[stream as usize].open;
        let taken = match is_avoided {
            true => self.take_hole(stream, most, avoid),
            false => self
                .take_at_frontier(stream, most)
                .or_else(|| self.take_new(stream, most, reserve))
                .or_else(|| self.take_hole(stream, most, avoid)),
        };
        // A full pool has no blocks of their own for second copies.
        let is_node = stream == Stream::Nodes;
        let taken = taken
            .or_else(|| is_node.then(|| self.take_at_frontier(Stream::Seconds, 1)).flatten())?;
        let content = stream.content();
        self.count_used(content, taken.blocks);
        // Data are in the rows of a checkpoint only if it contains their record.
        if content == Content::NODES {
            self.store(taken.address, taken.blocks, false, true);
        }
        Some(taken)
    }

    fn take_at_frontier(&mut self, stream: Stream, most: u64) -> Option<Taken> {
        let number = self.ends[stream as usize].open?;
        let end = self.geometry.extent_blocks();
        let extent = self.extents.get_mut(&number)?;
        let blocks = most.min(u64::from(end - extent.frontier));
        if blocks == 0 {
            return None;
        }
        let address = Address::new(number, extent.frontier).expect("an extent of the pool");
        extent.frontier += blocks as u32;
        Some(Taken { address, blocks })
    }

    fn take_new(&mut self, stream: Stream, most: u64, reserve: usize) -> Option<Taken> {
        if self.unused.len() <= reserve {
            return None;
        }
        let number = *self.unused.first_key_value()?.0;
        self.claim(number, stream.content());
        self.ends[stream as usize].open = Some(number);
        self.take_at_frontier(stream, most)
    }

    fn take_hole(&mut self, stream: Stream, most: u64, avoid: Option<u64>) -> Option<Taken> {
        let (content, from) = (stream.content(), self.ends[stream as usize].hole);
        let found = self.find_hole(content, from, most, avoid).or_else(|| {
            // Once more from the first extent.
            self.find_hole(content, (0, 0), most, avoid)
        })?;
        let (number, block) = (found.address.extent(), found.address.offset());
        self.use_ready(found);
        self.ends[stream as usize].hole = (number, block + found.blocks as u32);
        Some(found)
    }

    fn find_hole(
        &self,
        content: Content,
        from: (u64, u32),
        most: u64,
        avoid: Option<u64>,
    ) -> Option<Taken> {
        for (number, extent) in self.extents.range(from.0..) {
            let is_left_out = extent.content != content || extent.is_leaving;
            if is_left_out || avoid == Some(*number) || extent.ready.count() == 0 {
                continue;
            }
            let start = if *number == from.0 { from.1 } else { 0 };
            if let Some((block, blocks)) = extent.ready.next_run(start) {
                let address = Address::new(*number, block).expect("an extent of the pool");
                return Some(Taken { address, blocks: most.min(u64::from(blocks)) });
            }
        }
        None
    }
}
