//! Long-running jobs: their progress, and the removal of moving devices whose migration has ended.

use std::rc::Rc;

use api::{Job, JobRequest};
use block::Report;
use block::control::Nothing;
use block::control::job::{Course, Steer, Wait};
use block::env::LocalFuture;
use graph::live::ChangeGuard;
use graph::spec::{Move, Planned, Spec};

use super::Serving;
use crate::exit::{Exit, Failure, Result};
use crate::names;
use crate::registry::REGISTRY;

impl Serving {
    /// Returns all jobs of the graph. A job gets its number when it is listed for the first time.
    pub fn jobs(&self) -> Vec<Job> {
        let now = self.live.now();
        let mut known = self.jobs.borrow_mut();
        let mut number = |device: &str, what: &str| {
            let key = (device.to_owned(), what.to_owned());
            let place = known.iter().position(|job| *job == key);
            1 + place.unwrap_or_else(|| {
                known.push(key);
                known.len() - 1
            })
        };
        let mut jobs = Vec::new();
        for member in now.graph.members() {
            let report = now.graph.report(member);
            for (topic, job) in jobs_of(report) {
                jobs.push(Job {
                    number: number(&member.name, &topic),
                    device: member.name.clone(),
                    kind: member.kind.name.to_owned(),
                    work: job,
                });
            }
        }
        jobs
    }

    /// Pauses, resumes or cancels the job that the request names, and returns the job.
    pub async fn job(&self, request: &JobRequest) -> Result<Job> {
        let JobRequest { job: wanted, command, dry_run } = request;
        let found = self.find_job(wanted)?;
        if *dry_run {
            return Ok(found);
        }
        let course = Course { action: *command };
        self.live.ask::<Steer>(&found.device, course).await?;
        self.find_job(wanted)
    }

    fn find_job(&self, wanted: &str) -> Result<Job> {
        let (jobs, graph) = (self.jobs(), self.live.now().graph.name().to_owned());
        let paths = jobs.iter().flat_map(|job| {
            let names = [job.number.to_string(), job.device.clone()];
            names.map(|name| (vec![graph.clone(), name], job.clone()))
        });
        names::resolve(wanted, paths).map_err(|unresolved| {
            let known: Vec<_> =
                jobs.iter().map(|job| format!("{} ({})", job.number, job.device)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let unknown = || format!("no job {wanted:?}; jobs in progress: {known}");
            unresolved.refuse(wanted, unknown)
        })
    }

    /// Starts a task for each migration in the spec that has none. The task removes the moving device from the graph
    /// when the migration has ended.
    pub fn follow_moves(self: &Rc<Self>) {
        for moving in self.spec.borrow().moves(REGISTRY) {
            let mut followed = self.followed.borrow_mut();
            if followed.insert(moving.name.clone()) {
                self.env.spawn("the end of a move", self.clone().follow(moving));
            }
        }
    }

    async fn follow(self: Rc<Self>, moving: Move) {
        while let Some(wait) = self.wait_for(&moving.name) {
            // The wait also ends if a change puts another device in the place of this one.
            let _ = wait.await;
            let turn = self.live.turn().await;
            let Some(kept) = self.is_done(&moving.name) else { continue };
            match self.leave(&turn, &moving, &kept).await {
                Ok(()) => note!("the migration {} is done: all bytes are on {kept}", moving.name),
                Err(failure) => {
                    let (name, why) = (&moving.name, failure.to_string());
                    warn!("the migration {name} is done, but not removed: {why}");
                }
            }
            break;
        }
        self.followed.borrow_mut().remove(&moving.name);
    }

    fn wait_for(&self, name: &str) -> Option<LocalFuture<block::Result<Nothing>>> {
        let now = self.live.now();
        Some(now.graph.ask::<Wait>(now.graph.member(name)?, Nothing {}))
    }

    /// Returns the name of the disk or device that has all bytes, if the migration of the moving device `name` has
    /// ended.
    fn is_done(&self, name: &str) -> Option<String> {
        let now = self.live.now();
        let moving = now.graph.member(name)?;
        let is_done = |job: &block::Job| job.state == block::JobState::Done;
        let done = now.graph.report(moving).jobs.iter().any(is_done);
        now.graph.holders(moving).next().filter(|_| done).map(|holder| holder.name.clone())
    }

    async fn leave(&self, turn: &ChangeGuard, moving: &Move, kept: &str) -> Result<()> {
        let spec = self.spec.borrow().without_move(moving, kept);
        self.become_spec(turn, spec, self.opening(Vec::new()), false).await.map(drop)
    }

    /// Adds to `spec` a migration for each export that would show other bytes than now. Returns the new spec, and
    /// notes about the migrations.
    pub fn with_moves(
        &self,
        spec: &Spec,
        planned: &Planned,
        speed: Option<u64>,
    ) -> Result<(Spec, Vec<String>)> {
        let before = self.spec.borrow();
        let (mut spec, mut notes) = (spec.clone(), Vec::new());
        let to_move = self.live.to_move(planned);
        // A move in progress cannot be dropped, even if it has just begun: it may move bytes before it is removed.
        let goes = |moving: &Move| !spec.has(&moving.name) && self.is_done(&moving.name).is_none();
        if before.moves(REGISTRY).iter().any(|moving| !to_move.is_empty() || goes(moving)) {
            let why = "another migration is in progress";
            return Err(Failure::new(Exit::InUse, why).next("cairn job ls"));
        }
        for (from, to) in to_move {
            let name = spec.name_for_move(&to);
            notes.push(format!(
                "note: the bytes of {from} move to {to}: cairn job watch {name}; the graph drops \
                 {name} when the migration is done"
            ));
            spec = spec.with_move(&before, &Move { name, from, to, speed }, REGISTRY);
        }
        Ok((spec, notes))
    }
}

/// Returns the jobs of a device from its report, each with a key that does not change while the job runs.
fn jobs_of(report: Report) -> Vec<(String, block::Job)> {
    let running = |task: &str, what: String, detail, progress| {
        let (task, state) = (task.to_owned(), block::JobState::Running);
        let key = format!("{task} {what}");
        (key, block::Job { task, what, is_reversed: false, state, detail, progress })
    };
    let scrub = report.scrub.and_then(|scrub| {
        let what = if scrub.is_repairing { "with repair" } else { "" };
        Some(running("scrub", what.to_owned(), String::new(), scrub.progress?))
    });
    let copied = report.members.into_iter().filter_map(|member| {
        Some(running("resync", format!("to {}", member.name), member.detail, member.progress?))
    });
    let own = report.jobs.into_iter().map(|job| (String::new(), job));
    own.chain(copied).chain(scrub).collect()
}
