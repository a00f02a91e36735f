//! `cairn vdisk ls`: lists of virtual disks and snapshots.

use api::Client;
use block::units::{format_duration, format_size};
use indicatif::ProgressBar;
use kinds::vdisks::{
    CountData, DataCount, DataFrom, ListSnapshots, ListVdisks, PAGE_MAX, SnapshotView,
    SnapshotsFrom, VdiskView, VdisksAfter,
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
    /// Bytes that it reads from the snapshot that it was cloned from.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_bytes: Option<u64>,
}

/// A snapshot with the name of its export.
#[derive(Serialize)]
struct Snapshot {
    export: String,
    #[serde(flatten)]
    view: SnapshotView,
    /// Bytes that another version has too.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_bytes: Option<u64>,
}

/// Lists the virtual disks of all pools or of one, or the snapshots of one virtual disk. With `shared` counts what each
/// shares.
pub fn run(form: Form, of: Option<&str>, shared: bool, at: &At) -> Result {
    let count = |client: &Client, pool: &str, mut all: Vec<Vdisk>| {
        if shared {
            count_shared_of_vdisks(client, pool, &mut all)?;
        }
        Ok(all)
    };
    let Some(word) = of else {
        let mut all = Vec::new();
        for client in at.all()? {
            for pool in pools(&client) {
                let pool = pool.join("/");
                // A versioned device has no such list.
                let vdisks = vdisks(&client, &pool).unwrap_or_default();
                let counted: Result<_> = count(&client, &pool, vdisks);
                all.extend(counted?);
            }
        }
        return print_vdisks(form, &all);
    };
    let as_pool = find_pool(at, word);
    let target = match (as_pool, Target::find(at, word)) {
        (_, Ok(target)) => target,
        (Ok((client, pool)), _) if pools(&client).contains(&vec![pool.clone()]) => {
            return print_vdisks(form, &count(&client, &pool, vdisks(&client, &pool)?)?);
        }
        (Ok(_), Err(failure)) | (Err(failure), _) => return Err(failure),
    };
    let mut snapshots = snapshots(&target)?;
    if shared {
        count_shared_of_snapshots(&target, &mut snapshots)?;
    }
    print_snapshots(form, &snapshots)
}

fn count_shared_of_vdisks(client: &Client, pool: &str, all: &mut [Vdisk]) -> Result<()> {
    let bar = ProgressBar::new(all.len() as u64);
    for vdisk in all {
        vdisk.shared_bytes = Some(count_data(client, pool, &vdisk.view.name)?.inherited_bytes);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

fn count_shared_of_snapshots(target: &Target, all: &mut [Snapshot]) -> Result<()> {
    let bar = ProgressBar::new(all.len() as u64);
    for Snapshot { view, shared_bytes, .. } in all {
        let name = match &*target.name {
            "" => view.number.to_string(),
            vdisk => format!("{vdisk}@{}", view.number),
        };
        let data = count_data(&target.client, &target.pool, &name)?;
        *shared_bytes =
            Some((data.own_bytes + data.inherited_bytes).saturating_sub(view.alone_bytes));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Counts the bytes with data of a virtual disk or a snapshot.
fn count_data(client: &Client, pool: &str, version: &str) -> Result<DataCount> {
    let mut all = DataCount { own_bytes: 0, inherited_bytes: 0, next_bytes: Some(0) };
    while let Some(from_bytes) = all.next_bytes {
        let from = DataFrom { version: version.to_owned(), from_bytes };
        let part = client.command::<CountData>(pool, &from)?;
        all.own_bytes += part.own_bytes;
        all.inherited_bytes += part.inherited_bytes;
        all.next_bytes = part.next_bytes;
    }
    Ok(all)
}

/// Returns all virtual disks of a pool.
pub fn vdisks(client: &Client, pool: &str) -> Result<Vec<Vdisk>> {
    let (mut all, mut after): (Vec<Vdisk>, _) = (Vec::new(), String::new());
    loop {
        let page = VdisksAfter { after: after.clone(), most: PAGE_MAX };
        let page = client.command::<ListVdisks>(pool, &page)?.vdisks;
        let is_last = page.len() < PAGE_MAX;
        let full = |view: VdiskView| {
            let export = format!("{pool}/{}", view.name);
            Vdisk { export, view, shared_bytes: None }
        };
        all.extend(page.into_iter().map(full));
        let Some(last) = all.last().filter(|_| !is_last) else { return Ok(all) };
        after.clone_from(&last.view.name);
    }
}

/// Returns all snapshots of a virtual disk.
fn snapshots(target: &Target) -> Result<Vec<Snapshot>> {
    let views = snapshot_views(&target.client, &target.pool, &target.name)?;
    let named = |view: SnapshotView| {
        let name = format!("{}@{}", target.name, snapshot_name(&view));
        let snapshot = Target { name, pool: target.pool.clone(), client: target.client.clone() };
        Snapshot { export: snapshot.export(), view, shared_bytes: None }
    };
    Ok(views.into_iter().map(named).collect())
}

/// Returns the facts about all snapshots of a virtual disk, in the order of their numbers.
pub fn snapshot_views(client: &Client, pool: &str, vdisk: &str) -> Result<Vec<SnapshotView>> {
    let (mut all, mut from): (Vec<SnapshotView>, _) = (Vec::new(), 1);
    loop {
        let page = SnapshotsFrom { vdisk: vdisk.to_owned(), from, most: PAGE_MAX };
        let page = client.command::<ListSnapshots>(pool, &page)?.snapshots;
        let is_last = page.len() < PAGE_MAX;
        all.extend(page);
        let Some(last) = all.last().filter(|_| !is_last) else { return Ok(all) };
        from = last.number + 1;
    }
}

/// Returns the name of a snapshot without that of its virtual disk: its label, or else its number.
pub fn snapshot_name(view: &SnapshotView) -> String {
    view.label.clone().unwrap_or_else(|| view.number.to_string())
}

fn print_vdisks(form: Form, all: &[Vdisk]) -> Result {
    form.print(&all, || {
        let title = ["VDISK", "SIZE", "OWN", "SHARED", "SNAPSHOTS", "AGE", "CLONE OF"];
        let row = |Vdisk { export, view, shared_bytes }: &Vdisk| {
            vec![
                export.clone(),
                format_size(view.size_bytes),
                format_size(view.own_bytes + view.map_bytes),
                shared_bytes.map(format_size).unwrap_or_default(),
                format_size(view.snapshot_bytes),
                format_duration(since(view.made_unix_s)),
                view.origin.clone().unwrap_or_default(),
            ]
        };
        let has_shared = all.iter().any(|it| it.shared_bytes.is_some());
        table(&title, "<>>>>><", all.iter().map(row), has_shared)
    })
}

fn print_snapshots(form: Form, all: &[Snapshot]) -> Result {
    form.print(&all, || {
        let title = ["SNAPSHOT", "NUMBER", "SIZE", "SHARED", "ALONE", "AGE", "CLONES"];
        let row = |Snapshot { export, view, shared_bytes }: &Snapshot| {
            vec![
                export.clone(),
                view.number.to_string(),
                format_size(view.size_bytes),
                shared_bytes.map(format_size).unwrap_or_default(),
                format_size(view.alone_bytes),
                format_duration(since(view.taken_unix_us / 1_000_000)),
                view.clones.to_string(),
            ]
        };
        let has_shared = all.iter().any(|it| it.shared_bytes.is_some());
        table(&title, "<>>>>>>", all.iter().map(row), has_shared)
    })
}

/// Index of the column with shared bytes.
const SHARED: usize = 3;

/// Returns a table, without the column of shared bytes if these were not counted.
fn table(
    title: &[&str],
    sides: &str,
    rows: impl Iterator<Item = Vec<String>>,
    has_shared: bool,
) -> String {
    let title = title.iter().map(|word| (*word).to_owned()).collect();
    let mut sides = sides.to_owned();
    let mut rows: Vec<Vec<String>> = std::iter::once(title).chain(rows).collect();
    if !has_shared {
        sides.remove(SHARED);
        rows.iter_mut().for_each(|row| drop(row.remove(SHARED)));
    }
    columns(&sides, &rows)
}
