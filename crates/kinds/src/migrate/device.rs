//! Requests on either side of the boundary.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{
    Below, ByteRange, Child, Control, Device, Env, Error, ErrorKind, FlushFault, Handled, Handover,
    Health, Info, Job, JobCommand, JobState, Lower, Mode, Needs, Notify, Op, Progress, RangeLock,
    Report, Request, Result, ScopeGuard, StateStore, TaskTracker, Throttle,
};

use super::record::{Record, Window};

/// A migration; its inside is shared with the mover.
pub struct Migrate {
    info: Info,
    inner: Rc<Inner>,
}

/// What requests and the mover share.
pub struct Inner {
    pub name: String,
    pub env: Env,
    pub from: Lower,
    pub to: Lower,
    pub size: u64,
    /// The longest step, in whole blocks of both.
    pub step_bytes: u64,
    /// Whether both have their bytes in the same places of the same disks.
    pub in_place: bool,
    pub pace: Throttle,
    pub kept: Rc<dyn StateStore>,
    /// The ports beneath which the state is kept.
    pub ports: Vec<usize>,
    /// Requests share their range; the mover has its own alone.
    pub lock: RangeLock,
    /// Bytes before it are on `to`.
    pub boundary: Cell<u64>,
    pub back: Cell<bool>,
    /// Whether it was told to turn round: it does between two windows.
    pub turning: Cell<bool>,
    pub paused: Cell<bool>,
    pub state: RefCell<State>,
    pub torn: RefCell<Option<Torn>>,
    /// Steps that have failed.
    pub failed: Cell<u64>,
    pub flush_fault: FlushFault,
    /// Whether there is a mover: never two.
    pub is_moved: Cell<bool>,
    pub underway: TaskTracker,
    pub closing: Cell<bool>,
    /// Wakes the mover from its rest, and those who wait for the end.
    pub changed: Notify,
}

/// What the mover is at.
#[derive(Clone)]
pub enum State {
    /// It moves the boundary.
    Moving,
    /// It was told to pause.
    Paused,
    /// It cannot go on.
    Stopped(Error),
    /// The boundary is where it was to go, and stays there.
    Done,
}

/// Bytes that are neither here nor there until the mover gets on: nobody can have them.
#[derive(Clone)]
pub struct Torn {
    pub range: ByteRange,
    /// What was being changed in place; `None` if it was, and only its state is not durable.
    pub window: Option<Window>,
}

/// What a migration is made from.
pub struct Making {
    pub name: String,
    pub env: Env,
    pub from: Lower,
    pub to: Lower,
    pub in_place: bool,
    pub speed: Option<u64>,
    pub kept: Rc<dyn StateStore>,
    pub ports: Vec<usize>,
}

impl Migrate {
    /// Goes on from `record`.
    pub fn new(info: Info, making: Making, record: Record) -> Self {
        let Making { name, env, from, to, in_place, speed, kept, ports } = making;
        let torn = record.window.map(|window| Torn { range: window.range, window: Some(window) });
        let inner = Rc::new(Inner {
            name,
            pace: Throttle::new(&env, speed),
            env,
            from,
            to,
            size: info.size,
            step_bytes: super::mover::step_bytes(&info, in_place),
            in_place,
            kept,
            ports,
            lock: RangeLock::new(),
            boundary: Cell::new(record.boundary),
            back: Cell::new(record.back),
            turning: Cell::new(false),
            paused: Cell::new(record.paused),
            state: RefCell::new(State::Done),
            torn: RefCell::new(torn),
            failed: Cell::new(0),
            flush_fault: FlushFault::default(),
            is_moved: Cell::new(false),
            underway: TaskTracker::default(),
            closing: Cell::new(false),
            changed: Notify::default(),
        });
        if !inner.is_at_end() || inner.torn.borrow().is_some() {
            inner.resume();
        }
        Self { info, inner }
    }
}

impl Inner {
    /// Whether the boundary is where it is to go.
    pub fn is_at_end(&self) -> bool {
        self.boundary.get() == if self.back.get() { 0 } else { self.size }
    }

    /// Whether the boundary goes back, or is about to.
    fn goes_back(&self) -> bool {
        self.back.get() || self.turning.get()
    }

    /// The device that has all bytes, for good.
    fn only(&self) -> Option<&Lower> {
        if !matches!(*self.state.borrow(), State::Done) {
            return None;
        }
        Some(if self.back.get() { &self.from } else { &self.to })
    }

    /// The device that has all bytes at this moment.
    fn holder(&self) -> Option<usize> {
        match self.boundary.get() {
            _ if self.torn.borrow().is_some() => None,
            0 => Some(0),
            all if all == self.size => Some(1),
            _ => None,
        }
    }

    async fn flush(&self) -> Result<()> {
        self.flush_fault.check()?;
        if let Some(only) = self.only() {
            return only.flush().await;
        }
        let (one, two) = (self.from.start(Op::Flush), self.to.start(Op::Flush));
        let (one, two) = (one.await.result, two.await.result);
        let flushed = one.and(two);
        if let Err(error) = &flushed {
            // Nobody asks the one that failed any more once all is on the other.
            self.flush_fault.note(error, &self.name);
        }
        flushed
    }

    /// Nobody moves these bytes meanwhile.
    async fn carry_out(&self, op: &mut Op, range: ByteRange) -> Result<()> {
        if let Some(torn) = self.torn.borrow().as_ref().filter(|torn| torn.range.overlaps(range)) {
            let words = format!("{} is on its way, and does not get there", torn.range);
            return Err(Error::new(ErrorKind::Io, words).at(&self.name));
        }
        let boundary = self.boundary.get();
        let before = ByteRange::between(range.start(), range.end().min(boundary));
        let behind = ByteRange::between(range.start().max(boundary), range.end());
        match (before, behind) {
            (Some(before), Some(behind)) => self.on_both(op, before, behind).await,
            (Some(_), None) => self.to.forward(op).await,
            (None, _) => self.from.forward(op).await,
        }
    }

    async fn on_both(&self, op: &mut Op, before: ByteRange, behind: ByteRange) -> Result<()> {
        if let Op::Status { extents, .. } = op {
            // The beginning is answer enough.
            let mut first = Op::Status { range: before, extents: std::mem::take(extents) };
            let answered = self.to.forward(&mut first).await;
            if let Op::Status { extents: found, .. } = first {
                *extents = found;
            }
            return answered;
        }
        let (one, two) = (self.to.start(op.part(before)), self.from.start(op.part(behind)));
        let (one, two) = (part(op, before, one).await, part(op, behind, two).await);
        one.and(two)
    }

    fn job(&self) -> Job {
        let (state, detail) = match &*self.state.borrow() {
            State::Moving => (JobState::Running, String::new()),
            State::Paused => (JobState::Paused, String::new()),
            State::Stopped(error) => (JobState::Stopped, error.to_string()),
            State::Done => (JobState::Done, String::new()),
        };
        let (from, to) = (self.from.name(), self.to.name());
        let (what, done) = match self.goes_back() {
            false => (format!("from {from} to {to}"), self.boundary.get()),
            true => (format!("back from {to} to {from}"), self.size - self.boundary.get()),
        };
        let progress = Progress { done, all: self.size, of: self.size };
        Job { what, state, detail, progress }
    }

    fn report(&self) -> Report {
        let job = self.job();
        let stopped = job.state == JobState::Stopped;
        let (health, summary, next) = match (stopped, self.torn.borrow().is_some()) {
            (false, _) => (Health::Ok, String::new(), None),
            (true, torn) => (
                if torn { Health::Failed } else { Health::Degraded },
                format!("the move {} has stopped: {}", job.what, job.detail),
                Some(format!("cairn job resume {}", self.name)),
            ),
        };
        let counters = vec![("failed", self.failed.get())];
        Report { health, summary, next, jobs: vec![job], counters, ..Report::default() }
    }

    fn job_control(self: &Rc<Self>, command: JobCommand) -> Handled {
        let refuse = |words: &str| {
            Handled::Done(Err(Error::new(ErrorKind::InUse, words.to_owned()).at(&self.name)))
        };
        let state = self.state.borrow().clone();
        match (command, state) {
            (JobCommand::Wait, _) => return Handled::Later(self.clone().ended()),
            (_, State::Done) => return refuse("it is done; take it out of the graph"),
            (JobCommand::Cancel, _) if self.goes_back() => return refuse("it goes back already"),
            // It may not have heard yet of what it was told last.
            (JobCommand::Resume, State::Moving) if !self.paused.get() => {
                return refuse("it is not paused");
            }
            (JobCommand::Resume, State::Moving) => self.paused.set(false),
            (JobCommand::Pause, _) if self.paused.get() => return refuse("it is paused already"),
            (JobCommand::Pause, State::Stopped(_)) => return refuse("it has stopped by itself"),
            (JobCommand::Pause, State::Moving | State::Paused) => self.paused.set(true),
            (JobCommand::Cancel, state) => {
                self.turning.set(true);
                if seeded::on(Bug::TurnedAtOnce) {
                    self.back.set(true);
                }
                self.paused.set(false);
                if !matches!(state, State::Moving) {
                    self.resume();
                }
            }
            (JobCommand::Resume, State::Paused | State::Stopped(_)) => {
                self.paused.set(false);
                self.resume();
            }
        }
        self.changed.wake();
        Handled::Done(Ok(self.report()))
    }

    /// Until all has moved.
    fn ended(self: Rc<Self>) -> LocalFuture<Result<Report>> {
        Box::pin(async move {
            let is_over = || matches!(*self.state.borrow(), State::Done) || self.closing.get();
            self.changed.until(is_over).await;
            Ok(self.report())
        })
    }
}

/// Waits for a part of `op`. What was read stands where the whole wants it.
async fn part(op: &Op, range: ByteRange, child: Child) -> Result<()> {
    let done = child.await;
    done.result?;
    if let (Op::Read { into: read, .. }, Op::Read { into, .. }) = (&done.op, op.part(range))
        && !read.same(&into)
    {
        into.write().copy_from_slice(&read.read());
    }
    Ok(())
}

impl Device for Migrate {
    fn info(&self) -> &Info {
        &self.info
    }

    fn needs(&self) -> Needs {
        Needs::children(2)
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let inner = &self.inner;
        let Some(range) = request.op.range() else { return inner.flush().await };
        if let Some(only) = inner.only() {
            return only.forward(&mut request.op).await;
        }
        let _asked = inner.pace.client();
        let _here = inner.lock.lock(range, Mode::Shared).await;
        inner.carry_out(&mut request.op, range).await
    }

    fn resolve(&self, range: ByteRange) -> Result<Vec<Below>> {
        let boundary = self.inner.boundary.get();
        let before = ByteRange::between(range.start(), range.end().min(boundary));
        let behind = ByteRange::between(range.start().max(boundary), range.end());
        let place =
            |lower, part: ByteRange| Below { lower, above: part.start(), range: part, how: "" };
        let places = [before.map(|part| place(1, part)), behind.map(|part| place(0, part))];
        Ok(places.into_iter().flatten().collect())
    }

    fn holders(&self) -> Vec<usize> {
        self.inner.holder().into_iter().collect()
    }

    fn control(&self, control: &Control) -> Handled {
        match control {
            Control::Report => Handled::Done(Ok(self.inner.report())),
            Control::Job(command) => self.inner.job_control(*command),
            Control::Fail { .. }
            | Control::Resync { .. }
            | Control::Scrub { .. }
            | Control::Check
            | Control::Keys { .. } => Handled::Pass,
        }
    }

    fn close(&self) -> LocalFuture<Handover> {
        let inner = self.inner.clone();
        Box::pin(async move {
            inner.closing.set(true);
            inner.changed.wake();
            // If nothing comes of it, it goes on.
            let closing = ScopeGuard::new(|| {
                inner.closing.set(false);
                if matches!(*inner.state.borrow(), State::Moving) {
                    inner.resume();
                }
            });
            inner.underway.ended().await;
            closing.done();
            None
        })
    }
}
