//! `cairn check`: whether the labels of graphs are sound.

use std::path::{Path, PathBuf};

use api::{Checked, CheckedDisk, Client, Finding, Soundness};
use clap::Args;
use doctor::Running;
use doctor::scan::{self, Skipped};
use serde::Serialize;

use super::{core, undo};
use crate::exit::{Exit, Failure, Result};
use crate::labels;
use crate::out::{Form, count, title};
use crate::registry::REGISTRY;
use crate::running;
use crate::source::{is_spec, read_spec};

/// Arguments of `check`.
#[derive(Args)]
pub struct CheckArgs {
    /// A graph, by its name or its spec; by default all running graphs and all found on disks
    graph: Option<PathBuf>,
    /// Search the files of this directory, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// The result of a check.
#[derive(Serialize)]
pub struct Found {
    pub graphs: Vec<Checked>,
    /// Findings on disks whose labels cannot be read.
    unread: Vec<Finding>,
    /// Disks that another process has open or that cannot be read, with the reason.
    skipped: Vec<Skipped>,
    /// The control sockets of the first graphs, in the same order. The other graphs do not run.
    #[serde(skip)]
    pub running: Vec<Client>,
}

impl CheckArgs {
    /// Checks the labels without a change. The exit code is that of the worst finding.
    pub fn run(self, form: Form) -> Result {
        let found = look(self.graph.as_deref(), &self.directory)?;
        form.print(&found, || found.text())?;
        Ok(found.exit())
    }
}

/// Checks the running graphs, and then those on disks.
///
/// # Errors
/// `NotFound` if a graph is named that neither runs nor is found; errors of servers and disks.
pub fn look(graph: Option<&Path>, directory: &Path) -> Result<Found> {
    let wanted = graph.map(undo::name).transpose()?;
    let is_wanted = |checked: &Checked| {
        wanted.as_ref().is_none_or(|wanted| wanted.as_os_str() == checked.graph.as_str())
    };
    let mut found =
        Found { graphs: Vec::new(), unread: Vec::new(), skipped: Vec::new(), running: Vec::new() };
    // Whether the named graph runs, but its check has failed.
    let mut is_silent = false;
    for client in running::running()? {
        match client.check() {
            Ok(checked) if is_wanted(&checked) => {
                found.graphs.push(checked);
                found.running.push(client);
            }
            // A graph without labels has nothing to check.
            Err(problem) if problem.exit != Exit::Unsupported.code() => {
                let name = client.graph().map(|graph| graph.name).ok();
                if wanted.is_none() || name.as_deref() == wanted.as_deref().and_then(Path::to_str) {
                    let name = name.or_else(|| Some(client.path().display().to_string()));
                    let (words, next) = (problem.message, "cairn status".to_owned());
                    let soundness = Soundness::Damaged;
                    is_silent = true;
                    found.unread.push(Finding { soundness, name, words, next });
                }
            }
            Ok(_) | Err(_) => {}
        }
    }
    if found.graphs.is_empty() && !is_silent || wanted.is_none() {
        found.on_disks(directory, is_wanted)?;
    }
    if let Some(spec) = graph.filter(|graph| is_spec(graph)) {
        found.compare_places(spec)?;
    }
    match wanted.filter(|_| found.graphs.is_empty() && !is_silent) {
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
        let disks = self.graphs.iter().flat_map(|graph| &graph.disks);
        let disks = disks.filter_map(|disk| scan::real(Path::new(&disk.place))).collect();
        let graphs = self.graphs.iter().map(|graph| graph.uuid.as_str()).collect();
        let running = Running { graphs, disks };
        let doctor = labels::doctor(&core.env());
        let found = core.block_on(doctor.check_directory(directory, &running))?;
        self.skipped = found.skipped;
        self.unread.extend(found.unread.into_iter().map(labels::finding));
        self.graphs.extend(found.graphs.into_iter().map(labels::checked).filter(is_wanted));
        Ok(())
    }

    /// Adds findings for disks of a stopped graph that are not at the place in the spec: a start looks only there.
    fn compare_places(&mut self, spec: &Path) -> Result<()> {
        let [graph] = &mut self.graphs[..] else { return Ok(()) };
        if !self.running.is_empty() {
            return Ok(());
        }
        let real = |place: &str| Path::new(place).canonicalize().ok();
        let here: Vec<_> = graph.disks.iter().filter_map(|disk| real(&disk.place)).collect();
        for disk in read_spec(spec)?.labelled(REGISTRY) {
            let (given, Some(said)) = (&disk.given, disk.path()) else { continue };
            let found = graph.disks.iter().find(|disk| disk.name == given.name);
            // If the place in the spec is that of another disk of the graph, the two are only swapped, which is fine.
            let Some(found) = found.filter(|_| real(said).is_none_or(|said| !here.contains(&said)))
            else {
                continue;
            };
            let (spec, is) = (spec.display(), &found.place);
            graph.findings.push(Finding {
                soundness: Soundness::Repairable,
                name: Some(given.name.clone()),
                words: format!("{spec} says that it is at {said}, and it is at {is}"),
                next: format!("say {is} there, or bring it back to {said}"),
            });
            graph.soundness = graph.soundness.max(Soundness::Repairable);
        }
        Ok(())
    }

    /// Returns the exit code for the worst finding.
    pub fn exit(&self) -> Exit {
        let graphs = self.graphs.iter().map(|graph| graph.soundness);
        match graphs.chain(self.unread.iter().map(|finding| finding.soundness)).max() {
            Some(Soundness::Damaged) => Exit::Damaged,
            Some(Soundness::InUse) => Exit::InUse,
            Some(Soundness::Repairable) => Exit::Degraded,
            Some(Soundness::Sound) | None => Exit::Ok,
        }
    }

    /// Returns the findings as text.
    pub fn text(&self) -> String {
        let called = |name: &str| self.graphs.iter().filter(|graph| graph.graph == name).count();
        let title = |one: &Checked| title(&one.graph, &one.uuid, called(&one.graph) > 1);
        let mut text: String = self.graphs.iter().map(|one| graph(one, &title(one))).collect();
        text.extend(self.unread.iter().map(|finding| line("", finding)));
        let is_told = |one: &&Skipped| {
            let mut findings = self.graphs.iter().flat_map(|graph| &graph.findings);
            findings.any(|finding| one.why.message() == finding.words)
        };
        let skipped = self.skipped.iter().filter(|one| !is_told(one));
        text.extend(skipped.map(|Skipped { why, .. }| format!("skipped: {why}\n")));
        if self.graphs.is_empty() && self.unread.is_empty() {
            text.push_str(labels::no_label(&self.skipped));
        }
        text
    }
}

/// Returns `home  change 3, 2 disks: sound`, with the disks and findings in lines below.
fn graph(checked: &Checked, title: &str) -> String {
    let Checked { change, soundness, disks, kept, findings, .. } = checked;
    let many = count(disks.len() as u64, "disk");
    let mut text = format!("{title}  change {change}, {many}: {}\n", word(*soundness));
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
        Soundness::InUse => "in use",
        Soundness::Damaged => "damaged",
    }
}
