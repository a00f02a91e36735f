//! `cairn device scrub`: compares the copies of a device, and makes them alike by command. Also prints the results of
//! scrubs.

use std::io::IsTerminal;

use api::{Client, DeviceStatus, Difference, Scrub, ScrubRequest, routes};
use block::units::{format_duration, format_size};
use clap::Args;

use super::device::{devices, find};
use super::{LOOK, progress};
use crate::complete;
use crate::exit::{Exit, Result};
use crate::names;
use crate::out::{self, Form, count};
use crate::running::At;

/// Arguments of `device scrub`.
#[derive(Args)]
pub struct ScrubArgs {
    /// The device, or the graph if only one device in it has copies
    #[arg(value_name = "DEVICE|GRAPH", add = complete::scrubbed())]
    of: String,
    /// Make copies alike where they differ: by majority, or with the bytes of the member of --trust
    #[arg(long, conflicts_with = "stop")]
    repair: bool,
    /// Member whose bytes are right where copies differ; without three members in sync, a repair needs it
    #[arg(long, value_name = "MEMBER", requires = "repair")]
    trust: Option<String>,
    /// Stop the running scrub
    #[arg(long)]
    stop: bool,
    /// Watch until the scrub has ended, also without a terminal; the scrub continues after Ctrl-C
    #[arg(long, conflicts_with = "stop")]
    wait: bool,
    /// Show the steps without doing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

impl ScrubArgs {
    pub fn run(self, form: Form) -> Result {
        let Self { of, repair, trust, stop, wait, dry_run, at } = self;
        let with_copies = |client: &Client| devices(client, |device| device.scrub.is_some());
        let sort = "a device with copies";
        let (client, of) = at.owner(sort, &of, names::resolve_or_only, with_copies)?;
        let request = ScrubRequest { of, stop, repair, trust, dry_run };
        // A scrub that runs already is watched like one that this command begins.
        let joins = wait && !repair && !dry_run;
        let mut device = match running(&client, &request.of).filter(|_| joins) {
            Some(device) => device,
            None => client.ask(&routes::SCRUB, &request)?,
        };
        let watches = !stop && !dry_run && (wait || std::io::stderr().is_terminal());
        if !watches {
            let scrub = device.scrub.as_ref();
            let words = match (dry_run, stop) {
                (true, true) => "would stop being scrubbed",
                (true, false) if repair => "would be scrubbed and repaired",
                (true, false) => "would be scrubbed",
                (false, _) if scrub.is_some_and(|scrub| scrub.progress.is_some()) && !stop => {
                    "is being scrubbed"
                }
                (false, _) => "is not being scrubbed",
            };
            form.print(&device, || format!("{}  {words}\n", device.name))?;
            return Ok(Exit::Ok);
        }
        device = watch(&client, device)?;
        let scrub = device.scrub.clone().unwrap_or_default();
        form.print(&device, || {
            let lines: String =
                lines(&scrub).into_iter().map(|line| format!("  {line}\n")).collect();
            let next = device.next.as_ref().filter(|_| scrub.differing_blocks > 0);
            let next = next.map_or_else(String::new, |next| format!("  next: {next}\n"));
            format!("{}\n{lines}{next}", device.name)
        })?;
        Ok(if scrub.differing_blocks == 0 { Exit::Ok } else { Exit::Degraded })
    }
}

/// Returns the status of the device called `name`, if it is being scrubbed.
fn running(client: &Client, name: &str) -> Option<DeviceStatus> {
    let device = find(client, |device| device.name == name).ok()?;
    device.scrub.as_ref()?.progress.is_some().then_some(device)
}

/// Shows the progress of the scrub of a device until the scrub has ended. The server carries out the scrub, so it
/// continues if this process ends.
fn watch(client: &Client, mut device: DeviceStatus) -> Result<DeviceStatus> {
    let whose = format!("{}/{}", client.get(&routes::GRAPH)?.name, device.name);
    let all = |device: &DeviceStatus| device.scrub.as_ref().and_then(|scrub| scrub.progress);
    let bar = progress::bar("scrub", &whose, all(&device).map_or(0, |all| all.all_bytes));
    while let Some(progress) = all(&device) {
        bar.set_position(progress.done_bytes);
        std::thread::sleep(LOOK);
        device = find(client, |one| one.name == device.name)?;
    }
    bar.finish_and_clear();
    Ok(device)
}

/// Returns the results of a device's scrubs for people, a line each. Empty if no scrub has ended or found a difference.
pub fn lines(scrub: &Scrub) -> Vec<String> {
    let Scrub { ended_unix_s, differing_blocks, block_bytes, repaired_blocks, unreadable, .. } =
        scrub;
    let ended = ended_unix_s.map(|at| format!("{} ago", format_duration(out::since(at))));
    let ended = ended.unwrap_or_else(|| "none complete".to_owned());
    let mut found = match differing_blocks {
        0 => vec!["copies alike".to_owned()],
        blocks => vec![format!("{} of {block_bytes} B differ", count(*blocks, "block"))],
    };
    if *repaired_blocks > 0 {
        found.push(format!("{} repaired since the start", count(*repaired_blocks, "block")));
    }
    if *unreadable > 0 {
        found.push(format!("{} rewritten since the start", count(*unreadable, "unreadable range")));
    }
    if ended_unix_s.is_none() && *differing_blocks == 0 {
        return Vec::new();
    }
    let mut lines = vec![format!("last scrub: {ended}, {}", found.join(", "))];
    let line = |difference: &Difference| {
        let Difference { start_bytes, len_bytes, outvoted } = difference;
        let against = match &outvoted[..] {
            [] => String::new(),
            names => format!(", {} against the majority", names.join(", ")),
        };
        let (start, len) = (format_size(*start_bytes), format_size(*len_bytes));
        format!("differ at byte {start_bytes} ({start}): {len}{against}")
    };
    lines.extend(scrub.differences.iter().map(line));
    lines
}
