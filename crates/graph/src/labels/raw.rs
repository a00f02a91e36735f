//! Raw disks that have a label. The first write to such a disk could destroy it.

use block::{Env, Error, ErrorKind, Lower, Result};
use engine::Engine;
use kind::{Maker, Making};
use meta::{AreaContent, Label, Store, Wrong};

use super::probe::OpenDisk;
use crate::spec::{Planned, PlannedNode, Role};

/// Refuses the raw disks of a plan that have a label, as building the graph would. For a preview: it opens each of them
/// read-only. `running` is the plan of the running graph.
///
/// # Errors
/// `InUse` for the first one.
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
        let Ok(device) = make(Making::new(&given, env)).await else { continue };
        let disk = OpenDisk::new(engine, &node.name, device)?;
        refuse(node, env, &disk.lower).await.map_err(|error| error.at(&node.name))?;
    }
    Ok(())
}

/// Whether a disk must be checked for a label: it is raw, may be written, and was not open before. A disk that does not
/// outlive its process has no label. A disk that stays open may have got one from a client since.
pub(crate) fn is_looked_at(
    planned: &Planned,
    node: &PlannedNode,
    before: Option<&Planned>,
) -> bool {
    let is_same =
        |old: &PlannedNode| old.kind.name == node.kind.name && old.place() == node.place();
    let is_writable = !node.info.read_only
        && (planned.exports.iter().any(|export| !export.read_only)
            || planned.nodes.iter().any(|node| matches!(node.kind.maker, Maker::Stateful { .. })));
    let is_raw = node.role == Role::Disk && !node.labelled && !node.said_raw;
    let was_open = before.is_some_and(|before| before.nodes.iter().any(is_same));
    is_raw && is_writable && !was_open && !node.created && node.place().is_some()
}

/// Refuses a disk that has a label.
///
/// # Errors
/// `InUse`, with the graph of the disk and what to do.
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
    let words = format!("{place} {is}, and a write to it as a raw disk would destroy that");
    Err(Error::new(ErrorKind::InUse, words).next(format!("cairn import {graph} serves it; --read-only shows it as it is; cairn wipe \
                         {place} frees it for something else; if it is the disk of a guest that uses \
                         Cairn itself, label = false in a spec serves it raw")))
}
