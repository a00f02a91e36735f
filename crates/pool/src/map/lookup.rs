//! Lookups through the trees of a version, the newest first.

use std::rc::Rc;

use block::{Result, bail};

use super::node::{Key, Node, Place};
use super::root::Root;
use super::run::{BLOCKS_MAX, Number, Run, RunKind};
use super::store::Reads;
use crate::Address;

/// Largest number of trees of a version.
pub const TREES_MAX: usize = 16;

/// One tree of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layer {
    /// The tree.
    pub tree: Root,
    /// Newest birth that counts in it.
    pub limit: Number,
}

/// The checksums of adjacent blocks, in the leaf that has them.
#[derive(Clone)]
pub struct LeafSums {
    node: Rc<Node>,
    from: usize,
    bytes: usize,
}

impl LeafSums {
    /// Returns one checksum after the other.
    pub fn bytes(&self) -> &[u8] {
        &self.node.bytes[self.from..self.from + self.bytes]
    }
}

/// Where the blocks of a version are.
#[derive(Clone)]
pub enum Content {
    /// At adjacent physical addresses.
    Data {
        /// Physical address of the first block.
        address: Address,
        /// Birth of the blocks.
        birth: Number,
        /// Checksums of the blocks.
        sums: LeafSums,
        /// Index of the tree with the blocks among those of the version.
        layer: usize,
    },
    /// In an explicit hole: zeros.
    Hole {
        /// Birth of the hole.
        birth: Number,
    },
    /// In none of the trees.
    Absent,
}

/// Adjacent blocks of a version that are in one place.
#[derive(Clone)]
pub struct Piece {
    /// First block.
    pub block: u64,
    /// Number of blocks, 1 or more.
    pub blocks: u64,
    /// Their place.
    pub content: Content,
}

/// The content of one tree at a block.
enum Found {
    /// Run `n` of the leaf contains the block.
    Run(Rc<Node>, usize, Run),
    /// The tree has nothing from the block up to this one.
    Gap(u64),
}

/// Looks up blocks of one version. It keeps the last leaf of each tree, so it is fast for blocks in order.
pub struct Reader<'a, S> {
    store: &'a S,
    layers: &'a [Layer],
    leaves: [Option<(Rc<Node>, Place)>; TREES_MAX],
}

impl<'a, S: Reads> Reader<'a, S> {
    /// Begins lookups in a version.
    ///
    /// # Errors
    /// `Limit` if the version has more than [`TREES_MAX`] trees.
    pub fn new(store: &'a S, layers: &'a [Layer]) -> Result<Self> {
        if layers.len() > TREES_MAX {
            bail!(Limit, "a version has {} trees, at most {TREES_MAX} are allowed", layers.len());
        }
        Ok(Self { store, layers, leaves: [const { None }; TREES_MAX] })
    }

    /// Returns the first piece from `block` on that ends before or at block `end`.
    ///
    /// # Errors
    /// As [`Reads::read`]; `Unsupported` for runs of an unknown kind.
    ///
    /// # Panics
    /// If `end` is not behind `block`.
    pub async fn piece(&mut self, block: u64, end: u64) -> Result<Piece> {
        assert!(block < end, "a lookup of at least one block");
        let mut end = end;
        for layer in 0..self.layers.len() {
            match self.find(layer, block).await? {
                Found::Gap(until) => end = end.min(until),
                Found::Run(node, n, run) => {
                    let part = run.part(block..end.min(run.end()));
                    let content = self.content(layer, node, n, &run, &part)?;
                    return Ok(Piece { block, blocks: part.blocks, content });
                }
            }
        }
        Ok(Piece { block, blocks: end - block, content: Content::Absent })
    }

    fn content(
        &self,
        layer: usize,
        node: Rc<Node>,
        n: usize,
        run: &Run,
        part: &Run,
    ) -> Result<Content> {
        match run.kind {
            RunKind::DATA => {
                let sum_bytes = usize::from(self.layers[layer].tree.form.sums.bytes());
                let skipped = (part.block - run.block) as usize;
                let from = node.tail + (node.sum_index(n) + skipped) * sum_bytes;
                let sums = LeafSums { node, from, bytes: part.blocks as usize * sum_bytes };
                Ok(Content::Data { address: part.address, birth: part.birth, sums, layer })
            }
            RunKind::HOLE => Ok(Content::Hole { birth: part.birth }),
            kind => bail!(
                Unsupported,
                "block {} has kind {:#x}, which this Cairn does not know",
                part.block,
                kind.bits()
            ),
        }
    }

    /// Looks up a block in one tree.
    async fn find(&mut self, layer: usize, block: u64) -> Result<Found> {
        let last = [block, u64::MAX, u64::MAX, u64::MAX];
        let Some((node, place)) = self.leaf(layer, &last).await? else {
            return Ok(Found::Gap(BLOCKS_MAX));
        };
        let behind = node.runs_up_to(block, &place);
        let next = match behind < node.items() {
            true => node.run_block(behind),
            false => place.high.map_or(BLOCKS_MAX, |high| high[0]),
        };
        let Some(mut n) = behind.checked_sub(1) else { return Ok(Found::Gap(next)) };
        if block >= node.run_end(n) {
            return Ok(Found::Gap(next));
        }
        let run = node.run(n);
        // In an interval tree the runs before this one may be older births of the same blocks.
        let limit = self.layers[layer].limit;
        while node.run_start(n).1 > limit {
            match n.checked_sub(1) {
                Some(before) if node.run_start(before).0 == run.block => n = before,
                Some(_) => return Ok(Found::Gap(run.end())),
                None => return self.find_older(layer, &run).await,
            }
        }
        let run = node.run(n);
        Ok(Found::Run(node, n, run))
    }

    /// Looks for an older birth of the blocks of `run`, in an earlier leaf.
    async fn find_older(&mut self, layer: usize, run: &Run) -> Result<Found> {
        let key = [run.block, self.layers[layer].limit, u64::MAX, u64::MAX];
        let Some((node, place)) = self.leaf(layer, &key).await? else {
            return Ok(Found::Gap(run.end()));
        };
        let mut n = node.runs_up_to(run.block, &place);
        while let Some(before) = n.checked_sub(1) {
            let older = node.run(before);
            if older.block != run.block {
                break;
            }
            if older.birth <= self.layers[layer].limit {
                return Ok(Found::Run(node, before, older));
            }
            n = before;
        }
        Ok(Found::Gap(run.end()))
    }

    /// Returns the leaf that can have items with `key`.
    async fn leaf(&mut self, layer: usize, key: &Key) -> Result<Option<(Rc<Node>, Place)>> {
        if let Some((node, place)) = &self.leaves[layer]
            && place.low <= *key
            && place.high.is_none_or(|high| *key < high)
        {
            return Ok(Some((node.clone(), *place)));
        }
        let Some((mut pointer, mut place)) = self.layers[layer].tree.root() else {
            return Ok(None);
        };
        let node = loop {
            let node = self.store.read(&pointer, &place).await?;
            if place.level == 0 {
                break node;
            }
            let child = node.child_with(key, &place);
            pointer = node.child(child);
            place = node.child_place(child, &place);
        };
        self.leaves[layer] = Some((node.clone(), place));
        Ok(Some((node, place)))
    }
}
