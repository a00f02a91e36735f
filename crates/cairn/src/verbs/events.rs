//! `cairn events`: prints the events of the devices of a running graph.

use api::{EventLine, EventsAfter, routes};
use block::units::format_duration;
use clap::Args;

use crate::exit::{Exit, Result};
use crate::out::{self, Form};
use crate::running::Named;

/// Arguments of `events`.
#[derive(Args)]
pub struct EventsArgs {
    /// Continue with new events, until Ctrl-C or the end of the server
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    at: Named,
}

impl EventsArgs {
    /// Prints a line for each recent event; with `--follow`, also for each later one.
    pub fn run(self, form: Form) -> Result {
        let client = self.at.at().one()?;
        if !self.follow {
            client
                .ask(&routes::EVENTS, &EventsAfter::default())?
                .iter()
                .try_for_each(|event| print(event, form))?;
            return Ok(Exit::Ok);
        }
        let mut printed = Ok(());
        client.follow(0, |event| {
            if printed.is_ok() {
                printed = print(&event, form);
            }
            printed.is_ok()
        })?;
        printed.map(|()| Exit::Ok)
    }
}

/// Prints an event. As JSON each event is a complete value on a line, so that a program can read each event at once.
fn print(event: &EventLine, form: Form) -> Result<()> {
    match form {
        Form::Json => out::print(&(serde_json::to_string(event).expect("an event is JSON") + "\n")),
        Form::Text => out::print(&text(event)),
    }
}

fn text(event: &EventLine) -> String {
    let EventLine { event, device, member, words, at_unix_s, .. } = event;
    let past = format!("{} ago", format_duration(out::since(*at_unix_s)));
    let place = match member {
        Some(member) => format!("{device}/{member}"),
        None => device.clone(),
    };
    format!("{past:>14}  {event:16}  {place}  {words}").trim_end().to_owned() + "\n"
}
