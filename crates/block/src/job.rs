//! Jobs: long background work of a device, in steps that run one after the other.
//!
//! A [`Job`] decides when the next step runs: it retries, pauses, cancels and reports. It does not decide when state
//! is durable. A step returns a guard, and the job drops the guard only after a durable record that covers the step
//! has been written ([`Steps::settle_by`]).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use crate::control::job::{Action, Steer, Wait};
use crate::control::{Command, Reply, Verb, VerbInfo};
use crate::env::LocalFuture;
use crate::seeded::{self, Bug};
use crate::{Error, ErrorKind, Event, JobState, Progress, Result, Step, TaskGroup, What, first};

/// Background work of a device that a [`Job`] carries out in steps.
pub trait Work: Sized + 'static {
    /// Guard that a step holds until a durable record covers the step, such as the lock of the bytes that it has
    /// moved.
    type Guard: 'static;
    /// State of one run of the job: from its start until it pauses, stops or is done.
    type Run: 'static;
    /// Name of the task, one noun: `migration`. Job lists, events and traces show it.
    const TASK: &'static str;
    /// Message with which every command to a finished job is refused; `None` if a finished job may be resumed.
    const WHEN_DONE: Option<&'static str> = None;

    /// Returns the job that carries out the work.
    fn job(&self) -> &Job;
    /// Returns the task group of the device; the job runs in it.
    fn tasks(&self) -> &TaskGroup;
    /// Returns the name of the device, for error messages of the job.
    fn name(&self) -> &str;
    /// Waits until the live change that created the device is committed. No step may begin earlier.
    fn committed(&self) -> LocalFuture<()>;
    /// Begins a run of the job at once, before the caller waits for anything, and returns the state of the run.
    fn begin(&self) -> Self::Run;
    /// Whether the job must carry out its next step even if it should pause, because requests wait for that step.
    fn is_urgent(&self) -> bool {
        false
    }
    /// Carries out one step of the work.
    ///
    /// # Errors
    /// Errors that stop the job.
    fn step(
        &self,
        steps: &mut Steps<'_, Self>,
    ) -> impl Future<Output = Result<Outcome<Self::Guard>>>;
    /// Makes the progress of the job durable, and with it whether the job is paused ([`Job::is_pausing`]).
    ///
    /// # Errors
    /// Errors that stop the job.
    fn record(&self) -> impl Future<Output = Result<()>>;
    /// Notifies the work that the job stops after an error. No durable record covers the steps of the guards
    /// `unsettled`, which are dropped next.
    fn stopped(&self, _unsettled: &[Self::Guard]) {}
    /// Returns the time after which a job that has stopped with this error runs again by itself; `None` if only a
    /// command resumes the job.
    fn retry_after(&self, _error: &Error) -> Option<Duration> {
        None
    }
    /// Decides whether a cancelled job reverts its steps or ends without reverting them.
    ///
    /// # Errors
    /// `InUse` if the job cannot be cancelled now.
    fn cancel(&self) -> Result<Cancel>;
    /// Reverses the direction of the work, between two steps, after [`Work::cancel`] returned [`Cancel::Back`].
    fn turn(&self) {}
    /// Whether the job reverts the steps that it carried out before a cancel.
    fn is_reversed(&self) -> bool {
        false
    }
    /// Returns a description of the job, in words that are printed after the device's name, and the progress of the
    /// job.
    fn progress(&self) -> (String, Progress);
}

/// The result of a step of a job.
pub enum Outcome<G> {
    /// The step has changed bytes or state. The job holds the guard of the step until a durable record covers the
    /// step.
    Moved(G),
    /// The step has changed nothing that a durable record must cover.
    Unchanged,
    /// The job has no work left, and is done.
    Done,
}

/// The two ways in which a cancelled job ends.
pub enum Cancel {
    /// The job reverts the steps that it has carried out.
    Back,
    /// The job ends, and does not revert the steps that it has carried out.
    End,
}

/// The state of a background job of a device. A device has one job, and a job has one run at a time.
pub struct Job {
    state: RefCell<State>,
    is_pausing: Cell<bool>,
    is_turning: Cell<bool>,
    is_cancelled: Cell<bool>,
    /// Whether a task carries out the job. A job must never have two tasks.
    is_run: Cell<bool>,
    failed: Cell<u64>,
}

enum State {
    Running,
    Paused,
    Stopped(Error),
    Done,
}

impl Job {
    /// Creates a job that has not begun. If `is_paused`, the job must not run before a command resumes it.
    pub fn new(is_paused: bool) -> Self {
        Self {
            state: RefCell::new(if is_paused { State::Paused } else { State::Running }),
            is_pausing: Cell::new(is_paused),
            is_turning: Cell::new(false),
            is_cancelled: Cell::new(false),
            is_run: Cell::new(false),
            failed: Cell::new(0),
        }
    }

    /// Creates a job that has no work, and is done.
    pub fn done() -> Self {
        Self { state: RefCell::new(State::Done), ..Self::new(false) }
    }

    /// Whether the job has no work left.
    pub fn is_done(&self) -> bool {
        matches!(*self.state.borrow(), State::Done)
    }

    /// Whether the job carries out steps, or is about to begin.
    pub fn is_running(&self) -> bool {
        matches!(*self.state.borrow(), State::Running)
    }

    /// Whether the job is paused, or pauses after the step that runs now.
    pub fn is_pausing(&self) -> bool {
        self.is_pausing.get()
    }

    /// Whether the job reverses its direction after the step that runs now.
    pub fn is_turning(&self) -> bool {
        self.is_turning.get()
    }

    /// Returns the number of steps of the job that have failed.
    pub fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// Returns the state of the job for a report of its device.
    pub fn report<W: Work>(work: &W) -> crate::Job {
        let job = work.job();
        let (state, detail) = match &*job.state.borrow() {
            State::Running => (JobState::Running, String::new()),
            State::Paused => (JobState::Paused, String::new()),
            State::Stopped(error) => (JobState::Stopped, error.to_string()),
            State::Done if job.is_cancelled.get() => {
                (JobState::Done, "the job was cancelled".to_owned())
            }
            State::Done => (JobState::Done, String::new()),
        };
        let (what, progress) = work.progress();
        let (task, is_reversed) = (W::TASK.to_owned(), work.is_reversed());
        crate::Job { task, what, is_reversed, state, detail, progress }
    }

    /// Begins a run of the job. A paused job stays paused, unless it is urgent ([`Work::is_urgent`]).
    pub fn begin<W: Work>(work: &Rc<W>) {
        let job = work.job();
        if job.is_pausing.get() && !work.is_urgent() {
            return job.become_state(&**work, State::Paused);
        }
        job.become_state(&**work, State::Running);
        if job.is_run.replace(true) {
            // The task was about to rest, and goes on.
            return;
        }
        emit(&**work, What::JobBegun, "");
        let (weak, run, committed) = (Rc::downgrade(work), work.begin(), work.committed());
        work.tasks().spawn(W::TASK, carry_out(weak, run, committed));
    }

    /// Begins a run of the job if the job was running when its device closed the task group.
    pub fn resume_running<W: Work>(work: &Rc<W>) {
        if work.job().is_running() {
            Self::begin(work);
        }
    }

    /// Pauses, resumes or cancels the job.
    ///
    /// # Errors
    /// `InUse` if the job cannot carry out the action in its present state.
    pub fn steer<W: Work>(work: &Rc<W>, action: Action) -> Result<()> {
        let job = work.job();
        let refuse = |words: &str| Err(Error::new(ErrorKind::InUse, words).at(work.name()));
        let (is_running, is_done) = (job.is_running(), job.is_done());
        let is_stopped = matches!(*job.state.borrow(), State::Stopped(_));
        match (action, W::WHEN_DONE) {
            (_, Some(words)) if is_done => return refuse(words),
            (Action::Resume, _) if is_running && !job.is_pausing.get() => {
                return refuse("the job is not paused");
            }
            (Action::Resume, _) => {
                job.is_pausing.set(false);
                if !is_running {
                    job.is_cancelled.set(false);
                    Self::begin(work);
                }
            }
            (Action::Pause, _) if job.is_pausing.get() => {
                return refuse("the job is paused already");
            }
            (Action::Pause, _) if is_stopped => {
                return refuse("the job has stopped after an error");
            }
            (Action::Pause, _) if is_done => return refuse("the job is not running"),
            (Action::Pause, _) => job.is_pausing.set(true),
            (Action::Cancel, _) => match work.cancel()? {
                Cancel::End => job.is_cancelled.set(true),
                Cancel::Back => {
                    job.is_turning.set(true);
                    job.is_pausing.set(false);
                    if !is_running {
                        Self::begin(work);
                    }
                }
            },
        }
        work.tasks().changed().wake();
        Ok(())
    }

    /// Verbs of the commands that a device with a job must know.
    pub const VERBS: [&VerbInfo; 2] = [Steer::INFO, Wait::INFO];

    /// Carries out a command with one of [`Job::VERBS`]. [`Wait`] is answered when the job is done, or when its
    /// device closes the task group.
    pub fn control<W: Work>(work: &Rc<W>, command: &Command) -> LocalFuture<Result<Reply>> {
        if let Some(course) = command.args::<Steer>() {
            return command.done(Self::steer(work, course.action));
        }
        let (work, answer) = (work.clone(), command.done(Ok(())));
        Box::pin(async move {
            let is_over = || work.job().is_done() || work.tasks().is_closing();
            work.tasks().changed().until(is_over).await;
            answer.await
        })
    }

    fn is_told_to_rest<W: Work>(&self, work: &W) -> bool {
        self.is_pausing.get() || self.is_cancelled.get() || work.tasks().is_closing()
    }

    fn become_state<W: Work>(&self, work: &W, state: State) {
        match &state {
            State::Running => {}
            State::Paused => emit(work, What::JobPaused, ""),
            State::Stopped(error) => emit(work, What::JobStopped, &error.to_string()),
            State::Done if self.is_cancelled.get() => emit(work, What::JobEnded, "cancelled"),
            State::Done => emit(work, What::JobEnded, ""),
        }
        *self.state.borrow_mut() = state;
        work.tasks().changed().wake();
    }
}

/// Reports an event of the job.
fn emit<W: Work>(work: &W, what: What, more: &str) {
    let job = format!("{} {}", W::TASK, work.progress().0);
    let words = if more.is_empty() { job } else { format!("{job}: {more}") };
    work.tasks().env().emit(Event { what, device: work.name().to_owned(), member: None, words });
}

/// Carries out a run of a job. If the run stops after an error, waits until the job may run again, and begins another
/// run.
async fn carry_out<W: Work>(weak: Weak<W>, run: W::Run, committed: LocalFuture<()>) {
    let Some(work) = weak.upgrade() else { return };
    let closing = work.tasks().changed().until(|| work.tasks().is_closing());
    let is_committed = first(committed, closing).await.is_ok();
    drop(work);
    if is_committed {
        all_steps(&weak, run).await;
    }
    let Some(work) = weak.upgrade() else { return };
    work.job().is_run.set(false);
    let retry = match &*work.job().state.borrow() {
        State::Stopped(error) => work.retry_after(error),
        _ => None,
    };
    let Some(after) = retry else { return };
    let is_over =
        || !matches!(*work.job().state.borrow(), State::Stopped(_)) || work.tasks().is_closing();
    let over = work.tasks().changed().until(is_over);
    if work.tasks().env().within(after, over).await.is_none() {
        Job::begin(&work);
    }
}

/// Carries out the steps of a run, until the job pauses, stops or is done.
async fn all_steps<W: Work>(weak: &Weak<W>, mut run: W::Run) {
    let mut unsettled = Vec::new();
    while let Some(work) = weak.upgrade() {
        let steps = Steps { work: &*work, unsettled: &mut unsettled, run: &mut run };
        match steps.next().await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                work.stopped(&unsettled);
                work.job().failed.set(work.job().failed.get() + 1);
                return work.job().become_state(&*work, State::Stopped(error));
            }
        }
        work.tasks().env().give_way().await;
    }
}

/// The steps of one run of a job, with the guards of those steps that no durable record covers yet.
pub struct Steps<'s, W: Work> {
    work: &'s W,
    unsettled: &'s mut Vec<W::Guard>,
    /// State of the run of the job.
    pub run: &'s mut W::Run,
}

impl<W: Work> Steps<'_, W> {
    /// Carries out the next step, or pauses or ends the run. Returns whether the run may have another step.
    async fn next(mut self) -> Result<bool> {
        let (work, job) = (self.work, self.work.job());
        if job.is_turning.take() {
            work.turn();
        }
        if job.is_told_to_rest(work) && !work.is_urgent() {
            self.settle().await?;
            // A command may have come meanwhile.
            let state = match () {
                () if work.tasks().is_closing() => return Ok(false),
                () if job.is_turning.get() => return Ok(true),
                () if job.is_cancelled.get() => State::Done,
                () if job.is_pausing.get() => State::Paused,
                () => return Ok(true),
            };
            job.become_state(work, state);
            return Ok(false);
        }
        match work.step(&mut self).await? {
            Outcome::Unchanged => Ok(true),
            Outcome::Moved(guard) => {
                self.unsettled.push(guard);
                Ok(true)
            }
            Outcome::Done => {
                self.settle_if_needed().await?;
                job.become_state(work, State::Done);
                Ok(false)
            }
        }
    }

    /// Whether the run has a step that no durable record covers yet.
    pub fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Writes the durable record ([`Work::record`]), then drops the guards of all steps that the record covers.
    ///
    /// # Errors
    /// Errors of the record. The guards are not dropped then.
    pub async fn settle(&mut self) -> Result<()> {
        let work = self.work;
        self.settle_by(work.record()).await
    }

    /// Waits for `record`, which covers all earlier steps of the run, then drops the guards of these steps.
    ///
    /// # Errors
    /// Errors of the record. The guards are not dropped then.
    pub async fn settle_by(&mut self, record: impl Future<Output = Result<()>>) -> Result<()> {
        if seeded::on(Bug::MoveReleasedEarly) {
            self.unsettled.clear();
        }
        record.await?;
        self.unsettled.clear();
        Ok(())
    }

    async fn settle_if_needed(&mut self) -> Result<()> {
        if self.is_unsettled() { self.settle().await } else { Ok(()) }
    }

    /// Waits for `future`. If `future` is not ready at once, the earlier steps are first covered by a durable record
    /// and their guards are dropped, because `future` may depend on tasks that wait for these guards.
    ///
    /// # Errors
    /// Errors of the record.
    pub async fn wait<T>(&mut self, future: impl Future<Output = T>) -> Result<T> {
        let mut future = pin!(future);
        if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
            return Ok(answer);
        }
        self.settle_if_needed().await?;
        Ok(future.await)
    }

    /// Waits until the throttle permits `step`, as [`Steps::wait`] does. Returns `None` if the job must pause, end or
    /// reverse before the step.
    ///
    /// # Errors
    /// Errors of the record.
    pub async fn throttled(&mut self, step: impl Future<Output = Step>) -> Result<Option<Step>> {
        let (work, job) = (self.work, self.work.job());
        let is_disturbed = || job.is_told_to_rest(work) || job.is_turning.get();
        let undisturbed = first(step, work.tasks().changed().until(is_disturbed));
        Ok(self.wait(undisturbed).await?.ok())
    }
}

#[cfg(test)]
mod tests;
