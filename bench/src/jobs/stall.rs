//! Measures the longest wait of clients for a reply while a migration encrypts their volume in place.

use std::time::Duration;

use api::{Client, JobCommand, JobRequest, JobState, routes};
use serde_json::json;

use crate::beside::{crypt, disk, spec, window_json};
use crate::window::{Visit, Window, window};
use bench::ground::{Ground, Medium};
use bench::rows::Row;
use bench::served::{Bed, Served, job, said};

/// Promised longest latency of a client's request, in milliseconds.
const LONGEST_MS: f64 = 200.0;

/// Length of a turn of clients; turns with the migration running and paused alternate.
const TIME: Duration = Duration::from_secs(1);

/// Time with requests before each turn, which excludes the start of the client.
const WARM_UP: Duration = Duration::from_millis(50);

/// Largest number of turns with the migration. If the migration needs more, the disk is too slow, and the row fails.
const TURNS_MAX: usize = 120;

/// Number of bytes of the volume, all of which are encrypted.
const DATA_BYTES: u64 = 1 << 30;

/// Length in bytes of both label areas of a disk.
const LABELS_BYTES: u64 = 2 << 20;

struct Turns {
    with: Vec<Window>,
    without: Vec<Window>,
    /// Number of bytes that the migration had encrypted at the end.
    moved: u64,
}

/// Measures the longest wait of clients during an encryption in place, with disks on `medium`.
pub fn measure(ground: &Ground, medium: Medium) -> Result<Vec<Row>, String> {
    let bed = Bed::new(&medium.place(ground), "stall")?;
    bed.write("key", "correct horse battery staple")?;
    let disk = disk("a", DATA_BYTES + LABELS_BYTES);
    let served = bed.serve(&spec(&disk, "", "a"))?;
    ground.fill(&served.uri(), DATA_BYTES)?;
    // Deriving the key costs as much as with the default settings.
    let after = bed.change_to(&spec(&disk, &crypt("256MiB", 4), "safe"));
    let first = |control: &Client| control.ask(&routes::APPLY, &after).map(drop).map_err(said);
    let turns = turns(ground, &served, &first)?;
    Ok(vec![row(medium, &turns)])
}

fn turns(
    ground: &Ground,
    served: &Served<'_>,
    first: &(dyn Fn(&Client) -> Result<(), String> + Sync),
) -> Result<Turns, String> {
    let visit = Visit { span: DATA_BYTES, warm_up: WARM_UP, time: TIME, job: None, may_end: true };
    let mut turns = Turns { with: Vec::new(), without: Vec::new(), moved: 0 };
    while turns.with.len() < TURNS_MAX {
        turns.without.push(window(ground, served, &visit)?);
        let begin: &(dyn Fn(&Client) -> Result<(), String> + Sync) =
            if turns.with.is_empty() { first } else { &resume };
        turns.with.push(window(ground, served, &Visit { job: Some(begin), ..visit })?);
        let (_, Some(now)) = job(&served.control)? else {
            turns.moved = DATA_BYTES;
            return Ok(turns);
        };
        turns.moved = now.work.progress.done_bytes;
        tell(&served.control, JobCommand::Pause)?;
        while matches!(job(&served.control)?.1, Some(job) if job.work.state == JobState::Running) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(turns)
}

fn resume(control: &Client) -> Result<(), String> {
    tell(control, JobCommand::Resume)
}

/// Sends a command to the migration. Ignores an error if the migration has ended meanwhile.
fn tell(control: &Client, command: JobCommand) -> Result<(), String> {
    let request = JobRequest { job: "safe-move".to_owned(), command, dry_run: false };
    match control.ask(&routes::JOB, &request) {
        Err(problem) if job(control)?.1.is_some() => Err(said(problem)),
        _ => Ok(()),
    }
}

fn row(medium: Medium, turns: &Turns) -> Row {
    let longest = |windows: &[Window]| windows.iter().map(|w| w.longest_ms).fold(0.0, f64::max);
    let (with, without) = (longest(&turns.with), longest(&turns.without));
    let all = |windows: &[Window]| windows.iter().map(window_json).collect::<Vec<_>>();
    Row {
        id: format!("stall-{}", medium.name()),
        title: format!("encrypting 1 GiB in place, {}: the longest wait", medium.words()),
        aim: format!("{LONGEST_MS:.0} ms"),
        figure: format!(
            "{with:.0} ms, without it {without:.0} ms; {} MiB in {} s",
            turns.moved >> 20,
            turns.with.len()
        ),
        holds: Some(with <= LONGEST_MS && turns.moved == DATA_BYTES),
        rounds: json!({ "with": all(&turns.with), "without": all(&turns.without) }),
    }
}
