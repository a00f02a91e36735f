//! The routes of the control socket for volumes and virtual disks. Each request is a command to the device that holds
//! them. The fields of a query are listed one by one, because the numbers of flattened arguments would stay text.

use std::rc::Rc;
use std::sync::Arc;

use api::routes::{self, Route, get};
use api::{Bridge, CommandTo, Handler};
use block::control::{Verb, volume};
use kinds::vdisks::{
    CloneOf, CountData, DataCount, DataFrom, Keep, ListSnapshots, ListVdisks, PAGE_MAX, RollBack,
    SetLabel, SetQuota, SetTaking, Snapshot, SnapshotPage, SnapshotsFrom, Vdisks, VdisksAfter,
};
use serde::Deserialize;

use super::Serving;
use super::live::on;

/// A request for a page of the virtual disks of a device.
#[derive(Deserialize)]
struct VdisksQuery {
    device: String,
    #[serde(default)]
    after: String,
    #[serde(default = "longest_page")]
    most: usize,
}

/// A request for a page of the snapshots of a virtual disk.
#[derive(Deserialize)]
struct SnapshotsQuery {
    device: String,
    #[serde(default)]
    vdisk: String,
    #[serde(default = "first_snapshot")]
    from: u64,
    #[serde(default = "longest_page")]
    most: usize,
}

/// A request for the bytes with data of a virtual disk or a snapshot.
#[derive(Deserialize)]
struct DataQuery {
    device: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    from_bytes: u64,
}

fn longest_page() -> usize {
    PAGE_MAX
}

fn first_snapshot() -> u64 {
    1
}

const VDISKS: Route<VdisksQuery, Vdisks> = get("/v1/vdisks");
const DATA: Route<DataQuery, DataCount> = get("/v1/vdisk/data");
const SNAPSHOTS: Route<SnapshotsQuery, SnapshotPage> = get("/v1/vdisk/snapshots");

/// Returns the handlers of these routes.
pub fn handlers() -> Vec<Handler<Arc<Bridge<Serving>>>> {
    vec![
        on(&VDISKS, async |serving, VdisksQuery { device, after, most }| {
            Ok(serving.command_to::<ListVdisks>(&device, VdisksAfter { after, most }).await?)
        }),
        on(&SNAPSHOTS, async |serving, SnapshotsQuery { device, vdisk, from, most }| {
            let page = SnapshotsFrom { vdisk, from, most };
            Ok(serving.command_to::<ListSnapshots>(&device, page).await?)
        }),
        on(&DATA, async |serving, DataQuery { device, version, from_bytes }| {
            let from = DataFrom { version, from_bytes };
            Ok(serving.command_to::<CountData>(&device, from).await?)
        }),
        command::<volume::Create>("/v1/volume/create"),
        command::<volume::Remove>("/v1/volume/remove"),
        command::<volume::Resize>("/v1/volume/resize"),
        command::<Snapshot>("/v1/vdisk/snapshot"),
        command::<CloneOf>("/v1/vdisk/clone"),
        command::<RollBack>("/v1/vdisk/rollback"),
        command::<SetLabel>("/v1/vdisk/label"),
        command::<SetTaking>("/v1/vdisk/take"),
        command::<Keep>("/v1/vdisk/keep"),
        command::<SetQuota>("/v1/vdisk/quota"),
    ]
}

/// Returns the handler of the route at `path`, which carries out commands of verb `V`.
fn command<V: Verb>(path: &'static str) -> Handler<Arc<Bridge<Serving>>>
where
    V::Args: Send,
    V::Answer: Send,
{
    on(&routes::command::<V>(path), async |serving: Rc<Serving>, request: CommandTo<V::Args>| {
        Ok(serving.command_to::<V>(&request.device, request.args).await?)
    })
}
