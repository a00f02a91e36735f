//! A simulated environment for unit tests: tasks, timers, and a clock that only the test advances.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::env::{
    Address, Listener, LocalFuture, Open, Socket, Storage, StorageFacts, TimerId, World,
};
use crate::{BufPool, Env, Mono, Result, error};

/// A simulated environment. Its tasks and its clock advance only when the test calls `run` or `advance`.
pub struct TestWorld {
    now: Cell<Mono>,
    timers: RefCell<BTreeMap<TimerId, Waker>>,
    numbers: Cell<u64>,
    tasks: RefCell<Vec<LocalFuture<()>>>,
    pool: BufPool,
}

/// The waker of all tasks of a [`TestWorld`]; the flag is set when a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl TestWorld {
    /// Creates a simulated world, and the `Env` through which the code under test uses the world.
    pub fn new() -> (Rc<Self>, Env) {
        let world = Rc::new(Self {
            now: Cell::new(Mono(Duration::from_secs(1))),
            timers: RefCell::default(),
            numbers: Cell::new(0),
            tasks: RefCell::default(),
            pool: BufPool::new(1 << 20, 1 << 20),
        });
        (world.clone(), Env::new(world))
    }

    /// Returns the number of tasks of the simulated world that have not ended.
    pub fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Polls all tasks of the simulated world until no task is woken any more.
    pub fn run(&self) {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        loop {
            woken.0.store(false, Ordering::Relaxed);
            let mut tasks = self.tasks.take();
            tasks.retain_mut(|task| {
                task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
            });
            let spawned = self.tasks.replace(tasks);
            let is_idle = spawned.is_empty() && !woken.0.load(Ordering::Relaxed);
            self.tasks.borrow_mut().extend(spawned);
            if is_idle {
                return;
            }
        }
    }

    /// Advances the simulated clock by `time`, and polls all tasks at each timer that expires until then.
    pub fn advance(&self, time: Duration) {
        let end = self.now.get().after(time);
        self.run();
        loop {
            let due = self.timers.borrow().first_key_value().map(|(timer, _)| *timer);
            let Some(timer) = due.filter(|timer| timer.0 <= end) else { break };
            self.now.set(timer.0.max(self.now.get()));
            self.timers.borrow_mut().remove(&timer).expect("looked at above").wake();
            self.run();
        }
        self.now.set(end);
        self.run();
    }
}

fn nothing<T>() -> Result<T> {
    Err(error!(Unsupported, "there is nothing in this world"))
}

impl World for TestWorld {
    fn now(&self) -> Mono {
        self.now.get()
    }

    fn wall(&self) -> Duration {
        self.now.get().0
    }

    fn set_timer(&self, at: Mono, waker: &Waker) -> TimerId {
        self.numbers.set(self.numbers.get() + 1);
        let timer = TimerId(at, self.numbers.get());
        self.timers.borrow_mut().insert(timer, waker.clone());
        timer
    }

    fn clear_timer(&self, timer: TimerId) {
        self.timers.borrow_mut().remove(&timer);
    }

    fn random(&self, _: &'static str) -> u64 {
        4
    }

    fn spawn(&self, _: &'static str, task: LocalFuture<()>) {
        self.tasks.borrow_mut().push(task);
    }

    fn work(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        job();
        Box::pin(std::future::ready(()))
    }

    fn pool(&self) -> &BufPool {
        &self.pool
    }

    fn probe(&self, _: &Open) -> Result<StorageFacts> {
        nothing()
    }

    fn open(&self, _: &Open) -> Result<Rc<dyn Storage>> {
        nothing()
    }

    fn listen(&self, _: &Address) -> Result<Rc<dyn Listener>> {
        nothing()
    }

    fn connect(&self, _: &Address) -> LocalFuture<Result<Rc<dyn Socket>>> {
        Box::pin(std::future::ready(nothing()))
    }
}
