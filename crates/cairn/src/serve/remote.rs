//! `cairn attach URI`: a graph of one NBD disk in the foreground, which serves only this machine.

use std::rc::Rc;
use std::time::Duration;

use api::Means;
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

/// Longest wait, at the end, for users of the device and for the last flush.
const STOP: Duration = Duration::from_secs(30);

/// Name of the device if the URI names no export.
const UNNAMED: &str = "nbd";

/// An export of another server, to attach here.
pub struct Remote {
    /// URI of the export.
    pub uri: String,
    /// Name of the device.
    pub name: Option<String>,
    /// Means of the attach; chosen from those of the kernel if not given.
    pub by: Option<Means>,
    /// Whether nothing is changed.
    pub dry_run: bool,
}

impl Remote {
    /// Attaches the export until a signal comes or the device is detached.
    pub fn run(self, form: Form) -> Result {
        let usage = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", self.uri));
        let uri: NbdUri = self.uri.parse().map_err(|error| usage(format!("{error}")))?;
        must_be_root(Some(&self.uri))?;
        let name = match (&self.name, &*uri.export) {
            (Some(name), _) => name.clone(),
            (None, "") => UNNAMED.to_owned(),
            (None, export) => export.to_owned(),
        };
        let core = Core::new(Config::default())?;
        let env = core.env();
        let spec = Spec::of_disk("nbd", &self.uri, false);
        let planned = core.block_on(spec.plan(REGISTRY, &env)).map_err(|faults| {
            let words: Vec<_> = faults.iter().map(|fault| fault.message()).collect();
            Failure::new(Exit::Io, words.join("; "))
        })?;
        let planned = named(planned, &name);
        process::raise_limits()?;
        let mut signals = core.signals()?;
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let serving = Rc::new(core.block_on(Serving::open(&env, &engine, spec, &planned, None))?);
        let attachments = &serving.attachments;
        if !self.dry_run {
            core.block_on(attachments.resume());
        }
        let attached = match attachments.views().pop() {
            Some(resumed) => resumed,
            None => core.block_on(attachments.attach(&name, None, self.by, self.dry_run))?,
        };
        if self.dry_run {
            return print(form, &attached);
        }
        let control = open_control(None, &serving)?;
        print(form, &attached)?;
        // Both mean the end.
        let _ = core.block_on(first(serving.attachments.emptied(), signals.next()));
        let ended = core.block_on(serving.end(&mut signals, STOP, None, 0));
        drop(control);
        ended.finish(core)
    }
}

/// Returns the plan with its graph and its export renamed.
fn named(mut planned: Planned, name: &str) -> Planned {
    name.clone_into(&mut planned.name);
    for export in &mut planned.exports {
        name.clone_into(&mut export.name);
    }
    planned
}
