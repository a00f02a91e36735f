//! `cairn stop`: stops a graph of a daemon in order, so that another machine may open its disks.

use std::path::Path;

use api::{Client, DaemonView, DetachRequest, KeptName, Phase, routes};
use clap::Args;
use supervisor::{LockHolder, Record, WorkerLock};

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
        let is_labelled = is_labelled(&supervisor::file_in(&state, &name));
        let stopped = daemon.ask(&routes::STOP, &KeptName { name })?;
        form.print(&stopped, || {
            let name = &stopped.name;
            match (is_labelled, is_open) {
                (false, false) => {
                    format!("{name}  stopped, and its disks are free. Next: cairn apply SPEC\n")
                }
                (false, true) => format!(
                    "{name}  removed from the daemon, without a worker. Next: cairn apply SPEC\n"
                ),
                (true, false) => format!(
                    "{name}  stopped; any machine may open its disks. Next: cairn import {name}\n"
                ),
                (true, true) => format!(
                    "{name}  removed from the daemon; its worker did not run, so labels may show it as open \
                     on this machine. Next: cairn import {name}, and stop it; or cairn import {name} --take \
                     on another machine\n"
                ),
            }
        })
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

/// Whether the record of a graph has labelled disks, from which the graph can be imported. True if the record cannot
/// be read.
fn is_labelled(file: &Path) -> bool {
    let spec = Record::read(file).map(|record| worker::spec_of(&record.source, &record.name));
    spec.map_or(true, |spec| !spec.labelled(REGISTRY).is_empty())
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
