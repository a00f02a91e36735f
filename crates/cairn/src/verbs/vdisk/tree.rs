//! `cairn vdisk tree`: the virtual disks of pools, their snapshots, and the clones of these.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use api::Client;
use block::units::{format_duration, format_size};
use kinds::vdisks::{SnapshotView, VdiskView};
use serde::Serialize;

use super::list::{Vdisk, snapshot_name, snapshot_views, vdisks};
use super::name::{find_pool, parts, pools};
use crate::draw::{Branch, tree};
use crate::exit::Result;
use crate::out::{Form, count, since};
use crate::running::At;

/// Most snapshots that are drawn below a virtual disk, and most clones below a snapshot.
const SHOWN_MAX: usize = 10;

/// Most clones of clones that are drawn below each other.
const LEVELS_MAX: usize = 20;

/// A virtual disk with its snapshots.
#[derive(Serialize)]
struct Node {
    #[serde(flatten)]
    vdisk: Vdisk,
    /// The snapshots that have a label or clones, in the order of their numbers.
    snapshots: Vec<SnapshotView>,
    /// Number of the other snapshots.
    other_snapshots: usize,
}

/// Prints the tree of the virtual disks of one pool, or of all. The JSON is a list, for chains of clones may be long.
pub fn run(form: Form, pool: Option<&str>, at: &At) -> Result {
    let mut all = Vec::new();
    match pool {
        Some(pool) => {
            let (client, pool) = find_pool(at, pool)?;
            all.push(nodes(&client, &pool, vdisks(&client, &pool)?)?);
        }
        None => {
            for client in at.all()? {
                for pool in pools(&client) {
                    let pool = pool.join("/");
                    // A versioned device has no such list.
                    let vdisks = vdisks(&client, &pool).unwrap_or_default();
                    all.push(nodes(&client, &pool, vdisks)?);
                }
            }
        }
    }
    let list: Vec<&Node> = all.iter().flatten().collect();
    form.print(&list, || tree(&all.iter().flat_map(|pool| branches(pool)).collect::<Vec<_>>()))
}

fn nodes(client: &Client, pool: &str, all: Vec<Vdisk>) -> Result<Vec<Node>> {
    let node = |vdisk: Vdisk| {
        let mut snapshots = snapshot_views(client, pool, &vdisk.view.name)?;
        let count = snapshots.len();
        snapshots.retain(|snapshot| snapshot.label.is_some() || snapshot.clones > 0);
        let other_snapshots = count - snapshots.len();
        Ok(Node { vdisk, snapshots, other_snapshots })
    };
    all.into_iter().map(node).collect()
}

/// Returns the virtual disk and the snapshot that a virtual disk comes from.
fn origin(view: &VdiskView) -> Option<(&str, &str)> {
    let (vdisk, snapshot) = parts(view.origin.as_deref()?);
    Some((vdisk, snapshot?))
}

/// Returns the lines of the virtual disks of a pool. A clone of a removed one is a root.
fn branches(pool: &[Node]) -> Vec<Branch> {
    let names: BTreeSet<&str> = pool.iter().map(|node| &*node.vdisk.view.name).collect();
    let mut clones = BTreeMap::<_, BTreeMap<_, Vec<_>>>::new();
    let mut roots = Vec::new();
    for node in pool {
        let view = &node.vdisk.view;
        // After a rollback, a virtual disk comes from a snapshot of its own.
        match origin(view).filter(|(name, _)| *name != view.name && names.contains(name)) {
            Some((vdisk, snapshot)) => {
                let of = clones.entry(vdisk).or_default();
                of.entry(snapshot).or_default().push(node);
            }
            None => roots.push(node),
        }
    }
    let picture = Picture(clones);
    roots.into_iter().map(|node| picture.vdisk(node, 0)).collect()
}

/// The clones of the snapshots of each virtual disk, by their names.
struct Picture<'p>(BTreeMap<&'p str, BTreeMap<&'p str, Vec<&'p Node>>>);

impl Picture<'_> {
    /// Returns the line of a virtual disk at `level`, and those of its snapshots.
    fn vdisk(&self, node: &Node, level: usize) -> Branch {
        let Node { vdisk: Vdisk { export, view, .. }, .. } = node;
        let mut facts = format_size(view.size_bytes);
        match origin(view) {
            Some((vdisk, snapshot)) if vdisk == view.name => {
                facts.push_str(&format!(", rolled back to @{snapshot}"));
            }
            // The virtual disk of that snapshot was removed.
            Some((_, snapshot)) if level == 0 => {
                facts.push_str(&format!(", clone of a removed @{snapshot}"));
            }
            _ => {}
        }
        Branch { name: export.clone(), facts, below: self.snapshots(node, level) }
    }

    /// Returns the lines of the newest snapshots with clones, and of the newest with labels.
    fn snapshots(&self, node: &Node, level: usize) -> Vec<Branch> {
        let none = BTreeMap::new();
        let clones = self.0.get(&*node.vdisk.view.name).unwrap_or(&none);
        let mut shown: Vec<&SnapshotView> = node.snapshots.iter().collect();
        shown.sort_by_key(|snapshot| (snapshot.clones == 0, Reverse(snapshot.number)));
        shown.truncate(SHOWN_MAX);
        shown.sort_by_key(|snapshot| snapshot.number);
        let mut lines = Vec::new();
        for snapshot in &shown {
            let name = snapshot_name(snapshot);
            let age = format_duration(since(snapshot.taken_unix_us / 1_000_000));
            let below = clones.get(&*name).map(|all| self.clones(all, level));
            let (name, below) = (format!("@{name}"), below.unwrap_or_default());
            lines.push(Branch { name, facts: format!("{age} old"), below });
        }
        // A removed snapshot stays while it has clones.
        let known: BTreeSet<String> = node.snapshots.iter().map(snapshot_name).collect();
        let removed: Vec<_> = clones.iter().filter(|(name, _)| !known.contains(**name)).collect();
        for (name, all) in removed.iter().take(SHOWN_MAX) {
            let (name, facts) = (format!("@{name}"), "removed, and kept for its clones".to_owned());
            lines.push(Branch { name, facts, below: self.clones(all, level) });
        }
        let all = node.snapshots.len() + node.other_snapshots + removed.len();
        if all > lines.len() {
            let more = count((all - lines.len()) as u64, "more snapshot");
            lines.push(Branch::left_out(format!("and {more}")));
        }
        lines
    }

    /// Returns the lines of the clones of a virtual disk at `level`.
    fn clones(&self, all: &[&Node], level: usize) -> Vec<Branch> {
        let shown = if level < LEVELS_MAX { SHOWN_MAX } else { 0 };
        let nodes = all.iter().take(shown);
        let mut lines: Vec<Branch> = nodes.map(|clone| self.vdisk(clone, level + 1)).collect();
        if all.len() > lines.len() {
            lines.push(Branch::left_out(format!("and {} more", all.len() - lines.len())));
        }
        lines
    }
}
