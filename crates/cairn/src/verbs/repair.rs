//! `cairn repair`: labels are written anew, of which one copy is sound, or that the other disks of a graph know of.

use std::path::{Path, PathBuf};

use api::{Checked, CheckedDisk};
use block::Env;
use clap::Args;
use engine::Engine;
use graph::labels::disks;
use graph::spec::Planned;
use meta::{Inspection, Label, Store};
use serde::Serialize;

use super::check::{Found, by_graph, look};
use super::import::pair;
use super::{confirm, core, wipe};
use crate::check::{Named, Seen, cut, newest, plan};
use crate::exit::{Exit, Failure, Result};
use crate::labels::{machine, open_elsewhere};
use crate::out::Form;
use crate::registry::REGISTRY;
use crate::relabel::{Graph, Relabel, Said, There};
use crate::scan;
use crate::source::{is_spec, read_spec};

/// What `repair` takes.
#[derive(Args)]
pub struct RepairArgs {
    /// A graph, by its name or its spec; all that run, and all that are found, if left out
    graph: Option<PathBuf>,
    /// Look at the files of this directory, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Where a disk is that has lost its label; a disk that a spec names is found by itself
    #[arg(long, value_name = "NAME=PATH", value_parser = pair)]
    disk: Vec<(String, String)>,
    /// The bytes of this disk count as they are, though nothing tells whether they are all there
    #[arg(long, value_name = "DISK")]
    trust: Vec<String>,
    /// Write what another machine has open, too: it is gone for good
    #[arg(long)]
    take: bool,
    /// Say what would be done, and change nothing
    #[arg(long, visible_alias = "dry-run")]
    plan: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// What would be done.
#[derive(Default, Serialize)]
struct Plan {
    /// Disks of which a copy of the label is written anew from another copy.
    renew: Vec<String>,
    /// Disks that get their label back from what others know.
    remake: Vec<Relabel>,
    /// Disks that a spec names and that do not get it, and why.
    not: Vec<String>,
}

/// What was looked at, and what would be done.
#[derive(Serialize)]
struct Shown<'f> {
    #[serde(flatten)]
    found: &'f Found,
    plan: &'f Plan,
}

impl RepairArgs {
    /// Says what would be done, or does it.
    pub fn run(self, form: Form) -> Result {
        let found = look(self.graph.as_deref(), &self.directory)?;
        let plan = self.planned(&found)?;
        if self.plan || plan.is_empty() {
            let shown = Shown { found: &found, plan: &plan };
            form.print(&shown, || format!("{}{}", found.text(), plan.text()))?;
            return Ok(found.exit());
        }
        let places = plan.places().join(", ");
        if !self.yes {
            confirm(&format!("{}write the labels on {places} anew?", plan.text()))?;
        }
        renew_all(&found, self.take)?;
        let core = core()?;
        for remake in &plan.remake {
            core.block_on(remake_label(&core.env(), remake))?;
        }
        let found = look(self.graph.as_deref(), &self.directory)?;
        let shown = Shown { found: &found, plan: &plan };
        form.print(&shown, || format!("{}wrote {places} anew\n", found.text()))?;
        Ok(found.exit())
    }

    fn planned(&self, found: &Found) -> Result<Plan> {
        let ill = |disk: &&CheckedDisk| disk.to_renew;
        let disks = found.graphs.iter().flat_map(|graph| graph.disks.iter().filter(ill));
        let mut plan =
            Plan { renew: disks.map(|disk| disk.place.clone()).collect(), ..Plan::default() };
        self.remakes(found, &self.said()?, &mut plan)?;
        Ok(plan)
    }

    /// Where disks are that may have lost their labels: what the user says, and what the spec says of others.
    fn said(&self) -> Result<Vec<(String, String, bool)>> {
        let by_hand = self.disk.iter().map(|(name, place)| (name.clone(), place.clone(), true));
        let mut said: Vec<_> = by_hand.collect();
        let spec = self.graph.as_ref().filter(|graph| is_spec(graph));
        if let Some(spec) = spec {
            for disk in read_spec(spec)?.labelled(REGISTRY) {
                let place = disk.path();
                let is_said = said.iter().any(|(name, ..)| *name == disk.given.name);
                if let Some(place) = place.filter(|place| !is_said && Path::new(place).exists()) {
                    said.push((disk.given.name.clone(), place.to_owned(), false));
                }
            }
        }
        Ok(said)
    }

    /// The labels that can be made again of what others know, and those of disks that have lost their ends.
    fn remakes(
        &self,
        found: &Found,
        said: &[(String, String, bool)],
        plan: &mut Plan,
    ) -> Result<()> {
        self.is_of_one(found)?;
        let stopped = &found.graphs[found.running.len()..];
        let said = if stopped.len() == 1 && found.running.is_empty() { said } else { &[] };
        let core = core()?;
        let env = core.env();
        let (disks, _) = core.block_on(scan::copies(&env, &self.directory))?;
        let places: Vec<_> = disks.iter().map(|(path, _)| path.display().to_string()).collect();
        let graphs = by_graph(&places, &disks);
        for Checked { uuid, .. } in stopped {
            let of_it = graphs.iter().find(|((_, of), _)| meta::Uuid(*of).to_string() == *uuid);
            let seen = of_it.map(|(_, seen)| &seen[..]).unwrap_or_default();
            core.block_on(self.remakes_of(&env, seen, said, plan))?;
        }
        Ok(())
    }

    /// Whether what is said of disks is said of those of one graph that does not run.
    fn is_of_one(&self, found: &Found) -> Result<()> {
        let option = match (self.disk.is_empty(), self.trust.is_empty()) {
            (true, true) => return Ok(()),
            (false, _) => "--disk",
            (true, false) => "--trust",
        };
        if found.graphs.len() != 1 {
            let why = format!(
                "{option} is for the disks of one graph, and {} are here",
                found.graphs.len()
            );
            return Err(
                Failure::new(Exit::Usage, why).next(format!("cairn repair GRAPH {option} ..."))
            );
        }
        if !found.running.is_empty() {
            let graph = &found.graphs[0].graph;
            let why = format!("{graph} runs, and knows its disks itself");
            return Err(Failure::new(Exit::InUse, why)
                .next(format!("cairn device replace {graph}/NAME PATH; or stop it")));
        }
        Ok(())
    }

    async fn remakes_of(
        &self,
        env: &Env,
        seen: &[Seen<'_>],
        said: &[(String, String, bool)],
        to_do: &mut Plan,
    ) -> Result<()> {
        let Some(newest) = newest(seen) else { return Ok(()) };
        let named: Named = disks(&newest.spec)?;
        let is_named = |seen: &&Seen<'_>| named.values().any(|known| known.disk == seen.label.disk);
        let seen: Vec<Seen<'_>> = seen.iter().filter(is_named).copied().collect();
        let said = self.all_said(&seen, &named, said)?;
        if said.is_empty() {
            return Ok(());
        }
        let planned = match planned_of(env, newest, &named).await {
            Ok(planned) => planned,
            Err(failure) if said.iter().any(|(.., by_hand)| *by_hand) => return Err(failure),
            Err(failure) => {
                to_do.not.push(failure.to_string());
                return Ok(());
            }
        };
        let has_label = |known: &graph::labels::Remembered| {
            let mut seen = seen.iter().filter(|seen| seen.label.disk == known.disk);
            seen.any(|seen| !seen.has_lost_its_end())
        };
        let mut looked = Vec::new();
        for (name, place, by_hand) in &said {
            let trusted = self.trust.contains(name);
            if !by_hand && !trusted && named.get(name).is_none_or(has_label) {
                continue;
            }
            match there(env, place).await {
                Ok(there) => looked.push((Said { name, place, by_hand: *by_hand, trusted }, there)),
                Err(failure) if *by_hand || trusted => return Err(failure),
                Err(failure) => to_do.not.push(failure.to_string()),
            }
        }
        let elsewhere = looked.iter().filter(|(_, there)| there.inspection.lost_end().is_some());
        let cut = cut(&seen, &named).chain(elsewhere.map(|(said, _)| said.name));
        let cut = cut.filter(|name| self.trust.iter().all(|trusted| trusted != name)).collect();
        let lost = said.iter().map(|(name, ..)| name.as_str()).collect();
        let take = self.take;
        let graph =
            Graph { newest, named: &named, planned: &planned, seen: &seen, lost, cut, take };
        for (said, there) in &looked {
            match graph.remake(said, there, &machine()) {
                Ok(remake) => to_do.remake.push(remake),
                Err(failure) if said.by_hand || said.trusted => return Err(failure),
                Err(failure) => to_do.not.push(failure.to_string()),
            }
        }
        Ok(())
    }

    /// What is said of places, and what labels tell of others: of disks that have lost their ends, and of those that
    /// somebody trusts.
    fn all_said(
        &self,
        seen: &[Seen<'_>],
        named: &Named,
        said: &[(String, String, bool)],
    ) -> Result<Vec<(String, String, bool)>> {
        let mut all = said.to_vec();
        for (name, known) in named.iter().filter(|(name, _)| said.iter().all(|one| one.0 != **name))
        {
            let is_wanted = |seen: &&Seen<'_>| self.trust.contains(name) || seen.has_lost_its_end();
            let mut of_it = seen.iter().filter(|seen| seen.label.disk == known.disk);
            if let Some(seen) = of_it.find(is_wanted) {
                all.push((name.clone(), seen.place.to_owned(), false));
            }
        }
        if let Some(name) = self.trust.iter().find(|name| all.iter().all(|one| one.0 != **name)) {
            let why = format!("--trust {name}, and nothing says where {name} is");
            return Err(Failure::new(Exit::Usage, why)
                .next(format!("--disk {name}=PATH, or repair a spec")));
        }
        Ok(all)
    }
}

/// The graph as it would be with all of its disks.
async fn planned_of(env: &Env, newest: &Label, named: &Named) -> Result<Planned> {
    let graph = &newest.graph_name;
    let planned = plan(env, newest, named).await.map_err(|why| {
        let why = format!("{graph}: the spec in its labels cannot be planned: {why}");
        Failure::new(Exit::Damaged, why)
    })?;
    planned.ok_or_else(|| {
        let why = format!("{graph} has disks without a label, and what they are like matters");
        Failure::new(Exit::Unsupported, why)
    })
}

/// Looks at the disk, changing nothing.
async fn there(env: &Env, place: &str) -> Result<There> {
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let node = wipe::open(Path::new(place), true, env, &engine).await?;
    let lower = engine.lower(node);
    let inspection = meta::inspect(env, &lower).await?;
    Ok(There { inspection, block_size: lower.info().block_size })
}

/// Writes a label where there is none.
async fn remake_label(env: &Env, remake: &Relabel) -> Result<()> {
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let node = wipe::open(Path::new(&remake.place), false, env, &engine).await?;
    let lower = engine.lower(node);
    if let Inspection { label: Ok(Some((label, _))), .. } = meta::inspect(env, &lower).await?
        && (remake.over.is_none() || label.sequence != remake.label.sequence)
    {
        let why = format!("{} has another label by now", remake.place);
        return Err(Failure::new(Exit::InUse, why).next("look again"));
    }
    Store::new(env, &lower, remake.label.clone(), remake.over)?.renew().await?;
    engine.forget(node);
    Ok(())
}

/// Labels of which a copy is sound.
fn renew_all(found: &Found, take: bool) -> Result<()> {
    let is_ill = |graph: &&Checked| graph.disks.iter().any(|disk| disk.to_renew);
    let core = core()?;
    let env = core.env();
    for (n, graph) in found.graphs.iter().enumerate().filter(|(_, graph)| is_ill(graph)) {
        if let Some(client) = found.running.get(n) {
            client.repair()?;
            continue;
        }
        for disk in graph.disks.iter().filter(|disk| disk.to_renew) {
            core.block_on(renew(&env, Path::new(&disk.place), take))?;
        }
    }
    Ok(())
}

/// Writes all copies of a label of which one is whole.
async fn renew(env: &Env, path: &Path, take: bool) -> Result<()> {
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let node = wipe::open(path, false, env, &engine).await?;
    let lower = engine.lower(node);
    let inspection = meta::inspect(env, &lower).await?;
    let Ok(Some((label, number))) = inspection.label else {
        let why = format!("{} has no label any more that can be read", path.display());
        return Err(Failure::new(Exit::Damaged, why));
    };
    if label.unknown_read_only != 0 {
        let why =
            format!("{} has a label that this version of Cairn must not write", path.display());
        return Err(Failure::new(Exit::Unsupported, why).next("use a newer version"));
    }
    if let Some(other) = open_elsewhere(&label).filter(|_| !take) {
        // It may be writing the next one.
        let why = format!("{} is open on the machine {other}", path.display());
        return Err(Failure::new(Exit::InUse, why)
            .next("stop it there, and repair it there; if that machine is gone for good, --take"));
    }
    Store::new(env, &lower, label, Some(number))?.renew().await?;
    engine.forget(node);
    Ok(())
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.renew.is_empty() && self.remake.is_empty()
    }

    fn places(&self) -> Vec<&str> {
        let remade = self.remake.iter().map(|remake| remake.place.as_str());
        self.renew.iter().map(String::as_str).chain(remade).collect()
    }

    fn text(&self) -> String {
        let renew =
            self.renew.iter().map(|place| format!("would write the label on {place} anew\n"));
        let remake = self.remake.iter().map(Relabel::text);
        let not = self.not.iter().map(|why| format!("not repaired: {why}\n"));
        let text: String = renew.chain(remake).chain(not).collect();
        match text.is_empty() {
            true => "nothing that a repair could write anew\n".to_owned(),
            false => text,
        }
    }
}
