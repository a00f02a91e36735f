//! `cairn status`: the state of all graphs, and the next steps for the operator.

use std::fmt::Write as _;
use std::time::Duration;

use api::{
    Attached, DeviceStatus, Health, Job, JobState, KeptGraph, Member, MemberState, Phase, Progress,
    SpaceUse, Status, StatusRow, routes,
};
use block::units::{format_duration, format_size};
use clap::Args;
use kind::Lowers;

use crate::exit::{Exit, Result};
use crate::out::{self, Form, count};
use crate::registry::REGISTRY;
use crate::running::{self, At, Named};

/// Arguments of `status`.
#[derive(Args)]
pub struct StatusArgs {
    /// Show also the counters and the rows of every device
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    named: Named,
}

impl StatusArgs {
    /// Prints the status of every graph. The exit code is that of the graph with the worst health.
    pub fn run(self, form: Form) -> Result {
        let found = all(&self.named.at());
        note_remains(found.as_deref().unwrap_or_default());
        let (all, jobs): (Vec<_>, Vec<_>) = found?.into_iter().unzip();
        let graph = |(status, jobs): (&Status, &Vec<Job>)| {
            let figures = if self.all { figures(&status.devices) } else { String::new() };
            text(status, jobs) + &figures
        };
        form.print(&all, || match all.is_empty() {
            true => running::idle(&[]),
            false => all.iter().zip(&jobs).map(graph).collect(),
        })?;
        Ok(match all.iter().map(|status| status.health).max() {
            Some(Health::Failed) => Exit::Damaged,
            Some(Health::Degraded) => Exit::Degraded,
            Some(Health::Ok | Health::Limited) | None => Exit::Ok,
        })
    }
}

/// Prints a note about each attached device of which the server has ended; `all` has the status of every graph. Parts
/// of a device also stay while a daemon is about to start the next process of their graph, which goes on with them.
fn note_remains(all: &[(Status, Vec<Job>)]) {
    let is_awaited = |kept: &KeptGraph| matches!(kept.phase, Phase::Starting | Phase::Waiting);
    if all.iter().filter_map(|(status, _)| status.kept.as_ref()).any(is_awaited) {
        return;
    }
    for name in attach::left() {
        let path = name.link().display().to_string();
        out::note(&format!("{path} is left of a server that has ended. Next: cairn detach {name}"));
    }
}

/// Returns the status and the jobs of every graph that `at` chooses: of running ones, and of those of a daemon that do
/// not run.
fn all(at: &At) -> Result<Vec<(Status, Vec<Job>)>> {
    let mut kept = running::kept()?.unwrap_or_default();
    kept.retain(|graph| at.is_any() || at.is_named(&graph.name));
    let running = match at.all() {
        // A graph that the daemon keeps and that does not run has a status.
        Err(_) if !at.is_any() && !kept.is_empty() => Vec::new(),
        Err(failure) if failure.code == Exit::NotFound.code() && at.is_any() => {
            if running::daemon().is_none() {
                return Err(failure);
            }
            Vec::new()
        }
        running => running?,
    };
    let mut all: Vec<(Status, Vec<Job>)> = Vec::new();
    for client in running {
        match client.get(&routes::STATUS) {
            Ok(mut status) => {
                let of = |graph: &&KeptGraph| graph.pid == Some(status.pid);
                status.kept = kept.iter().find(of).cloned();
                all.push((status, client.get(&routes::JOBS).unwrap_or_default()));
            }
            // A graph may have ended since it was found. The daemon has the reason.
            Err(problem) if kept.is_empty() => return Err(problem.into()),
            Err(_) => {}
        }
    }
    let is_told = |graph: &&KeptGraph| all.iter().any(|(status, _)| status.graph == graph.name);
    let silent: Vec<_> = kept.iter().filter(|graph| !is_told(graph)).collect();
    all.extend(silent.into_iter().map(|graph| (graph.status(), Vec::new())));
    Ok(all)
}

/// Returns a line of a message about several faults without its `error:`.
fn fault(line: &str) -> &str {
    line.strip_prefix("error: ").unwrap_or(line)
}

/// Returns the text about a graph of a daemon that has no running worker.
fn down(graph: &KeptGraph) -> String {
    let KeptGraph { name, phase, problem, held, .. } = graph;
    let word = match phase {
        // The daemon keeps trying to start it.
        Phase::Starting if problem.is_some() => "WAITING",
        Phase::Up | Phase::Starting => "STARTING",
        Phase::Stopping => "STOPPING",
        Phase::Waiting => "WAITING",
        Phase::GivenUp => "GIVEN UP",
        Phase::Stopped => "STOPPED",
    };
    let why = problem
        .as_ref()
        .map(|problem| problem.message.lines().map(fault).collect::<Vec<_>>().join("; "));
    let in_order = "closed; the next daemon starts the graph again";
    let why = why.unwrap_or_else(|| match phase {
        Phase::Stopped => in_order.to_owned(),
        _ => String::new(),
    });
    let mut text = format!("{name}   {word}   {why}\n");
    if *held > 0 {
        let held = count(*held as u64, "descriptor");
        // Writing to a String does not fail.
        let _ = writeln!(text, "  the daemon holds {held} for the next worker; clients wait");
    }
    if problem.is_some() && matches!(phase, Phase::GivenUp | Phase::Stopped) {
        let next = "fix the cause, then cairn apply SPEC, or send SIGHUP to the daemon";
        let _ = writeln!(text, "  next: {next}; or cairn stop {name}, to remove the graph");
    } else if *phase == Phase::Stopped {
        let _ =
            writeln!(text, "  next: cairn apply SPEC; or cairn stop {name}, to remove the graph");
    }
    text
}

fn text(status: &Status, jobs: &[Job]) -> String {
    if let Some(kept) = status.kept.as_ref().filter(|_| status.devices.is_empty()) {
        return down(kept);
    }
    let word = match status.health {
        Health::Ok => "ok",
        Health::Limited => "limited",
        Health::Degraded => "DEGRADED",
        Health::Failed => "FAILED",
    };
    let said = status.devices.iter().filter(|device| !device.summary.is_empty());
    let mut said: Vec<_> =
        said.map(|device| format!("{}: {}", device.name, device.summary)).collect();
    if said.is_empty() {
        let connections = count(status.connections as u64, "connection");
        said.push(format!("{connections}, process {}", status.pid));
    }
    let mut text = format!("{}   {word}   {}\n", status.graph, said.join("; "));
    let members = || status.devices.iter().flat_map(|device| &device.members);
    let width = members().map(|member| member.name.len()).max().unwrap_or(0);
    for member in members().filter(|member| member.state != MemberState::InSync) {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {:width$}  {:8}  {}", member.name, member.state, words(member));
    }
    let has_line = |name: &str| {
        let mut members = members().filter(|member| member.state != MemberState::InSync);
        members.any(|member| member.name == name && member.errors > 0)
    };
    for DeviceStatus { name, errors, .. } in status.devices.iter().filter(|it| is_disk(it)) {
        if *errors > 0 && !has_line(name) {
            let _ = writeln!(text, "  {name}: {} since the start", count(*errors, "error"));
        }
    }
    for device in &status.devices {
        let Some(scrub) = &device.scrub else { continue };
        for line in super::scrub::lines(scrub) {
            let _ = writeln!(text, "  {}: {line}", device.name);
        }
        let Some(progress) = scrub.progress else { continue };
        let words = how_far(progress, scrub.since_unix_s.map(out::since)).join(", ");
        let job = if scrub.is_repairing { "scrub with repair" } else { "scrub" };
        let _ = writeln!(text, "  {}: {job}, {words}", device.name);
    }
    // Scrubs and resyncs have their own lines, and a job that has stopped is in the summary of its device.
    let is_own = |job: &&Job| !["scrub", "resync"].contains(&&*job.work.task);
    for Job { device, work, .. } in jobs.iter().filter(is_own) {
        let paused = match work.state {
            JobState::Running => "",
            JobState::Paused => ", paused",
            JobState::Stopped | JobState::Done => continue,
        };
        let words = how_far(work.progress, None).join(", ");
        let _ = writeln!(text, "  {device}: {} {}, {words}{paused}", work.task, work.what);
    }
    for device in &status.devices {
        let Some(SpaceUse { taken_bytes, of_bytes }) = device.room else { continue };
        let (taken, of) = (format_size(taken_bytes), format_size(of_bytes));
        let _ = writeln!(text, "  {}: {taken} of {of} in use", device.name);
    }
    for Attached { path, export, device, .. } in &status.attached {
        let device = device.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {path} -> {device}   {export}");
    }
    let mut told: Vec<&String> = Vec::new();
    for DeviceStatus { next, .. } in &status.devices {
        if let Some(next) = next.as_ref().filter(|next| !told.contains(next)) {
            let _ = writeln!(text, "  next: {next}");
            told.push(next);
        }
    }
    text
}

/// Returns the counters and the rows of all devices, a line for each.
fn figures(devices: &[DeviceStatus]) -> String {
    let mut text = String::new();
    for DeviceStatus { name, counters, rows, .. } in devices {
        let rows = rows.iter().map(|StatusRow { name, value }| (name, value.clone()));
        let lines: Vec<_> =
            counters.iter().map(|(name, n)| (name, n.to_string())).chain(rows).collect();
        let width = lines.iter().map(|(row, _)| row.len()).max().unwrap_or(0);
        for (row, value) in lines {
            // Writing to a String does not fail.
            let _ = writeln!(text, "  {name}: {row:width$}  {value}");
        }
    }
    text
}

/// Whether the device is a disk: its kind has no lowers.
fn is_disk(device: &DeviceStatus) -> bool {
    REGISTRY.find(&device.kind).is_some_and(|kind| kind.lowers == Lowers::None)
}

/// Returns the details about a member that are printed after its state.
fn words(member: &Member) -> String {
    let mut words = Vec::new();
    if let Some(progress) = member.progress {
        words.extend(how_far(progress, member.since_unix_s.map(out::since)));
        words[0].insert_str(0, "resync ");
    }
    if !member.detail.is_empty() {
        words.push(member.detail.clone());
    }
    if member.errors > 0 {
        words.push(count(member.errors, "error"));
    }
    if let Some(past) = member.since_unix_s.map(out::since) {
        words.push(format!("for {}", format_duration(past)));
    }
    words.join(", ")
}

/// Returns the progress of a task that runs since the time `past`, its speed, and the estimated time that it still
/// takes.
fn how_far(progress: Progress, past: Option<Duration>) -> Vec<String> {
    let Progress { done_bytes: done, all_bytes: all, of_bytes: of } = progress;
    let percent = (u128::from(done) * 100).checked_div(u128::from(all)).unwrap_or(100);
    let of = if all < of { format!(" (of {})", format_size(of)) } else { String::new() };
    let mut words = vec![format!("{percent} % of {}{of}", format_size(all))];
    let rate = done.checked_div(past.unwrap_or_default().as_secs()).filter(|rate| *rate > 0);
    if let Some(rate) = rate {
        let left = Duration::from_secs(all.saturating_sub(done) / rate);
        words.push(format!("{}/s", format_size(rate)));
        words.push(format!("{} left", format_duration(left)));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_figures_have_counters_then_rows_of_each_device() {
        let row =
            |name: &str, value: &str| StatusRow { name: name.to_owned(), value: value.to_owned() };
        let device = DeviceStatus {
            name: "w".to_owned(),
            kind: "pass".to_owned(),
            health: Health::Ok,
            summary: String::new(),
            members: Vec::new(),
            counters: [("writes".to_owned(), 7)].into(),
            errors: 0,
            scrub: None,
            room: None,
            rows: vec![row("9 MiB", "2 writes"), row("10 MiB", "5 writes")],
            next: None,
        };
        let silent = DeviceStatus { counters: [].into(), rows: Vec::new(), ..device.clone() };
        let text = figures(&[device, silent]);
        assert_eq!(text, "  w: writes  7\n  w: 9 MiB   2 writes\n  w: 10 MiB  5 writes\n");
    }

    #[test]
    fn status_line_reports_resync_progress_speed_and_time() {
        let progress =
            |done_bytes, all_bytes| Progress { done_bytes, all_bytes, of_bytes: 1 << 40 };
        let words = how_far(progress(3 << 20, 12 << 20), Some(Duration::from_secs(3)));
        assert_eq!(words, ["25 % of 12 MiB (of 1 TiB)", "1 MiB/s", "9 s left"]);
        let words = how_far(progress(0, 1 << 40), Some(Duration::ZERO));
        assert_eq!(words, ["0 % of 1 TiB"]);
    }
}
