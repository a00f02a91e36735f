//! Tests of a background job, with work that only counts the steps of the job.

use super::*;
use crate::control::Nothing;
use crate::test_world::TestWorld;
use crate::{Mutex, bail};

/// Work of a job for tests: `all` steps. Each step locks `lock` until a record of the job's progress covers the step.
struct Counted {
    job: Job,
    tasks: TaskGroup,
    all: u64,
    done: Cell<u64>,
    is_back: Cell<bool>,
    /// Number of steps that the last successful record of the job covers.
    recorded: Cell<u64>,
    lock: Mutex,
    /// Whether a record of the progress can complete; until then the job waits for the record.
    is_durable: Cell<bool>,
    fails: Cell<bool>,
    record_fails: Cell<bool>,
    /// Number of finished steps that no record covered when the job stopped.
    left: Cell<usize>,
}

impl Work for Counted {
    type Guard = crate::Locked;
    type Run = ();
    const TASK: &'static str = "steps";
    const WHEN_DONE: Option<&'static str> = Some("it is done");

    fn job(&self) -> &Job {
        &self.job
    }

    fn tasks(&self) -> &TaskGroup {
        &self.tasks
    }

    fn name(&self) -> &str {
        "work"
    }

    fn committed(&self) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn begin(&self) {}

    async fn step(&self, steps: &mut Steps<'_, Self>) -> Result<Outcome<Self::Guard>> {
        if self.fails.get() {
            bail!(Io, "broken");
        }
        if self.done.get() == if self.is_back.get() { 0 } else { self.all } {
            return Ok(Outcome::Done);
        }
        let guard = steps.wait(self.lock.lock()).await?;
        self.done.set(if self.is_back.get() { self.done.get() - 1 } else { self.done.get() + 1 });
        Ok(Outcome::Moved(guard))
    }

    async fn record(&self) -> Result<()> {
        self.tasks.changed().until(|| self.is_durable.get()).await;
        if self.record_fails.get() {
            bail!(Io, "not recorded");
        }
        self.recorded.set(self.done.get());
        Ok(())
    }

    fn stopped(&self, unsettled: &[Self::Guard]) {
        self.left.set(unsettled.len());
        assert!(unsettled.is_empty() || self.lock.wanted() > 0, "the guards are still held");
    }

    fn retry_after(&self, _: &Error) -> Option<Duration> {
        Some(Duration::from_secs(30))
    }

    fn cancel(&self) -> Result<Cancel> {
        Ok(Cancel::Back)
    }

    fn turn(&self) {
        self.is_back.set(true);
    }

    fn progress(&self) -> (String, Progress) {
        let progress =
            Progress { done_bytes: self.done.get(), all_bytes: self.all, of_bytes: self.all };
        ("of steps".to_owned(), progress)
    }
}

fn work(all: u64) -> (Rc<TestWorld>, Rc<Counted>) {
    let (world, env) = TestWorld::new();
    let work = Counted {
        job: Job::new(false),
        tasks: TaskGroup::new(&env),
        all,
        done: Cell::new(0),
        is_back: Cell::new(false),
        recorded: Cell::new(0),
        lock: Mutex::new(),
        is_durable: Cell::new(true),
        fails: Cell::new(false),
        record_fails: Cell::new(false),
        left: Cell::new(0),
    };
    (world, Rc::new(work))
}

fn refusal(work: &Rc<Counted>, action: Action) -> String {
    Job::steer(work, action).unwrap_err().message().to_owned()
}

#[test]
fn job_runs_every_step_until_done() {
    let (world, work) = work(5);
    Job::begin(&work);
    world.run();
    assert!(work.job.is_done());
    assert_eq!((work.done.get(), work.recorded.get(), world.tasks()), (5, 5, 0));
    assert_eq!(refusal(&work, Action::Resume), "it is done");
}

#[test]
fn job_holds_range_lock_of_step_until_record_is_durable() {
    let (world, work) = work(2);
    work.is_durable.set(false);
    Job::begin(&work);
    world.run();
    let mut lock = pin!(work.lock.lock());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert_eq!(work.done.get(), 1, "the second step waits for the lock of the first");
    assert!(lock.as_mut().poll(&mut cx).is_pending());
    work.is_durable.set(true);
    work.tasks.changed().wake();
    world.run();
    assert_eq!((work.done.get(), work.recorded.get()), (2, 2));
    assert!(work.job.is_done() && lock.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn job_holds_range_lock_until_stopped_when_record_fails() {
    let (world, work) = work(1);
    work.record_fails.set(true);
    Job::begin(&work);
    world.run();
    assert_eq!(Job::report(&*work).detail, "not recorded");
    assert_eq!((work.recorded.get(), work.left.get()), (0, 1));
    assert_eq!(work.lock.wanted(), 0, "the guard is dropped after the job has noted the step");
}

#[test]
fn job_records_finished_steps_before_pause_and_continues_after_resume() {
    let (world, work) = work(9);
    Job::begin(&work);
    Job::steer(&work, Action::Pause).unwrap();
    assert_eq!(refusal(&work, Action::Pause), "the job is paused already");
    world.run();
    assert_eq!(Job::report(&*work).state, JobState::Paused);
    assert_eq!(work.done.get(), work.recorded.get());
    Job::steer(&work, Action::Resume).unwrap();
    assert_eq!(refusal(&work, Action::Resume), "the job is not paused");
    world.run();
    assert_eq!(Job::report(&*work).progress.done_bytes, 9);
}

#[test]
fn job_retries_after_stop_by_error() {
    let (world, work) = work(3);
    work.fails.set(true);
    Job::begin(&work);
    world.run();
    let report = Job::report(&*work);
    assert_eq!((report.state, report.detail.as_str()), (JobState::Stopped, "broken"));
    assert_eq!(refusal(&work, Action::Pause), "the job has stopped after an error");
    work.fails.set(false);
    world.advance(Duration::from_secs(31));
    assert!(work.job.is_done());
    assert_eq!(work.job.failed(), 1);
}

#[test]
fn resumed_job_retries_without_waiting_after_error() {
    let (world, work) = work(3);
    work.fails.set(true);
    Job::begin(&work);
    world.run();
    work.fails.set(false);
    Job::steer(&work, Action::Resume).unwrap();
    world.run();
    assert!(work.job.is_done(), "it does not wait for the time of the retry");
    assert_eq!(world.tasks(), 0);
}

#[test]
fn cancelled_job_reverses_finished_steps() {
    let (world, work) = work(4);
    work.done.set(3);
    Job::begin(&work);
    Job::steer(&work, Action::Cancel).unwrap();
    world.run();
    assert!(work.job.is_done() && work.is_back.get());
    assert_eq!((work.done.get(), work.recorded.get()), (0, 0));
}

#[test]
fn job_stops_while_tasks_close_and_continues_after_dropped_close() {
    let (world, work) = work(4);
    Job::begin(&work);
    {
        let mut closing = pin!(work.tasks.close(|| Job::resume_running(&work)));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(closing.as_mut().poll(&mut cx).is_pending());
        world.run();
        assert_eq!((work.done.get(), world.tasks()), (0, 0));
    }
    world.run();
    assert!(work.job.is_done());
}

#[test]
fn job_wait_command_answers_when_job_is_done() {
    let (world, work) = work(1);
    let mut waiting = Job::control(&work, &Command::new::<Wait>(Nothing {}));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    Job::begin(&work);
    world.run();
    assert!(waiting.as_mut().poll(&mut cx).is_ready());
}
