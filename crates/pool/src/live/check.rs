//! The check of a pool: compares the blocks that its trees refer to with the blocks in use, and holds with clones.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::Result;

use super::account::Account;
use super::nodes::{BothCopies, Lookups};
use super::pool::Inner;
use super::vdisk::Vdisk;
use super::version::own_trees;
use crate::extent::Content;
use crate::map::{
    self, BLOCKS_MAX, Content as Found, Layer, Number, Reader, Root, Scan, TreeKind, damaged_parts,
    nodes_after,
};
use crate::rows::{HEAD, HoldRow, SettledRow, SnapshotRow, Table, TreeRow, VdiskRow, VdiskState};
use crate::space::bits::Bits;
use crate::{Address, BLOCK_BYTES, NUMBER_MAX};

/// Adjacent blocks: the address of the first, and their number.
pub type Blocks = (Address, u64);

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Checked {
    /// Number of vdisks.
    pub vdisks: u64,
    /// Damage of trees, with the vdisks that it concerns.
    pub damage: Vec<String>,
    /// Damage of copies of nodes, beside right copies. A pool that can be written writes them again.
    pub copies: Vec<String>,
    /// Blocks that a tree refers to, and that are free.
    pub lost: Vec<Blocks>,
    /// Blocks in use that no tree refers to. `None` if they are unknown: the pool is open for reading, and has changes
    /// that no checkpoint has merged; or a tree is damaged.
    pub leaked: Option<Vec<Blocks>>,
}

/// A set of blocks.
#[derive(Default)]
struct Marks(BTreeMap<u64, Bits>);

impl Marks {
    /// Adds the blocks of a run, which is in one extent.
    fn add(&mut self, extent_blocks: u32, address: Address, blocks: u64) {
        let extent = self.0.entry(address.extent()).or_insert_with(|| Bits::new(extent_blocks));
        let end = (u64::from(address.offset()) + blocks).min(extent_blocks.into()) as u32;
        extent.set(address.offset(), end - address.offset(), true);
    }

    /// Adds the blocks of another set.
    fn join(&mut self, other: Self) {
        for (extent, bits) in other.0 {
            match self.0.entry(extent) {
                Entry::Vacant(place) => drop(place.insert(bits)),
                Entry::Occupied(mut place) => {
                    let mut at = 0;
                    while let Some((first, count)) = bits.next_run(at) {
                        place.get_mut().set(first, count, true);
                        at = first + count;
                    }
                }
            }
        }
    }

    fn count(&self) -> u64 {
        self.0.values().map(|bits| u64::from(bits.count())).sum()
    }

    /// Returns the blocks that are not in `other`.
    fn without(&self, other: &Self) -> Vec<Blocks> {
        let mut all = Vec::new();
        for (extent, bits) in &self.0 {
            let mut rest = bits.clone();
            let others = other.0.get(extent);
            let mut at = 0;
            while let Some((first, count)) = others.and_then(|others| others.next_run(at)) {
                rest.set(first, count, false);
                at = first + count;
            }
            at = 0;
            while let Some((first, count)) = rest.next_run(at) {
                let address = Address::new(*extent, first).expect("an extent of the pool");
                all.push((address, u64::from(count)));
                at = first + count;
            }
        }
        all
    }
}

/// Blocks that trees refer to.
struct Reached {
    extent_blocks: u32,
    data: Marks,
    nodes: Marks,
    /// Damage of copies of nodes.
    copies: Vec<String>,
}

impl Reached {
    fn new(extent_blocks: u32) -> Self {
        let (data, nodes, copies) = (Marks::default(), Marks::default(), Vec::new());
        Self { extent_blocks, data, nodes, copies }
    }

    fn data(&mut self, address: Address, blocks: u64) {
        self.data.add(self.extent_blocks, address, blocks);
    }

    fn nodes(&mut self, address: Address, blocks: u64) {
        self.nodes.add(self.extent_blocks, address, blocks);
    }
}

impl Inner {
    /// Compares reachable with used blocks, accounts with trees, and holds with clones. No checkpoint runs. If the pool
    /// can be written, it has no changes since the last one.
    ///
    /// # Errors
    /// Those of the device for tables.
    pub async fn check(self: &Rc<Self>) -> Result<Checked> {
        let mut reached = Reached::new(self.room.with(|space| space.extent_blocks()));
        let mut checked = Checked::default();
        for table in Table::ALL {
            let tree = self.tables.tree(*table);
            if let Err(error) = self.reach_nodes(&tree, &mut reached).await {
                checked.damage.push(format!("the table {table:?}: {error}"));
            }
            let copies = reached.copies.drain(..);
            checked.copies.extend(copies.map(|error| format!("the table {table:?}: {error}")));
        }
        let mut holds: BTreeMap<(u64, Number), BTreeSet<u64>> = BTreeMap::new();
        for hold in self.tables.all_of::<HoldRow>(&[]).await? {
            holds.entry((hold.vdisk, hold.number)).or_default().insert(hold.hold);
        }
        for row in self.tables.all_of::<VdiskRow>(&[]).await? {
            checked.vdisks += u64::from(row.state == VdiskState::LIVE);
            let name = if row.name.is_empty() { "a removed vdisk" } else { &row.name };
            let mut damage = match self.vdisk(row.vdisk).await {
                Ok(vdisk) => self.reach_line(&vdisk, &mut reached).await?,
                Err(error) => vec![error.to_string()],
            };
            damage.extend(self.check_holds(&row, &holds).await?);
            checked.damage.extend(damage.into_iter().map(|words| format!("{name}: {words}")));
            let copies = reached.copies.drain(..);
            checked.copies.extend(copies.map(|error| format!("{name}: {error}")));
        }
        let has_changes = self.is_read_only && !self.touched.borrow().is_empty();
        let used = self.used(reached.extent_blocks);
        let both = |one: &Reached, other: &Reached| {
            [one.data.without(&other.data), one.nodes.without(&other.nodes)].concat()
        };
        checked.lost = both(&reached, &used);
        let is_known = checked.damage.is_empty() && !has_changes;
        checked.leaked = is_known.then(|| both(&used, &reached));
        Ok(checked)
    }

    /// Compares the holds on the snapshots of a line, and its own hold, with the numbers of the holds of each snapshot.
    /// The hold of a vdisk has its number. Returns the differences.
    async fn check_holds(
        &self,
        row: &VdiskRow,
        holds: &BTreeMap<(u64, Number), BTreeSet<u64>>,
    ) -> Result<Vec<String>> {
        let of = |vdisk, number| holds.get(&(vdisk, number));
        let mut damage = Vec::new();
        let origin = of(row.origin, row.origin_number);
        if row.origin != 0 && !origin.is_some_and(|holds| holds.contains(&row.vdisk)) {
            damage.push(format!("it has no hold on snapshot {} of its origin", row.origin_number));
        }
        for SnapshotRow { vdisk, number, holds, .. } in
            self.tables.all_of::<SnapshotRow>(&row.vdisk.to_be_bytes()).await?
        {
            let is = of(vdisk, number).map_or(0, BTreeSet::len);
            if holds as usize != is {
                damage.push(format!("snapshot {number} counts {holds} holds, and has {is}"));
            }
        }
        Ok(damage)
    }

    /// Adds the blocks of a line, and compares their number with its account. Returns its damage.
    async fn reach_line(&self, vdisk: &Vdisk, all: &mut Reached) -> Result<Vec<String>> {
        let mut line = Reached::new(all.extent_blocks);
        let mut damage = self.reach_trees(vdisk, &mut line).await?;
        if damage.is_empty() {
            let reached = self.reach_versions(vdisk, &mut line).await;
            damage.extend(reached.err().map(|error| error.to_string()));
        }
        let account = Account::of(&vdisk.row.borrow());
        let (data, nodes) = (line.data.count(), line.nodes.count());
        all.data.join(line.data);
        all.nodes.join(line.nodes);
        all.copies.extend(line.copies);
        let has_changes = self.is_read_only && !self.touched.borrow().is_empty();
        let is_right = (data, nodes) == (account.head + account.dead, account.nodes);
        if !has_changes && !is_right && damage.is_empty() {
            damage.push(format!(
                "its account has {} blocks of data and {} of maps; its trees have {data} and {nodes}",
                account.head + account.dead,
                account.nodes
            ));
        }
        Ok(damage)
    }

    /// Adds the nodes of the trees of a line. Returns the parts of versions behind damaged nodes.
    async fn reach_trees(&self, vdisk: &Vdisk, reached: &mut Reached) -> Result<Vec<String>> {
        let mut trees: BTreeMap<u64, (Root, Vec<Number>)> = BTreeMap::new();
        for row in self.tables.all_of::<TreeRow>(&vdisk.number.to_be_bytes()).await? {
            let tree = Root::decode(&row.descriptor)?;
            if let Some((pointer, _)) = tree.top {
                let (_, lists) = trees.entry(pointer.address.bits()).or_insert((tree, Vec::new()));
                lists.push(row.last);
            }
        }
        let mut damage = Vec::new();
        for (tree, lists) in trees.values() {
            if let Err(error) = self.reach_nodes(tree, reached).await
                && !tree.form.kind.has_runs()
            {
                damage.push(format!("its dead entries: {error}; their space stays in use"));
            }
            if !tree.form.kind.has_runs() {
                continue;
            }
            let names: Vec<String> = lists.iter().map(|last| list_name(*last)).collect();
            let names = names.join(", ");
            for part in damaged_parts(&Lookups(self.nodes.clone()), tree).await {
                let size = vdisk.row.borrow().size;
                let byte = |block: u64| (block * u64::from(BLOCK_BYTES)).min(size);
                let (from, to, why) = (byte(part.block), byte(part.end), part.why);
                damage.push(format!("bytes {from} to {to} of {names}: {why}"));
            }
        }
        for row in self.tables.all_of::<SettledRow>(&vdisk.number.to_be_bytes()).await? {
            let tree = Root::decode(&row.descriptor)?;
            if tree.form.line == vdisk.number
                && let Err(error) = self.reach_nodes(&tree, reached).await
            {
                damage.push(format!("clones of snapshot {}: {error}", row.number));
            }
        }
        Ok(damage)
    }

    /// Adds the blocks that the versions of a line see, and those of its dead entries.
    async fn reach_versions(&self, vdisk: &Vdisk, reached: &mut Reached) -> Result<()> {
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
        let (mut found, nodes) = (map::Found::default(), BothCopies::new(&self.nodes));
        let mut walked = nodes_after(&nodes, tree, 0, &mut found).await;
        // The leaves of a table may have two copies, too.
        let mut leaves = Scan::new(&nodes, tree, [0; 4]);
        while tree.form.kind == TreeKind::Table && walked.is_ok() {
            match leaves.next_leaf().await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => walked = Err(error),
            }
        }
        found.nodes.iter().for_each(|node| reached.nodes(node.address, 1));
        reached.copies.extend(nodes.into_wrong());
        walked
    }

    async fn reach_dead(&self, tree: &Root, reached: &mut Reached) -> Result<()> {
        let store = Lookups(self.nodes.clone());
        let mut scan = Scan::new(&store, tree, [0; 4]);
        while let Some(leaf) = scan.next_leaf().await? {
            for entry in (0..leaf.items()).map(|n| leaf.dead(n)) {
                match entry.is_node {
                    true => reached.nodes(entry.address, entry.blocks),
                    false => reached.data(entry.address, entry.blocks),
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
            if let Found::Data { address, .. } = piece.content {
                reached.data(address, piece.blocks);
            }
            block += piece.blocks;
        }
        Ok(())
    }

    fn used(&self, extent_blocks: u32) -> Reached {
        let mut used = Reached::new(extent_blocks);
        for (content, taken) in self.room.with(|space| space.used()) {
            match content {
                Content::NODES | Content::SPACE => used.nodes(taken.address, taken.blocks),
                _ => used.data(taken.address, taken.blocks),
            }
        }
        used
    }
}

/// Returns the versions that have a list of trees.
fn list_name(last: Number) -> String {
    match last {
        HEAD => "the head".to_owned(),
        last => format!("snapshots up to {last}"),
    }
}
