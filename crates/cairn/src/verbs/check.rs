//! `cairn check` and `cairn repair`: whether the labels of graphs are sound, and what can be written anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::{Checked, CheckedDisk, Client, Finding, Soundness};
use block::Env;
use clap::Args;
use graph::engine::Engine;
use meta::{Inspection, Label, Store, Uuid, Wrong};
use serde::Serialize;

use super::{confirm, core, undo, wipe};
use crate::check::{Seen, check};
use crate::exit::{Exit, Failure, Result};
use crate::out::{Form, count};
use crate::running;
use crate::scan::{self, Skipped};

/// What `check` takes.
#[derive(Args)]
pub struct CheckArgs {
    /// A graph, by its name or its spec; all that run, and all that are found, if left out
    graph: Option<PathBuf>,
    /// Look at the files of this directory, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// What `repair` takes.
#[derive(Args)]
pub struct RepairArgs {
    /// A graph, by its name or its spec; all that run, and all that are found, if left out
    graph: Option<PathBuf>,
    /// Look at the files of this directory, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Say what would be done, and change nothing
    #[arg(long, visible_alias = "dry-run")]
    plan: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// What was looked at.
#[derive(Serialize)]
struct Found {
    graphs: Vec<Checked>,
    /// What is on disks whose labels cannot be read.
    unread: Vec<Finding>,
    /// What somebody else has open, or cannot be read, and why.
    skipped: Vec<Skipped>,
    /// Who serves the first of the graphs, in that order; the others do not run.
    #[serde(skip)]
    running: Vec<Client>,
}

impl CheckArgs {
    /// Looks, changes nothing, and ends as what was found is.
    pub fn run(self, form: Form) -> Result {
        let found = look(self.graph.as_deref(), &self.directory)?;
        form.print(&found, || found.text())?;
        Ok(found.exit())
    }
}

impl RepairArgs {
    /// Writes labels anew of which one copy is sound.
    pub fn run(self, form: Form) -> Result {
        let found = look(self.graph.as_deref(), &self.directory)?;
        let ill = |disk: &&CheckedDisk| disk.to_renew;
        let disks = found.graphs.iter().flat_map(|graph| graph.disks.iter().filter(ill));
        let places: Vec<String> = disks.map(|disk| disk.place.clone()).collect();
        if self.plan || places.is_empty() {
            form.print(&found, || format!("{}{}", found.text(), plan(&places)))?;
            return Ok(found.exit());
        }
        if !self.yes {
            confirm(&format!("write the labels on {} anew?", places.join(", ")))?;
        }
        self.renew(&found)?;
        let found = look(self.graph.as_deref(), &self.directory)?;
        form.print(&found, || format!("{}wrote {} anew\n", found.text(), places.join(", ")))?;
        Ok(found.exit())
    }

    fn renew(&self, found: &Found) -> Result<()> {
        let is_ill = |graph: &&Checked| graph.disks.iter().any(|disk| disk.to_renew);
        let core = core()?;
        let env = core.env();
        for (n, graph) in found.graphs.iter().enumerate().filter(|(_, graph)| is_ill(graph)) {
            if let Some(client) = found.running.get(n) {
                client.repair()?;
                continue;
            }
            for disk in graph.disks.iter().filter(|disk| disk.to_renew) {
                core.block_on(renew(&env, Path::new(&disk.place)))?;
            }
        }
        Ok(())
    }
}

fn plan(places: &[String]) -> String {
    match places {
        [] => "nothing that a repair could write anew\n".to_owned(),
        places => {
            places.iter().map(|place| format!("would write the label on {place} anew\n")).collect()
        }
    }
}

/// Writes all copies of a label of which one is whole.
async fn renew(env: &Env, path: &Path) -> Result<()> {
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
        let why = format!(
            "{} has a label that this version of Cairn must not write. Next: use a newer version",
            path.display()
        );
        return Err(Failure::new(Exit::Unsupported, why));
    }
    Store::new(env, &lower, label, Some(number))?.renew().await?;
    engine.forget(node);
    Ok(())
}

/// What runs, and then what is found on disks.
fn look(graph: Option<&Path>, directory: &Path) -> Result<Found> {
    let wanted = graph.map(undo::name).transpose()?;
    let is_wanted = |checked: &Checked| {
        wanted.as_ref().is_none_or(|wanted| wanted.as_os_str() == checked.graph.as_str())
    };
    let mut found =
        Found { graphs: Vec::new(), unread: Vec::new(), skipped: Vec::new(), running: Vec::new() };
    for client in running::running()? {
        match client.check() {
            Ok(checked) if is_wanted(&checked) => {
                found.graphs.push(checked);
                found.running.push(client);
            }
            // A graph without labels has nothing to be checked.
            Err(problem) if problem.exit != Exit::Unsupported.code() => return Err(problem.into()),
            Ok(_) | Err(_) => {}
        }
    }
    if found.graphs.is_empty() || wanted.is_none() {
        found.on_disks(directory, is_wanted)?;
    }
    match wanted.filter(|_| found.graphs.is_empty()) {
        Some(wanted) => {
            let why: Vec<_> = found.skipped.iter().map(|one| format!("\n  {}", one.why)).collect();
            let wanted = wanted.display();
            let why = format!("no graph {wanted} runs, and no disk here is of it{}", why.concat());
            Err(Failure::new(Exit::NotFound, why))
        }
        None => Ok(found),
    }
}

impl Found {
    fn on_disks(&mut self, directory: &Path, is_wanted: impl Fn(&Checked) -> bool) -> Result<()> {
        let core = core()?;
        let env = core.env();
        let (disks, skipped) = core.block_on(scan::copies(&env, directory))?;
        // What a running graph has open has been looked at.
        let own = |path: &Path| {
            let path = path.canonicalize().ok();
            let disks = self.graphs.iter().flat_map(|graph| &graph.disks);
            path.is_some()
                && disks.into_iter().any(|disk| Path::new(&disk.place).canonicalize().ok() == path)
        };
        self.skipped = skipped.into_iter().filter(|skipped| !own(&skipped.path)).collect();
        let places = disks.iter().map(|(path, _)| path.display().to_string());
        let places: Vec<_> = places.collect();
        let mut graphs: BTreeMap<(String, [u8; 16]), Vec<Seen<'_>>> = BTreeMap::new();
        for (place, (_, inspection)) in places.iter().zip(&disks) {
            match &inspection.label {
                Ok(Some((label, _))) => {
                    let of = (label.graph_name.clone(), label.graph.0);
                    graphs.entry(of).or_default().push(Seen { place, inspection, label });
                }
                Ok(None) => {}
                Err(wrong) => self.unread.push(unread(place, inspection, wrong)),
            }
        }
        for ((_, uuid), seen) in &graphs {
            // What has left a graph that runs says nothing of it.
            let uuid = Uuid(*uuid).to_string();
            if self.graphs.iter().any(|graph| graph.uuid == uuid) {
                continue;
            }
            let checked = core.block_on(check(&env, seen));
            self.graphs.extend(checked.filter(&is_wanted));
        }
        Ok(())
    }

    fn exit(&self) -> Exit {
        let graphs = self.graphs.iter().map(|graph| graph.soundness);
        match graphs.chain(self.unread.iter().map(|finding| finding.soundness)).max() {
            Some(Soundness::Damaged) => Exit::Damaged,
            Some(Soundness::Repairable) => Exit::Degraded,
            Some(Soundness::Sound) | None => Exit::Ok,
        }
    }

    fn text(&self) -> String {
        let mut text: String = self.graphs.iter().map(graph).collect();
        text.extend(self.unread.iter().map(|finding| line("", finding)));
        text.extend(self.skipped.iter().map(|Skipped { why, .. }| format!("skipped: {why}\n")));
        if text.is_empty() {
            text.push_str("no disk here has a label.\n");
        }
        text
    }
}

/// A disk of which nobody knows whose it is.
fn unread(place: &str, inspection: &Inspection, wrong: &Wrong) -> Finding {
    let (soundness, next) = match wrong {
        Wrong::Version(_) | Wrong::Features(_) => {
            (Soundness::Sound, "use a newer version of Cairn".to_owned())
        }
        Wrong::NoMagic | Wrong::Damaged(_) => (
            Soundness::Damaged,
            "if its graph can do without, take it in anew: cairn serve SPEC --wipe DISK".to_owned(),
        ),
    };
    let whole = |found: &Result<Label, Wrong>| found.is_ok();
    let copies = inspection.copies.iter().filter(|copy| whole(&copy.found)).count();
    let words = format!("{place} has {wrong} ({copies} of 4 copies can be read)");
    Finding { soundness, name: None, words, next }
}

/// `home  change 3, 2 disks: sound`, and what is worth knowing.
fn graph(checked: &Checked) -> String {
    let Checked { graph, change, soundness, disks, kept, findings, .. } = checked;
    let many = count(disks.len() as u64, "disk");
    let mut text = format!("{graph}  change {change}, {many}: {}\n", word(*soundness));
    let names = disks.iter().map(|disk| &disk.name).chain(kept.iter().map(|device| &device.name));
    let width = names.map(String::len).max().unwrap_or(0);
    for CheckedDisk { name, place, .. } in disks {
        text.push_str(&format!("  {name:width$}  {place}\n"));
    }
    for device in kept {
        let (name, kind, words) = (&device.name, &device.kind, &device.words);
        text.push_str(&format!("  {name:width$}  {kind}: {words}\n"));
    }
    text.extend(findings.iter().map(|finding| line("  ", finding)));
    text
}

fn line(indent: &str, finding: &Finding) -> String {
    let Finding { soundness, name, words, next } = finding;
    let sort = if *soundness == Soundness::Sound { "note" } else { word(*soundness) };
    let name = name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    let next = if next.is_empty() { String::new() } else { format!(". Next: {next}") };
    format!("{indent}{sort}: {name}{words}{next}\n")
}

fn word(soundness: Soundness) -> &'static str {
    match soundness {
        Soundness::Sound => "sound",
        Soundness::Repairable => "repairable",
        Soundness::Damaged => "damaged",
    }
}
