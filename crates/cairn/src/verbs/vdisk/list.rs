//! `cairn vdisk ls`: lists of virtual disks and snapshots.

use api::Client;
use block::units::{format_duration, format_size};
use kinds::vdisks::{
    ListSnapshots, ListVdisks, PAGE_MAX, SnapshotView, SnapshotsFrom, VdiskView, VdisksAfter,
};
use serde::Serialize;

use super::name::{Target, find_pool, pools};
use crate::exit::Result;
use crate::out::{Form, columns, since};
use crate::running::At;

/// A virtual disk with the name of its export.
#[derive(Serialize)]
pub struct Vdisk {
    pub export: String,
    #[serde(flatten)]
    pub view: VdiskView,
}

/// A snapshot with the name of its export.
#[derive(Serialize)]
struct Snapshot {
    export: String,
    #[serde(flatten)]
    view: SnapshotView,
}

/// Lists the virtual disks of all pools or of one, or the snapshots of one virtual disk.
pub fn run(form: Form, of: Option<&str>, at: &At) -> Result {
    let Some(word) = of else {
        let mut all = Vec::new();
        for client in at.all()? {
            for pool in pools(&client) {
                all.extend(vdisks(&client, &pool.join("/")).unwrap_or_default());
            }
        }
        return print_vdisks(form, &all);
    };
    let as_pool = find_pool(at, word);
    let target = match (as_pool, Target::find(at, word)) {
        (_, Ok(target)) => target,
        (Ok((client, pool)), _) if pools(&client).contains(&vec![pool.clone()]) => {
            return print_vdisks(form, &vdisks(&client, &pool)?);
        }
        (Ok(_), Err(failure)) | (Err(failure), _) => return Err(failure),
    };
    let snapshots = snapshots(&target)?;
    form.print(&snapshots, || {
        let title =
            ["SNAPSHOT", "NUMBER", "SIZE", "ALONE", "AGE", "CLONES"].map(str::to_owned).to_vec();
        let row = |Snapshot { export, view }: &Snapshot| {
            vec![
                export.clone(),
                view.number.to_string(),
                format_size(view.size_bytes),
                format_size(view.alone_bytes),
                format_duration(since(view.taken_unix_us / 1_000_000)),
                view.clones.to_string(),
            ]
        };
        let rows = std::iter::once(title).chain(snapshots.iter().map(row));
        columns("<>>>>>", &rows.collect::<Vec<_>>())
    })
}

/// Returns all virtual disks of a pool.
pub fn vdisks(client: &Client, pool: &str) -> Result<Vec<Vdisk>> {
    let (mut all, mut after): (Vec<Vdisk>, _) = (Vec::new(), String::new());
    loop {
        let page = VdisksAfter { after: after.clone(), most: PAGE_MAX };
        let page = client.command::<ListVdisks>(pool, &page)?.vdisks;
        let is_last = page.len() < PAGE_MAX;
        let full = |view: VdiskView| Vdisk { export: format!("{pool}/{}", view.name), view };
        all.extend(page.into_iter().map(full));
        let Some(last) = all.last().filter(|_| !is_last) else { return Ok(all) };
        after.clone_from(&last.view.name);
    }
}

/// Returns all snapshots of a virtual disk.
fn snapshots(target: &Target) -> Result<Vec<Snapshot>> {
    let (mut all, mut from): (Vec<Snapshot>, _) = (Vec::new(), 1);
    loop {
        let page = SnapshotsFrom { vdisk: target.name.clone(), from, most: PAGE_MAX };
        let page = target.client.command::<ListSnapshots>(&target.pool, &page)?.snapshots;
        let is_last = page.len() < PAGE_MAX;
        all.extend(page.into_iter().map(|view| {
            let name = view.label.clone().unwrap_or_else(|| view.number.to_string());
            let name = format!("{}@{name}", target.name);
            let snapshot =
                Target { name, pool: target.pool.clone(), client: target.client.clone() };
            Snapshot { export: snapshot.export(), view }
        }));
        let Some(last) = all.last().filter(|_| !is_last) else { return Ok(all) };
        from = last.view.number + 1;
    }
}

fn print_vdisks(form: Form, all: &[Vdisk]) -> Result {
    form.print(&all, || {
        let title =
            ["VDISK", "SIZE", "OWN", "SNAPSHOTS", "AGE", "CLONE OF"].map(str::to_owned).to_vec();
        let row = |Vdisk { export, view }: &Vdisk| {
            vec![
                export.clone(),
                format_size(view.size_bytes),
                format_size(view.own_bytes + view.map_bytes),
                format_size(view.snapshot_bytes),
                format_duration(since(view.made_unix_s)),
                view.origin.clone().unwrap_or_default(),
            ]
        };
        let rows = std::iter::once(title).chain(all.iter().map(row));
        columns("<>>>><", &rows.collect::<Vec<_>>())
    })
}
