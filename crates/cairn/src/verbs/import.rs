//! `cairn import`: graphs that are found on disks, without any file that describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use api::{Client, GraphSource};
use block::units::format_duration;
use block::{Env, Error, KeySource, Reason};
use clap::Args;
use engine::Engine;
use graph::labels::{Opening, Remembered, Survey, disks};
use graph::spec::{Local, Spec};
use meta::{Label, Uuid};
use serde::Serialize;

use super::key::Lent;
use super::{apply, core};
use crate::exit::{Exit, Failure, Result};
use crate::labels::{self, machine};
use crate::out::{self, Form};
use crate::place;
use crate::registry::REGISTRY;
use crate::running;
use crate::scan::{self, Sight, Skipped, said_place};
use crate::serve::ServeOptions;
use crate::serve::worker::trust;
use crate::source::{Source, told};

/// What `import` takes.
#[derive(Args)]
pub struct ImportArgs {
    /// The graph to serve, by its name or its uuid; lists what is there if left out
    graph: Option<String>,
    /// Where the key of a device comes from: file:PATH, fd:NUMBER, credential:NAME; asked for if not said
    #[arg(long, value_name = "DEVICE=SOURCE", value_parser = pair)]
    key: Vec<(String, String)>,
    /// An option of a device that labels do not hold, such as the file of a trace
    #[arg(long, value_name = "DEVICE.OPTION=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Where a disk is that is not found by itself: a path, or an NBD URI
    #[arg(long, value_name = "NAME=PATH|URI", value_parser = pair)]
    disk: Vec<(String, String)>,
    /// Label a disk whatever is on it: what it holds is lost
    #[arg(long, value_name = "DISK", requires = "graph")]
    wipe: Vec<String>,
    /// A member of a mirror whose bytes count, at this start: the other members are copied from it, and what only they
    /// have is lost
    #[arg(long, value_name = "MEMBER", requires = "graph")]
    trust: Vec<String>,
    /// Look at the files of this directory, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    #[command(flatten)]
    options: ServeOptions,
}

/// A name and what belongs to it, as `safe=file:key`.
///
/// # Errors
/// If it is none.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("a name and a value are needed, as in safe=file:key".to_owned()),
    }
}

/// Where the keys of devices come from.
///
/// # Errors
/// `Usage` for what is no source: it may be a key that somebody has put there, and is not repeated.
pub fn keys(pairs: &[(String, String)]) -> Result<BTreeMap<String, String>> {
    for (device, source) in pairs {
        if let Err(why) = source.parse::<KeySource>() {
            let why = format!("--key {device}=...: {why}");
            return Err(Failure::new(Exit::Usage, why).next(format!("--key {device}=file:PATH")));
        }
    }
    Ok(pairs.iter().cloned().collect())
}

/// Parses the options of devices that labels do not hold.
///
/// # Errors
/// `Usage` for what names no option of a device.
pub fn options(set: &[(String, String)]) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    let mut options: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for (name, value) in set {
        let Some((device, option)) = name.rsplit_once('.') else {
            let why =
                format!("--set {name}: a device and its option are needed, as in t.file=PATH");
            return Err(Failure::new(Exit::Usage, why));
        };
        options.entry(device.to_owned()).or_default().insert(option.to_owned(), value.clone());
    }
    Ok(options)
}

/// A graph, as the labels that were found tell it.
#[derive(Serialize)]
struct FoundGraph {
    name: String,
    uuid: String,
    epoch: u64,
    /// The machine that has it open, or did not close it.
    open_on: Option<String>,
    #[serde(skip)]
    open_here: bool,
    written_unix_s: u64,
    disks: Vec<FoundDisk>,
    missing: Vec<String>,
    /// Disks of it without a label: nobody can tell where they are.
    unlabelled: Vec<String>,
    /// Devices that are opened with a key.
    keys: Vec<String>,
    /// Required options that labels do not hold: `DEVICE.OPTION`.
    options: Vec<String>,
    /// What stands against serving it, and no option helps against.
    refused: Vec<String>,
    #[serde(skip)]
    text: String,
    /// The name of its newest label in messages.
    #[serde(skip)]
    file: String,
}

#[derive(Serialize)]
struct FoundDisk {
    name: String,
    path: PathBuf,
    epoch: u64,
    /// Why it cannot be opened: another process has it open.
    #[serde(serialize_with = "as_text_if_any")]
    in_use: Option<Error>,
}

fn as_text_if_any<S: serde::Serializer>(
    error: &Option<Error>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    match error {
        Some(error) => scan::as_text(error, to),
        None => to.serialize_none(),
    }
}

/// A label, and who has its disk open, if somebody has.
struct Told {
    path: PathBuf,
    label: Label,
    in_use: Option<Error>,
}

/// What a look at everything came to.
#[derive(Serialize)]
struct Found {
    graphs: Vec<FoundGraph>,
    /// What somebody has open, or what cannot be read, and why.
    skipped: Vec<Skipped>,
}

impl ImportArgs {
    /// Lists the graphs, or serves one.
    pub fn run(self, form: Form) -> Result {
        let keys = keys(&self.key)?;
        let found = {
            let core = core()?;
            let env = core.env();
            let (sights, skipped) = core.block_on(scan::labels(&env, &self.directory))?;
            let mut graphs = graphs(sights, &skipped);
            for graph in graphs.iter_mut().filter(|_| self.graph.is_none()) {
                graph.refused = core.block_on(graph.refusals(&env));
            }
            Found { graphs, skipped }
        };
        let Some(wanted) = &self.graph else {
            form.print(&found, || found.text())?;
            return Ok(Exit::Ok);
        };
        let graph = found.choose(wanted)?;
        if let Some(faults) = graph.spec(&Local::default()).faults() {
            return Err(told(faults));
        }
        let local = self.local(graph, keys)?;
        let mut spec = graph.spec(&local);
        trust(&mut spec, &self.trust)?;
        if let Some(daemon) = running::daemon().filter(|_| self.options.suits_daemon()) {
            return self.bring_up(form, &daemon, graph, local);
        }
        self.options.serve(Source::Labels(Box::new(spec)), &self.wipe, form)
    }

    /// Has a daemon serve it, and keep it.
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
                let why =
                    format!("{why}. Or --key {device}=file:PATH, which is read at each start");
                failure.reworded(why)
            })?;
            lent.insert(device.clone(), key);
        }
        let Local { disks, keys, options } = local;
        let source = GraphSource::Labels { text: graph.text.clone(), disks, keys, options };
        let directory = place::here()?;
        let mut up = self.options.up(graph.name.clone(), directory, source);
        (up.wipe, up.trust) = (self.wipe.clone(), self.trust.clone());
        up.keys = apply::paths(&lent);
        apply::bring_up(form, daemon, &up)
    }

    /// What the labels do not say.
    fn local(&self, graph: &FoundGraph, keys: BTreeMap<String, String>) -> Result<Local> {
        let usage = |why: String| Err(Failure::new(Exit::Usage, why));
        let mut disks = graph.places(&self.disk)?;
        for (name, at) in &self.disk {
            let is_there = graph.disks.iter().any(|disk| disk.name == *name)
                || graph.missing.contains(name)
                || graph.unlabelled.contains(name);
            if !is_there {
                return usage(format!("--disk {name}: {} has no such disk", graph.name));
            }
            disks.insert(name.clone(), said_place(at));
        }
        let is_nowhere =
            |name: &&String| graph.missing.contains(name) && !disks.contains_key(*name);
        if let Some(name) = self.wipe.iter().find(is_nowhere) {
            return usage(format!("--wipe {name}: {name} is not here. Next: --disk {name}=PATH"));
        }
        if let Some(name) = graph.unlabelled.iter().find(|name| !disks.contains_key(*name)) {
            return usage(format!(
                "{name} of {} has no label, so nobody can find it. Next: --disk {name}=PATH",
                graph.name
            ));
        }
        for name in keys.keys() {
            if !graph.keys.contains(name) {
                return usage(format!(
                    "--key {name}: {} opens no such device with a key",
                    graph.name
                ));
            }
        }
        let local = Local { disks, keys, options: options(&self.set)? };
        graph.check_options(&local)?;
        Ok(local)
    }
}

/// The graphs that the labels tell of: each by its newest.
fn graphs(sights: Vec<Sight>, skipped: &[Skipped]) -> Vec<FoundGraph> {
    let free = sights.into_iter().map(|Sight { path, label }| Told { path, label, in_use: None });
    let in_use = skipped.iter().filter_map(|Skipped { path, why, label }| {
        let (path, label) = (PathBuf::from(path), label.clone()?);
        Some(Told { path, label, in_use: Some(why.clone()) })
    });
    let mut by_graph: BTreeMap<(String, [u8; 16]), Vec<Told>> = BTreeMap::new();
    for told in free.chain(in_use) {
        let key = (told.label.graph_name.clone(), told.label.graph.0);
        by_graph.entry(key).or_default().push(told);
    }
    let graphs = by_graph.into_iter();
    graphs.filter_map(|((name, uuid), sights)| graph(name, Uuid(uuid), sights)).collect()
}

/// `None` if all of its disks are still being made.
fn graph(name: String, uuid: Uuid, sights: Vec<Told>) -> Option<FoundGraph> {
    let counting = sights.iter().filter(|sight| !sight.label.provisioning);
    let newest = counting.max_by_key(|sight| (sight.label.epoch, sight.label.sequence));
    let newest = newest?;
    let file = format!("{} ({})", labels::name_of(&newest.label), newest.path.display());
    let newest = newest.label.clone();
    // One that cannot be read says so when it is served.
    let named: BTreeMap<String, Remembered> = disks(&newest.spec).unwrap_or_default();
    let is_of = |sight: &Told| {
        named.iter().find(|(_, known)| known.disk == sight.label.disk).map(|(name, _)| name.clone())
    };
    let mut found: Vec<FoundDisk> = sights
        .iter()
        .filter_map(|sight| {
            let (name, path) = (is_of(sight)?, sight.path.clone());
            Some(FoundDisk { name, path, epoch: sight.label.epoch, in_use: sight.in_use.clone() })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let is_missing = |name: &&String| found.iter().all(|disk| disk.name != **name);
    let missing = named.keys().filter(is_missing).cloned().collect();
    let spec = Spec::of_label(&newest.spec, &file, &name, REGISTRY, &Local::default());
    let text = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    let as_written = Spec::parse(&newest.spec, &name, &|_| None);
    let holders: Vec<_> = sights.iter().filter_map(|sight| sight.label.holder.as_ref()).collect();
    Some(FoundGraph {
        uuid: uuid.to_string(),
        epoch: newest.epoch,
        open_on: holders.first().map(|machine| machine.host.clone()),
        open_here: holders.iter().all(|holder| holder.id == machine().id),
        written_unix_s: newest.written_unix_s,
        disks: found,
        missing,
        unlabelled: text(as_written.unlabelled()),
        keys: text(spec.keyed(REGISTRY)),
        options: needed(&spec),
        refused: Vec::new(),
        text: newest.spec,
        file,
        name,
    })
}

/// Lists the required options that are not known.
fn needed(spec: &Spec) -> Vec<String> {
    let options = spec.local_options(REGISTRY).into_iter();
    let needed = options.filter(|(_, option, is_set)| option.required && !is_set);
    needed.map(|(device, option, _)| format!("{device}.{}", option.name)).collect()
}

impl Found {
    /// The graph of that name or uuid.
    fn choose(&self, wanted: &str) -> Result<&FoundGraph> {
        let is_it = |graph: &&FoundGraph| graph.name == wanted || graph.uuid == wanted;
        let found: Vec<&FoundGraph> = self.graphs.iter().filter(is_it).collect();
        match &found[..] {
            [graph] => Ok(graph),
            [] => {
                let names: Vec<_> = self.graphs.iter().map(|graph| &*graph.name).collect();
                let here = match &names[..] {
                    [] => "no disk here has a label that can be read".to_owned(),
                    names => format!("there is {}", names.join(", ")),
                };
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
                let why = format!("{} graphs are called {wanted:?}", several.len());
                Err(Failure::new(Exit::Usage, why)
                    .next(format!("say which, with one of{}", uuids.concat())))
            }
        }
    }

    /// What it is called, and which one of that name it is where there are more.
    fn title(&self, graph: &FoundGraph) -> String {
        let called = self.graphs.iter().filter(|other| other.name == graph.name).count();
        out::title(&graph.name, &graph.uuid, called > 1)
    }

    fn text(&self) -> String {
        let mut text: String =
            self.graphs.iter().map(|graph| graph.line(self.title(graph))).collect();
        let is_told = |path: &str| {
            self.graphs
                .iter()
                .any(|graph| graph.disks.iter().any(|disk| disk.path == Path::new(path)))
        };
        for Skipped { why, .. } in self.skipped.iter().filter(|one| !is_told(&one.path)) {
            text.push_str(&format!("skipped: {why}\n"));
        }
        if self.graphs.is_empty() {
            text.push_str(scan::no_label(&self.skipped));
        }
        text
    }
}

impl FoundGraph {
    /// Reads the spec in its newest label, completed with the settings of this machine.
    fn spec(&self, local: &Local) -> Spec {
        Spec::of_label(&self.text, &self.file, &self.name, REGISTRY, local)
    }

    /// Checks that exactly options that labels do not hold are set, and all that are required.
    fn check_options(&self, local: &Local) -> Result<()> {
        let spec = self.spec(local);
        let known = spec.local_options(REGISTRY);
        let set = local.options.iter();
        for (device, option) in set.flat_map(|(device, of)| of.keys().map(move |key| (device, key)))
        {
            if !known.iter().any(|(it, known, _)| it == device && known.name == option) {
                let why = format!(
                    "--set {device}.{option}: {} has no such device, or labels hold that option",
                    self.name
                );
                return Err(Failure::new(Exit::Usage, why));
            }
        }
        let Some(option) = needed(&spec).into_iter().next() else { return Ok(()) };
        let why = format!(
            "{option} of {} is true on one machine only, so labels do not hold it",
            self.name
        );
        Err(Failure::new(Exit::Usage, why).next(format!("--set {option}=VALUE")))
    }

    /// Where its disks are, but for those of which somebody says it.
    fn places(&self, said: &[(String, String)]) -> Result<BTreeMap<String, (String, String)>> {
        let is_said = |disk: &FoundDisk| said.iter().any(|(name, _)| *name == disk.name);
        let unsaid = self.disks.iter().filter(|disk| !is_said(disk));
        let in_use: Vec<_> = unsaid.clone().filter_map(|disk| disk.in_use.as_ref()).collect();
        if !in_use.is_empty() {
            return Err(Failure::because(in_use.into_iter().cloned().collect()));
        }
        let mut places: BTreeMap<String, (String, String)> = BTreeMap::new();
        for FoundDisk { name, path, .. } in unsaid {
            let Some((_, first)) = places.insert(name.clone(), scan::place(path)) else { continue };
            let why = format!(
                "{first} and {} are both disk {name:?} of {}: one is a copy of the other",
                path.display(),
                self.name
            );
            return Err(Failure::new(Exit::InUse, why)
                .next(format!("say which counts, with --disk {name}=PATH")));
        }
        Ok(places)
    }

    /// What stands against serving it, as its start would tell: what `--degraded` and `--take` are for is not
    /// among that.
    async fn refusals(&self, env: &Env) -> Vec<String> {
        if let Some(faults) = self.spec(&Local::default()).faults() {
            return vec![faults.to_string()];
        }
        let disks = match self.places(&[]) {
            Ok(disks) => disks,
            Err(failure) => {
                return failure.causes.iter().map(Error::to_string).collect();
            }
        };
        if !self.unlabelled.is_empty() || !self.options.is_empty() {
            // It cannot be planned before these are known.
            return Vec::new();
        }
        let local = Local { disks, ..Local::default() };
        let spec = self.spec(&local);
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let opening = Opening { take: true, ..labels::opening() };
        let survey = labels::survey(&spec, env, &engine, opening, true, None).await;
        let surveyed = survey.as_ref().map(Survey::facts).unwrap_or_default();
        let planned = spec.plan_over(REGISTRY, env, &surveyed).await;
        let refusals = match (survey, planned) {
            (Some(survey), _) if !survey.refusals().is_empty() => Ok(survey.refusals().to_vec()),
            (Some(survey), Ok(planned)) => Ok(survey.foreseen(&planned)),
            (None, Ok(_)) => Ok(Vec::new()),
            (_, Err(faults)) => Err(faults.to_string()),
        };
        engine.abandon();
        let helped = |refusal: &&Error| refusal.reason() != Some(Reason::LabelDegraded);
        match refusals {
            Ok(refusals) => refusals.iter().filter(helped).map(Error::to_string).collect(),
            Err(why) => vec![why],
        }
    }

    /// `home  2 disks, 1 here (sdc = a, change 41), missing b   open on host "old" since 2 h`
    fn line(&self, title: String) -> String {
        let names: BTreeSet<&String> = self.disks.iter().map(|disk| &disk.name).collect();
        let all = names.len() + self.missing.len();
        let one = |disk: &FoundDisk| {
            let in_use = if disk.in_use.is_some() { ", in use" } else { "" };
            format!("{} = {}, change {}{in_use}", disk.path.display(), disk.name, disk.epoch)
        };
        let here: Vec<_> = self.disks.iter().map(one).collect();
        let mut text = format!("{title}  {}, {} here", out::count(all as u64, "disk"), names.len());
        if !here.is_empty() {
            text.push_str(&format!(" ({})", here.join("; ")));
        }
        if !self.missing.is_empty() {
            text.push_str(&format!(", missing {}", self.missing.join(", ")));
        }
        if let Some(host) = &self.open_on {
            let since = format_duration(out::since(self.written_unix_s));
            text.push_str(&format!("   open on host {host:?} since {since}"));
        }
        text.push_str(&format!("\n  {}\n", self.prospect()));
        text
    }

    /// What it takes to serve it.
    fn prospect(&self) -> String {
        if !self.refused.is_empty() {
            return format!("refused: {}", self.refused.join("\n  refused: "));
        }
        let mut needs = vec![
            match (self.missing.is_empty(), self.unlabelled.is_empty()) {
                (true, _) => "would come up",
                (false, true) => "would come up with --degraded",
                (false, false) => {
                    "would come up with --degraded, if all data are on the disks here"
                }
            }
            .to_owned(),
        ];
        if self.open_on.is_some() && !self.open_here {
            needs.push("with --take, if that host will not come back with it".to_owned());
        }
        for name in &self.unlabelled {
            needs.push(format!("with --disk {name}=PATH, for it has no label"));
        }
        for option in &self.options {
            needs.push(format!("with --set {option}=VALUE, which labels do not hold"));
        }
        for name in &self.keys {
            needs.push(format!("key {name:?} is asked for, or --key {name}=SOURCE"));
        }
        needs.join("; ")
    }
}
