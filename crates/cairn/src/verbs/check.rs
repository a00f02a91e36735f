//! `cairn check`: checks whether the labels of graphs are sound.

use std::path::{Path, PathBuf};

use api::{Checked, CheckedDisk, Client, Finding, Soundness, routes};
use clap::Args;
use doctor::Found;
use doctor::scan::Skipped;

use super::{core, undo};
use crate::complete;
use crate::exit::{Exit, Result};
use crate::labels;
use crate::out::{Form, count, title};
use crate::registry::REGISTRY;
use crate::running;
use crate::source::{is_spec, read_spec};

/// Arguments of `check`.
#[derive(Args)]
pub struct CheckArgs {
    /// A graph, by its name or its spec; by default all running graphs and all found on disks
    #[arg(add = complete::graph_or_spec())]
    graph: Option<PathBuf>,
    /// Search the files of this directory, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

impl CheckArgs {
    /// Prints the findings about the labels, and changes nothing. The exit code is that of the worst finding.
    pub fn run(self, form: Form) -> Result {
        let (_, found) = look(self.graph.as_deref(), &self.directory)?;
        form.print(&found, || text(&found))?;
        Ok(exit(&found))
    }
}

/// Checks the labels of running graphs, and then those of graphs on disks. Also returns a client of each running
/// graph that was checked, in the same order.
///
/// # Errors
/// `NotFound` if the named graph neither runs nor is on a disk; errors of servers and disks.
pub fn look(graph: Option<&Path>, directory: &Path) -> Result<(Vec<Client>, Found)> {
    let wanted = graph.map(undo::name).transpose()?;
    let wanted = wanted.map(|wanted| wanted.to_string_lossy().into_owned());
    let (mut clients, mut found) = (Vec::new(), Found::default());
    for client in running::running()? {
        match client.get(&routes::CHECK) {
            Ok(checked) if wanted.as_ref().is_none_or(|wanted| *wanted == checked.graph) => {
                found.graphs.push(checked);
                clients.push(client);
            }
            // A graph without labels has nothing to check.
            Err(problem) if problem.exit != Exit::Unsupported.code() => {
                let name = client.get(&routes::GRAPH).map(|graph| graph.name).ok();
                if wanted.is_none() || name == wanted {
                    let name = name.or_else(|| Some(client.path().display().to_string()));
                    let (words, next) = (problem.message, "cairn status".to_owned());
                    let soundness = Soundness::Damaged;
                    found.unread.push(Finding { soundness, name, words, next });
                }
            }
            Ok(_) | Err(_) => {}
        }
    }
    found.running = clients.len();
    // The named graph may also run, and its check may have failed.
    let is_running = !found.graphs.is_empty() || !found.unread.is_empty();
    if wanted.is_none() || !is_running {
        let core = core()?;
        let doctor = labels::doctor(&core.env());
        core.block_on(doctor.check_directory(directory, wanted.as_deref(), &mut found))?;
    }
    if let Some(spec) = graph.filter(|graph| is_spec(graph)) {
        found.compare_places(&read_spec(spec)?, spec, REGISTRY);
    }
    let Some(wanted) = wanted.filter(|_| found.graphs.is_empty() && !is_running) else {
        return Ok((clients, found));
    };
    let why: Vec<_> = found.skipped.iter().map(|one| format!("\n  {}", one.why)).collect();
    Err(failure!(NotFound, "{wanted} does not run, and no disk of it is found{}", why.concat()))
}

/// Returns the exit code for the worst finding.
pub fn exit(found: &Found) -> Exit {
    match found.worst() {
        Soundness::Damaged => Exit::Damaged,
        Soundness::InUse => Exit::InUse,
        Soundness::Repairable => Exit::Degraded,
        Soundness::Sound => Exit::Ok,
    }
}

/// Returns the findings as text.
pub fn text(found: &Found) -> String {
    let Found { graphs, unread, skipped, .. } = found;
    let called = |name: &str| graphs.iter().filter(|graph| graph.graph == name).count();
    let title = |one: &Checked| title(&one.graph, &one.uuid, called(&one.graph) > 1);
    let mut text: String = graphs.iter().map(|one| graph(one, &title(one))).collect();
    text.extend(unread.iter().map(|finding| line("", finding)));
    let is_told = |one: &&Skipped| {
        let mut findings = graphs.iter().flat_map(|graph| &graph.findings);
        findings.any(|finding| one.why.message() == finding.words)
    };
    let untold = skipped.iter().filter(|one| !is_told(one));
    text.extend(untold.map(|Skipped { why, .. }| format!("skipped: {why}\n")));
    if graphs.is_empty() && unread.is_empty() {
        text.push_str(labels::no_label(skipped));
    }
    text
}

/// Returns the line `home  change 3, 2 disks: sound`, with a line below for each disk and finding.
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
