//! Labels of disks, as the verbs of the command line read and print them.

use block::units::format_size;
use block::{Env, Error, ErrorKind};
use doctor::scan::{self, Skipped};
use doctor::{DiskPreview, Doctor, Probe};

use crate::exit::{Exit, Failure, Result};
use crate::registry::REGISTRY;

/// Returns the doctor that judges the labels of this machine's disks.
pub fn doctor(env: &Env) -> Doctor {
    Doctor { env: env.clone(), registry: REGISTRY, machine: scan::machine() }
}

/// Returns the text for the end of a scan that has found no graph; `skipped` are the disks that could not be judged.
pub fn no_label(skipped: &[Skipped]) -> &'static str {
    if skipped.is_empty() { "no labelled disk found.\n" } else { "no other labelled disk found.\n" }
}

/// Returns the result of a dry run with these refusals: the exit code that the command without `--dry-run` would
/// have.
pub fn judged(refusals: &[Error]) -> Result {
    if refusals.is_empty() { Ok(Exit::Ok) } else { Err(Failure::because(refusals.to_vec())) }
}

/// Whether the only fault is that another process has the disk open.
pub fn is_in_use(refusal: &Error) -> bool {
    refusal.kind() == ErrorKind::InUse && refusal.reason().is_none()
}

/// Returns a line for each disk of the probe, with the effect that a start of the graph would have on the disk.
pub fn previews(probe: &Probe) -> String {
    let all = probe.previews();
    let width = |of: fn(&DiskPreview) -> usize| all.iter().map(of).max().unwrap_or(0);
    let (names, places) = (width(|one| one.name.len()), width(|one| one.place.len()));
    let line = |one: &DiskPreview| {
        let DiskPreview { name, place, size, verb, words } = one;
        let size = size.map_or_else(|| "?".to_owned(), format_size);
        let line = format!("{verb:11}  {name:names$}  {place:places$}  {size:>9}  {words}");
        format!("{}\n", line.trim_end())
    };
    all.iter().map(line).collect()
}
