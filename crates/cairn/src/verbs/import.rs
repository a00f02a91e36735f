//! `cairn import`: finds graphs on disks by their labels, and serves one of them without a spec file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use api::{Client, GraphSource, Phase, UpRequest, routes};
use block::KeySource;
use block::units::format_duration;
use clap::Args;
use doctor::import::{FoundDisk, FoundGraph, graphs};
use doctor::scan::{Skipped, said_place};
use graph::spec::Local;
use serde::Serialize;

use super::key::Lent;
use super::{LOOK, apply, core};
use crate::complete;
use crate::exit::{Exit, Failure, Result};
use crate::labels;
use crate::names;
use crate::out::{self, Form};
use crate::registry::REGISTRY;
use crate::running;
use crate::serve::ServeOptions;
use crate::serve::worker::trust;
use crate::source::{Source, failure_of};

/// Largest number of looks at an attempt of the daemon to start the wanted graph, which has the disks open meanwhile:
/// those of 20 s.
const ATTEMPT_LOOKS: u32 = 100;

/// Arguments of `import`.
#[derive(Args)]
pub struct ImportArgs {
    /// The graph to serve, by its name or its uuid; by default all found graphs are listed
    graph: Option<String>,
    /// Source of the key of a device: file:PATH, fd:NUMBER, credential:NAME; by default you are asked
    #[arg(long, value_name = "DEVICE=SOURCE", value_parser = pair, add = complete::key_source_of_device())]
    key: Vec<(String, String)>,
    /// An option of a device or export that labels do not hold, such as the file of a trace
    #[arg(long, value_name = "DEVICE.OPTION=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Attach every export as a block device of this machine; labels do not hold this
    #[arg(long, requires = "graph")]
    attach: bool,
    /// Place of a disk that is not found automatically: a path, or an NBD URI
    #[arg(long, value_name = "NAME=PATH|URI", value_parser = pair)]
    disk: Vec<(String, String)>,
    /// Label a disk even if it is not empty: its content is lost
    #[arg(long, value_name = "DISK", requires = "graph")]
    wipe: Vec<String>,
    /// The authoritative member of a mirror, at this start: the other members are copied from it, and bytes that only
    /// they have are lost
    #[arg(long, value_name = "MEMBER", requires = "graph")]
    trust: Vec<String>,
    /// Search the files of this directory, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    #[command(flatten)]
    options: ServeOptions,
}

/// Parses a name and a value that are separated by `=`: `safe=file:key`.
///
/// # Errors
/// A message if the text is not such a pair.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("a name and a value are needed, as in safe=file:key".to_owned()),
    }
}

/// Returns the sources of keys from the command line, by the name of their device.
///
/// # Errors
/// `Usage` for a text that is not a source. The error does not contain the text, because the text may be a key by
/// mistake.
pub fn keys(pairs: &[(String, String)]) -> Result<BTreeMap<String, String>> {
    for (device, source) in pairs {
        if let Err(why) = source.parse::<KeySource>() {
            return Err(failure!(Usage, "--key {device}=...: {why}")
                .next(format!("--key {device}=file:PATH")));
        }
    }
    Ok(pairs.iter().cloned().collect())
}

/// Returns the options from the command line that labels do not contain, by device and option.
///
/// # Errors
/// `Usage` for a name that is not a device and an option, separated by a dot.
pub fn options(set: &[(String, String)]) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    let mut options: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for (name, value) in set {
        let Some((device, option)) = name.rsplit_once('.') else {
            fail!(Usage, "--set {name}: a device and its option are needed, as in t.file=PATH");
        };
        options.entry(device.to_owned()).or_default().insert(option.to_owned(), value.clone());
    }
    Ok(options)
}

/// The graphs and disks that a scan has found.
#[derive(Serialize)]
struct Found {
    graphs: Vec<FoundGraph>,
    /// Disks that could not be read, or that another process has open, each with the reason.
    skipped: Vec<Skipped>,
}

impl ImportArgs {
    /// Lists the graphs on the disks of this machine, or serves one of them.
    pub fn run(self, form: Form) -> Result {
        let keys = keys(&self.key)?;
        let mut found = self.scan()?;
        let Some(wanted) = &self.graph else {
            return form.print(&found, || found.text());
        };
        let daemon = running::daemon().filter(|_| self.options.suits_daemon());
        for look in 0..ATTEMPT_LOOKS {
            let Some(name) = found.name_in_use(wanted) else { break };
            let Some(daemon) = &daemon else { break };
            let graphs = daemon.get(&routes::DAEMON)?.graphs;
            let Some(kept) = graphs.into_iter().find(|kept| kept.name == name) else { break };
            match kept.phase {
                Phase::Starting | Phase::Waiting => std::thread::sleep(LOOK),
                Phase::Up if look > 0 => return apply::print_up(form, &kept),
                Phase::Up | Phase::Stopping | Phase::GivenUp | Phase::Stopped => break,
            }
            found = self.scan()?;
        }
        let graph = found.choose(wanted)?;
        if let Some(faults) = graph.spec(REGISTRY, &Local::default()).faults() {
            return Err(failure_of(faults));
        }
        let local = self.local(graph, keys)?;
        let mut spec = graph.spec(REGISTRY, &local);
        trust(&mut spec, &self.trust)?;
        if let Some(daemon) = daemon {
            return self.bring_up(form, &daemon, graph, local);
        }
        self.options.serve(Source::Labels(Box::new(spec)), &self.wipe, form)
    }

    /// Scans the disks of this machine for graphs.
    fn scan(&self) -> Result<Found> {
        let core = core()?;
        let env = core.env();
        let doctor = labels::doctor(&env);
        let (found_labels, skipped) = core.block_on(doctor.labels(&self.directory))?;
        let mut graphs = graphs(&doctor, found_labels, &skipped);
        for graph in graphs.iter_mut().filter(|_| self.graph.is_none()) {
            graph.refused = core.block_on(graph.refusals(&doctor));
        }
        Ok(Found { graphs, skipped })
    }

    /// Makes a daemon serve the graph, and keep the graph in its records.
    fn bring_up(&self, form: Form, daemon: &Client, graph: &FoundGraph, local: Local) -> Result {
        let by_hand = |source: Option<&String>| match source.map(|source| source.parse()) {
            None => Some(KeySource::Ask),
            Some(Ok(source @ (KeySource::Ask | KeySource::Fd(_)))) => Some(source),
            Some(_) => None,
        };
        let mut lent = BTreeMap::new();
        for device in &graph.keys {
            let Some(source) = by_hand(local.keys.get(device)) else { continue };
            let prompt = format!("passphrase for {}/{device}", graph.name);
            let key = Lent::of(&source, prompt, false).map_err(|failure| {
                let why = failure.to_string();
                let why = format!("{why}. Or --key {device}=file:PATH, read at each start");
                failure.reworded(why)
            })?;
            lent.insert(device.clone(), key);
        }
        let Local { disks, keys, options } = local;
        let source = GraphSource::Labels { text: graph.text.clone(), disks, keys, options };
        let up = self.options.up(&graph.name, source)?;
        let up = UpRequest { wipe: self.wipe.clone(), trust: self.trust.clone(), ..up };
        apply::bring_up(form, daemon, up, &lent)
    }

    /// Returns the facts that labels do not contain: the paths of disks, the sources of keys, and local options.
    fn local(&self, graph: &FoundGraph, keys: BTreeMap<String, String>) -> Result<Local> {
        let usage = |why: String| Err(Failure::new(Exit::Usage, why));
        let mut disks = graph.places(&self.disk).map_err(Failure::because)?;
        for (name, at) in &self.disk {
            let is_there = graph.disks.iter().any(|disk| disk.name == *name)
                || graph.missing.contains(name)
                || graph.unlabelled.contains(name);
            if !is_there {
                return usage(format!("--disk {name}: the graph {} has no such disk", graph.name));
            }
            disks.insert(name.clone(), said_place(at));
        }
        let is_nowhere =
            |name: &&String| graph.missing.contains(name) && !disks.contains_key(*name);
        if let Some(name) = self.wipe.iter().find(is_nowhere) {
            return usage(format!(
                "--wipe {name}: no such disk is found. Next: --disk {name}=PATH"
            ));
        }
        if let Some(name) = graph.unlabelled.iter().find(|name| !disks.contains_key(*name)) {
            return usage(format!(
                "the disk {name} of {} has no label, so it cannot be found. Next: --disk {name}=PATH",
                graph.name
            ));
        }
        for name in keys.keys() {
            if !graph.keys.contains(name) {
                return usage(format!(
                    "--key {name}: {} has no such device with a key",
                    graph.name
                ));
            }
        }
        let mut local = Local { disks, keys, options: options(&self.set)? };
        if self.attach {
            let spec = graph.spec(REGISTRY, &local);
            for export in spec.export_names() {
                let of_export = local.options.entry(export.to_owned()).or_default();
                of_export.insert("attach".to_owned(), "true".to_owned());
            }
        }
        graph.check_options(REGISTRY, &local)?;
        Ok(local)
    }
}

impl Found {
    /// Returns the name of the graph whose name or uuid is `wanted`, if another process has one of its disks open.
    fn name_in_use(&self, wanted: &str) -> Option<String> {
        let graph = self.choose(wanted).ok()?;
        graph.disks.iter().any(|disk| disk.in_use.is_some()).then(|| graph.name.clone())
    }

    /// Returns the graph whose name or uuid is `wanted`.
    fn choose(&self, wanted: &str) -> Result<&FoundGraph> {
        let is_it = |graph: &&FoundGraph| graph.name == wanted || graph.uuid == wanted;
        let found: Vec<&FoundGraph> = self.graphs.iter().filter(is_it).collect();
        match &found[..] {
            [graph] => Ok(graph),
            [] => {
                let names = self.graphs.iter().map(|graph| &*graph.name);
                let none = "no disk with a readable label is found";
                let here = names::listed(names, none, "found graphs:");
                let open: Vec<_> =
                    self.skipped.iter().map(|one| format!("\n  {}", one.why)).collect();
                let why = format!("no graph {wanted:?}; {here}{}", open.concat());
                Err(Failure::new(Exit::NotFound, why))
            }
            several => {
                let uuids: Vec<_> = several
                    .iter()
                    .map(|graph| format!("\n  cairn import {}", graph.uuid))
                    .collect();
                Err(failure!(Usage, "{} graphs are called {wanted:?}", several.len())
                    .next(format!("choose one graph by its uuid, with one of{}", uuids.concat())))
            }
        }
    }

    /// Returns the name of a graph. If several graphs have this name, it includes a part of the uuid.
    fn title(&self, graph: &FoundGraph) -> String {
        let called = self.graphs.iter().filter(|other| other.name == graph.name).count();
        out::title(&graph.name, &graph.uuid, called > 1)
    }

    fn text(&self) -> String {
        let mut text: String =
            self.graphs.iter().map(|graph| line(graph, self.title(graph))).collect();
        let is_told = |path: &str| {
            self.graphs
                .iter()
                .any(|graph| graph.disks.iter().any(|disk| disk.path == Path::new(path)))
        };
        for Skipped { why, .. } in self.skipped.iter().filter(|one| !is_told(&one.path)) {
            text.push_str(&format!("skipped: {why}\n"));
        }
        if self.graphs.is_empty() {
            text.push_str(labels::no_label(&self.skipped));
        }
        text
    }
}

/// Returns the lines about a graph: `home  2 disks, 1 here (sdc = a, change 41), missing b   open on host "old" since
/// 2 h`
fn line(graph: &FoundGraph, title: String) -> String {
    let names: BTreeSet<&String> = graph.disks.iter().map(|disk| &disk.name).collect();
    let all = names.len() + graph.missing.len();
    let one = |disk: &FoundDisk| {
        let in_use = if disk.in_use.is_some() { ", in use" } else { "" };
        format!("{} = {}, change {}{in_use}", disk.path.display(), disk.name, disk.epoch)
    };
    let here: Vec<_> = graph.disks.iter().map(one).collect();
    let mut text = format!("{title}  {}, {} found", out::count(all as u64, "disk"), names.len());
    if !here.is_empty() {
        text.push_str(&format!(" ({})", here.join("; ")));
    }
    if !graph.missing.is_empty() {
        text.push_str(&format!(", missing {}", graph.missing.join(", ")));
    }
    if let Some(host) = &graph.open_on {
        let since = format_duration(out::since(graph.written_unix_s));
        text.push_str(&format!("   open on host {host:?} since {since}"));
    }
    text.push_str(&format!("\n  {}\n", prospect(graph)));
    text
}

/// Returns the options that a start of the graph needs, or the reasons why the graph cannot be served.
fn prospect(graph: &FoundGraph) -> String {
    if !graph.refused.is_empty() {
        return format!("refused: {}", graph.refused.join("\n  refused: "));
    }
    let mut needs = vec![
        match (graph.missing.is_empty(), graph.unlabelled.is_empty()) {
            (true, _) => "would come up",
            (false, true) => "would come up with --degraded",
            (false, false) => "would come up with --degraded, if all data are on the found disks",
        }
        .to_owned(),
    ];
    if graph.needs_take {
        needs.push("with --take, if that host never uses the disks again".to_owned());
    }
    for name in &graph.unlabelled {
        needs.push(format!("with --disk {name}=PATH, because disk {name} has no label"));
    }
    for option in &graph.options {
        needs.push(format!("with --set {option}=VALUE, which labels do not hold"));
    }
    for name in &graph.keys {
        needs.push(format!("with the key of {name}, which is asked for, or --key {name}=SOURCE"));
    }
    needs.join("; ")
}
