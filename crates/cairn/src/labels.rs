//! Labelled disks, as the command line opens them.

use std::path::Path;

use block::units::format_size;
use block::{Env, Error, ErrorKind};
use engine::Engine;
use graph::labels::{Glimpse, Labels, Opening, Survey};
use graph::spec::Spec;
use meta::{Label, Machine};

use crate::exit::{Exit, Failure, Result};
use crate::registry::REGISTRY;

/// Where Linux keeps what tells a machine from others.
const MACHINE_ID: &str = "/etc/machine-id";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// This machine. One without an id is told from others by its name.
pub fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let host = read(HOST_NAME).trim().to_owned();
    let id = read(MACHINE_ID).trim().parse::<meta::Uuid>().map(|id| id.0);
    let by_name = || {
        let mut id = [0; 16];
        id.iter_mut().zip(host.bytes()).for_each(|(id, byte)| *id = byte);
        id
    };
    Machine::new(&host, id.unwrap_or_else(|_| by_name()))
}

/// Names a label in messages.
pub fn name_of(label: &Label) -> String {
    format!("label of {}", label.disk_name.escape_debug())
}

/// The machine that has a disk open, if that is another one.
pub fn open_elsewhere(label: &Label) -> Option<&Machine> {
    label.holder.as_ref().filter(|holder| holder.id != machine().id)
}

/// How this machine opens disks, if nothing is said.
pub fn opening() -> Opening {
    let (degraded, take, changes, wipe, replaced, grow) = Default::default();
    Opening { machine: machine(), degraded, wipe, replaced, grow, take, changes }
}

/// Looks at the labelled disks of a spec; `None` if it has none. See [`Survey::take`].
pub async fn survey(
    spec: &Spec,
    env: &Env,
    engine: &Engine,
    opening: Opening,
    read_only: bool,
    running: Option<&Labels>,
) -> Option<Survey> {
    if spec.labelled(REGISTRY).is_empty() {
        return None;
    }
    Some(Survey::take(spec, REGISTRY, env, engine, opening, read_only, running).await)
}

/// What keeps a graph from being opened: every reason on a line of its own, the code of the first.
pub fn refused(refusals: &[Error]) -> Failure {
    Failure::because(refusals.to_vec())
}

/// How a look at them ends: as the command would that does more.
pub fn judged(refusals: &[Error]) -> Result {
    if refusals.is_empty() { Ok(Exit::Ok) } else { Err(refused(refusals)) }
}

/// Whether it only says that somebody has the disk open.
pub fn is_in_use(refusal: &Error) -> bool {
    refusal.kind() == ErrorKind::InUse && refusal.reason().is_none()
}

/// What would become of each disk, a line for each.
pub fn glimpses(survey: &Survey) -> String {
    let all = survey.glimpses();
    let width = |of: fn(&Glimpse) -> usize| all.iter().map(of).max().unwrap_or(0);
    let (names, places) = (width(|one| one.name.len()), width(|one| one.place.len()));
    let line = |one: &Glimpse| {
        let Glimpse { name, place, size, verb, words } = one;
        let size = size.map_or_else(|| "?".to_owned(), format_size);
        let line = format!("{verb:11}  {name:names$}  {place:places$}  {size:>9}  {words}");
        format!("{}\n", line.trim_end())
    };
    all.iter().map(line).collect()
}
