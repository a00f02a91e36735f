//! The world: an executor that takes ready tasks in a drawn order, and a clock that jumps.

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
    Address, Listener, LocalFuture, Open, Remains, Socket, Storage, StorageFacts, TimerId, World,
};
use block::{BufPool, Env, Mono, Result, Secret, Wanted};

use crate::clock::{Clock, Event};
use crate::counters::{Count, Counters};
use crate::disk::{CutPolicy, DiskConfig, Disks, Profile, SimDisk};
use crate::draw::{Stream, domain, splitmix};
use crate::memory::{AllMemory, ProcessId};
use crate::net::Network;

/// Bytes of buffers that a world may have in use: small, so that exhaustion is near.
const POOL_BYTES: usize = 64 << 20;

/// Events without the end of a `block_on`, after which it is taken to go in circles.
const EVENTS_MAX: u64 = 2_000_000;

/// Files that an open makes are numbered from here on; no test gives a disk such a number.
const FILES: u64 = 1 << 32;

/// The task that [`SimWorld::block_on`] was given.
const MAIN: usize = 0;

/// A world in one thread, under one seed.
#[derive(Clone)]
pub struct SimWorld(Rc<Inner>);

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
    /// Whose task runs; between tasks, whom a task that is spawned belongs to.
    process: Cell<ProcessId>,
    running: Cell<bool>,
}

struct Task {
    name: &'static str,
    process: ProcessId,
    future: LocalFuture<()>,
    waker: Waker,
}

/// Tasks that were woken, each once.
#[derive(Default)]
struct Ready(Mutex<Vec<usize>>);

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Ready {
    fn push(&self, task: usize) {
        let mut woken = self.0.lock().expect("nobody panics while holding it");
        if !woken.contains(&task) {
            woken.push(task);
        }
    }

    fn take(&self, draw: &Stream) -> Option<usize> {
        let mut woken = self.0.lock().expect("nobody panics while holding it");
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

/// Why a run did not come to its end.
#[derive(Debug)]
pub struct Stuck {
    /// What it was.
    pub why: &'static str,
    /// The tasks that are left, by name.
    pub tasks: Vec<&'static str>,
    /// Requests that disks have not answered.
    pub disks: Vec<String>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; tasks left: {:?}; disks: {:?}", self.why, self.tasks, self.disks)
    }
}

impl SimWorld {
    /// The world of that seed, empty.
    pub fn new(seed: u64) -> Self {
        Self::with_pool(seed, POOL_BYTES)
    }

    /// The same, with so many bytes of buffers.
    pub fn with_pool(seed: u64, bytes: usize) -> Self {
        let clock = Clock::new(seed);
        Self(Rc::new_cyclic(|me| Inner {
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
        }))
    }

    /// Its doors.
    pub fn env(&self) -> Env {
        Env::new(self.0.clone())
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.0.clock.seed
    }

    /// From now on the order of tasks is drawn from the numbers of this chapter, whatever was drawn before.
    pub fn reseed(&self, chapter: u64) {
        *self.0.schedule.borrow_mut() = Stream::new(self.seed(), "schedule", chapter);
        *self.0.work.borrow_mut() = Stream::new(self.seed(), "work", chapter);
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.0.clock.counters
    }

    /// A number that two runs share only if the same things happened in the same order.
    pub fn trace(&self) -> u64 {
        self.0.clock.trace()
    }

    /// A larger number with every call: the order of what happens.
    pub fn tick(&self) -> u64 {
        self.0.clock.tick()
    }

    /// Puts on record, for [`SimWorld::trace`], that `what` happened to `which`.
    pub fn record(&self, what: &'static str, which: u64) {
        self.0.clock.record(domain(what), which);
    }

    pub(crate) fn clock(&self) -> Rc<Clock> {
        self.0.clock.clone()
    }

    /// From now on the disk is found under `path`.
    pub fn plug(&self, path: impl Into<PathBuf>, disk: &Rc<SimDisk>) {
        self.0.disks.plug(path.into(), disk.clone());
    }

    /// No disk is found under `path` any more.
    pub fn unplug(&self, path: impl AsRef<Path>) {
        self.0.disks.unplug(path.as_ref());
    }

    /// Runs the world until `future` is done.
    ///
    /// # Errors
    /// [`Stuck`] if nothing is left that could wake anybody, or if it goes in circles.
    ///
    /// # Panics
    /// If it is called from inside.
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
        Ok(done.expect("the run ended because it was there"))
    }

    /// Runs what happens up to `until`; then it is that time.
    ///
    /// # Errors
    /// As [`SimWorld::block_on`], but a world in which nothing happens is fine.
    pub fn run(&self, until: Mono) -> Result<(), Stuck> {
        let env = self.env();
        self.block_on(async move { env.sleep_until(until).await })
    }

    /// Runs what is ready, up to where only time can go on.
    ///
    /// # Panics
    /// If it is called from inside.
    pub fn settle(&self) {
        assert!(!self.0.running.replace(true), "a world is driven from one place");
        while let Some(task) = self.0.ready.take(&self.0.schedule.borrow()) {
            self.0.poll(task);
        }
        self.0.running.set(false);
    }

    /// Lets the next thing happen, and what it wakes run. `false`: nothing will happen any more.
    pub fn step(&self) -> bool {
        self.settle();
        let happened = self.0.clock.step();
        self.settle();
        happened
    }

    /// When the next thing happens, if anything is to.
    pub fn next_at(&self) -> Option<Mono> {
        self.0.clock.next_at()
    }

    /// Whether nothing is ready and nothing will happen.
    pub fn is_idle(&self) -> bool {
        self.0.clock.next_at().is_none() && self.0.ready.0.lock().is_ok_and(|r| r.is_empty())
    }

    /// The process dies: every task is gone, and who waited for a disk waits no more. Disks stay, with
    /// their caches; of what they work on, some lands and some does not.
    pub fn kill(&self) {
        self.0.clock.counters.add(Count::Kill);
        self.drop_tasks();
        self.0.disks.each(SimDisk::process_died);
    }

    /// From now on what is spawned from outside belongs to that process, and what its tasks spawn.
    pub fn enter(&self, process: ProcessId) {
        self.0.process.set(process);
    }

    /// One process dies, and nothing happens to disks: they are not its own.
    pub fn kill_process(&self, process: ProcessId) {
        self.0.clock.counters.add(Count::Kill);
        self.0.end(process);
    }

    /// Whether that process has a task.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.0.tasks.borrow().iter().flatten().any(|task| task.process == process)
    }

    /// From now on somebody holds the memory of processes that die ([`World::remains`]).
    pub fn keep_memory(&self) {
        self.0.memory.keep();
    }

    /// The next process to die does so in the midst of the `writes`-th write from now on to memory that outlives
    /// it, unless it is killed before: of that write at most so many bytes get there.
    pub fn kill_at_memory_write(&self, writes: u64, bytes: usize) {
        self.0.memory.kill_at(writes, bytes);
    }

    /// The power goes, for the files that opens have made: what was not flushed is gone.
    pub fn power_cut_files(&self) {
        self.0.disks.each(|disk| {
            if disk.number() >= FILES {
                disk.power_cut(CutPolicy::DropAll);
            }
        });
    }

    /// Breaks a connection, if there is one: what was sent and not received is lost.
    pub fn reset_connection(&self, drawn: u64) {
        self.0.network.reset_one(drawn);
    }

    /// Breaks all connections, as a server does that loses its power.
    pub fn reset_connections(&self) {
        self.0.network.reset_all();
    }

    /// Ends every task.
    pub fn drop_tasks(&self) {
        let tasks = self.0.tasks.replace(vec![None]);
        self.0.free.borrow_mut().clear();
        drop(tasks);
        self.0.network.clear();
        // The wakers of the dead name tasks of the living.
        self.0.ready.0.lock().expect("nobody panics while holding it").clear();
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
        // What will happen names disks, and disks name the clock.
        self.clock.clear();
    }
}

impl Inner {
    fn waker(&self, task: usize) -> Waker {
        Waker::from(Arc::new(TaskWaker { task, ready: self.ready.clone() }))
    }

    /// Runs until `main` says that it is done.
    fn run(&self, mut main: impl FnMut() -> bool) -> Result<(), &'static str> {
        assert!(!self.running.replace(true), "a world is driven from one place");
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
                None => break Err("nothing is left that could wake anybody"),
            }
            if events > EVENTS_MAX {
                break Err("it goes in circles");
            }
        };
        self.running.set(false);
        ended
    }

    fn poll(&self, index: usize) {
        // Out of its place while it runs, for it may spawn others.
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

    /// Ends every task of a process, and those that their ends begin.
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
    /// What stands for a file that an open makes: an honest disk.
    fn file(&self, size: u64) -> Rc<SimDisk> {
        let world = SimWorld(self.me.upgrade().expect("it is being called"));
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

    fn tell(&self, event: block::Event) {
        self.clock.counters.add(match event.what {
            block::What::ScrubEnded => Count::ScrubEnded,
            _ => Count::EventTold,
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

    /// What a source holds follows from its words alone, in every world: 64 bytes, good as a key and as
    /// a passphrase.
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
        let me = self.me.upgrade().expect("it is being called");
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

    fn is_kept(&self) -> bool {
        self.memory.is_kept()
    }

    fn remains(&self, name: &str, bytes: u64) -> Result<Remains> {
        self.memory.get(name, bytes, self.process.get())
    }

    fn connect(&self, to: &Address) -> LocalFuture<Result<Rc<dyn Socket>>> {
        let me = self.me.upgrade().expect("it is being called");
        self.network.connect(Env::new(me), to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_jumps_to_what_happens_next() {
        let world = SimWorld::new(1);
        let env = world.env();
        let start = env.now();
        let hour = Duration::from_secs(3600);
        world.block_on(async { env.sleep(hour).await }).unwrap();
        assert_eq!(env.now().since(start), hour);
    }

    #[test]
    fn ready_tasks_run_in_every_order() {
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
    fn who_waits_for_nothing_is_named() {
        let world = SimWorld::new(1);
        world.env().spawn("forgotten", std::future::pending());
        let stuck = world.block_on(std::future::pending::<()>()).unwrap_err();
        assert_eq!(stuck.tasks, ["forgotten"]);
    }

    #[test]
    fn a_kill_ends_every_task() {
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
    fn work_comes_back_later() {
        let world = SimWorld::new(1);
        let env = world.env();
        let start = env.now();
        world.block_on(env.work(|| {})).unwrap();
        assert!(env.now() > start);
    }
}
