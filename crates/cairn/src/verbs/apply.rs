//! `cairn apply` and `cairn diff`: changes a running graph to a spec. If the graph does not run, a daemon starts it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::{
    Applied, ApplyRequest, ChangeWay, Client, GraphSource, Health, KeptGraph, UpRequest, routes,
};
use block::KeySource;
use block::units::{parse_size, write_size};
use clap::Args;
use graph::spec::Spec;
use kind::ValueType;

use super::key::Lent;
use crate::complete;
use crate::exit::{Exit, Result};
use crate::out::{self, Form};
use crate::place;
use crate::registry::REGISTRY;
use crate::running::{self, At};
use crate::serve::ServeOptions;
use crate::source::{Source, read_text};

/// Arguments of `apply`.
#[derive(Args)]
pub struct ApplyArgs {
    /// The spec; the running graph of that name is changed to match it
    #[arg(add = complete::spec())]
    spec: PathBuf,
    /// Label a disk even if it is not empty: its content is lost
    #[arg(long, value_name = "DISK")]
    wipe: Vec<String>,
    #[command(flatten)]
    moving: Moving,
    /// For a graph that a daemon brings up: start without missing labelled disks, if the other disks have all
    /// data, now and at each start
    #[arg(long)]
    degraded: bool,
    /// For a graph that a daemon brings up: open disks that another machine had open and did not close
    #[arg(long)]
    take: bool,
    /// Show the steps without doing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

/// Options for moving bytes.
#[derive(Args)]
pub struct Moving {
    /// If an export would change its bytes, migrate its present ones, as a job: encrypt it in place, or
    /// move it to another disk
    #[arg(long = "move")]
    pub move_bytes: bool,
    /// With --move: bytes per second at most, as 100MiB; by default as many as clients leave
    #[arg(long, requires = "move_bytes", value_name = "BYTES", value_parser = speed)]
    pub speed: Option<u64>,
    /// With --move: watch until the migration is done; it continues after Ctrl-C
    #[arg(long, requires = "move_bytes")]
    pub wait: bool,
}

/// Parses the speed of a migration from the option `--speed`.
fn speed(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    match REGISTRY.mover().map(|(_, moving)| moving.speed.value) {
        Some(ValueType::Size(least, most)) if !(least..=most).contains(&bytes) => Err(format!(
            "the speed of a move is {} to {} per second",
            write_size(least),
            write_size(most)
        )),
        _ => Ok(bytes),
    }
}

/// Arguments of `diff`.
#[derive(Args)]
pub struct DiffArgs {
    /// The spec to compare with the running graph
    #[arg(add = complete::spec())]
    spec: PathBuf,
    /// Show the changes of apply --move
    #[arg(long = "move")]
    move_bytes: bool,
    #[command(flatten)]
    at: At,
}

impl ApplyArgs {
    /// Makes the running graph of the spec's name change to the spec. If the graph does not run, makes the daemon
    /// start it.
    pub fn run(self, form: Form) -> Result {
        let Self { spec: path, wipe, moving, degraded, take, dry_run, at } = self;
        let written = Written::read(&path)?;
        let daemon = running::daemon().filter(|_| at.is_any());
        if daemon.is_none() || at.named(&written.name)?.is_some() {
            let (move_bytes, speed_bytes) = (moving.move_bytes, moving.speed);
            let Written { name, request } = written;
            let way = ChangeWay { wipe, move_bytes, speed_bytes, dry_run, ..request.way };
            let (client, applied) = ask(&name, &ApplyRequest { way, ..request }, &at)?;
            return moving.done(&client, &applied, dry_run, form);
        }
        let options = ServeOptions::of(degraded, take, dry_run);
        if dry_run {
            return options.serve(Source::Spec(path), &wipe, form);
        }
        // The keys wait in pipes of this command until the daemon has answered.
        let lent = written.lend_keys()?;
        let ApplyRequest { file, text, variables, .. } = written.request;
        let up = options.up(&written.name, GraphSource::Spec { file, text, variables })?;
        bring_up(form, &daemon.expect("a daemon runs"), UpRequest { wipe, ..up }, &lent)
    }
}

impl DiffArgs {
    /// Asks the running graph of the spec's name for the effects of a change to the spec, and prints them.
    pub fn run(self, form: Form) -> Result {
        let Written { name, request } = Written::read(&self.spec)?;
        let way = ChangeWay { move_bytes: self.move_bytes, dry_run: true, ..request.way };
        let (_, applied) = ask(&name, &ApplyRequest { way, ..request }, &self.at)?;
        print(form, &applied, true)
    }
}

impl Moving {
    /// Prints the changes. With `--wait`, watches the migration that has begun.
    ///
    /// # Errors
    /// As `cairn job watch`.
    pub fn done(self, client: &Client, applied: &Applied, dry_run: bool, form: Form) -> Result {
        print(form, applied, dry_run)?;
        if !self.wait || dry_run {
            return Ok(Exit::Ok);
        }
        let is_new = |job: &&api::Job| {
            applied.changes.iter().any(|line| line.verb == "add" && line.name == job.device)
        };
        match client.get(&routes::JOBS)?.iter().find(is_new) {
            Some(job) => super::job::watch(client, &job.device, form),
            None => Ok(Exit::Ok),
        }
    }
}

/// The text of a spec file, which another process will parse.
struct Written {
    name: String,
    /// The request to apply the spec, without options.
    request: ApplyRequest,
}

impl Written {
    fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let file = path.to_string_lossy().into_owned();
        let variables = RefCell::new(BTreeMap::new());
        let look_up = |name: &str| {
            let value = std::env::var(name).ok()?;
            variables.borrow_mut().insert(name.to_owned(), value.clone());
            Some(value)
        };
        let name = Spec::parse(&text, &file, &look_up).name().to_owned();
        let way = ChangeWay { directory: place::here()?, ..ChangeWay::default() };
        let variables = variables.into_inner();
        Ok(Self { name, request: ApplyRequest { file, text, variables, way } })
    }

    /// Reads the keys that the daemon's worker cannot read, because the worker has neither a terminal nor the
    /// descriptors of this command. The operator types a passphrase twice, because the device may be new.
    fn lend_keys(&self) -> Result<BTreeMap<String, Lent>> {
        let ApplyRequest { file, text, variables, .. } = &self.request;
        let spec = Spec::parse(text, file, &|name| variables.get(name).cloned());
        let mut lent = BTreeMap::new();
        for (device, source) in spec.keys(REGISTRY) {
            // A source that cannot be parsed is reported by the daemon.
            let Ok(source @ (KeySource::Ask | KeySource::Fd(_))) = source.parse() else { continue };
            let prompt = format!("passphrase for {}/{device}", self.name);
            lent.insert(device.to_owned(), Lent::of(&source, prompt, true)?);
        }
        Ok(lent)
    }
}

/// Makes the running graph called `name` change to a spec; in a dry run, returns the effects of the change.
fn ask(name: &str, request: &ApplyRequest, at: &At) -> Result<(Client, Applied)> {
    let client = at.one_that(&format!("is called {name}"), |it| running::is_called(it, name))?;
    let applied = client.ask(&routes::APPLY, request)?;
    Ok((client, applied))
}

/// Makes a daemon start a graph, and prints the addresses for clients. `lent` has the keys, by device.
pub(super) fn bring_up(
    form: Form,
    daemon: &Client,
    mut up: UpRequest,
    lent: &BTreeMap<String, Lent>,
) -> Result {
    up.keys = lent.iter().map(|(device, key)| (device.clone(), key.path().into())).collect();
    print_up(form, &daemon.ask(&routes::UP, &up)?)
}

/// Prints that the graph runs, and its addresses.
pub fn print_up(form: Form, kept: &KeptGraph) -> Result {
    let (mut degraded, mut uris) = ("", Vec::new());
    if let Some(client) = At::default().named(&kept.name)? {
        if client.get(&routes::STATUS)?.health > Health::Limited {
            degraded = ", degraded";
        }
        let exports = client.get(&routes::GRAPH)?.exports.into_iter();
        uris.extend(exports.flat_map(|export| export.attached.into_iter().chain(export.uris)));
    }
    form.print(kept, || format!("{}  up{degraded}.  {}\n", kept.name, uris.join("   ")))
}

/// Prints the changes of a graph that were made; in a dry run, those that would be made.
pub fn print(form: Form, applied: &Applied, dry_run: bool) -> Result {
    if form == Form::Text {
        applied.notes.iter().for_each(|note| out::note(note));
    }
    form.print(applied, || text(applied, dry_run))
}

fn text(applied: &Applied, dry_run: bool) -> String {
    if applied.changes.is_empty() {
        let graph = &applied.graph;
        return format!("{graph} already matches the spec; nothing to do.\n");
    }
    let width = applied.changes.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let would = if dry_run { "would " } else { "" };
    let line = |line: &api::ChangeLine| {
        format!("{would}{:6}  {:width$}  {}\n", line.verb, line.name, line.words)
    };
    applied.changes.iter().map(line).collect()
}
