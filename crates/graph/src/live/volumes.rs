//! The volumes of a running graph: opened by name, and moved to the new devices by a live change.

use std::collections::BTreeMap;
use std::rc::Rc;

use block::answers::LocateStep;
use block::{ByteRange, Env, Error, ErrorKind, Op, OpenMode, Result, VolumeFacts, bail, error};
use engine::{Engine, HeldVolume, NodeId, PausedVolumes, VolumeSet};

use super::allow;
use super::bytes::Differs;
use super::{Current, RunningGraph};
use crate::Graph;
use crate::labels::Labels;
use crate::running::{Before, Member};
use crate::spec::{FoundVolume, FoundVolumes, Planned};

/// Most requests for the status of a volume, to find out whether it is blank. A volume with more parts counts as
/// written.
const STATUS_MAX: usize = 64;

/// Opens the graph of a plan for a start. Deferred nodes are planned and made when the devices that hold their volumes
/// are open; such a device may itself be above a volume. Returns the complete plan and its graph.
pub(crate) async fn open_all(
    mut planned: Planned,
    labels: Option<&Labels>,
    env: &Env,
    engine: &Engine,
    volumes: &VolumeSet,
) -> Result<(Planned, Graph)> {
    let mut graph = Graph::empty(&planned, engine);
    graph.fill(&planned, labels, env, volumes, None).await?;
    let mut all_held = Vec::new();
    while planned.is_deferred() {
        let next = with_next_volumes(&planned, env, engine, volumes).await?;
        let open = graph.members().len();
        all_held.extend(hold_all(volumes, engine, &next, open).await?);
        let unchanged = (0..next.nodes.len()).map(|index| (index < open).then_some(index));
        let (unchanged, handovers) = (unchanged.collect(), BTreeMap::new());
        let before = Before { graph: &graph, planned: &planned, unchanged, handovers };
        let mut more = Graph::empty(&next, engine);
        more.fill(&next, labels, env, volumes, Some(&before)).await?;
        (planned, graph) = (next, more);
    }
    Ok((planned, graph))
}

/// Looks for the volumes on which the deferred nodes of a plan depend first, and plans the graph with them.
///
/// # Errors
/// `Invalid` for the faults of the new plan; as [`VolumeSet::look`].
async fn with_next_volumes(
    planned: &Planned,
    env: &Env,
    engine: &Engine,
    volumes: &VolumeSet,
) -> Result<Planned> {
    let found = look_for(volumes, engine, planned).await?;
    let next = planned.with_volumes(env, found).await;
    next.map_err(|faults| Error::new(ErrorKind::Invalid, faults.to_string()))
}

/// Looks for the volumes on which the deferred nodes of a plan depend first.
///
/// # Errors
/// As [`VolumeSet::look`].
async fn look_for(volumes: &VolumeSet, engine: &Engine, planned: &Planned) -> Result<FoundVolumes> {
    let mut found = FoundVolumes::new();
    for name in planned.volumes_to_find() {
        let volume = match volumes.look(&name).await? {
            Some(VolumeFacts { id, info }) => {
                let is_blank = id.is_some() && is_blank_now(volumes, engine, &name).await?;
                Some(FoundVolume { info, is_blank })
            }
            None => None,
        };
        found.insert(name, volume);
    }
    Ok(found)
}

/// Whether all bytes of a volume are zeros at present. A volume that the graph uses counts as written.
async fn is_blank_now(volumes: &VolumeSet, engine: &Engine, name: &str) -> Result<bool> {
    if volumes.held(name).is_some() {
        return Ok(false);
    }
    let volume = volumes.open(name, OpenMode::Existing).await?;
    match volume.as_ref().and_then(|volume| volume.portal().node()) {
        Some(node) => is_blank(engine, node).await,
        None => Ok(false),
    }
}

/// Whether all bytes of the volume at `node` are zeros, according to its device.
async fn is_blank(engine: &Engine, node: NodeId) -> Result<bool> {
    let (size, mut at) = (engine.info(node).size, 0);
    for _ in 0..STATUS_MAX {
        let Some(range) = ByteRange::between(at, size) else { return Ok(true) };
        let done = engine.lower(node).start(Op::Status { range, extents: Vec::new() }).await;
        let (Ok(()), Op::Status { extents, .. }) = (done.result, done.op) else { return Ok(false) };
        if extents.is_empty() || extents.iter().any(|extent| !extent.state.is_zero()) {
            return Ok(false);
        }
        at += extents.iter().map(|extent| extent.len).sum::<u64>();
    }
    Ok(false)
}

/// Opens the volumes that are nodes of the plan, from node `first` on and up to the first deferred node. A volume that
/// does not exist is created if its name asks for that.
///
/// # Errors
/// As [`VolumeSet::hold`]; `NotFound` for a volume that does not exist any more; `InUse` for one that was written since
/// the plan was made, because a new device on it would destroy these bytes.
pub(super) async fn hold_all(
    volumes: &VolumeSet,
    engine: &Engine,
    planned: &Planned,
    first: usize,
) -> Result<Vec<Rc<HeldVolume>>> {
    let mut all = Vec::new();
    let nodes = planned.nodes[..planned.known_nodes()].iter().skip(first);
    for node in nodes.filter(|node| node.is_volume()) {
        let Some(held) = volumes.hold(&node.name).await? else {
            bail!(NotFound, "no volume {:?}", node.name);
        };
        if let Some((_, at)) = held.node().filter(|_| node.blank)
            && !is_blank(engine, at).await?
        {
            bail!(InUse, "{} was written meanwhile", node.name);
        }
        all.push(held);
    }
    Ok(all)
}

impl RunningGraph {
    /// Returns the volumes of the graph's devices. The set stays the same through all live changes.
    pub fn volumes(&self) -> &VolumeSet {
        &self.volumes
    }

    /// Returns the plan `planned` with the facts about the volumes that it names, as the running graph has them.
    ///
    /// # Errors
    /// `Unsupported` if a device that holds such a volume is not running yet; `Invalid` for faults of the complete plan;
    /// as [`VolumeSet::look`].
    pub async fn with_volumes(&self, mut planned: Planned) -> Result<Planned> {
        while planned.is_deferred() {
            let is_running = |name: &String| {
                let device = name.split('/').next().unwrap_or_default();
                self.now().graph.holders_of_volumes().any(|(holder, _)| holder == device)
            };
            if let Some(name) = planned.volumes_to_find().iter().find(|name| !is_running(name)) {
                return Err(error!(Unsupported, "the device of {name} is not running yet")
                    .next("apply the spec without the devices and exports on its volumes first"));
            }
            planned = with_next_volumes(&planned, &self.env, &self.engine, &self.volumes).await?;
        }
        Ok(planned)
    }

    /// Sets the devices that hold volumes to those of `graph`.
    pub(super) fn set_holders(&self, graph: &Graph) {
        self.volumes.set_holders(graph.holders_of_volumes());
    }

    /// Returns an error if a change to `planned` would remove a device that holds open volumes, or give it other bytes.
    pub(super) fn allow_volumes(
        &self,
        old: &Current,
        planned: &Planned,
        unchanged: &[Option<usize>],
    ) -> Result<()> {
        for name in self.volumes.used_holders() {
            let position = |planned: &Planned| planned.nodes.iter().position(|n| n.name == name);
            let Some(before) = position(&old.planned) else { continue };
            let Some(after) = position(planned) else {
                return Err(error!(
                    InUse,
                    "the change removes {name}, and clients use its volumes"
                )
                .next("disconnect those clients first"));
            };
            if let Err(Differs { new, .. }) = allow::shows(old, planned, unchanged, (before, after))
            {
                return Err(error!(
                    Reason::ChangeOtherBytes,
                    "the open volumes of {name} would have other bytes, as device {} differs",
                    planned.nodes[new].name
                )
                .next("disconnect the clients of the volumes first"));
            }
        }
        Ok(())
    }

    /// Closes the open volumes of a device that is about to be closed.
    pub(super) async fn leave_volumes(graph: &Graph, member: &Member, paused: &PausedVolumes) {
        if graph.volumes(member).is_some() {
            paused.leave(member.node).await;
        }
    }

    /// Returns the device that holds the byte at `offset` of a volume, and below it the places of that byte in each
    /// lower, down to the disks. Opens the volume for the search, and creates nothing.
    ///
    /// # Errors
    /// `NotFound` if there is no such volume, `OutOfRange` if `offset` is past its end; else as [`Graph::locate`].
    pub async fn locate_volume(&self, name: &str, offset: u64) -> Result<LocateStep> {
        if let Some(member) = self.now().graph.members().iter().position(|one| one.name == name) {
            return self.now().graph.locate_member(member, offset).await;
        }
        let Some(volume) = self.volumes.open(name, OpenMode::Existing).await? else {
            bail!(NotFound, "no volume {name:?} in {}", self.now().graph.name());
        };
        let info = volume.portal().info();
        if offset >= info.size {
            bail!(
                OutOfRange,
                "volume {name} has {} bytes; byte {offset} is past the end",
                info.size
            );
        }
        let now = self.now();
        let found = volume.device();
        let found = found.and_then(|(device, node)| {
            let holder = now.graph.members().iter().find(|member| member.node == node)?;
            Some((device, holder))
        });
        let Some((device, holder)) = found else { return Err(in_change(name)) };
        now.graph.locate_volume(name, holder, &*device, offset).await
    }
}

fn in_change(name: &str) -> Error {
    error!(InUse, "a live change of the graph is replacing the device of {name}")
        .next("repeat the command")
}
