//! Carries out the requests of a migration device, before and behind the boundary.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::control::{Command, Reply, Resolved, VerbInfo};
use block::env::LocalFuture;
use block::job::Job;
use block::{
    Below, ByteRange, Device, Env, Error, ErrorKind, FlushFault, Handover, Health, Info, JobState,
    Lower, Mode, Op, RangeLock, Report, Request, Result, StateStore, TaskGroup, Throttle, Window,
};

use super::record::{Record, Window as Sums};

/// A migration device. Its inner state is shared with the mover, the task that moves the bytes.
pub struct Migrate {
    info: Info,
    inner: Rc<Inner>,
}

/// State of a migration, shared by requests and the mover.
pub struct Inner {
    pub name: String,
    pub env: Env,
    pub from: Lower,
    pub to: Lower,
    pub size: u64,
    /// Most bytes that the mover moves in one step, a multiple of the block sizes of source and target.
    pub step_bytes: u64,
    /// Whether source and target have their bytes at the same addresses of the same disks, so that the mover changes
    /// the bytes in place.
    pub in_place: bool,
    pub pace: Throttle,
    pub kept: Rc<dyn StateStore>,
    /// Ports of the lowers in whose labels the state of the migration is kept.
    pub ports: Vec<usize>,
    /// Lock of byte ranges: a request holds its range shared, and the mover holds the range of its window exclusively.
    pub lock: RangeLock,
    /// The boundary of the migration: bytes before this address are on `to`, all other bytes are on `from`.
    pub boundary: Cell<u64>,
    pub back: Cell<bool>,
    pub job: Job,
    pub torn: RefCell<Option<Torn>>,
    pub flush_fault: FlushFault,
    pub tasks: TaskGroup,
}

/// A byte range of a migration that no request may access until the mover has completed its move, or has made the
/// record of its move durable.
#[derive(Clone)]
pub struct Torn {
    pub range: ByteRange,
    /// The window with its checksums, if its change in place has begun and not ended; `None` if the bytes have moved,
    /// and only the record of the move is not durable.
    pub window: Option<Sums>,
}

/// The parts from which [`Migrate::new`] makes a migration device.
pub struct Parts {
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
    /// Returns a migration device that continues from the progress in `record`.
    pub fn new(info: Info, parts: Parts, record: Record) -> Self {
        let Parts { name, env, from, to, in_place, speed, kept, ports } = parts;
        let torn = record.window.map(|window| Torn { range: window.range, window: Some(window) });
        let end = if record.back { 0 } else { info.size };
        let is_done = record.boundary == end && torn.is_none();
        let inner = Rc::new(Inner {
            name,
            pace: Throttle::new(&env, speed),
            tasks: TaskGroup::new(&env),
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
            job: if is_done { Job::done() } else { Job::new(record.paused) },
            torn: RefCell::new(torn),
            flush_fault: FlushFault::default(),
        });
        if !is_done {
            Job::begin(&inner);
        }
        Self { info, inner }
    }
}

impl Inner {
    /// Whether the boundary of the migration has reached its destination, so that all bytes are moved.
    pub fn is_at_end(&self) -> bool {
        self.boundary.get() == if self.back.get() { 0 } else { self.size }
    }

    /// Whether the boundary of the migration moves backward, or will do so from the next step on.
    pub fn goes_back(&self) -> bool {
        self.back.get() || self.job.is_turning()
    }

    /// Returns the lower that has all bytes for good, if the migration is done; `None` before.
    fn only(&self) -> Option<&Lower> {
        if !self.job.is_done() {
            return None;
        }
        Some(if self.back.get() { &self.from } else { &self.to })
    }

    /// Returns the port of the lower that has all bytes at this moment; `None` while each lower has a part of them.
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
        let mut both = Window::<2>::new();
        both.start(&self.from, Op::Flush);
        both.start(&self.to, Op::Flush);
        let flushed = both.drain().await;
        if let Err(error) = &flushed {
            // Every later flush must fail too: once the migration is done, the lower whose flush failed may get no more
            // flushes.
            self.flush_fault.note(error, &self.name);
        }
        flushed
    }

    /// Carries out a request to `range`. The caller holds the lock of `range`, so the mover does not move these bytes
    /// meanwhile.
    async fn carry_out(&self, op: &mut Op, range: ByteRange) -> Result<()> {
        if let Some(torn) = self.torn.borrow().as_ref().filter(|torn| torn.range.overlaps(range)) {
            let words = format!("bytes {} are partly moved: the migration has stopped", torn.range);
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
            // A status reply may cover only the beginning of its range.
            let mut first = Op::Status { range: before, extents: std::mem::take(extents) };
            let answered = self.to.forward(&mut first).await;
            if let Op::Status { extents: found, .. } = first {
                *extents = found;
            }
            return answered;
        }
        let mut both = Window::<2>::new();
        both.start(&self.to, op.part(before));
        both.start(&self.from, op.part(behind));
        let done = both.drain().await;
        op.add_copies(both.copies());
        done
    }

    fn report(&self) -> Report {
        let job = Job::report(self);
        let stopped = job.state == JobState::Stopped;
        let (health, summary, next) = match (stopped, self.torn.borrow().is_some()) {
            (false, _) => (Health::Ok, String::new(), None),
            (true, torn) => (
                if torn { Health::Failed } else { Health::Degraded },
                format!("the migration {} has stopped: {}", job.what, job.detail),
                Some(format!("cairn job resume {}", self.name)),
            ),
        };
        let counters = vec![("failed", self.job.failed())];
        Report { health, summary, next, jobs: vec![job], counters, ..Report::default() }
    }
}

impl Device for Migrate {
    fn info(&self) -> &Info {
        &self.info
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

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        let boundary = self.inner.boundary.get();
        let before = ByteRange::between(range.start(), range.end().min(boundary));
        let behind = ByteRange::between(range.start().max(boundary), range.end());
        let place = |lower, part: ByteRange| Below {
            lower,
            above: part.start(),
            range: part,
            how: "".into(),
        };
        let places = [before.map(|part| place(1, part)), behind.map(|part| place(0, part))];
        let all = places.into_iter().flatten().collect();
        Ok(Resolved::Places { all, upto: range.end(), moves: true })
    }

    fn holders(&self) -> Vec<usize> {
        self.inner.holder().into_iter().collect()
    }

    fn report(&self) -> Report {
        self.inner.report()
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        &Job::VERBS
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        Job::control(&self.inner, &command)
    }

    fn close(&self) -> LocalFuture<Handover> {
        let inner = self.inner.clone();
        Box::pin(async move {
            // If the close is abandoned, the migration goes on.
            inner.tasks.close(|| Job::resume_running(&inner)).await.done();
            None
        })
    }
}
