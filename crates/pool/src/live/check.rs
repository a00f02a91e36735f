//! The check of a pool: compares the blocks that its trees refer to with the blocks in use.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::Result;

use super::nodes::Lookups;
use super::pool::Inner;
use super::vdisk::Vdisk;
use super::version::own_trees;
use crate::extent::Content;
use crate::map::{BLOCKS_MAX, Content as Blocks, Found, Layer, Reader, Root, Scan, nodes_after};
use crate::rows::{Table, TreeRow, VdiskRow};
use crate::{Address, NUMBER_MAX};

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Checked {
    /// Blocks that a tree refers to, and that are free.
    pub lost: Vec<Address>,
    /// Blocks in use that no tree refers to.
    pub leaked: Vec<Address>,
}

/// Blocks that trees refer to.
#[derive(Default)]
struct Reached {
    data: BTreeSet<u64>,
    nodes: BTreeSet<u64>,
}

impl Inner {
    /// Compares reachable with used blocks. The pool has no changes since the last checkpoint, and none begins.
    ///
    /// # Errors
    /// Those of the device; damage of a node.
    pub async fn check(self: &Rc<Self>) -> Result<Checked> {
        let mut reached = Reached::default();
        for table in Table::ALL {
            let tree = self.tables.tree(*table);
            self.reach_nodes(&tree, &mut reached).await?;
        }
        for row in self.tables.all_of::<VdiskRow>(&[]).await? {
            let vdisk = self.vdisk(row.vdisk).await?;
            self.reach_line(&vdisk, &mut reached).await?;
        }
        Ok(self.compare(&reached))
    }

    async fn reach_line(&self, vdisk: &Vdisk, reached: &mut Reached) -> Result<()> {
        let rows = self.tables.all_of::<TreeRow>(&vdisk.number.to_be_bytes()).await?;
        let mut trees: BTreeMap<u64, Root> = BTreeMap::new();
        for row in rows {
            let tree = Root::decode(&row.descriptor)?;
            if let Some((pointer, _)) = tree.top {
                trees.insert(pointer.address.bits(), tree);
            }
        }
        for tree in trees.values() {
            self.reach_nodes(tree, reached).await?;
        }
        self.reach_dead(&vdisk.dead.get(), reached).await?;
        // Blocks of the head's trees that newer trees overwrite are in use until a merge finds them.
        let own = vdisk.own.borrow().clone();
        for tree in own.iter() {
            self.reach_seen(&[Layer { tree: *tree, limit: NUMBER_MAX }], reached).await?;
        }
        let numbers: Vec<u64> = vdisk.kept.borrow().numbers().collect();
        for limit in numbers {
            let trees = own_trees(&self.tables, vdisk.number, limit).await?;
            let layers: Vec<_> = trees.iter().map(|tree| Layer { tree: *tree, limit }).collect();
            self.reach_seen(&layers, reached).await?;
        }
        Ok(())
    }

    async fn reach_nodes(&self, tree: &Root, reached: &mut Reached) -> Result<()> {
        let mut found = Found::default();
        nodes_after(&Lookups(self.nodes.clone()), tree, 0, &mut found).await?;
        reached.nodes.extend(found.nodes.iter().map(|node| node.address.bits()));
        Ok(())
    }

    async fn reach_dead(&self, tree: &Root, reached: &mut Reached) -> Result<()> {
        let store = Lookups(self.nodes.clone());
        let mut scan = Scan::new(&store, tree, [0; 4]);
        while let Some(leaf) = scan.next_leaf().await? {
            for entry in (0..leaf.items()).map(|n| leaf.dead(n)) {
                let all = entry.address.bits()..entry.address.bits() + entry.blocks;
                match entry.is_node {
                    true => reached.nodes.extend(all),
                    false => reached.data.extend(all),
                }
            }
        }
        Ok(())
    }

    /// Adds the blocks that a lookup through these trees finds.
    async fn reach_seen(&self, layers: &[Layer], reached: &mut Reached) -> Result<()> {
        let store = Lookups(self.nodes.clone());
        let mut reader = Reader::new(&store, layers)?;
        let mut block = 0;
        while block < BLOCKS_MAX {
            let piece = reader.piece(block, BLOCKS_MAX).await?;
            if let Blocks::Data { address, .. } = piece.content {
                reached.data.extend(address.bits()..address.bits() + piece.blocks);
            }
            block += piece.blocks;
        }
        Ok(())
    }

    fn compare(&self, reached: &Reached) -> Checked {
        let mut used = Reached::default();
        for (content, taken) in self.room.with(|space| space.used()) {
            let all = taken.address.bits()..taken.address.bits() + taken.blocks;
            match content {
                Content::NODES | Content::SPACE => used.nodes.extend(all),
                _ => used.data.extend(all),
            }
        }
        let minus = |one: &BTreeSet<u64>, other: &BTreeSet<u64>| -> Vec<Address> {
            one.difference(other).map(|bits| Address::from_bits(*bits)).collect()
        };
        let both = |one: &Reached, other: &Reached| {
            [minus(&one.data, &other.data), minus(&one.nodes, &other.nodes)].concat()
        };
        Checked { lost: both(reached, &used), leaked: both(&used, reached) }
    }
}
