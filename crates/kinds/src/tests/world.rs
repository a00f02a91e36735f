//! A simulated world for tests of single kinds: its clock jumps to the next timer, and its files are in memory.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use block::env::{
    Address, DiskIo, Listener, LocalFuture, Open, Outcome, PathState, Socket, Storage,
    StorageFacts, StorageNow, Ticket, Tickets, TimerId,
};
use block::{
    Buf, BufPool, ByteRange, Done, Env, Extent, Lower, Mono, OneShot, Op, Report, Result, Secret,
    Wanted, error,
};
use engine::{Engine, NodeId};
use graph::Graph;
use graph::spec::{Planned, Spec};

/// Number of the task for the future that [`World::block_on`] runs.
const MAIN: usize = usize::MAX;

pub struct World(Rc<Inner>);

struct Inner {
    now: Cell<Duration>,
    timers: RefCell<BTreeMap<TimerId, Waker>>,
    timers_set: Cell<u64>,
    randoms: Cell<u64>,
    tasks: RefCell<Vec<Option<LocalFuture<()>>>>,
    ready: Arc<Ready>,
    files: RefCell<BTreeMap<PathBuf, Rc<File>>>,
    pool: BufPool,
}

#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

struct TaskWaker(usize, Arc<Ready>);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.1.0.lock().unwrap().push_back(self.0);
    }
}

impl World {
    pub fn new() -> Self {
        Self(Rc::new(Inner {
            now: Cell::new(Duration::from_secs(1000)),
            timers: RefCell::default(),
            timers_set: Cell::new(0),
            randoms: Cell::new(1),
            tasks: RefCell::default(),
            ready: Arc::default(),
            files: RefCell::default(),
            pool: BufPool::new(64 << 20, 64 << 20),
        }))
    }

    pub fn env(&self) -> Env {
        Env::new(self.0.clone())
    }

    /// Returns the simulated time since the creation of the world.
    pub fn elapsed(&self) -> Duration {
        self.0.now.get() - Duration::from_secs(1000)
    }

    /// Returns the number of timers that were set so far.
    pub fn timers_set(&self) -> u64 {
        self.0.timers_set.get()
    }

    /// Whether no timer of the world is set.
    pub fn is_idle(&self) -> bool {
        self.0.timers.borrow().is_empty()
    }

    /// Returns the simulated file at `path`. Creates the file with `size` bytes of zeros if there is none.
    pub fn file(&self, path: &str, size: usize) -> Rc<File> {
        let mut files = self.0.files.borrow_mut();
        files.entry(path.into()).or_insert_with(|| Rc::new(File::new(size))).clone()
    }

    /// Runs `future` and all tasks of the world until `future` is done.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let waker = self.0.waker(MAIN);
        waker.wake_by_ref();
        loop {
            let woken = self.0.ready.0.lock().unwrap().pop_front();
            match woken {
                Some(MAIN) => {
                    if let Poll::Ready(output) =
                        future.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        return output;
                    }
                }
                Some(task) => self.0.poll(task),
                None => self.0.next_timer(),
            }
        }
    }

    pub fn sleep(&self, time: Duration) {
        self.block_on(self.env().sleep(time));
    }

    /// Builds and runs a graph with a memory disk `d`, the devices of the spec text `devices`, and an export of `top`.
    pub fn graph(&self, devices: &str, top: &str) -> Running {
        let text = format!("[disk]\nd = {{ memory = \"1MiB\" }}\n{devices}");
        let text = format!("{text}\n[export]\nvol = {{ on = \"{top}\" }}\n");
        let spec = Spec::parse(&text, "test.toml", &|_| None);
        let env = self.env();
        let planned = self.block_on(spec.plan(crate::REGISTRY, &env)).expect("the spec is right");
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let graph = self.block_on(Graph::build(&planned, &engine, &env)).expect("it can be built");
        Running { node: graph.exports()[0].node, graph, planned, env }
    }

    /// Plans a graph with the device `device`, given as spec text, and returns the messages of the faults.
    pub fn faults(&self, device: &str) -> Vec<String> {
        let text = format!(
            "[disk]\nd = {{ memory = \"1MiB\" }}\n[device]\nx = {device}\n[export]\nv = {{ on = \"x\" }}\n"
        );
        let spec = Spec::parse(&text, "test.toml", &|_| None);
        match self.block_on(spec.plan(crate::REGISTRY, &self.env())) {
            Ok(_) => Vec::new(),
            Err(faults) => faults.iter().map(|fault| fault.message().to_owned()).collect(),
        }
    }
}

impl Inner {
    fn waker(&self, task: usize) -> Waker {
        Waker::from(Arc::new(TaskWaker(task, self.ready.clone())))
    }

    fn poll(&self, index: usize) {
        let task = self.tasks.borrow_mut()[index].take();
        let Some(mut task) = task else { return };
        if task.as_mut().poll(&mut Context::from_waker(&self.waker(index))).is_pending() {
            self.tasks.borrow_mut()[index] = Some(task);
        }
    }

    fn next_timer(&self) {
        let first = self.timers.borrow_mut().pop_first();
        let (timer, waker) = first.expect("somebody waits for what never comes");
        self.now.set(self.now.get().max(timer.0.0));
        waker.wake();
    }
}

impl block::env::World for Inner {
    fn now(&self) -> Mono {
        Mono(self.now.get())
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.now.get()
    }

    fn set_timer(&self, at: Mono, waker: &Waker) -> TimerId {
        self.timers_set.set(self.timers_set.get() + 1);
        let timer = TimerId(at, self.timers_set.get());
        self.timers.borrow_mut().insert(timer, waker.clone());
        timer
    }

    fn clear_timer(&self, timer: TimerId) {
        self.timers.borrow_mut().remove(&timer);
    }

    fn random(&self, _: &'static str) -> u64 {
        let state = self.randoms.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.randoms.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn spawn(&self, _: &'static str, task: LocalFuture<()>) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.push(Some(task));
        self.ready.0.lock().unwrap().push_back(tasks.len() - 1);
    }

    fn work(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        job();
        Box::pin(std::future::ready(()))
    }

    fn pool(&self) -> &BufPool {
        &self.pool
    }

    fn probe(&self, open: &Open) -> Result<StorageFacts> {
        let there = self.files.borrow().get(&open.path).map(|file| file.bytes.borrow().len());
        let size = there.map(|size| size as u64).or(open.create);
        let missing = || error!(NotFound, "{:?} is not there", open.path);
        Ok(facts(open, size.ok_or_else(missing)?, there.is_none()))
    }

    fn open(&self, open: &Open) -> Result<Rc<dyn Storage>> {
        let facts = self.probe(open)?;
        let mut files = self.files.borrow_mut();
        let made = || Rc::new(File::new(facts.size as usize));
        let file = files.entry(open.path.clone()).or_insert_with(made).clone();
        Ok(Rc::new(Opened { file, facts }))
    }

    /// Every key source of this world has the same 64 bytes.
    fn secret(&self, _: &Wanted) -> LocalFuture<Result<Secret>> {
        let bytes: Vec<u8> = (0..64).collect();
        Box::pin(std::future::ready(Secret::copy_of(&bytes)))
    }

    fn listen(&self, _: &Address) -> Result<Rc<dyn Listener>> {
        unreachable!("there is no network")
    }

    fn connect(&self, _: &Address) -> LocalFuture<Result<Rc<dyn Socket>>> {
        unreachable!("there is no network")
    }
}

fn facts(open: &Open, size: u64, created: bool) -> StorageFacts {
    StorageFacts {
        size,
        block_size: 512,
        direct: false,
        zeroes: true,
        discard: true,
        discard_zeroes: true,
        created,
        identity: open.path.components().collect::<PathBuf>().display().to_string(),
        words: "in memory".to_owned(),
    }
}

/// A simulated file with the number of its writes, and a flag that makes all writes fail.
pub struct File {
    pub bytes: RefCell<Vec<u8>>,
    pub writes: Cell<u64>,
    pub broken: Cell<bool>,
}

impl File {
    fn new(size: usize) -> Self {
        Self { bytes: RefCell::new(vec![0; size]), writes: Cell::new(0), broken: Cell::new(false) }
    }
}

struct Opened {
    file: Rc<File>,
    facts: StorageFacts,
}

impl Opened {
    fn carry_out(&self, io: DiskIo) -> Outcome {
        let mut bytes = self.file.bytes.borrow_mut();
        let (buf, result) = match io {
            DiskIo::Read { offset, into } => {
                let from = offset as usize;
                into.write().copy_from_slice(&bytes[from..from + into.len()]);
                (Some(into), Ok(0))
            }
            DiskIo::Write { data, .. } if self.file.broken.get() => {
                (Some(data), Err(error!(NoSpace, "the disk is full")))
            }
            DiskIo::Write { offset, data, .. } => {
                assert!(offset % 512 == 0 && data.len() % 512 == 0, "{} at {offset}", data.len());
                let from = offset as usize;
                bytes[from..from + data.len()].copy_from_slice(&data.read());
                self.file.writes.set(self.file.writes.get() + 1);
                (Some(data), Ok(0))
            }
            DiskIo::Zero { .. } | DiskIo::Discard { .. } | DiskIo::Flush => (None, Ok(0)),
        };
        Outcome { result, buf, parts: Vec::new() }
    }
}

impl Storage for Opened {
    fn facts(&self) -> &StorageFacts {
        &self.facts
    }

    fn size_now(&self) -> u64 {
        self.file.bytes.borrow().len() as u64
    }

    fn look(&self) -> block::Result<StorageNow> {
        Ok(StorageNow { size: self.size_now(), place: PathState::There })
    }

    fn start(&self, io: DiskIo) -> Ticket {
        Ticket::new(Rc::new(Answered(Cell::new(Some(self.carry_out(io))))), 0)
    }

    fn extents(&self, _: ByteRange, _: usize) -> Result<Vec<Extent>> {
        Err(error!(Unsupported, "nobody asks"))
    }
}

struct Answered(Cell<Option<Outcome>>);

impl Tickets for Answered {
    fn poll(&self, _: u64, _: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Ready(self.0.take().expect("asked once"))
    }

    fn abandon(&self, _: u64) {}
}

/// A running graph of a test with one export.
pub struct Running {
    pub graph: Graph,
    pub planned: Planned,
    node: NodeId,
    env: Env,
}

impl Running {
    /// Sends a request to the exported device. The request also runs if the test does not wait for the reply.
    pub fn send(&self, op: Op) -> impl Future<Output = (Op, Result<()>)> + use<> {
        let answer = Rc::new(OneShot::<Done>::default());
        let engine = self.graph.engine();
        let sent = engine.submit(&engine.portal("vol", self.node), op, answer.clone(), 0);
        assert!(sent.is_ok(), "there are enough slots");
        async move {
            let Done { op, result } = answer.wait().await;
            (op, result)
        }
    }

    /// Returns the exported device as a lower, on which a test can put another device.
    pub fn top(&self) -> Lower {
        self.graph.engine().lower(self.node)
    }

    pub fn read(&self, start: u64, len: u64) -> Op {
        Op::read(range(start, len), self.buf(len, 0))
    }

    pub fn write(&self, start: u64, len: u64, fill: u8) -> Op {
        Op::write(range(start, len), self.buf(len, fill))
    }

    fn buf(&self, len: u64, fill: u8) -> Buf {
        let buf = self.env.buf(len as usize).unwrap();
        buf.write().fill(fill);
        buf
    }

    pub fn report(&self, name: &str) -> Report {
        let member = self.graph.member(name).unwrap();
        self.graph.report(member)
    }

    pub fn counter(&self, name: &str, counter: &str) -> u64 {
        let counters = self.report(name).counters;
        counters.into_iter().find(|(name, _)| *name == counter).unwrap().1
    }
}

pub fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).unwrap()
}
