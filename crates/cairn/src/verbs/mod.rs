//! The verbs of the command line: one file for each, with its arguments and its code.

pub mod apply;
pub mod attach;
pub mod bench;
pub mod check;
pub mod completions;
pub mod create;
pub mod device;
pub mod events;
pub mod graph;
pub mod import;
pub mod info;
pub mod job;
pub mod key;
pub mod kinds;
pub mod locate;
pub mod ls;
pub mod man;
mod progress;
pub mod repair;
pub mod scrub;
pub mod show;
pub mod status;
pub mod stop;
pub mod top;
pub mod undo;
pub mod validate;
pub mod vdisk;
pub mod wipe;

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use ::graph::spec::{Faults, Planned, Spec};
use runtime::{Config, Core, Engine};

use crate::certificates;
use crate::exit::{Exit, Failure, Result};
use crate::registry::REGISTRY;
use crate::source::{failure_of, read_spec};

/// Interval between two looks at the progress of something that a server or a daemon does.
const LOOK: Duration = Duration::from_millis(200);

/// Returns a core for a short command, which reads disks and sockets without a ring.
fn core() -> Result<Core> {
    Ok(Core::new(Config { engine: Engine::Threads, ..Config::default() })?)
}

/// Asks the operator to confirm an irreversible step, unless `yes` confirms it. Fails without a confirmation.
fn confirm(yes: bool, question: &str) -> Result<()> {
    if yes {
        return Ok(());
    }
    let stop = |why: &str| Err(Failure::new(Exit::Usage, why));
    if !std::io::stdin().is_terminal() {
        return stop("no terminal to ask for a confirmation. Next: add --yes");
    }
    eprint!("{} [y/N] ", crate::out::escaped(question));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    match (read, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes") => Ok(()),
        _ => stop("not confirmed; nothing was changed"),
    }
}

/// Returns the plan of the spec file at `path`. Prints the faults of the spec.
fn plan(path: &Path) -> Result<Planned> {
    planned(&read_spec(path)?)?.map_err(failure_of)
}

/// Returns the plan of a spec, or the faults of the spec as the inner error.
fn planned(spec: &Spec) -> Result<Result<Planned, Faults>> {
    let core = core()?;
    let env = core.env();
    let mut spec = spec.clone();
    certificates::check(&env, &mut spec);
    Ok(core.block_on(spec.plan(REGISTRY, &env)))
}
