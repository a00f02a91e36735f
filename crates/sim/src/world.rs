//! The simulated world, in which code under test runs: an executor that runs ready tasks in a random order, and a
//! virtual clock that jumps to the next event.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use block::env::{
    Address, Listener, LocalFuture, Open, PersistentMemory, Socket, Storage, StorageFacts, TimerId,
    World,
};
use block::{BufPool, Env, Mono, Result, Secret, Wanted};

use crate::clock::{Clock, Event};
use crate::counters::{Count, Counters};
use crate::disk::{CutPolicy, DiskConfig, Disks, Profile, SimDisk};
use crate::draw::{Stream, domain, splitmix};
use crate::memory::{AllMemory, ProcessId};
use crate::net::Network;

/// Bytes of the buffer pool of a simulated world. They are few, so that the pool is sometimes exhausted.
const POOL_BYTES: usize = 64 << 20;

/// Largest number of clock events in one [`SimWorld::block_on`]; with more the run fails as an endless loop.
const EVENTS_MAX: u64 = 2_000_000;

/// Least number of a simulated disk that stands for a file which the code under test has created. Disks that a test
/// creates have smaller numbers.
const FILES: u64 = 1 << 32;

/// Task number of the future that was passed to [`SimWorld::block_on`].
const MAIN: usize = 0;

/// A simulated world: virtual clock, disks, network, persistent memory and tasks. It runs in one thread, and depends on
/// one seed. Its tasks are dropped with its last handle.
#[derive(Clone)]
pub struct SimWorld(
    Rc<Inner>,
    #[allow(dead_code, reason = "dropped with the last handle")] Option<Rc<End>>,
);

/// Drops the tasks of a world when it is dropped. They hold the world, and would keep its memory.
struct End(Weak<Inner>);

impl Drop for End {
    fn drop(&mut self) {
        // A panic is reported by the test that failed.
        if let Some(world) = self.0.upgrade()
            && !std::thread::panicking()
        {
            world.drop_tasks();
        }
    }
}

struct Inner {
    me: Weak<Self>,
    clock: Rc<Clock>,
    pool: BufPool,
    ready: Arc<Ready>,
    tasks: RefCell<Vec<Option<Task>>>,
    free: RefCell<Vec<usize>>,
    schedule: RefCell<Stream>,
    work: RefCell<Stream>,
    randoms: RefCell<BTreeMap<&'static str, u64>>,
    disks: Disks,
    network: Network,
    memory: AllMemory,
    /// Process to which the running task belongs. While no task runs, the process to which tasks spawned by the test
    /// belong.
    process: Cell<ProcessId>,
    running: Cell<bool>,
}

struct Task {
    name: &'static str,
    process: ProcessId,
    future: LocalFuture<()>,
    waker: Waker,
}

/// Numbers of the tasks that were woken and have not run since, each once.
#[derive(Default)]
struct Ready(Mutex<Vec<usize>>);

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Ready {
    fn push(&self, task: usize) {
        let mut woken =
            self.0.lock().expect("no task panics while it holds the list of woken tasks");
        if !woken.contains(&task) {
            woken.push(task);
        }
    }

    fn take(&self, draw: &Stream) -> Option<usize> {
        let mut woken =
            self.0.lock().expect("no task panics while it holds the list of woken tasks");
        match woken.len() {
            0 => None,
            1 => woken.pop(),
            many => Some(woken.swap_remove(draw.below(many as u64) as usize)),
        }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.task);
    }
}

/// The error if a run of the simulated world cannot end.
#[derive(Debug)]
pub struct Stuck {
    /// The reason why the run cannot end.
    pub why: &'static str,
    /// Names of the simulated tasks that have not ended.
    pub tasks: Vec<&'static str>,
    /// Descriptions of the operations that simulated disks have not completed.
    pub disks: Vec<String>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; tasks left: {:?}; disks: {:?}", self.why, self.tasks, self.disks)
    }
}

impl SimWorld {
    /// Creates a simulated world without disks and tasks.
    pub fn new(seed: u64) -> Self {
        Self::with_pool(seed, POOL_BYTES)
    }

    /// Creates a simulated world without disks and tasks, with a buffer pool of `bytes` bytes.
    pub fn with_pool(seed: u64, bytes: usize) -> Self {
        let clock = Clock::new(seed);
        let inner = Rc::new_cyclic(|me| Inner {
            me: me.clone(),
            network: Network::new(&clock),
            clock,
            pool: BufPool::new(bytes, bytes),
            ready: Arc::default(),
            tasks: RefCell::new(vec![None]),
            free: RefCell::default(),
            schedule: RefCell::new(Stream::new(seed, "schedule", 0)),
            work: RefCell::new(Stream::new(seed, "work", 0)),
            randoms: RefCell::default(),
            disks: Disks::default(),
            memory: AllMemory::default(),
            process: Cell::default(),
            running: Cell::new(false),
        });
        let end = Rc::new(End(Rc::downgrade(&inner)));
        Self(inner, Some(end))
    }

    /// Returns the environment that the code under test gets: clock, disks, network and buffers of the simulated world.
    pub fn env(&self) -> Env {
        Env::new(self.0.clone())
    }

    /// Returns the seed of the simulated world.
    pub fn seed(&self) -> u64 {
        self.0.clock.seed
    }

    /// From now on, makes the order of tasks and the times of worker jobs depend only on the seed and `chapter`, not on
    /// numbers drawn before.
    pub fn reseed(&self, chapter: u64) {
        *self.0.schedule.borrow_mut() = Stream::new(self.seed(), "schedule", chapter);
        *self.0.work.borrow_mut() = Stream::new(self.seed(), "work", chapter);
    }

    /// Returns the counters of events in the simulated world.
    pub fn counters(&self) -> &Counters {
        &self.0.clock.counters
    }

    /// Returns a hash of all events in the simulated world so far, in their order.
    pub fn trace(&self) -> u64 {
        self.0.clock.trace()
    }

    /// Returns a number that is larger than the number of every earlier call and of every event scheduled before.
    pub fn tick(&self) -> u64 {
        self.0.clock.tick()
    }

    /// Adds an event to the hash of [`SimWorld::trace`]: the event's name is `what`, and it happened to object `which`.
    pub fn record(&self, what: &'static str, which: u64) {
        self.0.clock.record(domain(what), which);
    }

    pub(crate) fn clock(&self) -> Rc<Clock> {
        self.0.clock.clone()
    }

    /// Plugs `disk` in, so that code under test that opens `path` opens this disk.
    pub fn plug(&self, path: impl Into<PathBuf>, disk: &Rc<SimDisk>) {
        self.0.disks.plug(path.into(), disk.clone());
    }

    /// Unplugs the simulated disk at `path`. Handles that are open stay valid.
    pub fn unplug(&self, path: impl AsRef<Path>) {
        self.0.disks.unplug(path.as_ref());
    }

    /// Runs tasks and clock events until `future` has ended, and returns its result.
    ///
    /// # Errors
    /// [`Stuck`] if no event is left that could wake a task, or after 2,000,000 events.
    ///
    /// # Panics
    /// If a task of the simulated world calls this function.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, Stuck> {
        let mut future = pin!(future);
        let waker = self.0.waker(MAIN);
        self.0.ready.push(MAIN);
        let mut done = None;
        let ended = self.0.run(|| {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                done = Some(output);
            }
            done.is_some()
        });
        ended.map_err(|why| self.stuck(why))?;
        Ok(done.expect("the run ended because the result was ready"))
    }

    /// Runs all tasks and clock events up to the virtual time `until`.
    ///
    /// # Errors
    /// As [`SimWorld::block_on`], but a simulated world without further events is no error.
    pub fn run(&self, until: Mono) -> Result<(), Stuck> {
        let env = self.env();
        self.block_on(async move { env.sleep_until(until).await })
    }

    /// Runs ready tasks until no task is ready. The virtual clock stands still.
    ///
    /// # Panics
    /// If a task of the simulated world calls this function.
    pub fn settle(&self) {
        assert!(
            !self.0.running.replace(true),
            "a simulated world is driven by one caller at a time"
        );
        while let Some(task) = self.0.ready.take(&self.0.schedule.borrow()) {
            self.0.poll(task);
        }
        self.0.running.set(false);
    }

    /// Runs ready tasks, then the next clock event, then the tasks that the event has woken. Returns `false` if no
    /// event was scheduled.
    pub fn step(&self) -> bool {
        self.settle();
        let happened = self.0.clock.step();
        self.settle();
        happened
    }

    /// Returns the virtual time of the next clock event; `None` if no event is scheduled.
    pub fn next_at(&self) -> Option<Mono> {
        self.0.clock.next_at()
    }

    /// Whether no task is ready and no clock event is scheduled.
    pub fn is_idle(&self) -> bool {
        self.0.clock.next_at().is_none() && self.0.ready.0.lock().is_ok_and(|r| r.is_empty())
    }

    /// Kills all simulated processes: drops every task. The disks and their caches remain. Each disk completes some
    /// operations in flight and drops the others.
    pub fn kill(&self) {
        self.0.clock.counters.add(Count::Kill);
        self.drop_tasks();
        self.0.disks.each(SimDisk::process_died);
    }

    /// From now on, tasks that the test spawns belong to `process`, with all tasks that these tasks spawn.
    pub fn enter(&self, process: ProcessId) {
        self.0.process.set(process);
    }

    /// Kills one simulated process: drops its tasks. Operations of disks in flight continue.
    pub fn kill_process(&self, process: ProcessId) {
        self.0.clock.counters.add(Count::Kill);
        self.0.end(process);
    }

    /// Whether the simulated process has a task that has not ended.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.0.tasks.borrow().iter().flatten().any(|task| task.process == process)
    }

    /// From now on, persistent memory outlives the simulated process that uses it ([`World::persistent_memory`]).
    pub fn keep_memory(&self) {
        self.0.memory.keep();
    }

    /// Plans the death of a simulated process: the process that makes the `writes`-th write to persistent memory from
    /// now on dies in that write, of which at most `bytes` bytes are stored. An earlier death of a process cancels the
    /// plan.
    pub fn kill_at_memory_write(&self, writes: u64, bytes: usize) {
        self.0.memory.kill_at(writes, bytes);
    }

    /// Cuts the power of the files that code under test has created, not of disks: unflushed writes to these files are
    /// lost.
    pub fn power_cut_files(&self) {
        self.0.disks.each(|disk| {
            if disk.number() >= FILES {
                disk.power_cut(CutPolicy::DropAll);
            }
        });
    }

    /// Resets one network connection, selected by the random number `drawn`. Bytes in transit are lost. Does nothing
    /// without a connection.
    pub fn reset_connection(&self, drawn: u64) {
        self.0.network.reset_one(drawn);
    }

    /// Resets all network connections, as a power cut of the server does.
    pub fn reset_connections(&self) {
        self.0.network.reset_all();
    }

    /// Drops all tasks and all network listeners of the simulated world. Operations of disks in flight continue.
    pub fn drop_tasks(&self) {
        self.0.drop_tasks();
    }

    fn stuck(&self, why: &'static str) -> Stuck {
        let tasks = self.0.tasks.borrow();
        let tasks = tasks.iter().flatten().map(|task| task.name).collect();
        let mut disks = Vec::new();
        self.0.disks.each(|disk| disks.extend(disk.in_flight()));
        Stuck { why, tasks, disks }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Breaks a reference cycle: events refer to disks, and disks refer to the clock.
        self.clock.clear();
    }
}

impl Inner {
    fn waker(&self, task: usize) -> Waker {
        Waker::from(Arc::new(TaskWaker { task, ready: self.ready.clone() }))
    }

    /// Runs tasks and clock events until `main` returns `true`. The executor calls `main` whenever the main task was
    /// woken.
    fn run(&self, mut main: impl FnMut() -> bool) -> Result<(), &'static str> {
        assert!(!self.running.replace(true), "a simulated world is driven by one caller at a time");
        let mut events = 0;
        let ended = loop {
            match self.ready.take(&self.schedule.borrow()) {
                Some(MAIN) => {
                    if main() {
                        break Ok(());
                    }
                }
                Some(task) => self.poll(task),
                None if self.clock.step() => events += 1,
                None => break Err("no event is left that could wake a task"),
            }
            if events > EVENTS_MAX {
                break Err("the tasks wake each other without an end");
            }
        };
        self.running.set(false);
        ended
    }

    fn poll(&self, index: usize) {
        // It is taken out while it runs, because it may spawn others.
        let Some(mut task) = self.tasks.borrow_mut().get_mut(index).and_then(Option::take) else {
            return;
        };
        self.clock.record(domain("task"), index as u64);
        let process = task.process;
        let outside = self.process.replace(process);
        let polled = task.future.as_mut().poll(&mut Context::from_waker(&task.waker));
        if polled.is_pending() {
            self.tasks.borrow_mut()[index] = Some(task);
        } else {
            drop(task);
            self.free.borrow_mut().push(index);
        }
        self.process.set(outside);
        if self.memory.is_death_due() {
            self.clock.counters.add(Count::Kill);
            self.end(process);
        }
    }

    /// Ends a simulated process: drops all its tasks, and all tasks that code spawns while tasks are dropped.
    fn end(&self, process: ProcessId) {
        self.memory.forget_death();
        let outside = self.process.replace(process);
        loop {
            let is_its_own = |task: &mut Task| task.process == process;
            let mut tasks = self.tasks.borrow_mut();
            let Some(index) =
                tasks.iter_mut().position(|task| task.as_mut().is_some_and(is_its_own))
            else {
                break;
            };
            let task = tasks[index].take();
            drop(tasks);
            drop(task);
            self.free.borrow_mut().push(index);
        }
        self.process.set(outside);
    }
}

impl Inner {
    fn drop_tasks(&self) {
        let tasks = self.tasks.replace(vec![None]);
        self.free.borrow_mut().clear();
        drop(tasks);
        self.network.clear();
        // Old wakers hold task numbers that new tasks will reuse.
        self.ready.0.lock().expect("no task panics while it holds the list of woken tasks").clear();
    }

    /// Creates the simulated disk that stands for a new file of `size` bytes. The disk has no faults.
    fn file(&self, size: u64) -> Rc<SimDisk> {
        let me = self.me.upgrade().expect("the world lives while its calls run");
        let world = SimWorld(me, None);
        let number = FILES + self.disks.len() as u64;
        SimDisk::new(&world, number, DiskConfig::new(size, Profile::Native512))
    }
}

impl World for Inner {
    fn now(&self) -> Mono {
        self.clock.now()
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.clock.now().0
    }

    fn emit(&self, event: block::Event) {
        self.clock.counters.add(match event.what {
            block::What::ScrubEnded => Count::ScrubEnded,
            _ => Count::EventReported,
        });
    }

    fn set_timer(&self, at: Mono, waker: &Waker) -> TimerId {
        self.clock.schedule(at, Event::Wake(waker.clone()))
    }

    fn clear_timer(&self, timer: TimerId) {
        self.clock.forget(timer);
    }

    fn random(&self, stream: &'static str) -> u64 {
        let mut randoms = self.randoms.borrow_mut();
        let counter = randoms.entry(stream).or_default();
        *counter += 1;
        splitmix(self.clock.seed, domain(stream), 0, *counter)
    }

    /// Returns the 64 bytes of a secret, which depend only on the name of its source. They can serve as a key and as a
    /// passphrase.
    fn secret(&self, wanted: &Wanted) -> LocalFuture<Result<Secret>> {
        let words = wanted.source.to_string();
        let seed = words.bytes().fold(0, |seed, byte| splitmix(seed, byte.into(), 0, 0));
        let bytes: Vec<u8> =
            (0..8).flat_map(|n| splitmix(seed, domain("secret"), 0, n).to_le_bytes()).collect();
        Box::pin(std::future::ready(Secret::copy_of(&bytes)))
    }

    fn spawn(&self, name: &'static str, future: LocalFuture<()>) {
        let free = self.free.borrow_mut().pop();
        let mut tasks = self.tasks.borrow_mut();
        let index = free.unwrap_or(tasks.len());
        let (process, waker) = (self.process.get(), self.waker(index));
        let task = Some(Task { name, process, future, waker });
        if index == tasks.len() {
            tasks.push(task);
        } else {
            tasks[index] = task;
        }
        self.ready.push(index);
    }

    fn work(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        self.clock.counters.add(Count::Work);
        let delay = Duration::from_nanos(self.work.borrow().within(10_000, 5_000_000));
        let me = self.me.upgrade().expect("the world lives while its calls run");
        Box::pin(async move {
            Env::new(me).sleep(delay).await;
            job();
        })
    }

    fn pool(&self) -> &BufPool {
        &self.pool
    }

    fn probe(&self, open: &Open) -> Result<StorageFacts> {
        match (self.disks.find(open), open.create) {
            (Err(_), Some(size)) => {
                let facts = self.file(size).facts_for(open);
                Ok(StorageFacts { created: true, ..facts })
            }
            (found, _) => Ok(found?.facts_for(open)),
        }
    }

    fn open(&self, open: &Open) -> Result<Rc<dyn Storage>> {
        match (self.disks.find(open), open.create) {
            (Err(_), Some(size)) if !open.read_only => {
                let file = self.file(size);
                self.disks.plug(open.path.clone(), file.clone());
                file.open(open, true)
            }
            (found, _) => found?.open(open, false),
        }
    }

    fn listen(&self, at: &Address) -> Result<Rc<dyn Listener>> {
        self.network.listen(at)
    }

    fn has_supervisor(&self) -> bool {
        self.memory.is_kept()
    }

    fn persistent_memory(&self, name: &str, bytes: u64) -> Result<PersistentMemory> {
        self.memory.get(name, bytes, self.process.get())
    }

    fn connect(&self, to: &Address) -> LocalFuture<Result<Rc<dyn Socket>>> {
        let me = self.me.upgrade().expect("the world lives while its calls run");
        self.network.connect(Env::new(me), to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_clock_jumps_to_next_event() {
        let world = SimWorld::new(1);
        let env = world.env();
        let start = env.now();
        let hour = Duration::from_secs(3600);
        world.block_on(async { env.sleep(hour).await }).unwrap();
        assert_eq!(env.now().since(start), hour);
    }

    #[test]
    fn simulator_runs_ready_tasks_in_any_order() {
        let mut orders = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let world = SimWorld::new(seed);
            let order = Rc::new(RefCell::new(Vec::new()));
            for n in 0..3 {
                let order = order.clone();
                world.env().spawn("n", async move { order.borrow_mut().push(n) });
            }
            world.run(world.env().now().after(Duration::from_nanos(1))).unwrap();
            orders.insert(order.take());
        }
        assert_eq!(orders.len(), 6);
    }

    #[test]
    fn simulator_names_waiting_tasks_when_no_event_is_left() {
        let world = SimWorld::new(1);
        world.env().spawn("forgotten", std::future::pending());
        let stuck = world.block_on(std::future::pending::<()>()).unwrap_err();
        assert_eq!(stuck.tasks, ["forgotten"]);
    }

    #[test]
    fn simulator_drops_every_task_of_killed_process() {
        let world = SimWorld::new(1);
        let alive = Rc::new(());
        let held = alive.clone();
        let env = world.env();
        world.env().spawn("clock", async move {
            let _held = held;
            env.sleep(Duration::from_secs(5)).await;
        });
        world.run(world.env().now().after(Duration::from_secs(1))).unwrap();
        world.kill();
        assert_eq!(Rc::strong_count(&alive), 1);
        assert_eq!(world.counters().get(Count::Kill), 1);
    }

    #[test]
    fn simulated_worker_job_takes_time() {
        let world = SimWorld::new(1);
        let env = world.env();
        let start = env.now();
        world.block_on(env.work(|| {})).unwrap();
        assert!(env.now() > start);
    }
}
