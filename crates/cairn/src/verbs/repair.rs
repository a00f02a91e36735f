//! `cairn repair`: rewrites labels from a sound copy of their own, or from the labels of the graph's other disks.

use std::path::{Path, PathBuf};

use api::{Checked, CheckedDisk};
use clap::Args;
use doctor::relabel::Relabel;
use doctor::repair::{Asked, Plan, SaidPlace};
use serde::Serialize;

use super::check::{Found, look};
use super::import::pair;
use super::{confirm, core};
use crate::exit::{Exit, Failure, Result};
use crate::labels;
use crate::out::Form;
use crate::registry::REGISTRY;
use crate::source::{is_spec, read_spec};

/// Arguments of `repair`.
#[derive(Args)]
pub struct RepairArgs {
    /// A graph, by its name or its spec; by default all running graphs and all found on disks
    graph: Option<PathBuf>,
    /// Search the files of this directory, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Place of a disk that has lost its label; a disk of a spec is found automatically
    #[arg(long, value_name = "NAME=PATH", value_parser = pair)]
    disk: Vec<(String, String)>,
    /// Accept the bytes of this disk as they are, although some may be missing
    #[arg(long, value_name = "DISK")]
    trust: Vec<String>,
    /// Also write labels that another machine has open: it must never use them again
    #[arg(long)]
    take: bool,
    /// Show the repairs without changing anything
    #[arg(long, visible_alias = "dry-run")]
    plan: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// The findings, and the repairs that are possible.
#[derive(Serialize)]
struct Shown<'f> {
    #[serde(flatten)]
    found: &'f Found,
    plan: &'f Plan,
}

impl RepairArgs {
    /// Prints the plan, or carries it out.
    pub fn run(self, form: Form) -> Result {
        let found = look(self.graph.as_deref(), &self.directory)?;
        let plan = self.planned(&found)?;
        if self.plan || plan.renew.is_empty() && plan.remake.is_empty() {
            let shown = Shown { found: &found, plan: &plan };
            form.print(&shown, || format!("{}{}", found.text(), text(&plan)))?;
            return Ok(found.exit());
        }
        let places = places(&plan).join(", ");
        if !self.yes {
            confirm(&format!("{}write the labels on {places} anew?", text(&plan)))?;
        }
        renew_all(&found, self.take)?;
        let core = core()?;
        let doctor = labels::doctor(&core.env());
        for remake in &plan.remake {
            core.block_on(doctor.write_label(remake))?;
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
        self.relabels(found, &self.said()?, &mut plan)?;
        Ok(plan)
    }

    /// Returns the places of disks that may have lost their labels: those of the command line, then those of the spec.
    fn said(&self) -> Result<Vec<SaidPlace>> {
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

    /// Adds to the plan the labels that can be made again from those of other disks, and those that are lost at one
    /// end.
    fn relabels(&self, found: &Found, said: &[SaidPlace], plan: &mut Plan) -> Result<()> {
        self.is_of_one(found)?;
        let stopped = &found.graphs[found.running.len()..];
        let said = if stopped.len() == 1 && found.running.is_empty() { said } else { &[] };
        let uuids: Vec<_> = stopped.iter().map(|graph| graph.uuid.as_str()).collect();
        let core = core()?;
        let doctor = labels::doctor(&core.env());
        let asked = Asked { trusted: &self.trust, take: self.take };
        let planned = doctor.plan_labels(&self.directory, &uuids, said, &asked, plan);
        Ok(core.block_on(planned)?)
    }

    /// Checks that `--disk` and `--trust` are used for one graph that does not run.
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
}

/// Rewrites labels that have one sound copy.
fn renew_all(found: &Found, take: bool) -> Result<()> {
    let is_ill = |graph: &&Checked| graph.disks.iter().any(|disk| disk.to_renew);
    let core = core()?;
    let doctor = labels::doctor(&core.env());
    for (n, graph) in found.graphs.iter().enumerate().filter(|(_, graph)| is_ill(graph)) {
        if let Some(client) = found.running.get(n) {
            client.repair()?;
            continue;
        }
        for disk in graph.disks.iter().filter(|disk| disk.to_renew) {
            core.block_on(doctor.renew(Path::new(&disk.place), take))?;
        }
    }
    Ok(())
}

fn places(plan: &Plan) -> Vec<&str> {
    let remade = plan.remake.iter().map(|remake| remake.place.as_str());
    plan.renew.iter().map(String::as_str).chain(remade).collect()
}

fn text(plan: &Plan) -> String {
    let renew = plan.renew.iter().map(|place| format!("would write the label on {place} anew\n"));
    let remake = plan.remake.iter().map(Relabel::text);
    let not = plan.not.iter().map(|why| format!("not repaired: {why}\n"));
    let text: String = renew.chain(remake).chain(not).collect();
    match text.is_empty() {
        true => "nothing that a repair could write anew\n".to_owned(),
        false => text,
    }
}
