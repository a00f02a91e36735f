//! `cairn undo`: changes a running graph back to an earlier spec.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::{ChangeWay, History, PastSpec, UndoRequest, routes};
use block::units::format_duration;
use clap::Args;
use doctor::Uuid;
use doctor::scan::{self, said_place};

use super::apply::Moving;
use super::core;
use super::import::{keys, options, pair};
use crate::complete;
use crate::exit::Result;
use crate::labels;
use crate::out::{self, Form};
use crate::place;
use crate::running::At;
use crate::source::{is_spec, read_spec};

/// Arguments of `undo`.
#[derive(Args)]
pub struct UndoArgs {
    /// The graph, if more than one is running: its name, or its spec
    #[arg(conflicts_with = "at", add = complete::graph_or_spec())]
    graph: Option<PathBuf>,
    /// List earlier specs of the graph, and change nothing
    #[arg(long)]
    list: bool,
    /// Go back to this change, not to the one before the last change
    #[arg(long, value_name = "CHANGE")]
    to: Option<u64>,
    /// Place of a disk that is not found automatically: a path, or an NBD URI
    #[arg(long, value_name = "NAME=PATH|URI", value_parser = pair)]
    disk: Vec<(String, String)>,
    /// Source of the key of a device that the graph no longer has: file:PATH, credential:NAME
    #[arg(long, value_name = "DEVICE=SOURCE", value_parser = pair, add = complete::key_source_of_device())]
    key: Vec<(String, String)>,
    /// An option that labels do not hold, of a device that the graph no longer has, such as the file of a trace
    #[arg(long, value_name = "DEVICE.OPTION=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Search the files of this directory for removed disks, besides block devices
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Label a disk even if it is not empty: its content is lost
    #[arg(long, value_name = "DISK")]
    wipe: Vec<String>,
    #[command(flatten)]
    moving: Moving,
    /// Show the steps without doing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

impl UndoArgs {
    /// Makes the running graph change back to an earlier spec, or lists its earlier specs.
    pub fn run(self, form: Form) -> Result {
        let keys = keys(&self.key)?;
        let client = match &self.graph {
            Some(graph) => At::of(name(graph)?).one()?,
            None => self.at.one()?,
        };
        let history = client.get(&routes::HISTORY)?;
        if self.list {
            return form.print(&history, || text(&history));
        }
        let request = UndoRequest {
            to: self.to,
            disks: self.disks(&history)?,
            keys,
            options: options(&self.set)?,
            way: ChangeWay {
                directory: place::here()?,
                wipe: self.wipe.clone(),
                move_bytes: self.moving.move_bytes,
                speed_bytes: self.moving.speed,
                dry_run: self.dry_run,
            },
        };
        let undone = client.ask(&routes::UNDO, &request)?;
        self.moving.done(&client, &undone, self.dry_run, form)
    }

    /// Returns the paths of disks that the server does not know: those of the command line, and those of labelled
    /// disks that a scan of this machine finds.
    fn disks(&self, history: &History) -> Result<BTreeMap<String, (String, String)>> {
        let said = self.disk.iter().map(|(name, at)| (name.clone(), said_place(at)));
        let mut disks: BTreeMap<_, _> = said.collect();
        let is_it = |past: &&PastSpec| self.to.is_none_or(|change| past.change == change);
        let forgotten =
            history.past.iter().find(is_it).into_iter().flat_map(|past| &past.forgotten);
        let forgotten: Vec<_> = forgotten.filter(|disk| !disks.contains_key(&disk.name)).collect();
        if forgotten.is_empty() {
            return Ok(disks);
        }
        let core = core()?;
        let doctor = labels::doctor(&core.env());
        let (found_labels, _) = core.block_on(doctor.labels(&self.directory))?;
        for disk in forgotten {
            let wanted: Option<Uuid> = disk.uuid.parse().ok();
            if let Some(found_label) =
                found_labels.iter().find(|found_label| Some(found_label.label.disk) == wanted)
            {
                disks.insert(disk.name.clone(), scan::place(&found_label.path));
            }
        }
        Ok(disks)
    }
}

/// Returns the name of a graph: `graph` itself, or the name in the spec file `graph`.
///
/// # Errors
/// Errors of reading the spec.
pub fn name(graph: &Path) -> Result<PathBuf> {
    match is_spec(graph) {
        true => Ok(PathBuf::from(read_spec(graph)?.name())),
        false => Ok(graph.to_owned()),
    }
}

/// Returns a line for each earlier spec of the graph.
fn text(history: &History) -> String {
    let History { graph, change, past } = history;
    let mut text = format!("{graph}  change {change}, now\n");
    let width = change.to_string().len();
    for PastSpec { change, until_unix_s, then, .. } in past {
        let since = format_duration(out::since(*until_unix_s));
        let then = if then.is_empty() { "options changed".to_owned() } else { then.join(", ") };
        text.push_str(&format!("  {change:width$}  until {since} ago; then {then}\n"));
    }
    if past.is_empty() {
        text.push_str("  no earlier spec is recorded in the labels\n");
    }
    text
}
