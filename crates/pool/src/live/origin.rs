//! Where a clone finds the blocks that it inherits, and the settling of snapshots with long lists of trees.

use std::rc::Rc;

use block::Result;

use super::catalogue::{VersionId, snapshot_key};
use super::checkpoint::Trees;
use super::nodes::{Attempt, Passes};
use super::pool::Inner;
use super::tables::Tables;
use super::version::{Version, list_of};
use crate::map::{DeadEntry, Form, Found, Layer, Number, Root, SumKind, TreeKind, settle};
use crate::rows::{DEAD_ENTRIES_INDEX, HEAD, SettledRow, TreeRow, VdiskRow};
use crate::{Address, NUMBER_MAX};

/// Most trees of a snapshot with clones, before it is settled.
const TREES_WANTED: usize = 3;

/// Most lines from which a snapshot with clones inherits, before it is settled.
const LINES_WANTED: usize = 8;

/// Settling takes in a further tree if it has at most so many times the nodes of those above it.
const SETTLED_PART: u64 = 8;

/// Where a clone finds the blocks that it inherits.
#[derive(Clone)]
pub enum Origin {
    /// In the snapshot from which it was cloned: changes are in memory.
    Version(Rc<Version>),
    /// In trees that stay the same.
    Listed(Rc<List>),
}

impl Origin {
    /// Returns the snapshot from which the clone was made.
    pub fn id(&self) -> VersionId {
        match self {
            Self::Version(version) => {
                VersionId { vdisk: version.vdisk.number, snapshot: version.number }
            }
            Self::Listed(list) => list.id,
        }
    }

    /// Returns how many vdisks in memory stand between the clone and trees that stay the same.
    pub fn depth(&self) -> usize {
        match self {
            Self::Version(version) => version.vdisk.depth + 1,
            Self::Listed(..) => 0,
        }
    }
}

/// All trees with blocks of a snapshot, those of its origins included.
pub struct List {
    id: VersionId,
    /// The trees, the newest first.
    pub layers: Vec<Layer>,
    /// Number of lines that the trees were collected from.
    lines: usize,
}

impl List {
    fn is_long(&self) -> bool {
        self.layers.len() > TREES_WANTED || self.lines > LINES_WANTED
    }
}

/// Returns the list of a settled snapshot; it is empty for any other one.
///
/// # Errors
/// Those of reads of tables.
pub async fn settled_list(tables: &Tables, id: VersionId) -> Result<Vec<Layer>> {
    let key = snapshot_key(id.vdisk, id.snapshot.unwrap_or_default());
    let rows = tables.all_of::<SettledRow>(&key).await?;
    let layer = |row: SettledRow| {
        Ok(Layer { tree: Root::decode(&row.descriptor)?, limit: row.newest_birth })
    };
    rows.into_iter().map(layer).collect()
}

impl Inner {
    /// Returns where the blocks of a snapshot are, for a clone that is loaded.
    ///
    /// # Errors
    /// Those of reads of tables.
    pub async fn origin(self: &Rc<Self>, id: VersionId) -> Result<Origin> {
        let is_in_memory = |id: VersionId| {
            let vdisks = self.vdisks.borrow();
            let first = vdisks.get(&id.vdisk).map(|vdisk| vdisk.first_in_memory());
            first.is_some_and(|first| id.snapshot.is_none_or(|number| number >= first))
        };
        match self.list_with_origins(id, is_in_memory).await? {
            Some(list) => Ok(Origin::Listed(Rc::new(list))),
            // Boxed, because the vdisk of the origin may have an origin as well.
            None => Box::pin(self.version(id)).await.map(Origin::Version),
        }
    }

    /// Returns the trees of a snapshot and of its origins; `None` if changes of one of them are in memory.
    async fn list_with_origins(
        &self,
        id: VersionId,
        is_in_memory: impl Fn(VersionId) -> bool,
    ) -> Result<Option<List>> {
        let mut list = List { id, layers: Vec::new(), lines: 0 };
        let mut id = id;
        loop {
            if is_in_memory(id) {
                return Ok(None);
            }
            list.lines += 1;
            let settled = settled_list(&self.tables, id).await?;
            if !settled.is_empty() {
                list.layers.extend(settled);
                break;
            }
            let number = id.snapshot.unwrap_or_default();
            list.layers.extend(list_of(&self.tables, id.vdisk, number).await?);
            let row = self.tables.get::<VdiskRow>(&id.vdisk.to_be_bytes()).await?;
            let Some(row) = row.filter(|row| row.origin != 0) else { break };
            id = VersionId { vdisk: row.origin, snapshot: Some(row.origin_number) };
        }
        list.layers.retain(|layer| layer.tree.top.is_some());
        Ok(Some(list))
    }

    /// Collects the trees that each clone inherits, now that all changes up to the cut are in trees. Settles the origins
    /// with long lists. Returns the numbers of the clones, with their origins.
    ///
    /// # Errors
    /// Those of reads of tables, and of writes of nodes.
    pub async fn list_origins(
        self: &Rc<Self>,
        passes: &Passes,
        lines: &mut Vec<Trees>,
    ) -> Result<Vec<(u64, Origin)>> {
        let mut origins = Vec::new();
        for at in 0..lines.len() {
            let vdisk = lines[at].vdisk.clone();
            let origin = vdisk.origin.borrow().clone();
            let Some(origin) = origin else { continue };
            if matches!(&origin, Origin::Listed(list) if !list.is_long()) {
                continue;
            }
            // Another clone of the snapshot may have settled it.
            let list = self.list_with_origins(origin.id(), |_| false).await?;
            let mut list = list.expect("all changes are in trees");
            if list.is_long() {
                list.layers = self.settle_snapshot(passes, lines, list.id, list.layers).await?;
                list.lines = 1;
            }
            origins.push((vdisk.number, Origin::Listed(Rc::new(list))));
        }
        Ok(origins)
    }

    /// Settles a snapshot with these trees, and returns the trees that it has then. If nodes of it are damaged, it stays
    /// as it is.
    async fn settle_snapshot(
        self: &Rc<Self>,
        passes: &Passes,
        lines: &mut Vec<Trees>,
        id: VersionId,
        layers: Vec<Layer>,
    ) -> Result<Vec<Layer>> {
        let VersionId { vdisk, snapshot } = id;
        let number = snapshot.expect("the origin of a clone is a snapshot");
        let joined = joined(&layers);
        let mut settled = layers;
        if joined > 1 {
            let before = self.balance();
            let is_all = joined == settled.len();
            let kind = if is_all { TreeKind::Base } else { TreeKind::Change };
            let form = Form::runs(kind, vdisk, SumKind::Crc32c);
            let of = self.vdisk(vdisk).await?;
            let part = async |store: &Attempt<'_>, _: &mut Found| {
                let tree = settle(store, &settled[..joined], form, number).await?;
                Ok((tree, store.made()))
            };
            let written = self.attempt_if_room(passes, &of, &mut Found::default(), part).await?;
            let Some((tree, made)) = written else { return Ok(settled) };
            settled.splice(..joined, [Layer { tree, limit: number }]);
            settled.retain(|layer| layer.tree.top.is_some());
            let at = self.keep_settled_nodes(passes, lines, (vdisk, number), made).await?;
            let nodes = &mut lines[at].account.nodes;
            *nodes = nodes.saturating_add_signed(self.balance().since(before).nodes);
        }
        let empty = Root::empty(Form::runs(TreeKind::Base, vdisk, SumKind::Crc32c));
        if settled.is_empty() {
            settled.push(Layer { tree: empty, limit: number });
        }
        for (index, Layer { tree, limit }) in settled.iter().enumerate() {
            self.tables.put_taken(&SettledRow {
                vdisk,
                number,
                index: index as u64,
                newest_birth: (*limit).min(number),
                descriptor: tree.encode(),
            });
        }
        Ok(settled)
    }

    /// Adds the nodes that settling has written to the dead entries of their line. Returns the index of the line.
    async fn keep_settled_nodes(
        self: &Rc<Self>,
        passes: &Passes,
        lines: &mut Vec<Trees>,
        (line, birth): (u64, Number),
        made: Vec<Address>,
    ) -> Result<usize> {
        let entry =
            |address| DeadEntry { death: birth + 1, address, blocks: 1, birth, is_node: true };
        let at = match lines.iter().position(|trees| trees.vdisk.number == line) {
            Some(at) => at,
            None => {
                lines.push(Trees::unchanged(&self.vdisk(line).await?));
                lines.len() - 1
            }
        };
        let entries = made.into_iter().map(entry).collect();
        let dead = self.merge_dead(passes, &lines[at].vdisk, lines[at].dead, entries).await?;
        lines[at].dead = dead;
        self.tables.put_taken(&TreeRow {
            vdisk: line,
            last: HEAD,
            index: DEAD_ENTRIES_INDEX,
            newest_birth: NUMBER_MAX,
            descriptor: dead.encode(),
        });
        Ok(at)
    }
}

/// Returns how many of these trees settling joins into one.
fn joined(layers: &[Layer]) -> usize {
    let (mut count, mut nodes) = (1, layers.first().map_or(0, |layer| layer.tree.nodes));
    while let Some(next) = layers.get(count) {
        let is_long = layers.len() - count + 1 > TREES_WANTED;
        if !is_long && next.tree.nodes > nodes.saturating_mul(SETTLED_PART) {
            break;
        }
        (count, nodes) = (count + 1, nodes + next.tree.nodes);
    }
    count
}
