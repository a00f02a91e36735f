//! Plans of repairs of labels, and the writes that they need.

use std::path::Path;

use block::{Error, ErrorKind, Result, bail, error, findings};
use graph::labels::{Remembered, disks, newest};
use graph::spec::{Planned, Spec};
use kind::Registry;
use meta::{Label, Store};
use serde::Serialize;

use crate::check::{Named, ProbedDisk, cut, plan};
use crate::directory::by_graph;
use crate::relabel::{Graph, NamedPlace, PlaceContent, Relabel, check_writable};
use crate::{Doctor, Found, scan};

/// The name of a disk, its path, and whether the operator named the path (else a spec did).
pub type NamedPath = (String, String, bool);

/// The labels that a repair would write to disks.
#[derive(Default, Serialize)]
pub struct Plan {
    /// Paths of the disks with damaged copies of their label. The repair rewrites the copies from an intact one.
    pub renew: Vec<String>,
    /// The new labels for disks that have lost theirs, made from the labels of the other disks of the graph.
    pub relabels: Vec<Relabel>,
    /// Reasons why other disks that the spec names get no label.
    pub not: Vec<String>,
}

impl Plan {
    /// Whether the repair would write no label.
    pub fn is_empty(&self) -> bool {
        self.renew.is_empty() && self.relabels.is_empty()
    }

    /// Returns the paths of the disks to which the repair would write a label.
    pub fn places(&self) -> Vec<&str> {
        let remade = self.relabels.iter().map(|relabels| relabels.place.as_str());
        self.renew.iter().map(String::as_str).chain(remade).collect()
    }

    /// Returns the text of the plan for the user: a line for each disk.
    pub fn text(&self) -> String {
        let renew = |place: &String| format!("would rewrite the label on {place}\n");
        let not = self.not.iter().map(|why| format!("not repaired: {why}\n"));
        let text = self.renew.iter().map(renew).chain(self.relabels.iter().map(Relabel::text));
        match text.chain(not).collect::<String>() {
            text if text.is_empty() => "no label to repair\n".to_owned(),
            text => text,
        }
    }
}

/// The decisions of an operator about a repair.
pub struct Asked<'a> {
    /// Paths of disks that have lost their labels, each with the name of the disk.
    pub places: &'a [(String, String)],
    /// The spec of the graph, which may name the paths of further disks.
    pub spec: Option<&'a Spec>,
    /// Names of the disks whose bytes the operator declares correct as they are (`--trust`).
    pub trusted: &'a [String],
    /// Whether a label may be written although it names another machine that has the disk open (`--take`).
    pub take: bool,
}

impl Doctor {
    /// Plans the repair of the graphs `found`: which damaged copies of labels can be rewritten from an intact copy, and
    /// which lost labels can be made from those of other disks in `directory`.
    ///
    /// # Errors
    /// If a disk that the operator named gets no label; `Invalid` or `InUse` if the operator named disks, and `found`
    /// is not a single graph that does not run.
    pub async fn plan_repair(
        &self,
        found: &Found,
        directory: &Path,
        asked: &Asked<'_>,
    ) -> Result<Plan> {
        asked.is_of_one(found)?;
        let to_renew = found.graphs.iter().flat_map(to_renew).map(str::to_owned);
        let mut plan = Plan { renew: to_renew.collect(), ..Plan::default() };
        let is_one = found.running == 0 && found.graphs.len() == 1;
        let said = if is_one { asked.said(self.registry) } else { Vec::new() };
        let (disks, _) = self.copies(directory).await?;
        let places: Vec<_> = disks.iter().map(|(path, _)| path.display().to_string()).collect();
        let on_disks = by_graph(&places, &disks);
        for graph in &found.graphs[found.running..] {
            let of_it = on_disks.iter().find(|((_, uuid), _)| uuid.to_string() == graph.uuid);
            let seen = of_it.map(|(_, seen)| &seen[..]).unwrap_or_default();
            asked.relabels_of(self, seen, &said, &mut plan).await?;
        }
        Ok(plan)
    }

    /// Writes the labels of `plan` to the disks of the graphs in `found` that are not running.
    ///
    /// # Errors
    /// The error of the first label that cannot be written. The repair stops there.
    pub async fn repair(&self, found: &Found, plan: &Plan, take: bool) -> Result<()> {
        for place in found.graphs[found.running..].iter().flat_map(to_renew) {
            self.renew(Path::new(place), take).await?;
        }
        for relabel in &plan.relabels {
            self.write_label(relabel).await?;
        }
        Ok(())
    }

    /// Reads the label copies and the block size of the disk at `place`.
    async fn there(&self, place: &str) -> Result<PlaceContent> {
        let disk = self.open(Path::new(place), true).await?;
        let inspection = meta::inspect(&self.env, disk.lower()).await?;
        Ok(PlaceContent { inspection, block_size: disk.lower().info().block_size })
    }

    /// Writes a planned label to its disk: a first label, or the successor of the label that the plan has seen.
    ///
    /// # Errors
    /// `InUse` if the disk has another label by now than the plan has seen; errors of the disk.
    async fn write_label(&self, relabel: &Relabel) -> Result<()> {
        let disk = self.open(Path::new(&relabel.place), false).await?;
        if relabel.is_outdated(&meta::inspect(&self.env, disk.lower()).await?) {
            return Err(error!(
                InUse,
                "the label on {} has changed since the check", relabel.place
            )
            .next("run cairn repair again"));
        }
        let store = Store::new(&self.env, disk.lower(), relabel.label.clone(), relabel.over)?;
        store.renew().await
    }

    /// Rewrites all copies of the label of the disk at `path` from an intact copy. With `take`, does so even if another
    /// machine has the disk open.
    ///
    /// # Errors
    /// `Corrupt` if no copy can be read any more; `Unsupported` if this version of Cairn must not write the label;
    /// `InUse` if another machine has the disk open; errors of the disk.
    async fn renew(&self, path: &Path, take: bool) -> Result<()> {
        let disk = self.open(path, false).await?;
        let inspection = meta::inspect(&self.env, disk.lower()).await?;
        let path = path.display();
        let Ok(Some((label, number))) = inspection.label else {
            bail!(Corrupt, "{path} no longer has a readable label");
        };
        check_writable(&path.to_string(), &label, &self.machine, take)?;
        Store::new(&self.env, disk.lower(), label, Some(number))?.renew().await
    }
}

impl Asked<'_> {
    /// Returns the places of disks that may have lost their labels: the named ones, and then those of the spec.
    fn said(&self, registry: Registry) -> Vec<NamedPath> {
        let by_hand = self.places.iter().map(|(name, place)| (name.clone(), place.clone(), true));
        let mut said: Vec<_> = by_hand.collect();
        for disk in self.spec.iter().flat_map(|spec| spec.labelled(registry)) {
            let (name, place) = (&disk.given.name, disk.path());
            let is_said = said.iter().any(|(known, ..)| known == name);
            let is_there = |place: &&str| !is_said && scan::real(Path::new(place)).is_some();
            said.extend(place.filter(is_there).map(|at| (name.clone(), at.to_owned(), false)));
        }
        said
    }

    /// Checks that `found` is a single graph that does not run, if the operator named disks.
    fn is_of_one(&self, found: &Found) -> Result<()> {
        let option = match (self.places.is_empty(), self.trusted.is_empty()) {
            (true, true) => return Ok(()),
            (false, _) => "--disk",
            (true, false) => "--trust",
        };
        let [graph] = &found.graphs[..] else {
            let count = found.graphs.len();
            let why = format!("{option} is for the disks of one graph; {count} graphs are found");
            let next = format!("cairn repair GRAPH {option} ...");
            return Err(Error::new(ErrorKind::Invalid, why).next(next));
        };
        if found.running == 0 {
            return Ok(());
        }
        let name = &graph.graph;
        let next = format!("cairn device replace {name}/NAME PATH; or stop the graph");
        Err(error!(InUse, "{name} is running, so {option} cannot name its disks").next(next))
    }

    async fn relabels_of(
        &self,
        doctor: &Doctor,
        seen: &[ProbedDisk<'_>],
        said: &[NamedPath],
        to_do: &mut Plan,
    ) -> Result<()> {
        let Some(newest) = newest(seen.iter().map(|seen| seen.label)) else { return Ok(()) };
        let named: Named = disks(&newest.spec)?;
        let is_named =
            |seen: &&ProbedDisk<'_>| named.values().any(|known| known.disk == seen.label.disk);
        let seen: Vec<ProbedDisk<'_>> = seen.iter().filter(is_named).copied().collect();
        let said = self.all_said(&seen, &named, said)?;
        if said.is_empty() {
            return Ok(());
        }
        let planned = match planned_of(doctor, newest, &named).await {
            Ok(planned) => planned,
            Err(error) if said.iter().any(|(.., by_hand)| *by_hand) => return Err(error),
            Err(error) => {
                to_do.not.push(error.to_string());
                return Ok(());
            }
        };
        let has_label = |known: &Remembered| {
            let mut seen = seen.iter().filter(|seen| seen.label.disk == known.disk);
            seen.any(|seen| !seen.has_lost_its_end())
        };
        let mut looked = Vec::new();
        for (name, place, by_hand) in &said {
            let trusted = self.trusted.contains(name);
            if !by_hand && !trusted && named.get(name).is_none_or(has_label) {
                continue;
            }
            match doctor.there(place).await {
                Ok(there) => {
                    looked.push((NamedPlace { name, place, by_hand: *by_hand, trusted }, there))
                }
                Err(error) if *by_hand || trusted => return Err(error),
                Err(error) => to_do.not.push(error.to_string()),
            }
        }
        let elsewhere = looked.iter().filter(|(_, there)| there.inspection.lost_end().is_some());
        let cut = cut(&seen, &named).chain(elsewhere.map(|(said, _)| said.name));
        let cut = cut.filter(|name| self.trusted.iter().all(|trusted| trusted != name)).collect();
        let lost = said.iter().map(|(name, ..)| name.as_str()).collect();
        let take = self.take;
        let graph =
            Graph { newest, named: &named, planned: &planned, seen: &seen, lost, cut, take };
        for (said, there) in &looked {
            match graph.relabel(said, there, &doctor.machine) {
                Ok(relabel) => to_do.relabels.push(relabel),
                Err(error) if said.by_hand || said.trusted => return Err(error),
                Err(error) => to_do.not.push(error.to_string()),
            }
        }
        Ok(())
    }

    /// Returns the paths in `said`, and the paths of further disks: those that have lost the label at one end, and
    /// trusted ones.
    fn all_said(
        &self,
        seen: &[ProbedDisk<'_>],
        named: &Named,
        said: &[NamedPath],
    ) -> Result<Vec<NamedPath>> {
        let mut all = said.to_vec();
        for (name, known) in named.iter().filter(|(name, _)| said.iter().all(|one| one.0 != **name))
        {
            let is_wanted =
                |seen: &&ProbedDisk<'_>| self.trusted.contains(name) || seen.has_lost_its_end();
            let mut of_it = seen.iter().filter(|seen| seen.label.disk == known.disk);
            if let Some(seen) = of_it.find(is_wanted) {
                all.push((name.clone(), seen.place.to_owned(), false));
            }
        }
        if let Some(name) = self.trusted.iter().find(|name| all.iter().all(|one| one.0 != **name)) {
            return Err(error!(
                Invalid,
                "--trust {name}: the place of the disk {name} is not known"
            )
            .next(format!("--disk {name}=PATH, or repair a spec")));
        }
        Ok(all)
    }
}

/// Plans the graph of the label `newest` with all of its disks, present or not.
async fn planned_of(doctor: &Doctor, newest: &Label, named: &Named) -> Result<Planned> {
    let graph = &newest.graph_name;
    let planned = plan(doctor, newest, named).await.map_err(|why| {
        error!(Corrupt, "{graph}: the spec in the labels cannot be planned: {why}")
    })?;
    planned.ok_or_else(|| {
        error!(Unsupported, "{graph} has unlabelled disks, whose properties the check needs")
    })
}

/// Returns the paths of the disks of a checked graph that have a damaged copy of their label.
fn to_renew(graph: &findings::Checked) -> impl Iterator<Item = &str> {
    graph.disks.iter().filter(|disk| disk.to_renew).map(|disk| disk.place.as_str())
}
