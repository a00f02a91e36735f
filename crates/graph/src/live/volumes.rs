//! The volumes of a running graph: opened by name, and moved to the new devices by a live change.

use block::answers::LocateStep;
use block::{Error, OpenMode, Result, bail, error};
use engine::{PausedVolumes, VolumeSet};

use super::allow;
use super::bytes::Differs;
use super::{Current, RunningGraph};
use crate::Graph;
use crate::running::Member;
use crate::spec::Planned;

impl RunningGraph {
    /// Returns the volumes of the graph's devices. The set stays the same through all live changes.
    pub fn volumes(&self) -> &VolumeSet {
        &self.volumes
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
