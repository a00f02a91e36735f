//! A raw disk that has a label: its graph would lose it to the first write.

use block::{Env, Error, ErrorKind, Lower, Result};
use engine::Engine;
use kind::{Maker, Making, Value};
use meta::{Label, Seen, Store, Wrong};

use super::probe::OpenDisk;
use crate::spec::{Planned, PlannedNode, Role};

/// Refuses the raw disks of a plan that have a label, as building the graph would. For a look at what would be: it
/// opens each of them read-only. `running`: the plan of the graph that runs.
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
        if node.kind.options.iter().any(|option| option.name == "read_only") {
            given.options.push(("read_only", Value::Switch(true)));
        }
        // A disk that is not there yet, or is in use, is the plan's to refuse.
        let Ok(device) = make(Making::new(&given, env)).await else { continue };
        let disk = OpenDisk::new(engine, &node.name, device)?;
        refuse(node, env, &disk.lower).await.map_err(|error| error.at(&node.name))?;
    }
    Ok(())
}

/// Whether a disk is raw, may be written, and was not open before: only such a one is looked at. A disk that goes with
/// its process has no label, and a disk that stays open may have been given one by a client since.
pub(crate) fn is_looked_at(
    planned: &Planned,
    node: &PlannedNode,
    before: Option<&Planned>,
) -> bool {
    let place = |node: &PlannedNode| node.place().map(str::to_owned);
    let is_same = |old: &PlannedNode| old.kind.name == node.kind.name && place(old) == place(node);
    let is_writable = !node.info.read_only
        && (planned.exports.iter().any(|export| !export.read_only)
            || planned.nodes.iter().any(|node| matches!(node.kind.maker, Maker::Stateful { .. })));
    let is_raw = node.role == Role::Disk && !node.labelled && !node.said_raw;
    let was_open = before.is_some_and(|before| before.nodes.iter().any(is_same));
    is_raw && is_writable && !was_open && !node.created && place(node).is_some()
}

/// Refuses a disk that has a label.
///
/// # Errors
/// `InUse`, with the graph of the disk and what to do.
pub(crate) async fn refuse(node: &PlannedNode, env: &Env, lower: &Lower) -> Result<()> {
    let of = match Store::look(env, lower).await {
        Ok(Seen::Label(label, _)) => {
            let Label { disk_name, graph_name, .. } = *label;
            (format!("is disk {disk_name:?} of the graph {graph_name:?}"), graph_name)
        }
        Ok(Seen::Wrong(wrong)) if wrong != Wrong::NoMagic => {
            (format!("has {wrong}"), "GRAPH".to_owned())
        }
        // What cannot be read has no label that a start could use.
        Ok(Seen::Wrong(_) | Seen::Other(_)) | Err(_) => return Ok(()),
    };
    let (is, graph) = of;
    let place = node.place().unwrap_or_default();
    let words = format!("{place} {is}, and a write to it as a raw disk would destroy that");
    Err(Error::new(ErrorKind::InUse, words).next(format!("cairn import {graph} serves it; --read-only shows it as it is; cairn wipe \
                         {place} frees it for something else; if it is the disk of a guest that uses \
                         Cairn itself, label = false in a spec serves it raw")))
}
