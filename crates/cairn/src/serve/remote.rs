//! `cairn attach URI`: serves a graph of one NBD disk in the foreground, and attaches it to this machine.

use std::rc::Rc;
use std::time::Duration;

use api::AttachRequest;
use block::first;
use engine::Engine;
use graph::spec::{Planned, Spec};
use runtime::{Config, Core};
use wire::nbd::uri::NbdUri;

use super::{Serving, open_control, process};
use crate::attach::{must_be_root, print};
use crate::exit::{Exit, Failure, Result};
use crate::out::Form;
use crate::registry::REGISTRY;

/// Longest wait, when the process stops, for users of the device and for the last flush.
const STOP: Duration = Duration::from_secs(30);

/// Name of the attached device if the URI names no export.
const UNNAMED: &str = "nbd";

/// Attaches the export at the URI of the request, until a signal comes or the device is detached.
pub fn attach_uri(form: Form, request: &AttachRequest) -> Result {
    let AttachRequest { export: uri, name, by, dry_run } = request;
    let usage = |why: String| failure!(Usage, "{uri}: {why}");
    let parsed: NbdUri = uri.parse().map_err(|error| usage(format!("{error}")))?;
    must_be_root(Some(uri))?;
    let name = match (name, &*parsed.export) {
        (Some(name), _) => name,
        (None, "") => UNNAMED,
        (None, export) => export,
    };
    let core = Core::new(Config::default())?;
    let env = core.env();
    let spec = Spec::of_disk("nbd", uri, false);
    let planned = core.block_on(spec.plan(REGISTRY, &env)).map_err(|faults| {
        let words: Vec<_> = faults.iter().map(|fault| fault.message()).collect();
        Failure::new(Exit::Io, words.join("; "))
    })?;
    let planned = named(planned, name);
    process::raise_limits()?;
    let mut signals = core.signals()?;
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let serving = Rc::new(core.block_on(Serving::open(&env, &engine, spec, &planned, None))?);
    let attachments = &serving.attachments;
    if !dry_run {
        core.block_on(attachments.resume());
    }
    let attached = match attachments.views().pop() {
        Some(resumed) => resumed,
        None => core.block_on(attachments.attach(name, None, *by, *dry_run))?,
    };
    if *dry_run {
        return print(form, &attached);
    }
    let control = open_control(None, &serving)?;
    print(form, &attached)?;
    // Both mean the end.
    let _ = core.block_on(first(attachments.emptied(), signals.next()));
    let ended = core.block_on(serving.end(&mut signals, STOP, None, 0));
    drop(control);
    ended.finish(core)
}

/// Returns the plan with `name` as the name of its graph and of its export.
fn named(mut planned: Planned, name: &str) -> Planned {
    name.clone_into(&mut planned.name);
    for export in &mut planned.exports {
        name.clone_into(&mut export.name);
    }
    planned
}
