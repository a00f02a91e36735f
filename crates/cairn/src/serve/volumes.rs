//! The volumes of a running graph, as the control socket shows them.

use api::{TopRow, VolumePage, VolumeView, VolumesAfter};

use super::live::counts_of;
use super::{Serving, listen};
use crate::exit::Result;

/// Most volumes of one reply.
const PAGE_MAX: usize = 1024;

/// Most open volumes whose request counts are shown, so that a page of metrics has a bound.
const ROWS_MAX: usize = 1024;

impl Serving {
    /// Returns the next volumes after a name, in the order of their names.
    pub(super) async fn volumes(&self, after: &VolumesAfter) -> Result<VolumePage> {
        let most = after.most.min(PAGE_MAX);
        let listed = self.live.volumes().list(&after.after, most).await?;
        let has_more = most > 0 && listed.len() == most;
        let view = |entry: block::VolumeEntry| {
            self.volume_view(entry.name, entry.size_bytes, entry.read_only)
        };
        Ok(VolumePage { volumes: listed.into_iter().map(view).collect(), has_more })
    }

    /// Returns the volume called `name`, or the volume that an opening would create. Opens and creates nothing.
    pub(super) async fn volume(&self, name: &str) -> Result<VolumeView> {
        let Some(facts) = self.live.volumes().look(name).await? else {
            fail!(NotFound, "{} has no volume {name:?}", self.live.now().graph.name());
        };
        Ok(self.volume_view(name.to_owned(), facts.info.data_bytes(), facts.info.read_only))
    }

    fn volume_view(&self, name: String, size_bytes: u64, read_only: bool) -> VolumeView {
        VolumeView {
            uris: listen::uris(&self.listens.borrow(), &name, false),
            is_open: self.live.volumes().is_open(&name),
            attached: self.attachments.of(&name),
            size_bytes,
            read_only,
            name,
        }
    }

    /// Returns the request counts of the open volumes.
    pub(super) fn volume_rows(&self) -> impl Iterator<Item = TopRow> {
        let open = self.live.volumes().open_nodes().into_iter().take(ROWS_MAX);
        let now = self.live.now();
        open.map(move |(name, node)| {
            let device = name.split('/').next().unwrap_or_default();
            let kind = now.graph.member(device).map(|member| member.kind.name).unwrap_or_default();
            let counts = Some(counts_of(&self.engine, node));
            TopRow { kind: kind.to_owned(), fused: Vec::new(), counts, name }
        })
    }
}
