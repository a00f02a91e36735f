//! `cairn undo`: a graph becomes what it was before its last change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::{Client, History, PastSpec, UndoRequest};
use clap::Args;
use graph::spec::units::{format_duration, parse_size};
use meta::Uuid;

use super::import::pair;
use super::{apply, core};
use crate::exit::{Exit, Failure, Result};
use crate::out::Form;
use crate::running::At;
use crate::scan::{self, place};
use crate::source::read_spec;

/// What `undo` takes.
#[derive(Args)]
pub struct UndoArgs {
    /// The graph, if more than one is running: its name, or its spec
    #[arg(conflicts_with = "at")]
    graph: Option<PathBuf>,
    /// List what the graph was before, and change nothing
    #[arg(long)]
    list: bool,
    /// Go back to this change, not to the one before the last
    #[arg(long, value_name = "CHANGE")]
    to: Option<u64>,
    /// Where a disk is that is not found by itself: a path, or an NBD URI
    #[arg(long, value_name = "NAME=PATH|URI", value_parser = pair)]
    disk: Vec<(String, String)>,
    /// Where the key of a device comes from that the graph has not any more: file:PATH, credential:NAME
    #[arg(long, value_name = "DEVICE=SOURCE", value_parser = pair)]
    key: Vec<(String, String)>,
    /// Look at the files of this directory for disks that have left, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Label a disk whatever is on it: what it holds is lost
    #[arg(long, value_name = "DISK")]
    wipe: Vec<String>,
    /// Where an export would show other bytes, let its own move there, as a job
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

impl UndoArgs {
    /// Asks the running graph.
    pub fn run(self, form: Form) -> Result {
        let client = match &self.graph {
            Some(graph) => At::of(name(graph)?).one()?,
            None => self.at.one()?,
        };
        let history = client.history()?;
        if self.list {
            form.print(&history, || text(&history))?;
            return Ok(Exit::Ok);
        }
        let request = UndoRequest {
            to: self.to,
            disks: self.disks(&history)?,
            keys: self.key.iter().cloned().collect(),
            directory: std::env::current_dir()
                .map_err(|error| Failure::io(&error, "the directory of this command"))?,
            wipe: self.wipe.clone(),
            move_bytes: self.move_bytes,
            speed_bytes: self.speed,
            dry_run: self.dry_run,
        };
        self.ask(&client, &request, form)
    }

    fn ask(&self, client: &Client, request: &UndoRequest, form: Form) -> Result {
        let undone = client.undo(request)?;
        apply::print(form, &undone, self.dry_run)?;
        if self.wait && !self.dry_run {
            return apply::watch(client, &undone, form);
        }
        Ok(Exit::Ok)
    }

    /// Where disks are of which the server does not know it: where the user says, or where their labels are.
    fn disks(&self, history: &History) -> Result<BTreeMap<String, (String, String)>> {
        let said = self.disk.iter().map(|(name, at)| {
            let is_uri = at.contains("://");
            let at = if is_uri { ("nbd".to_owned(), at.clone()) } else { place(Path::new(at)) };
            (name.clone(), at)
        });
        let mut disks: BTreeMap<_, _> = said.collect();
        let is_it = |past: &&PastSpec| self.to.is_none_or(|change| past.change == change);
        let forgotten =
            history.past.iter().find(is_it).into_iter().flat_map(|past| &past.forgotten);
        let forgotten: Vec<_> = forgotten.filter(|disk| !disks.contains_key(&disk.name)).collect();
        if forgotten.is_empty() {
            return Ok(disks);
        }
        let core = core()?;
        let env = core.env();
        let (sights, _) = core.block_on(scan::labels(&env, &self.directory))?;
        for disk in forgotten {
            let wanted: Option<Uuid> = disk.uuid.parse().ok();
            if let Some(sight) = sights.iter().find(|sight| Some(sight.label.disk) == wanted) {
                disks.insert(disk.name.clone(), place(&sight.path));
            }
        }
        Ok(disks)
    }
}

/// The graph that is meant: its name, or that of a spec.
///
/// # Errors
/// If the spec cannot be read.
pub fn name(graph: &Path) -> Result<PathBuf> {
    if graph.extension().is_none_or(|extension| extension != "toml") {
        return Ok(graph.to_owned());
    }
    Ok(PathBuf::from(read_spec(graph)?.name()))
}

/// A line for each spec that is kept.
fn text(history: &History) -> String {
    let History { graph, change, past } = history;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let mut text = format!("{graph}  change {change}, now\n");
    let width = change.to_string().len();
    for PastSpec { change, until_unix_s, then, .. } in past {
        let since = format_duration(Duration::from_secs(now.saturating_sub(*until_unix_s)));
        let then = if then.is_empty() { "options changed".to_owned() } else { then.join(", ") };
        text.push_str(&format!("  {change:width$}  until {since} ago; then {then}\n"));
    }
    if past.is_empty() {
        text.push_str("  not changed since it was made, or its labels keep nothing of that\n");
    }
    text
}
