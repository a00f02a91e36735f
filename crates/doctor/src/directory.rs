//! Checks of all graphs with disks in a directory, and of a running graph.

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

/// The path of a disk, and the inspected copies of its label.
pub type DiskCopies = (PathBuf, Inspection);

/// The result of checking all graphs on a list of disks.
#[derive(Default)]
pub struct CheckedDisks {
    /// The checked graphs on these disks, except the running ones.
    pub graphs: Vec<Checked>,
    /// Findings about disks with unreadable labels, whose graphs are unknown.
    pub unread: Vec<Finding>,
}

/// All graphs that a check found: first running graphs, which their servers have checked, then graphs that do not run.
#[derive(Default, Serialize)]
pub struct Found {
    /// The checked graphs, running ones first.
    pub graphs: Vec<findings::Checked>,
    /// Findings about disks with unreadable labels, whose graphs are unknown.
    pub unread: Vec<findings::Finding>,
    /// Disks that were not checked, because another process has them open or they cannot be read; each with the reason.
    pub skipped: Vec<Skipped>,
    /// Number of running graphs. They are the first elements of `graphs`.
    #[serde(skip)]
    pub running: usize,
}

impl Found {
    /// Returns the worst soundness among all graphs and findings.
    pub fn worst(&self) -> Soundness {
        let graphs = self.graphs.iter().map(|graph| graph.soundness);
        let all = graphs.chain(self.unread.iter().map(|finding| finding.soundness));
        all.max().unwrap_or(Soundness::Sound)
    }

    /// Adds a finding for each disk of the stopped graph that is not at the path in its spec `spec`, in the file
    /// `file`: a start looks for the disk only at that path.
    pub fn compare_places(&mut self, spec: &Spec, file: &Path, registry: Registry) {
        let ([graph], 0) = (&mut self.graphs[..], self.running) else { return };
        let real = |place: &str| scan::real(Path::new(place));
        let here: Vec<_> = graph.disks.iter().filter_map(|disk| real(&disk.place)).collect();
        for disk in spec.labelled(registry) {
            let (name, Some(said)) = (&disk.given.name, disk.path()) else { continue };
            let found = graph.disks.iter().find(|disk| disk.name == *name);
            // If the path in the spec is that of another disk of the graph, two paths are swapped, and a start still
            // finds both disks.
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
    /// Checks the graphs on the block devices and on the files of `directory`, and adds them to `found`. If `wanted` is
    /// set, adds only graphs with this name.
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
        // The server of a running graph has checked the disks that the graph has open.
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

    /// Checks all graphs that have labels on `disks` or on `skipped` disks, except the graphs `running`.
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
            // A disk that was removed from a running graph still has a label of that graph.
            if running.iter().any(|running| running.uuid == graph.1.to_string()) {
                continue;
            }
            let seen = seen.get(graph).map(|seen| &seen[..]).unwrap_or_default();
            let held = held.get(graph).map(|held| &held[..]).unwrap_or_default();
            graphs.extend(self.check_stopped(seen, held).await);
        }
        CheckedDisks { graphs, unread }
    }

    /// Checks the labels of the disks that a running graph of this process has open. Returns `None` if none of the
    /// disks can be read.
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

/// Groups disks by the graphs that their labels name. `places` are the paths of the disks as text.
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

/// Returns the finding about the disk at `place` with an unreadable label, so that its graph is unknown.
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
