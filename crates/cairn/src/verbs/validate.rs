//! `cairn validate`: prints all faults of a spec, or a summary of its graph.

use std::path::PathBuf;

use api::GraphView;
use clap::Args;
use engine::Engine;
use graph::spec::{Fault, Spec};
use serde::Serialize;

use super::{core, planned};
use crate::complete;
use crate::exit::{Exit, Failure, Result};
use crate::labels;
use crate::out::{self, Form};
use crate::source::{failure_of, read_spec};
use crate::view;

/// Arguments of `validate`.
#[derive(Args)]
pub struct ValidateArgs {
    /// The spec
    #[arg(add = complete::spec())]
    spec: PathBuf,
}

/// The faults of a spec; or its graph, if the spec has none.
#[derive(Serialize)]
struct Validated {
    faults: Vec<FaultView>,
    graph: Option<GraphView>,
}

#[derive(Serialize)]
struct FaultView {
    file: String,
    line: u32,
    column: u32,
    severity: String,
    message: String,
}

impl ValidateArgs {
    /// Checks the spec, without opening a disk for writing.
    pub fn run(self, form: Form) -> Result {
        let spec = read_spec(&self.spec)?;
        let plan = planned(&spec)?;
        match (plan, form) {
            (Err(faults), Form::Text) => Err(failure_of(faults)),
            (Err(faults), Form::Json) => {
                let faults = faults.iter().map(fault).collect();
                form.print(&Validated { faults, graph: None }, String::new)?;
                Ok(Exit::Spec)
            }
            (Ok(planned), _) => {
                if form == Form::Text {
                    planned.warnings.iter().for_each(|warning| out::note(&warning.to_string()));
                }
                let faults = planned.warnings.iter().map(fault).collect();
                let graph = Some(view::graph(&planned, None, |_| Vec::new()));
                form.print(&Validated { faults, graph }, || planned.summary())?;
                look(&spec, form)
            }
        }
    }
}

/// Prints the effect that a start with the spec would have on labelled disks. Writes nothing.
fn look(spec: &Spec, form: Form) -> Result {
    let core = core()?;
    let env = core.env();
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let doctor = labels::doctor(&env);
    let probe = doctor.probe(spec, &engine, doctor.opening(), true, None);
    let Some(probe) = core.block_on(probe) else { return Ok(Exit::Ok) };
    if form == Form::Text {
        out::print(&labels::previews(&probe))?;
    }
    match probe.refusals() {
        [] => Ok(Exit::Ok),
        // A running graph has the disks open, and checks their labels itself.
        refusals if refusals.iter().all(labels::is_in_use) => Ok(Exit::Ok),
        refusals => Err(Failure::because(refusals.to_vec())),
    }
}

fn fault(fault: &Fault) -> FaultView {
    FaultView {
        file: fault.file().to_owned(),
        line: fault.position().line,
        column: fault.position().column,
        severity: fault.severity().to_string(),
        message: fault.message().to_owned(),
    }
}
