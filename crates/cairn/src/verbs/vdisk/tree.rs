//! `cairn vdisk tree`: which virtual disks were cloned from which snapshots.

use std::collections::BTreeMap;

use block::units::format_size;
use kinds::vdisks::VdiskView;
use serde::Serialize;

use super::list::{Vdisk, vdisks};
use super::name::{find_pool, pools};
use crate::exit::Result;
use crate::out::Form;
use crate::running::At;

/// Most clones that are drawn below a virtual disk.
const SHOWN_MAX: usize = 10;

/// A virtual disk with the clones of its snapshots.
#[derive(Serialize)]
struct Node {
    export: String,
    #[serde(flatten)]
    view: VdiskView,
    clones: Vec<Node>,
}

/// Prints the tree of the virtual disks of one pool, or of all.
pub fn run(form: Form, pool: Option<&str>, at: &At) -> Result {
    let mut all = Vec::new();
    match pool {
        Some(pool) => {
            let (client, pool) = find_pool(at, pool)?;
            all.extend(nodes(vdisks(&client, &pool)?));
        }
        None => {
            for client in at.all()? {
                for pool in pools(&client) {
                    all.extend(nodes(vdisks(&client, &pool.join("/")).unwrap_or_default()));
                }
            }
        }
    }
    form.print(&all, || {
        let mut text = String::new();
        all.iter().for_each(|node| draw(&mut text, node, "", ""));
        text
    })
}

/// Puts the virtual disks of a pool below the ones that they were cloned from. A clone of a removed one is a root.
fn nodes(all: Vec<Vdisk>) -> Vec<Node> {
    let names: Vec<String> = all.iter().map(|vdisk| vdisk.view.name.clone()).collect();
    let mut below: BTreeMap<Option<String>, Vec<Vdisk>> = BTreeMap::new();
    for vdisk in all {
        let origin = vdisk.view.origin.as_deref().and_then(|origin| origin.rsplit_once('@'));
        // After a rollback, a virtual disk comes from a snapshot of its own.
        let is_other = |name: &String| names.contains(name) && *name != vdisk.view.name;
        let origin = origin.map(|(name, _)| name.to_owned()).filter(is_other);
        below.entry(origin).or_default().push(vdisk);
    }
    grown(&mut below, None)
}

fn grown(below: &mut BTreeMap<Option<String>, Vec<Vdisk>>, of: Option<String>) -> Vec<Node> {
    let vdisks = below.remove(&of).unwrap_or_default().into_iter();
    let node = |Vdisk { export, view, .. }: Vdisk| {
        let clones = grown(below, Some(view.name.clone()));
        Node { export, view, clones }
    };
    vdisks.map(node).collect()
}

/// Draws a node and the nodes below it. `first` is in front of its line, `rest` in front of all further ones.
fn draw(text: &mut String, node: &Node, first: &str, rest: &str) {
    let snapshot = node.view.origin.as_ref().map(|origin| format!("  of {origin}"));
    let size = format_size(node.view.size_bytes);
    let snapshot = snapshot.unwrap_or_default();
    text.push_str(&format!("{first}{}  {size}{snapshot}\n", node.export));
    let more = node.clones.len().saturating_sub(SHOWN_MAX);
    for (n, clone) in node.clones.iter().take(SHOWN_MAX).enumerate() {
        let is_last = n + 1 == node.clones.len();
        let (line, below) = if is_last { ("`-- ", "    ") } else { ("|-- ", "|   ") };
        draw(text, clone, &format!("{rest}{line}"), &format!("{rest}{below}"));
    }
    if more > 0 {
        text.push_str(&format!("{rest}`-- and {more} more\n"));
    }
}
