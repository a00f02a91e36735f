//! `cairn stop`: stops a graph of a daemon in order, so that another machine may open its disks.

use api::{Client, DaemonView, DetachRequest, KeptName, Phase, routes};
use block::KeySource;
use block::env::Address;
use clap::Args;
use graph::spec::{Listen, Unkept, is_loopback, parse_address};
use supervisor::{LockHolder, Options, Record, Source, WorkerLock};

use super::confirm;
use crate::complete;
use crate::exit::{Exit, Failure, Result};
use crate::names;
use crate::out::{Form, count};
use crate::place;
use crate::registry::REGISTRY;
use crate::running::{self, At};
use crate::serve::worker;

/// Arguments of `stop`.
#[derive(Args)]
pub struct StopArgs {
    /// The graph
    #[arg(add = complete::kept_graph())]
    name: String,
    /// Do not ask for confirmation if the graph has clients
    #[arg(long)]
    yes: bool,
    /// Show the steps without doing anything
    #[arg(long)]
    dry_run: bool,
}

impl StopArgs {
    /// Detaches the devices of the graph, stops the graph, and removes it from the daemon.
    pub fn run(self, form: Form) -> Result {
        let Self { name, yes, dry_run } = self;
        let Some(daemon) = running::daemon() else { return Err(without(&name)) };
        let DaemonView { graphs, state, .. } = daemon.get(&routes::DAEMON)?;
        let Some(kept) = graphs.iter().find(|graph| graph.name == name) else {
            let names = graphs.iter().map(|graph| graph.name.as_str());
            let known = names::listed(names, "the daemon keeps no graph", "the daemon keeps");
            fail!(NotFound, "no graph {name:?}; {known}");
        };
        let is_up = kept.phase == Phase::Up;
        // A graph that does not run cannot close its labels. One that was stopped before has closed them.
        let is_closed = kept.phase == Phase::Stopped && kept.problem.is_none();
        let is_open = !is_up && !is_closed;
        if let Some(client) = At::default().named(&name)?.filter(|_| is_up) {
            release(&client, &name, yes, dry_run)?;
        }
        if dry_run {
            return form.print(kept, || format!("would stop {name}\n"));
        }
        let record = Record::read(&supervisor::file_in(&state, &name));
        let stopped = daemon.ask(&routes::STOP, &KeptName { name })?;
        form.print(&stopped, || {
            let name = &stopped.name;
            let Next { is_labelled, again, lost } = Next::of(name, record.ok().as_ref());
            let told = match (is_labelled, is_open) {
                (false, false) => format!("stopped, and its disks are free. Next: {again}"),
                (false, true) => {
                    format!("removed from the daemon, without a worker. Next: {again}")
                }
                (true, false) => format!("stopped; any machine may open its disks. Next: {again}"),
                (true, true) => format!(
                    "removed from the daemon; its worker did not run, so labels may show it as open \
                     on this machine. Next: {again}, and stop it; or {again} --take on another \
                     machine"
                ),
            };
            format!("{name}  {told}\n{lost}")
        })
    }
}

/// The command that brings a stopped graph back.
struct Next {
    /// Whether the graph has labelled disks, from which it can be imported.
    is_labelled: bool,
    again: String,
    /// Line about the settings that this command does not bring back; empty if there are none.
    lost: String,
}

impl Next {
    /// Returns the command for the graph of that name, and of that record if it can be read.
    fn of(name: &str, record: Option<&Record>) -> Self {
        let import = format!("cairn import {}", word(name));
        let Some(record) = record else {
            return Self { is_labelled: true, again: import, lost: String::new() };
        };
        let spec = worker::spec_of(&record.source, &record.name);
        let file = match &record.source {
            Source::Spec { file, .. } => word(file),
            Source::Labels { .. } => "SPEC".to_owned(),
        };
        if spec.labelled(REGISTRY).is_empty() {
            let again = format!("cairn apply {file}");
            return Self { is_labelled: false, again, lost: String::new() };
        }
        let unkept = spec.unkept(REGISTRY);
        let mut arguments = settings(&unkept, spec.export_names().count());
        arguments.extend(options(&record.options, &unkept.listens));
        let lost = match unkept.sections.join(", ") {
            none if none.is_empty() => none,
            some => format!(
                "  labels do not hold {some} of its spec; cairn apply {file} sets them again\n"
            ),
        };
        let again = [vec![import], arguments].concat().join(" ");
        Self { is_labelled: true, again, lost }
    }
}

/// Returns the arguments of `import` with which a graph is served as before. `listens` are the addresses of its spec.
fn options(options: &Options, listens: &[Listen]) -> Vec<String> {
    let given: Vec<_> =
        options.listen.iter().flat_map(|address| parse_address(address, true)).collect();
    let listens = if given.is_empty() { listens } else { &given };
    // No argument gives the certificates that an address with TLS needs.
    let plain: Vec<_> = listens.iter().filter(|listen| !listen.tls).collect();
    let beyond_loopback =
        |listen: &&Listen| matches!(&listen.address, Address::Tcp(host, _) if !is_loopback(host));
    let is_open = plain.iter().any(beyond_loopback);
    let flags = [
        (options.read_only, "--read-only"),
        (options.degraded, "--degraded"),
        (is_open, "--insecure"),
    ];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned());
    let listens = plain.iter().map(|listen| format!("--listen {}", word(&listen.to_string())));
    flags.chain(listens).collect()
}

/// Returns the arguments of `import` that give the settings of devices and exports back which labels do not contain.
/// The graph has `exports` exports. A key that is asked for, or that came through a descriptor, has no argument that
/// works again.
fn settings(unkept: &Unkept, exports: usize) -> Vec<String> {
    let attached = |(name, value): &&(String, String)| name.ends_with(".attach") && value == "true";
    let are_all_attached = exports > 0 && unkept.options.iter().filter(attached).count() == exports;
    let mut arguments: Vec<_> =
        are_all_attached.then(|| "--attach".to_owned()).into_iter().collect();
    let mut add = |option: &str, (name, value): &(String, String)| {
        arguments.push(format!("{option} {}", word(&format!("{name}={value}"))));
    };
    unkept.disks.iter().for_each(|disk| add("--disk", disk));
    let lasts = |(_, source): &&(String, String)| {
        !matches!(source.parse(), Ok(KeySource::Ask | KeySource::Fd(_)))
    };
    unkept.keys.iter().filter(lasts).for_each(|key| add("--key", key));
    let others = unkept.options.iter().filter(|option| !(are_all_attached && attached(option)));
    others.for_each(|option| add("--set", option));
    arguments
}

/// Returns `text` as one word of a shell command.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Detaches the devices of the graph. If the graph has clients, first asks the operator to confirm.
fn release(client: &Client, name: &str, yes: bool, dry_run: bool) -> Result<()> {
    let status = client.get(&routes::STATUS)?;
    if status.connections > 0 {
        let clients = count(status.connections as u64, "connection");
        confirm(yes || dry_run, &format!("stop {name}, and close its {clients}?"))?;
    }
    for attached in status.attached {
        client.ask(&routes::DETACH, &DetachRequest { name: attached.name, dry_run })?;
    }
    Ok(())
}

fn without(name: &str) -> Failure {
    let of = At::default().named(name).ok().flatten();
    let (why, next) = match of.and_then(|client| client.get(&routes::GRAPH).ok()?.pid) {
        Some(pid) if is_worker(name, pid) => (
            format!("the daemon of {name} has ended, but its worker, process {pid}, still runs"),
            format!("cairn daemon, then cairn stop {name}"),
        ),
        Some(pid) => {
            (format!("process {pid} serves {name} without a daemon"), format!("kill {pid}"))
        }
        None => (format!("no daemon runs, so {name} has no worker"), "cairn status".to_owned()),
    };
    Failure::new(Exit::NotFound, why).next(next)
}

/// Whether the process `pid` is the daemon's worker of the graph `name`. Such a worker continues when the daemon is
/// replaced.
fn is_worker(name: &str, pid: u32) -> bool {
    let seat = place::keeper().join(format!("{name}.seat"));
    seat.exists() && WorkerLock::holder(&seat).is_ok_and(|sat| sat == LockHolder::By(pid))
}
