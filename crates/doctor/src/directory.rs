//! Checks of all graphs on the disks of a directory, and of the graph that runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use block::Result;
use block::findings::{self, Soundness};
use graph::labels::{Inspected, Labels};
use graph::spec::Spec;
use kind::Registry;
use meta::{Inspection, Label, Uuid, Wrong};
use serde::Serialize;

use crate::check::{LockedDisk, ProbedDisk};
use crate::scan::{self, Skipped};
use crate::{Checked, Doctor, Finding, Sort};

/// The name and the uuid of a graph, which identify it among found graphs.
pub type GraphKey = (String, Uuid);

/// The path of a disk, and the copies of the label that were read from it.
pub type DiskCopies = (PathBuf, Inspection);

/// The result of checking all graphs on a set of disks.
#[derive(Default)]
pub struct CheckedDisks {
    /// The graphs on these disks that are not running.
    pub graphs: Vec<Checked>,
    /// Findings on disks whose labels cannot be read.
    pub unread: Vec<Finding>,
}

/// All graphs that a check found: first the running graphs, which their servers have checked, then the graphs on disks.
#[derive(Default, Serialize)]
pub struct Found {
    /// The checked graphs, running ones first.
    pub graphs: Vec<findings::Checked>,
    /// Findings on disks whose labels cannot be read.
    pub unread: Vec<findings::Finding>,
    /// Disks that another process has open or that cannot be read, with the reason.
    pub skipped: Vec<Skipped>,
    /// Number of running graphs, which are the first of `graphs`.
    #[serde(skip)]
    pub running: usize,
}

impl Found {
    /// Returns the worst soundness of all graphs and findings.
    pub fn worst(&self) -> Soundness {
        let graphs = self.graphs.iter().map(|graph| graph.soundness);
        let all = graphs.chain(self.unread.iter().map(|finding| finding.soundness));
        all.max().unwrap_or(Soundness::Sound)
    }

    /// Adds findings for disks of a stopped graph that are not at the path in its spec, since a start looks for them
    /// only there.
    pub fn compare_places(&mut self, spec: &Spec, file: &Path, registry: Registry) {
        let ([graph], 0) = (&mut self.graphs[..], self.running) else { return };
        let real = |place: &str| scan::real(Path::new(place));
        let here: Vec<_> = graph.disks.iter().filter_map(|disk| real(&disk.place)).collect();
        for disk in spec.labelled(registry) {
            let (name, Some(said)) = (&disk.given.name, disk.path()) else { continue };
            let found = graph.disks.iter().find(|disk| disk.name == *name);
            // If the place in the spec is that of another disk of the graph, the two are only swapped, which is fine.
            let Some(found) = found.filter(|_| real(said).is_none_or(|said| !here.contains(&said)))
            else {
                continue;
            };
            let (spec, is) = (file.display(), &found.place);
            let soundness = Soundness::Repairable;
            let words = format!("the disk is at {is}, but {spec} has {said}");
            let next = format!("write {is} in {spec}, or move the disk back to {said}");
            let name = Some(name.clone());
            graph.findings.push(findings::Finding { soundness, name, words, next });
            graph.soundness = graph.soundness.max(soundness);
        }
    }
}

impl Doctor {
    /// Checks the graphs on the block devices and on the files of `directory`, and adds them to `found`; only those
    /// with the name `wanted`, if it is set.
    ///
    /// # Errors
    /// As [`Doctor::copies`].
    pub async fn check_directory(
        &self,
        directory: &Path,
        wanted: Option<&str>,
        found: &mut Found,
    ) -> Result<()> {
        let (disks, mut skipped) = self.copies(directory).await?;
        // The server of a graph has checked the disks that it has open.
        let real = |place: &str| scan::real(Path::new(place));
        let open: Vec<_> = found.graphs.iter().flat_map(|graph| &graph.disks).collect();
        let open: Vec<_> = open.iter().filter_map(|disk| real(&disk.place)).collect();
        skipped.retain(|skipped| real(&skipped.path).is_none_or(|path| !open.contains(&path)));
        let checked = self.check_disks(&disks, &skipped, &found.graphs).await;
        found.skipped = skipped;
        found.unread.extend(checked.unread.into_iter().map(Into::into));
        let is_wanted = |graph: &Checked| wanted.is_none_or(|wanted| graph.graph == wanted);
        let graphs = checked.graphs.into_iter().filter(is_wanted);
        found.graphs.extend(graphs.map(|graph| graph.map(Into::into)));
        Ok(())
    }

    /// Checks all graphs that have labels on `disks`, except for the graphs in `running`.
    pub async fn check_disks(
        &self,
        disks: &[DiskCopies],
        skipped: &[Skipped],
        running: &[findings::Checked],
    ) -> CheckedDisks {
        let places: Vec<_> = disks.iter().map(|(path, _)| path.display().to_string()).collect();
        let unread = places.iter().zip(disks).filter_map(|(place, (_, inspection))| {
            Some(unread(place, inspection, inspection.label.as_ref().err()?))
        });
        let unread = unread.collect();
        let mut held: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for Skipped { path: place, why, label } in skipped {
            if let Some(label) = label {
                held.entry(graph_of(label)).or_default().push(LockedDisk { place, why, label });
            }
        }
        let seen = by_graph(&places, disks);
        let all: BTreeSet<_> = seen.keys().chain(held.keys()).collect();
        let mut graphs = Vec::new();
        for graph in all {
            // A disk that was removed from a running graph has an old label of the graph.
            if running.iter().any(|running| running.uuid == graph.1.to_string()) {
                continue;
            }
            let seen = seen.get(graph).map(|seen| &seen[..]).unwrap_or_default();
            let held = held.get(graph).map(|held| &held[..]).unwrap_or_default();
            graphs.extend(self.check_stopped(seen, held).await);
        }
        CheckedDisks { graphs, unread }
    }

    /// Checks the labels of the disks that a running graph has open. Returns `None` if none of these disks can be read.
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
            Finding::note(sort, Soundness::Sound, name, words).next("cairn status")
        }));
        Some(checked)
    }
}

/// Groups disks by the graph that their labels name.
pub fn by_graph<'s>(
    places: &'s [String],
    disks: &'s [DiskCopies],
) -> BTreeMap<GraphKey, Vec<ProbedDisk<'s>>> {
    let mut graphs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (place, (_, inspection)) in places.iter().zip(disks) {
        if let Ok(Some((label, _))) = &inspection.label {
            graphs.entry(graph_of(label)).or_default().push(ProbedDisk {
                place,
                inspection,
                label,
            });
        }
    }
    graphs
}

/// Returns the name and uuid of the graph that a label names.
pub fn graph_of(label: &Label) -> GraphKey {
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
