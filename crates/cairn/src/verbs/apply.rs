//! `cairn apply` and `cairn diff`: a spec that a graph is to become, whether it runs or a daemon has to
//! bring it up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::{Applied, ApplyRequest, Client, GraphSource, Health, UpRequest};
use clap::Args;
use graph::spec::Spec;

use crate::exit::{Exit, Failure, Result};
use crate::out::{self, Form};
use crate::running::{self, At};
use crate::serve::ServeOptions;
use crate::source::{Source, read_text};

/// What `apply` takes.
#[derive(Args)]
pub struct ApplyArgs {
    /// The spec; the running graph of that name becomes what it says
    spec: PathBuf,
    /// Label a disk whatever is on it: what it holds is lost
    #[arg(long, value_name = "DISK")]
    wipe: Vec<String>,
    /// Of one that a daemon is to bring up: without labelled disks that are missing, where all data are on
    /// the others, now and at each start
    #[arg(long)]
    degraded: bool,
    /// Of one that a daemon is to bring up: open disks that another machine had open and did not close
    #[arg(long)]
    take: bool,
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
    #[command(flatten)]
    at: At,
}

impl ApplyArgs {
    /// Asks the running graph of that name; if there is none, the daemon to bring it up.
    pub fn run(self, form: Form) -> Result {
        let Self { spec: path, wipe, dry_run, degraded, take, at } = self;
        let written = Written::read(&path)?;
        let Some(daemon) = running::daemon().filter(|_| at.is_any()) else {
            return print(form, &written.ask(wipe, dry_run, &at)?, dry_run);
        };
        if at.named(&written.name)?.is_some() {
            return print(form, &written.ask(wipe, dry_run, &at)?, dry_run);
        }
        if dry_run {
            return ServeOptions::dry(degraded, take).serve(Source::Spec(path), &wipe, form);
        }
        let up = written.up(wipe, degraded, take);
        bring_up(form, &daemon, &up)
    }
}

impl DiffArgs {
    /// Asks the running graph of that name, and changes nothing.
    pub fn run(self, form: Form) -> Result {
        let written = Written::read(&self.spec)?;
        print(form, &written.ask(Vec::new(), true, &self.at)?, true)
    }
}

/// A spec as it is written, for whoever reads it elsewhere.
struct Written {
    name: String,
    file: String,
    text: String,
    /// The variables in it that have a value here.
    variables: BTreeMap<String, String>,
    directory: PathBuf,
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
        let directory = std::env::current_dir()
            .map_err(|error| Failure::io(&error, "the directory of this command"))?;
        Ok(Self { name, file, text, variables: variables.into_inner(), directory })
    }

    /// Asks the running graph of that name to become this, or what that would do.
    fn ask(self, wipe: Vec<String>, dry_run: bool, at: &At) -> Result<Applied> {
        let is_it = |client: &Client| client.graph().is_ok_and(|graph| graph.name == self.name);
        let client = at.one_where(is_it)?;
        let Self { file, text, variables, directory, .. } = self;
        Ok(client.apply(&ApplyRequest { file, text, variables, directory, wipe, dry_run })?)
    }

    /// Asks a daemon to bring it up.
    fn up(self, wipe: Vec<String>, degraded: bool, take: bool) -> UpRequest {
        let Self { name, file, text, variables, directory } = self;
        let source = GraphSource::Spec { file, text, variables };
        let (read_only, insecure, listen) = (false, false, Vec::new());
        UpRequest { name, directory, source, read_only, degraded, listen, insecure, wipe, take }
    }
}

/// Has a daemon bring a graph up, and says where clients reach it.
pub fn bring_up(form: Form, daemon: &Client, up: &UpRequest) -> Result {
    let kept = daemon.up(up)?;
    let (mut degraded, mut uris) = ("", Vec::new());
    if let Some(client) = At::default().named(&kept.name)? {
        if client.status()?.health != Health::Ok {
            degraded = ", degraded";
        }
        let exports = client.graph()?.exports.into_iter();
        uris.extend(exports.flat_map(|export| export.attached.into_iter().chain(export.uris)));
    }
    form.print(&kept, || format!("{}  up{degraded}.  {}\n", kept.name, uris.join("   ")))?;
    Ok(Exit::Ok)
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
