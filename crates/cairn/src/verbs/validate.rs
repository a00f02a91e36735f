//! `cairn validate`: prints all faults of a spec, or a summary of its graph.

use std::path::PathBuf;

use api::GraphView;
use block::KeySource;
use clap::Args;
use engine::Engine;
use graph::spec::{Fault, Planned, Position, Severity, Spec};
use serde::Serialize;

use super::{core, planned};
use crate::attach::must_be_root;
use crate::complete;
use crate::exit::{Exit, Failure, Result};
use crate::labels;
use crate::out::{self, Form};
use crate::registry::REGISTRY;
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
                let mut faults: Vec<_> = planned.warnings.iter().map(fault).collect();
                faults.extend(self.of_machine(&spec, &planned));
                if form == Form::Text {
                    faults.iter().for_each(|fault| out::note(&fault.text()));
                }
                let graph = Some(view::graph(&planned, None, |_| Vec::new()));
                form.print(&Validated { faults, graph }, || planned.summary())?;
                look(&spec, form)
            }
        }
    }
}

impl ValidateArgs {
    /// Returns warnings about conditions of this machine that a start needs, and that may change until then.
    fn of_machine(&self, spec: &Spec, planned: &Planned) -> Vec<FaultView> {
        let warning = |position: Position, message: String| FaultView {
            file: self.spec.display().to_string(),
            line: position.line,
            column: position.column,
            severity: Severity::Warning.to_string(),
            message,
        };
        let mut warnings = Vec::new();
        for (device, source) in spec.keys(REGISTRY) {
            let Ok(KeySource::File(path)) = source.parse() else { continue };
            if path.exists() {
                continue;
            }
            let node = planned.nodes.iter().find(|node| node.name == device);
            let message = format!(
                "the key file of {device:?}, {}, does not exist here. Next: create it before the start",
                path.display()
            );
            warnings.push(warning(node.map_or(Position::NONE, |node| node.position), message));
        }
        let attached = planned.exports.iter().filter(|export| export.attach);
        for export in attached.filter(|_| must_be_root(None).is_err()) {
            let message = format!(
                "export {:?} has attach = true, which needs root. Next: serve as root, or remove attach",
                export.name
            );
            warnings.push(warning(Position::NONE, message));
        }
        warnings
    }
}

impl FaultView {
    /// Returns the fault as a line for people.
    fn text(&self) -> String {
        let Self { file, line, column, severity, message } = self;
        match line {
            0 => format!("{file}  {severity}  {message}"),
            line => format!("{file}:{line}:{column}  {severity}  {message}"),
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
