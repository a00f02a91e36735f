//! `cairn apply` and `cairn diff`: a spec that what is running is to become.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::{Applied, ApplyRequest, Client};
use clap::Args;
use graph::spec::Spec;
use graph::spec::units::parse_size;

use crate::exit::{Exit, Failure, Result};
use crate::out::{self, Form};
use crate::running::At;
use crate::source::read_text;

/// What `apply` takes.
#[derive(Args)]
pub struct ApplyArgs {
    /// The spec that the running graph of that name is to become
    spec: PathBuf,
    /// Label a disk whatever is on it: what it holds is lost
    #[arg(long, value_name = "DISK")]
    wipe: Vec<String>,
    /// Where an export would show other bytes, let its own move there, as a job: encrypt it in place, or
    /// bring it to another disk
    #[arg(long = "move")]
    move_bytes: bool,
    /// With --move: bytes per second at most, as 100MiB; as many as clients leave if not given
    #[arg(long, requires = "move_bytes", value_name = "BYTES", value_parser = parse_size)]
    speed: Option<u64>,
    /// With --move: watch until the bytes are there; Ctrl-C leaves them moving
    #[arg(long, requires = "move_bytes")]
    wait: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

/// What `diff` takes.
#[derive(Args)]
pub struct DiffArgs {
    /// The spec to compare with what is running
    spec: PathBuf,
    /// As apply --move would do it
    #[arg(long = "move")]
    move_bytes: bool,
    #[command(flatten)]
    at: At,
}

/// Whether bytes may move, and how fast.
struct Moving {
    move_bytes: bool,
    speed: Option<u64>,
}

impl ApplyArgs {
    /// Asks the running graph of that name.
    pub fn run(self, form: Form) -> Result {
        let Self { spec, wipe, move_bytes, speed, wait, dry_run, at } = self;
        let moving = Moving { move_bytes, speed };
        let (client, applied) = ask(&spec, wipe, moving, dry_run, &at)?;
        print(form, &applied, dry_run)?;
        let is_new = |job: &&api::Job| {
            applied.changes.iter().any(|line| line.verb == "add" && line.name == job.device)
        };
        match client.jobs()?.iter().find(is_new).filter(|_| wait && !dry_run) {
            Some(job) => super::job::watch(&client, &job.device, form),
            None => Ok(Exit::Ok),
        }
    }
}

impl DiffArgs {
    /// Asks the running graph of that name, and changes nothing.
    pub fn run(self, form: Form) -> Result {
        let (_, applied) = ask(
            &self.spec,
            Vec::new(),
            Moving { move_bytes: self.move_bytes, speed: None },
            true,
            &self.at,
        )?;
        print(form, &applied, true)
    }
}

fn ask(
    path: &Path,
    wipe: Vec<String>,
    moving: Moving,
    dry_run: bool,
    at: &At,
) -> Result<(Client, Applied)> {
    let text = read_text(path)?;
    let file = path.to_string_lossy().into_owned();
    let variables = RefCell::new(BTreeMap::new());
    let look_up = |name: &str| {
        let value = std::env::var(name).ok()?;
        variables.borrow_mut().insert(name.to_owned(), value.clone());
        Some(value)
    };
    let spec = Spec::parse(&text, &file, &look_up);
    let directory = std::env::current_dir()
        .map_err(|error| Failure::io(&error, "the directory of this command"))?;
    let client =
        at.one_where(|client| client.graph().is_ok_and(|graph| graph.name == spec.name()))?;
    let variables = variables.into_inner();
    let Moving { move_bytes, speed: speed_bytes } = moving;
    let request =
        ApplyRequest { file, text, variables, directory, wipe, move_bytes, speed_bytes, dry_run };
    let applied = client.apply(&request)?;
    Ok((client, applied))
}

/// Prints what was done, or would be.
pub fn print(form: Form, applied: &Applied, dry_run: bool) -> Result {
    if form == Form::Text {
        applied.notes.iter().for_each(|note| out::note(note));
    }
    form.print(applied, || text(applied, dry_run))?;
    Ok(Exit::Ok)
}

fn text(applied: &Applied, dry_run: bool) -> String {
    if applied.changes.is_empty() {
        let graph = &applied.graph;
        return format!("{graph} is so already; nothing to do.\n");
    }
    let width = applied.changes.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let would = if dry_run { "would " } else { "" };
    let line = |line: &api::ChangeLine| {
        format!("{would}{:6}  {:width$}  {}\n", line.verb, line.name, line.words)
    };
    applied.changes.iter().map(line).collect()
}
