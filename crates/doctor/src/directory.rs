//! Checks of all graphs on the disks of a directory, and of the graph that runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use block::Result;
use graph::labels::{Inspected, Labels};
use meta::{Inspection, Label, Uuid, Wrong};

use crate::check::{LockedDisk, ProbedDisk};
use crate::scan::{self, Skipped};
use crate::{Checked, Doctor, Finding, Sort, Soundness};

/// A graph, by its name and its uuid.
pub type GraphKey = (String, Uuid);

/// The copies of the label that were read from a disk, with its path.
pub type DiskCopies = (PathBuf, Inspection);

/// The running graphs, which their servers check.
#[derive(Default)]
pub struct Running<'r> {
    /// Their uuids.
    pub graphs: Vec<&'r str>,
    /// Their disks.
    pub disks: Vec<PathBuf>,
}

/// All graphs on the disks of a directory.
#[derive(Default)]
pub struct CheckedDisks {
    /// The graphs that do not run.
    pub graphs: Vec<Checked>,
    /// Disks with an unreadable label.
    pub unread: Vec<Finding>,
    /// Disks that another process has open, or that cannot be read.
    pub skipped: Vec<Skipped>,
}

impl Doctor {
    /// Checks all graphs on the block devices and the files of `directory`.
    ///
    /// # Errors
    /// As [`Doctor::copies`].
    pub async fn check_directory(
        &self,
        directory: &Path,
        running: &Running<'_>,
    ) -> Result<CheckedDisks> {
        let (disks, skipped) = self.copies(directory).await?;
        // The server of a graph has checked the disks that it has open.
        let is_own = |skipped: &Skipped| {
            let path = scan::real(Path::new(&skipped.path));
            path.is_some_and(|path| running.disks.contains(&path))
        };
        let skipped = skipped.into_iter().filter(|skipped| !is_own(skipped)).collect();
        Ok(self.check_disks(&disks, skipped, running).await)
    }

    /// Checks all graphs on these disks.
    pub async fn check_disks(
        &self,
        disks: &[DiskCopies],
        skipped: Vec<Skipped>,
        running: &Running<'_>,
    ) -> CheckedDisks {
        let places: Vec<_> = disks.iter().map(|(path, _)| path.display().to_string()).collect();
        let unread = places.iter().zip(disks).filter_map(|(place, (_, inspection))| {
            Some(unread(place, inspection, inspection.label.as_ref().err()?))
        });
        let unread = unread.collect();
        let mut held: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for Skipped { path: place, why, label } in &skipped {
            if let Some(label) = label {
                held.entry(of(label)).or_default().push(LockedDisk { place, why, label });
            }
        }
        let seen = by_graph(&places, disks);
        let all: BTreeSet<_> = seen.keys().chain(held.keys()).collect();
        let mut graphs = Vec::new();
        for graph in all {
            // A disk that was removed from a running graph has an old label of the graph.
            if running.graphs.contains(&&*graph.1.to_string()) {
                continue;
            }
            let seen = seen.get(graph).map(|seen| &seen[..]).unwrap_or_default();
            let held = held.get(graph).map(|held| &held[..]).unwrap_or_default();
            graphs.extend(self.check_stopped(seen, held).await);
        }
        CheckedDisks { graphs, unread, skipped }
    }

    /// Checks the labels of a graph that runs. `None` if none of its disks can be read.
    pub async fn check_open(&self, labels: &Labels) -> Option<Checked> {
        let found = labels.inspect().await;
        let seen = found.iter().filter_map(|Inspected { place, label, found }| {
            found.as_ref().ok().map(|inspection| ProbedDisk { place, inspection, label })
        });
        let seen: Vec<_> = seen.collect();
        let mut checked = self.check_running(&seen).await?;
        let unreadable = found.iter().filter_map(|one| Some((one, one.found.as_ref().err()?)));
        checked.findings.extend(unreadable.map(|(Inspected { place, label, .. }, error)| {
            let words = format!("{place} cannot be read: {}", error.message());
            let (sort, name) = (Sort::Unreadable, Some(&*label.disk_name));
            let found = Finding::note(sort, Soundness::Sound, name, words);
            Finding { next: "cairn status".to_owned(), ..found }
        }));
        Some(checked)
    }
}

/// Sorts disks by their graphs.
pub fn by_graph<'s>(
    places: &'s [String],
    disks: &'s [DiskCopies],
) -> BTreeMap<GraphKey, Vec<ProbedDisk<'s>>> {
    let mut graphs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (place, (_, inspection)) in places.iter().zip(disks) {
        if let Ok(Some((label, _))) = &inspection.label {
            graphs.entry(of(label)).or_default().push(ProbedDisk { place, inspection, label });
        }
    }
    graphs
}

/// Returns the graph of a label.
fn of(label: &Label) -> GraphKey {
    (label.graph_name.clone(), label.graph)
}

/// Returns the finding about a disk with an unreadable label. Its graph is unknown.
fn unread(place: &str, inspection: &Inspection, wrong: &Wrong) -> Finding {
    let soundness = match wrong {
        Wrong::Version(_) | Wrong::Features(_) => Soundness::Sound,
        Wrong::NoMagic | Wrong::Damaged(_) => Soundness::Damaged,
    };
    let next = scan::next_for(place, wrong);
    let copies = inspection.copies.iter().filter(|copy| copy.found.is_ok()).count();
    let words = format!("{place} has {wrong} ({copies} of 4 copies can be read)");
    let found = Finding::note(Sort::Unreadable, soundness, None, words);
    Finding { next, blocks: true, ..found }
}
