//! `cairn status`: how everything is, and what to type next.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{Attached, DeviceStatus, Health, MemberStatus, Status};
use clap::Args;
use graph::spec::units::{format_duration, format_size};

use crate::exit::{Exit, Result};
use crate::out::{Form, count};
use crate::running::At;

/// What `status` takes.
#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    at: At,
}

impl StatusArgs {
    /// Tells how every running graph is; the exit code is that of the worst.
    pub fn run(self, form: Form) -> Result {
        let mut all = Vec::new();
        for client in self.at.all()? {
            all.push(client.status()?);
        }
        form.print(&all, || all.iter().map(text).collect())?;
        Ok(match all.iter().map(|status| status.health).max() {
            Some(Health::Failed) => Exit::Damaged,
            Some(Health::Degraded) => Exit::Degraded,
            Some(Health::Ok) | None => Exit::Ok,
        })
    }
}

fn text(status: &Status) -> String {
    let word = match status.health {
        Health::Ok => "ok",
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
    for member in members().filter(|member| member.state != "in sync") {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {:width$}  {:8}  {}", member.name, member.state, words(member));
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

/// What a member has to say beside its state.
fn words(member: &MemberStatus) -> String {
    let mut words = Vec::new();
    if let Some(progress) = member.progress {
        let (done, all) = (progress.done_bytes, progress.all_bytes);
        let percent = (u128::from(done) * 100).checked_div(u128::from(all)).unwrap_or(100);
        words.push(format!("{percent} % of {}", format_size(all)));
        let past = since_now(member).unwrap_or_default().as_secs();
        if let Some(rate) = done.checked_div(past) {
            words.push(format!("{}/s", format_size(rate)));
        }
    }
    if !member.detail.is_empty() {
        words.push(member.detail.clone());
    }
    if member.errors > 0 {
        words.push(count(member.errors, "error"));
    }
    if let Some(past) = since_now(member) {
        words.push(format!("for {}", format_duration(past)));
    }
    words.join(", ")
}

/// How long it has been in its state, in whole seconds.
fn since_now(member: &MemberStatus) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let past = now.saturating_sub(Duration::from_secs(member.since_unix_s?));
    Some(Duration::from_secs(past.as_secs()))
}
