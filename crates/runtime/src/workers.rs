//! Threads for work that may block for long.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::sys;

/// A pool of threads that carry out queued jobs, in the order of the queue.
pub(crate) struct Workers<J: Send + 'static> {
    bench: Arc<Bench<J>>,
    threads: usize,
    started: Cell<usize>,
    name: &'static str,
    run: fn(J),
}

struct Bench<J> {
    state: Mutex<State<J>>,
    work: Condvar,
    rest: Condvar,
}

struct State<J> {
    jobs: VecDeque<J>,
    idle: usize,
    busy: usize,
    closed: bool,
}

impl<J> Bench<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        // A job that panics is caught outside of the lock, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J: Send + 'static> Workers<J> {
    /// Creates a pool of at most `threads` threads, which carry out jobs with `run`. A thread is started when a job
    /// needs it.
    pub(crate) fn new(name: &'static str, threads: usize, run: fn(J)) -> Self {
        let state = State { jobs: VecDeque::new(), idle: 0, busy: 0, closed: false };
        let (work, rest) = (Condvar::new(), Condvar::new());
        let bench = Arc::new(Bench { state: Mutex::new(state), work, rest });
        Self { bench, threads: threads.max(1), started: Cell::new(0), name, run }
    }

    /// Adds a job to the queue of the pool.
    pub(crate) fn push(&self, job: J) {
        let mut state = self.bench.state();
        state.jobs.push_back(job);
        let short_of_hands = state.jobs.len() > state.idle;
        drop(state);
        self.bench.work.notify_one();
        if short_of_hands && self.started.get() < self.threads {
            self.start();
        }
    }

    fn start(&self) {
        let (bench, run) = (self.bench.clone(), self.run);
        let started = std::thread::Builder::new().name(self.name.to_owned()).spawn(move || {
            sys::block_signals();
            labour(&bench, run);
        });
        match started {
            Ok(_) => self.started.set(self.started.get() + 1),
            // Fewer threads are enough as long as there is one.
            Err(error) => assert!(
                self.started.get() > 0,
                "cannot start the first thread of {}: {error}",
                self.name
            ),
        }
    }

    /// Closes the pool, and waits up to `deadline` until all queued jobs have ended. Returns how many have not.
    pub(crate) fn close(&self, deadline: Duration) -> usize {
        let mut state = self.bench.state();
        state.closed = true;
        self.bench.work.notify_all();
        let busy = |state: &mut State<J>| state.busy + state.jobs.len() > 0;
        state = self
            .bench
            .rest
            .wait_timeout_while(state, deadline, busy)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        state.busy + state.jobs.len()
    }
}

impl<J: Send + 'static> Drop for Workers<J> {
    fn drop(&mut self) {
        self.bench.state().closed = true;
        self.bench.work.notify_all();
    }
}

fn labour<J>(bench: &Bench<J>, run: fn(J)) {
    let mut state = bench.state();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            state.busy += 1;
            drop(state);
            run(job);
            state = bench.state();
            state.busy -= 1;
            if state.busy == 0 && state.jobs.is_empty() {
                bench.rest.notify_all();
            }
        } else if state.closed {
            return;
        } else {
            state.idle += 1;
            state = bench.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// A job of a task on a core for a worker thread, and the cell for its end.
pub(crate) struct WorkerJob {
    run: Box<dyn FnOnce() + Send>,
    report: Arc<Mutex<EndReport>>,
}

#[derive(Default)]
struct EndReport {
    ended: Option<bool>,
    waker: Option<Waker>,
}

/// The future with which a task waits for the end of its job.
pub(crate) struct Ended(Arc<Mutex<EndReport>>);

impl WorkerJob {
    pub(crate) fn new(run: Box<dyn FnOnce() + Send>) -> (Self, Ended) {
        let report = Arc::<Mutex<EndReport>>::default();
        (Self { run, report: report.clone() }, Ended(report))
    }

    /// Carries out the job, and wakes the task that waits for its end.
    pub(crate) fn run(self) {
        let ran = catch_unwind(AssertUnwindSafe(self.run)).is_ok();
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.ended = Some(ran);
        let waker = report.waker.take();
        drop(report);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Ended {
    /// Whether the job has ended without a panic.
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut report = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match report.ended {
            Some(ran) => Poll::Ready(ran),
            None => {
                report.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
