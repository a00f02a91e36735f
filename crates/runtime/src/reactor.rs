//! The state of a core, and the turns of its event loop.
//!
//! One of the few modules with unsafe code: it makes the system calls of operations that are carried out at once.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use block::env::{
    self, Address, Channel, Listener, LocalFuture, Open, Outcome, PersistentMemory, Socket,
    Storage, StorageFacts, Ticket, Tickets, TimerId, World,
};
use block::{
    Buf, BufPool, Error, Event, Events, Mono, OneShot, Result, Secret, Wanted, bail, error,
};

use crate::Config;
use crate::engine::{Answer, Running, Wait};
use crate::executor::{MAIN, Queue, Tasks};
use crate::persistent_memory::PersistentMemories;
use crate::secrets::{self, Keys};
use crate::slab::{Held, Op, Polled, Slab, Slot};
use crate::sys::{self, Call};
use crate::timers::Timers;
use crate::workers::{WorkerJob, Workers};
use crate::{channel, disk, fdstore, memfd_state, one_shot_keys, opening, socket};

// Number of passes over the queue before the next call to the kernel.
const ROUNDS: usize = 8;

const RANDOM_BATCH: usize = 32;

/// The state of a core: its tasks, timers, disks and sockets.
pub(crate) struct Reactor {
    me: Weak<Self>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) pool: BufPool,
    tasks: RefCell<Tasks>,
    timers: RefCell<Timers>,
    slab: RefCell<Slab>,
    engine: RefCell<Option<Running>>,
    workers: Workers<WorkerJob>,
    answers: RefCell<Vec<Answer>>,
    now: Cell<Mono>,
    random: RefCell<Vec<u64>>,
    nonblocking: bool,
    spin: Duration,
    note: fn(&str),
    by_hand: bool,
    events: Rc<Events>,
    /// The files that openings of disks have created: path, device number and inode number.
    created: RefCell<Vec<(PathBuf, (u64, u64))>>,
    persistent_memory: PersistentMemories,
    // Running means of a turn's wait for its first completion: from clients, and from disks.
    waits: [Cell<Duration>; 2],
    stopping: Cell<bool>,
    // Whether memory was left to the kernel for good.
    lost: Cell<bool>,
}

fn clock() -> Mono {
    static START: OnceLock<Instant> = OnceLock::new();
    Mono(START.get_or_init(Instant::now).elapsed())
}

impl Reactor {
    /// Passes a warning of the core to the operator.
    pub(crate) fn note(&self, line: &str) {
        (self.note)(line);
    }

    pub(crate) fn new(
        engine: Running,
        queue: Arc<Queue>,
        bell: OwnedFd,
        pool: BufPool,
        threads: usize,
        spin: Duration,
        config: &Config,
    ) -> Rc<Self> {
        let nonblocking = engine.nonblocking();
        let side = Rc::new_cyclic(|me| Self {
            me: me.clone(),
            queue,
            pool,
            tasks: RefCell::default(),
            timers: RefCell::default(),
            slab: RefCell::default(),
            engine: RefCell::new(Some(engine)),
            workers: Workers::new("cairn-work", threads, WorkerJob::run),
            answers: RefCell::default(),
            now: Cell::new(clock()),
            random: RefCell::default(),
            nonblocking,
            spin,
            note: config.note,
            by_hand: config.by_hand,
            events: Rc::default(),
            created: RefCell::default(),
            persistent_memory: PersistentMemories::default(),
            waits: [const { Cell::new(Duration::MAX) }; 2],
            stopping: Cell::new(false),
            lost: Cell::new(false),
        });
        // This ticket is never polled: the read is begun again after each completion.
        drop(side.start(Held::new(Op::Bell, Rc::new(bell), None), Vec::new(), false));
        side
    }

    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("the reactor lives while its operations run")
    }

    /// Whether the core's sockets must be nonblocking.
    pub(crate) fn nonblocking(&self) -> bool {
        self.nonblocking
    }

    /// Starts an operation, whose slot owns `held` and `parts` until its end. If `inline`, the operation is carried
    /// out within this call.
    pub(crate) fn start(&self, held: Held, parts: Vec<Buf>, inline: bool) -> Ticket {
        if self.stopping.get() {
            let result = Err(env::stopped());
            return Ticket::ready(Outcome { result, buf: held.buf, parts });
        }
        let mut slab = self.slab.borrow_mut();
        let id = slab.place(held, parts);
        let call = slab.flying(id).call();
        drop(slab);
        if inline {
            let mut next = Some(call);
            while let Some(call) = next {
                // SAFETY: the slot owns the memory that the call points at, and only this thread works on it.
                let res = unsafe { sys::perform(call) };
                next = self.settle(id, res);
            }
        } else {
            self.submit(id, call);
        }
        Ticket::new(self.me(), id)
    }

    fn submit(&self, id: u64, call: Call) {
        let mut engine = self.engine.borrow_mut();
        engine.as_mut().expect("operations in flight keep the engine").submit(id, call);
    }

    /// Handles the result of an operation's last system call. Returns the operation's next call; `None` if the
    /// operation has ended.
    fn settle(&self, id: u64, res: i32) -> Option<Call> {
        let mut slab = self.slab.borrow_mut();
        let slot = slab.flying(id);
        let held = slot.held.as_ref().expect("an operation in flight is held");
        let accepted = held.op == Op::Accept && res >= 0;
        let step = match held.disk.clone() {
            Some(disk) => disk.settle(slot, res, &self.pool),
            None => self.settle_stream(slot, res),
        };
        let (waker, held) = match step {
            disk::Step::Again => return Some(slot.call()),
            disk::Step::Done(result) => slab.done(id, result),
        };
        drop(slab);
        if accepted && held.is_some() {
            drop(sys::accepted(res));
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    fn settle_stream(&self, slot: &Slot, res: i32) -> disk::Step {
        let held = slot.held.as_ref().expect("an operation in flight is held");
        let again = match held.op {
            Op::Bell => res != -libc::ECANCELED,
            _ => res == -libc::EINTR,
        };
        if again {
            return disk::Step::Again;
        }
        disk::Step::Done(match held.op {
            op if res < 0 => Err(match &held.name {
                Some(name) => Error::os(-res, format_args!("{name}: {}", op.name())),
                None => Error::os(-res, op.name()),
            }),
            Op::Next => {
                let [a, b, c, d, ..] = slot.small.0;
                Ok(u32::from_ne_bytes([a, b, c, d]) as usize)
            }
            _ => Ok(res as usize),
        })
    }

    /// Runs the ready tasks of the core, and `main` if it is ready. Returns whether anything was ready.
    pub(crate) fn run(&self, main: &mut dyn FnMut()) -> bool {
        let mut ran = false;
        for _ in 0..ROUNDS {
            let ready = self.queue.len();
            if ready == 0 {
                break;
            }
            ran = true;
            for _ in 0..ready {
                match self.queue.pop() {
                    Some(MAIN) => main(),
                    Some(id) => {
                        // The borrow ends before the task runs: it may spawn.
                        let taken = self.tasks.borrow_mut().take(id);
                        let Some(mut task) = taken else { continue };
                        match task.poll() {
                            Poll::Pending => self.tasks.borrow_mut().put(task),
                            Poll::Ready(()) => self.tasks.borrow_mut().end(&task),
                        }
                    }
                    None => break,
                }
            }
        }
        ran
    }

    /// Carries out the kernel's part of a turn: submits operations, waits if no task is ready, handles results, and
    /// wakes the tasks of timers that are due.
    pub(crate) fn turn(&self, ran: bool) -> Result<()> {
        let mut guard = self.engine.borrow_mut();
        let engine = guard.as_mut().ok_or_else(env::stopped)?;
        let mut answers = self.answers.take();
        let entered = if self.queue.len() == 0 {
            self.wait(engine, ran, &mut answers)
        } else {
            engine.turn(Wait::No, &mut answers)
        };
        drop(guard);
        self.queue.take_injected();
        self.now.set(clock());
        for (id, res) in answers.drain(..) {
            if let Some(call) = self.settle(id, res) {
                self.submit(id, call);
            }
        }
        self.answers.replace(answers);
        self.fire();
        entered.map_err(|error| Error::io(&error, "waiting for completions from the kernel"))
    }

    /// Reads the clock again, because the thread may have done other work for long since the last turn of this core.
    pub fn catch_up(&self) {
        self.now.set(clock());
    }

    fn fire(&self) {
        loop {
            let due = self.timers.borrow_mut().due(self.now.get());
            let Some(waker) = due else { return };
            waker.wake();
        }
    }

    fn wait(
        &self,
        engine: &mut Running,
        ran: bool,
        answers: &mut Vec<Answer>,
    ) -> std::io::Result<()> {
        let began = clock();
        let timer = self.timers.borrow().next();
        let patience = self.spin;
        // A slow disk does not predict when a client comes back, nor the other way round.
        let waits = &self.waits[usize::from(self.slab.borrow().at_disks() > 0)];
        // A spin that probably succeeds is shorter than going to sleep and waking.
        if ran && waits.get() <= patience + patience / 4 && patience > Duration::ZERO {
            engine.flush();
            let until = timer.map_or(began.after(patience), |at| at.min(began.after(patience)));
            while !engine.ready() && !self.queue.has_injected() && clock() < until {
                std::hint::spin_loop();
            }
        }
        // From here on other threads ring the bell. Their earlier pushes are seen now.
        self.queue.set_asleep(true);
        let wait = match timer {
            _ if engine.ready() || self.queue.has_injected() => Wait::No,
            None => Wait::Forever,
            Some(at) => match at.since(clock()) {
                Duration::ZERO => Wait::No,
                left => Wait::Until(left),
            },
        };
        let entered = engine.turn(wait, answers);
        self.queue.set_asleep(false);
        // A mean of the last few. A long wait counts no more than one that is clearly too long for a spin.
        let waited = clock().since(began).min(16 * patience);
        let mean = waits.get().min(16 * patience);
        waits.set((mean * 7 + waited) / 8);
        entered
    }

    /// Submits the operations that tasks have started since the last turn.
    pub(crate) fn flush(&self) {
        if let Some(engine) = &mut *self.engine.borrow_mut() {
            engine.flush();
        }
    }

    /// Stops the core: it starts no further operation, drops its tasks, cancels operations that wait for other
    /// processes, and waits for the others in flight. Then it drops its engine. A second call does nothing.
    pub(crate) fn stop(&self, limit: Duration) -> Result<()> {
        if self.stopping.replace(true) {
            return Ok(());
        }
        // The borrow ends before the tasks are dropped: their drops may call back here.
        let left = self.tasks.borrow_mut().clear();
        drop(left);
        let until = clock().after(limit);
        self.call_off(|held| held.op.waits_for_others());
        while self.in_flight() > 0 {
            // The bell goes last: threads ring it when they have finished.
            if self.in_flight() == 1 {
                self.call_off(|held| held.op == Op::Bell);
            }
            let left = until.since(clock());
            if left.is_zero() {
                return Err(self.give_up(limit));
            }
            if self.reap(Wait::Until(left)).is_err() {
                return Err(self.give_up(limit));
            }
        }
        drop(self.engine.take());
        match self.workers.close(until.since(clock())) {
            0 => Ok(()),
            jobs => Err(error!(TimedOut, "{jobs} jobs of worker threads did not end in {limit:?}")),
        }
    }

    /// Cancels the operations of the core for which `which` is true. The kernel completes each of them all the same.
    pub(crate) fn call_off(&self, which: impl Fn(&Held) -> bool) {
        let mut ids = Vec::new();
        self.slab.borrow().each_flying(|id, held| {
            if which(held) {
                ids.push(id);
            }
        });
        if let Some(engine) = &mut *self.engine.borrow_mut() {
            ids.iter().for_each(|&id| engine.cancel(id));
        }
    }

    fn in_flight(&self) -> usize {
        self.slab.borrow().in_flight()
    }

    fn reap(&self, wait: Wait) -> Result<()> {
        let mut answers = Vec::new();
        let entered = match &mut *self.engine.borrow_mut() {
            Some(engine) => {
                self.queue.set_asleep(true);
                let wait = if engine.ready() { Wait::No } else { wait };
                engine.turn(wait, &mut answers)
            }
            None => return Err(env::stopped()),
        };
        for (id, res) in answers {
            if let Some(call) = self.settle(id, res) {
                self.submit(id, call);
            }
        }
        entered.map_err(|error| Error::io(&error, "waiting for operations in flight"))
    }

    fn give_up(&self, limit: Duration) -> Error {
        let mut names = BTreeMap::<_, usize>::new();
        self.slab.borrow().each_flying(|_, held| *names.entry(held.op.name()).or_default() += 1);
        let words: Vec<String> =
            names.iter().map(|(name, count)| format!("{count} {name}")).collect();
        // The kernel may still write into memory of the slots: it is never freed.
        self.lost.set(true);
        std::mem::forget(self.slab.take());
        std::mem::forget(self.engine.take());
        error!(
            TimedOut,
            "operations in flight after {limit:?}: {}; their buffers are never freed",
            words.join(", ")
        )
    }

    fn drop_abandoned(&self, held: &Held, result: &Result<usize>) {
        if let (Op::Accept, Ok(fd)) = (held.op, result) {
            drop(sys::accepted(*fd as i32));
        }
    }
}

impl Tickets for Reactor {
    fn poll(&self, id: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        if self.lost.get() {
            return Poll::Ready(Outcome::bare(Err(env::stopped())));
        }
        let (polled, old) = self.slab.borrow_mut().poll(id, cx.waker());
        drop(old);
        match polled {
            Polled::Pending => Poll::Pending,
            Polled::Ready(outcome) => Poll::Ready(outcome),
        }
    }

    fn abandon(&self, id: u64) {
        let ended = self.slab.borrow_mut().abandon(id);
        if let Some((held, result)) = ended {
            self.drop_abandoned(&held, &result);
        }
    }
}

impl World for Reactor {
    fn now(&self) -> Mono {
        self.now.get()
    }

    fn clock(&self) -> Mono {
        clock()
    }

    fn wall(&self) -> Duration {
        SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
    }

    fn emit(&self, event: Event) {
        self.events.add(self.wall(), event);
    }

    fn events(&self) -> Option<Rc<Events>> {
        Some(self.events.clone())
    }

    fn set_timer(&self, at: Mono, waker: &Waker) -> TimerId {
        let waker = waker.clone();
        self.timers.borrow_mut().set(at, waker)
    }

    fn clear_timer(&self, timer: TimerId) {
        let waker = self.timers.borrow_mut().clear(timer);
        drop(waker);
    }

    // All names share one stream of the kernel's random numbers: only reproducible streams need names.
    fn random(&self, _: &'static str) -> u64 {
        let mut batch = self.random.borrow_mut();
        if batch.is_empty() {
            let mut bytes = [[0; 8]; RANDOM_BATCH];
            sys::random_bytes(bytes.as_flattened_mut());
            batch.extend(bytes.map(u64::from_ne_bytes));
        }
        batch.pop().expect("the batch was created above")
    }

    fn spawn(&self, name: &'static str, task: LocalFuture<()>) {
        if !self.stopping.get() {
            self.tasks.borrow_mut().add(name, task, &self.queue);
        }
    }

    fn work(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        let (job, ended) = WorkerJob::new(job);
        // The waiter is woken only on its own core: no other thread may touch its waker.
        let home = Rc::new(OneShot::default());
        let tell = home.clone();
        self.workers.push(job);
        self.spawn("the end of a worker job", Box::pin(async move { tell.set(ended.await) }));
        // A panic of the job is our error, and shows here too.
        Box::pin(async move { assert!(home.wait().await, "a job panicked on its worker thread") })
    }

    fn random_secret(&self, into: &mut [u8]) {
        sys::random_bytes(into);
    }

    fn secret(&self, wanted: &Wanted) -> LocalFuture<Result<Secret>> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
        let keys = Keys { credentials, by_hand: self.by_hand, note: self.note };
        Box::pin(std::future::ready(keys.get(wanted)))
    }

    fn keep_secret(&self, full_name: &str, key: &Secret) -> Result<()> {
        if self.by_hand { Ok(()) } else { one_shot_keys::keep(full_name, key) }
    }

    fn kept_secret(&self, full_name: &str) -> Result<Option<Secret>> {
        one_shot_keys::kept(full_name)
    }

    fn pool(&self) -> &BufPool {
        &self.pool
    }

    fn probe(&self, open: &Open) -> Result<StorageFacts> {
        opening::probe(open)
    }

    fn open(&self, open: &Open) -> Result<Rc<dyn Storage>> {
        let disk = disk::open(self.me(), open)?;
        if let Some(file) = disk.created_file() {
            self.created.borrow_mut().push((open.path.to_path_buf(), file));
        }
        Ok(Rc::new(disk))
    }

    fn remove_created(&self) {
        for (path, file) in self.created.take() {
            // A file that cannot be removed is used by the next start.
            let is_same = std::fs::metadata(&path).is_ok_and(|now| (now.dev(), now.ino()) == file);
            let _ = is_same.then(|| std::fs::remove_file(&path));
        }
    }

    fn listen(&self, at: &Address) -> Result<Rc<dyn Listener>> {
        socket::listen(self.me(), at)
    }

    fn read_file(&self, path: &Path, most: usize) -> Result<Vec<u8>> {
        let failed = |error| Error::io(&error, path.display());
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > most {
            bail!(Limit, "{}: the file is longer than the limit of {most} bytes", path.display());
        }
        Ok(bytes)
    }

    fn read_secret(&self, path: &Path, most: usize) -> Result<Secret> {
        secrets::read(path, most)
    }

    fn connect(&self, to: &Address) -> LocalFuture<Result<Rc<dyn Socket>>> {
        Box::pin(socket::connect(self.me(), to.clone()))
    }

    fn mount(&self, at: &Path) -> Result<Rc<dyn Channel>> {
        channel::mount(self.me(), at)
    }

    fn inherited(&self) -> Vec<String> {
        fdstore::names()
    }

    fn fdstore_remove(&self, name: &str) -> Result<()> {
        while fdstore::take(|left| left.name == name).is_some() {}
        fdstore::withdraw(name)
    }

    fn fdstore_put(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        memfd_state::leave(name, bytes)
    }

    fn take_bytes(&self, name: &str, most: usize) -> Result<Vec<u8>> {
        memfd_state::take(name, most)
    }

    fn take_socket(&self, name: &str) -> Result<Rc<dyn Socket>> {
        socket::take(self.me(), name)
    }

    fn has_supervisor(&self) -> bool {
        fdstore::is_kept()
    }

    fn persistent_memory(&self, name: &str, bytes: u64) -> Result<PersistentMemory> {
        self.persistent_memory.get(name, bytes)
    }

    fn fdstore_put_memory(&self) -> Result<()> {
        self.persistent_memory.fdstore_put_again()?;
        one_shot_keys::fdstore_put_again()
    }

    fn fdstore_remove_memory(&self) -> Result<()> {
        let remains = self.persistent_memory.fdstore_remove();
        one_shot_keys::fdstore_remove().and(remains)
    }

    fn take_over(&self, name: &str, at: &Path, counts: &Path) -> Result<Rc<dyn Channel>> {
        channel::take_over(self.me(), name, at, counts)
    }
}
