//! `cairn job`: lists, watches and controls background jobs of running graphs.

use std::io::IsTerminal;

use api::{Client, Job, JobCommand, JobRequest, JobState, routes};
use block::units::format_size;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{LOOK, progress};
use crate::complete;
use crate::exit::{Exit, Result};
use crate::names;
use crate::out::Form;
use crate::running::{At, Named};

/// Arguments of `job`.
#[derive(Args)]
pub struct JobArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List jobs in progress
    Ls(Named),
    /// Watch a job until it ends; it continues after Ctrl-C
    Watch {
        /// The job, by its number or its device
        #[arg(add = complete::job())]
        job: String,
        #[command(flatten)]
        at: At,
    },
    /// Pause a job until it is resumed, also across restarts
    Pause(CommandArgs),
    /// Resume a paused job
    Resume(CommandArgs),
    /// Cancel a job; a migration moves everything back, and no data are lost
    Cancel(CommandArgs),
}

#[derive(Args)]
struct CommandArgs {
    /// The job, by its number or its device
    #[arg(add = complete::job())]
    job: String,
    /// Show the job without changing it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

/// A job with the name of its graph.
#[derive(Serialize)]
struct Row {
    graph: String,
    #[serde(flatten)]
    job: Job,
}

impl JobArgs {
    /// Carries out the verb of `cairn job` on the running graphs.
    pub fn run(self, form: Form) -> Result {
        match self.verb {
            Verb::Ls(named) => list(&named.at(), form),
            Verb::Watch { job, at } => {
                let (client, job) = owner(&at, &job)?;
                watch(&client, &job, form)
            }
            Verb::Pause(args) => args.run(form, JobCommand::Pause, "pause the job"),
            Verb::Resume(args) => args.run(form, JobCommand::Resume, "resume the job"),
            Verb::Cancel(args) => args.run(form, JobCommand::Cancel, "cancel the job"),
        }
    }
}

fn list(at: &At, form: Form) -> Result {
    let mut rows = Vec::new();
    for client in at.all()? {
        let graph = client.get(&routes::GRAPH)?.name;
        let jobs = client.get(&routes::JOBS)?.into_iter();
        rows.extend(jobs.map(|job| Row { graph: graph.clone(), job }));
    }
    form.print(&rows, || match rows.is_empty() {
        true => "no job is in progress.\n".to_owned(),
        false => rows.iter().map(Row::line).collect(),
    })
}

impl Row {
    fn line(&self) -> String {
        let Self { graph, job } = self;
        format!("{}  {graph}/{}\n", job.number, line(job))
    }
}

/// Returns a line about a job: `safe-move  migration from a to safe  37 %, 380 MiB of 1 GiB`
fn line(job: &Job) -> String {
    let Job { device, work, .. } = job;
    let block::Job { task, what, progress, detail, state, .. } = work;
    let task = format!("{task} {what}");
    let percent = progress.done_bytes.saturating_mul(100) / progress.all_bytes.max(1);
    let [done, all] = [progress.done_bytes, progress.all_bytes].map(format_size);
    let state = match state {
        JobState::Running => String::new(),
        JobState::Paused => ", paused".to_owned(),
        JobState::Stopped => format!(", STOPPED: {detail}"),
        JobState::Done => ", done".to_owned(),
    };
    format!("{device}  {}  {percent} %, {done} of {all}{state}", task.trim_end())
}

/// Returns a client of the graph with the job that `wanted` names, and the name of the job in the graph.
fn owner(at: &At, wanted: &str) -> Result<(Client, String)> {
    let jobs = |client: &Client| {
        let jobs = client.get(&routes::JOBS).unwrap_or_default().into_iter();
        jobs.flat_map(|job| [vec![job.number.to_string()], vec![job.device]]).collect()
    };
    at.owner("a job", wanted, names::resolve, jobs)
}

fn find<'j>(jobs: &'j [Job], wanted: &str) -> Option<&'j Job> {
    jobs.iter().find(|job| job.number.to_string() == wanted || job.device == wanted)
}

impl CommandArgs {
    fn run(self, form: Form, command: JobCommand, would: &str) -> Result {
        let Self { job, dry_run, at } = self;
        let (client, job) = owner(&at, &job)?;
        let job = client.ask(&routes::JOB, &JobRequest { job, command, dry_run })?;
        let would = if dry_run { format!("; would {would}") } else { String::new() };
        form.print(&job, || format!("{}{would}\n", line(&job)))
    }
}

/// Shows the progress of a job until the job has ended. The server carries out the job, so the job continues if this
/// process ends.
pub fn watch(client: &Client, wanted: &str, form: Form) -> Result {
    let jobs = client.get(&routes::JOBS)?;
    let Some(mut job) = find(&jobs, wanted).cloned() else {
        return Err(failure!(NotFound, "no job {wanted:?}").next("cairn job ls"));
    };
    let graph = client.get(&routes::GRAPH)?.name;
    let whose = format!("{graph}/{}", job.device);
    let bar = progress::bar(&job.work.task, &whose, job.work.progress.all_bytes);
    let shown = std::io::stderr().is_terminal();
    while job.work.state == JobState::Running {
        bar.set_position(job.work.progress.done_bytes);
        std::thread::sleep(LOOK);
        match find(&client.get(&routes::JOBS)?, wanted) {
            Some(now) => job = now.clone(),
            // A device that leaves by itself is done, and its job is not listed any more.
            None => {
                job.work.progress.done_bytes = job.work.progress.all_bytes;
                job.work.state = JobState::Done;
            }
        }
    }
    bar.finish_and_clear();
    if form != Form::Text || shown || job.work.state != JobState::Stopped {
        form.print(&job, || format!("{}\n", line(&job)))?;
    }
    match job.work.state {
        JobState::Stopped => {
            Err(failure!(Io, "the job of {} has stopped: {}", job.device, job.work.detail))
        }
        JobState::Running | JobState::Paused | JobState::Done => Ok(Exit::Ok),
    }
}
