//! Checks that a raw disk has no label, since the first write to the disk could destroy the label.

use block::{Env, Lower, Result, error};
use engine::Engine;
use kind::{Maker, MakerArgs};
use meta::{AreaContent, Label, Store, Wrong};

use super::probe::OpenDisk;
use crate::spec::{Planned, PlannedNode, Role};

/// Returns an error if a raw disk of the plan has a label, as building the graph would. For previews: opens each raw
/// disk read-only. Skips the disks of `running`, the plan of the running graph.
///
/// # Errors
/// `InUse` for the first raw disk that has a label.
pub async fn refuse_labelled(
    planned: &Planned,
    running: Option<&Planned>,
    env: &Env,
    engine: &Engine,
) -> Result<()> {
    let looked_at = planned.nodes.iter().filter(|node| is_looked_at(planned, node, running));
    for node in looked_at {
        let Maker::Disk { make, .. } = node.kind.maker else { continue };
        let mut given = node.given.clone();
        given.refuse_writes(node.kind);
        // The plan decides whether a disk that is absent or in use is refused.
        let Ok(device) = make(MakerArgs::new(&given, env)).await else { continue };
        let disk = OpenDisk::new(engine, &node.name, device)?;
        refuse(node, env, &disk.lower).await.map_err(|error| error.at(&node.name))?;
    }
    Ok(())
}

/// Whether the raw disk `node` must be checked for a label before its first write. Exempt are disks with `label =
/// false`, read-only disks, disks that this start creates, disks without a path, and disks that the graph `before` has
/// open: a client may have written a label to the latter.
pub(crate) fn is_looked_at(
    planned: &Planned,
    node: &PlannedNode,
    before: Option<&Planned>,
) -> bool {
    let is_same =
        |old: &PlannedNode| old.kind.name == node.kind.name && old.place() == node.place();
    let is_writable = !node.info.read_only
        && (planned.exports.iter().any(|export| !export.read_only)
            || planned.nodes.iter().any(|node| node.kind.maker.keeps_state()));
    let is_raw = node.role == Role::Disk && !node.labelled && !node.said_raw;
    let was_open = before.is_some_and(|before| before.nodes.iter().any(is_same));
    is_raw && is_writable && !was_open && !node.created && node.place().is_some()
}

/// Returns an error if the raw disk `node` has a label.
///
/// # Errors
/// `InUse` for a disk with a label; the message names the graph of the label and the next step.
pub(crate) async fn refuse(node: &PlannedNode, env: &Env, lower: &Lower) -> Result<()> {
    let of = match Store::look(env, lower).await {
        Ok(AreaContent::Label(label, _)) => {
            let Label { disk_name, graph_name, .. } = *label;
            (format!("is disk {disk_name:?} of the graph {graph_name:?}"), graph_name)
        }
        Ok(AreaContent::Wrong(wrong)) if wrong != Wrong::NoMagic => {
            (format!("has {wrong}"), "GRAPH".to_owned())
        }
        // An unreadable disk has no label that a start could use.
        Ok(AreaContent::Wrong(_) | AreaContent::Other(_)) | Err(_) => return Ok(()),
    };
    let (is, graph) = of;
    let place = node.place().unwrap_or_default();
    let error = error!(InUse, "{place} {is}, and a write to the raw disk would destroy the label");
    Err(error.next(format!(
        "cairn import {graph} serves the labelled disk; --read-only serves the raw bytes; cairn \
         wipe {place} removes the label; if a guest uses the disk with its own Cairn, label = \
         false in a spec serves the disk raw"
    )))
}
