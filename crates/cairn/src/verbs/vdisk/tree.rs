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

/// A virtual disk with its snapshots and their clones.
#[derive(Serialize)]
struct Node {
    export: String,
    #[serde(flatten)]
    view: VdiskView,
    /// The snapshots that have a label or clones, in the order of their numbers.
    snapshots: Vec<SnapshotView>,
    /// Number of the other snapshots.
    other_snapshots: usize,
    clones: Vec<Node>,
}

/// Prints the tree of the virtual disks of one pool, or of all.
pub fn run(form: Form, pool: Option<&str>, at: &At) -> Result {
    let mut all = Vec::new();
    match pool {
        Some(pool) => {
            let (client, pool) = find_pool(at, pool)?;
            all.extend(nodes(&client, &pool, vdisks(&client, &pool)?)?);
        }
        None => {
            for client in at.all()? {
                for pool in pools(&client) {
                    let pool = pool.join("/");
                    // A versioned device has no such list.
                    let vdisks = vdisks(&client, &pool).unwrap_or_default();
                    all.extend(nodes(&client, &pool, vdisks)?);
                }
            }
        }
    }
    form.print(&all, || tree(&all.iter().map(|node| branch(node, None)).collect::<Vec<_>>()))
}

/// Returns the virtual disk and the snapshot that a virtual disk comes from.
fn origin(view: &VdiskView) -> Option<(&str, &str)> {
    let (vdisk, snapshot) = parts(view.origin.as_deref()?);
    Some((vdisk, snapshot?))
}

/// Puts the virtual disks of a pool below those that they were cloned from. A clone of a removed one is a root.
fn nodes(client: &Client, pool: &str, all: Vec<Vdisk>) -> Result<Vec<Node>> {
    let names: BTreeSet<String> = all.iter().map(|vdisk| vdisk.view.name.clone()).collect();
    let mut below: BTreeMap<Option<String>, Vec<Node>> = BTreeMap::new();
    for Vdisk { export, view, .. } in all {
        // After a rollback, a virtual disk comes from a snapshot of its own.
        let is_other = |name: &str| *name != view.name && names.contains(name);
        let from = origin(&view).map(|(vdisk, _)| vdisk).filter(|name| is_other(name));
        let from = from.map(str::to_owned);
        let mut snapshots = snapshot_views(client, pool, &view.name)?;
        let count = snapshots.len();
        snapshots.retain(|snapshot| snapshot.label.is_some() || snapshot.clones > 0);
        let other_snapshots = count - snapshots.len();
        let clones = Vec::new();
        below.entry(from).or_default().push(Node {
            export,
            view,
            snapshots,
            other_snapshots,
            clones,
        });
    }
    Ok(grown(&mut below, None))
}

fn grown(below: &mut BTreeMap<Option<String>, Vec<Node>>, of: Option<String>) -> Vec<Node> {
    let mut nodes = below.remove(&of).unwrap_or_default();
    for node in &mut nodes {
        node.clones = grown(below, Some(node.view.name.clone()));
    }
    nodes
}

/// Returns the line of a virtual disk, and those of its snapshots. `under` is the snapshot that the line is below.
fn branch(node: &Node, under: Option<&str>) -> Branch {
    let mut facts = format_size(node.view.size_bytes);
    match (origin(&node.view), under) {
        (Some((vdisk, snapshot)), _) if vdisk == node.view.name => {
            facts.push_str(&format!(", rolled back to @{snapshot}"));
        }
        // The virtual disk of that snapshot was removed.
        (Some((_, snapshot)), None) => facts.push_str(&format!(", clone of a removed @{snapshot}")),
        _ => {}
    }
    Branch { name: node.export.clone(), facts, below: snapshots(node) }
}

/// Returns the lines of the newest snapshots with clones, and of the newest with labels.
fn snapshots(node: &Node) -> Vec<Branch> {
    let mut of: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for clone in &node.clones {
        of.entry(origin(&clone.view).map_or("", |(_, snapshot)| snapshot)).or_default().push(clone);
    }
    let mut shown: Vec<&SnapshotView> = node.snapshots.iter().collect();
    shown.sort_by_key(|snapshot| (snapshot.clones == 0, Reverse(snapshot.number)));
    shown.truncate(SHOWN_MAX);
    shown.sort_by_key(|snapshot| snapshot.number);
    let mut lines: Vec<Branch> = Vec::new();
    for snapshot in &shown {
        let name = snapshot_name(snapshot);
        let age = format_duration(since(snapshot.taken_unix_us / 1_000_000));
        let below = clones(&name, &of.remove(&*name).unwrap_or_default());
        lines.push(Branch { name: format!("@{name}"), facts: format!("{age} old"), below });
    }
    // A removed snapshot stays while it has clones.
    of.retain(|name, _| node.snapshots.iter().all(|snapshot| snapshot_name(snapshot) != *name));
    for (name, all) in of.iter().take(SHOWN_MAX) {
        let facts = "removed, and kept for its clones".to_owned();
        lines.push(Branch { name: format!("@{name}"), facts, below: clones(name, all) });
    }
    let more = node.snapshots.len() - shown.len()
        + node.other_snapshots
        + of.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        lines.push(Branch::left_out(format!("and {}", count(more as u64, "more snapshot"))));
    }
    lines
}

fn clones(snapshot: &str, all: &[&Node]) -> Vec<Branch> {
    let shown = all.iter().take(SHOWN_MAX);
    let mut lines: Vec<Branch> = shown.map(|clone| branch(clone, Some(snapshot))).collect();
    if all.len() > SHOWN_MAX {
        lines.push(Branch::left_out(format!("and {} more", all.len() - SHOWN_MAX)));
    }
    lines
}
