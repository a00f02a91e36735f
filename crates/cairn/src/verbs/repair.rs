//! `cairn repair`: rewrites damaged labels from their own sound copy, or from the labels of the graph's other disks.

use std::path::PathBuf;

use api::routes;
use clap::Args;
use doctor::Found;
use doctor::repair::{Asked, Plan};
use serde::Serialize;

use super::check::{exit, look, text};
use super::import::pair;
use super::{confirm, core};
use crate::complete;
use crate::exit::Result;
use crate::labels;
use crate::out::Form;
use crate::source::{is_spec, read_spec};

/// Arguments of `repair`.
#[derive(Args)]
pub struct RepairArgs {
    /// A graph, by its name or its spec; by default all running graphs and all found on disks
    #[arg(add = complete::graph_or_spec())]
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
    /// Also write labels that another machine has open: that machine must never use the disks again
    #[arg(long)]
    take: bool,
    /// Show the repairs without changing anything
    #[arg(long, visible_alias = "dry-run")]
    plan: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// The findings of a check, and the possible repairs.
#[derive(Serialize)]
struct Shown<'f> {
    #[serde(flatten)]
    found: &'f Found,
    plan: &'f Plan,
}

impl RepairArgs {
    /// Prints the plan of the repairs, or carries them out.
    pub fn run(self, form: Form) -> Result {
        let graph = self.graph.as_deref();
        let (clients, found) = look(graph, &self.directory)?;
        let spec = graph.filter(|graph| is_spec(graph)).map(read_spec).transpose()?;
        let core = core()?;
        let doctor = labels::doctor(&core.env());
        let (places, spec) = (&self.disk[..], spec.as_ref());
        let asked = Asked { places, spec, trusted: &self.trust, take: self.take };
        let plan = &core.block_on(doctor.plan_repair(&found, &self.directory, &asked))?;
        if self.plan || plan.is_empty() {
            form.print(&Shown { found: &found, plan }, || text(&found) + &plan.text())?;
            return Ok(exit(&found));
        }
        let places = plan.places().join(", ");
        confirm(self.yes, &format!("{}rewrite the labels on {places}?", plan.text()))?;
        for (client, graph) in clients.iter().zip(&found.graphs) {
            if graph.disks.iter().any(|disk| disk.to_renew) {
                client.ask(&routes::REPAIR, &())?;
            }
        }
        core.block_on(doctor.repair(&found, plan, self.take))?;
        let (_, found) = look(graph, &self.directory)?;
        let shown = Shown { found: &found, plan };
        form.print(&shown, || format!("{}rewrote the labels on {places}\n", text(&found)))?;
        Ok(exit(&found))
    }
}
