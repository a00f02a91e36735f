//! The real side of the doors: a core is one thread with one ring, its tasks, timers, disks and
//! sockets.
//!
//! Each turn runs what is ready, hands all that was begun to the kernel in one call, and waits in the
//! same call for the first answer or the next timer. An idle core makes no wake-up.
#![allow(
    clippy::disallowed_methods,
    reason = "this crate is the real side of Env: time, threads, files and sockets live here"
)]

mod channel;
mod confine;
mod disk;
mod engine;
mod executor;
mod fd_passing;
mod fdstore;
mod memfd_state;
mod one_shot_keys;
mod opening;
mod persistent_memory;
mod reactor;
mod replay_counts;
mod ring;
mod secrets;
mod signals;
mod slab;
mod socket;
mod sys;
mod threads;
mod timers;
mod workers;

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use block::{BufPool, Env, Error, Result};

use crate::executor::{MAIN, Queue, TaskWaker};
use crate::reactor::Reactor;

pub use crate::confine::confine;
pub use crate::engine::Engine;
pub use crate::fd_passing::{BEQUEST_MAX, bequeath, inherit_from};
pub use crate::fdstore::{
    INHERITED_MAX, NAME_MAX_BYTES, beat, entrust, inherit, take_all, tell_manager, withdraw,
};
pub use crate::one_shot_keys::give_key;
pub use crate::signals::{Signals, let_signals_through};

/// How a core is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// What carries out the calls.
    pub engine: Engine,
    /// The most bytes of buffers in use at once.
    pub pool_limit_bytes: usize,
    /// How many bytes of returned buffers are kept for the next request.
    pub pool_keep_bytes: usize,
    /// How long a turn spins for an answer before it sleeps, in microseconds, while waits are short.
    /// Not on a machine with one processor.
    pub spin_us: u32,
    /// How many threads [`block::Env::work`] uses at most; 0: two, or one per processor if there are
    /// fewer.
    pub work_threads: usize,
    /// How long a dropped core waits for what is in flight.
    pub drain: Duration,
    /// Where warnings go that a person should see.
    pub note: fn(&str),
    /// Whether a key may be asked for at the terminal, or read from a descriptor that this process was
    /// started with.
    pub by_hand: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: Engine::Auto,
            pool_limit_bytes: 256 << 20,
            pool_keep_bytes: 64 << 20,
            spin_us: 20,
            work_threads: 0,
            drain: Duration::from_secs(30),
            note: |line| eprintln!("{line}"),
            by_hand: true,
        }
    }
}

/// One reactor on one thread. All that it runs stays on this thread.
pub struct Core {
    side: Rc<Reactor>,
    env: Env,
    words: String,
    drain: Duration,
}

impl Core {
    /// A core on this thread.
    ///
    /// # Errors
    /// What the kernel says to a ring or an eventfd.
    pub fn new(config: Config) -> Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let bell = sys::eventfd().map_err(|error| Error::io(&error, "making an eventfd"))?;
        let bell_end = bell.try_clone().map_err(|error| Error::io(&error, "copying an eventfd"))?;
        let queue = Arc::new(Queue::new(bell));
        let (engine, words) = engine::start(config.engine, &queue)?;
        // Threads answer when they are scheduled: on the processor that a spin would keep busy.
        let spins = processors > 1 && !engine.nonblocking();
        let spin = Duration::from_micros(if spins { u64::from(config.spin_us) } else { 0 });
        let threads = match config.work_threads {
            0 => processors.min(2),
            threads => threads,
        };
        let pool = BufPool::new(config.pool_limit_bytes, config.pool_keep_bytes);
        let side = Reactor::new(engine, queue, bell_end, pool, threads, spin, &config);
        let env = Env::new(side.clone());
        Ok(Self { side, env, words, drain: config.drain })
    }

    /// What carries out the calls, in a line for the log.
    pub fn engine_words(&self) -> &str {
        &self.words
    }

    /// The doors of this core.
    pub fn env(&self) -> Env {
        self.env.clone()
    }

    /// SIGINT, SIGTERM and SIGHUP as a stream. They are blocked in this thread and in those that it
    /// starts from now on, so a program asks for them before it starts any.
    ///
    /// # Errors
    /// What the kernel says to a signalfd.
    pub fn signals(&self) -> Result<Signals> {
        Signals::new(self.side.clone(), false)
    }

    /// The same with SIGUSR1 and SIGUSR2, by which a keeper speaks to the program that it keeps.
    ///
    /// # Errors
    /// As [`Core::signals`].
    pub fn signals_of_keeper(&self) -> Result<Signals> {
        Signals::new(self.side.clone(), true)
    }

    /// Runs everything of this core until `future` is done.
    ///
    /// # Panics
    /// After [`Core::shutdown`], and if the kernel refuses the ring that it granted.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.side.catch_up();
        let mut future = pin!(future);
        let state = TaskWaker::new(MAIN, self.side.queue.clone());
        let waker = Waker::from(state.clone());
        waker.wake_by_ref();
        let mut output = None;
        loop {
            let ran = self.side.run(&mut || {
                state.running();
                if output.is_none()
                    && let Poll::Ready(done) =
                        future.as_mut().poll(&mut Context::from_waker(&waker))
                {
                    output = Some(done);
                }
            });
            if let Some(output) = output {
                self.side.flush();
                return output;
            }
            if let Err(error) = self.side.turn(ran) {
                panic!("the core cannot go on: {error}");
            }
        }
    }

    /// Ends this core: nothing new is begun, its tasks are dropped, what waits for others is called
    /// off, and what the kernel still works on is awaited up to `limit`. Only then the ring is closed.
    ///
    /// # Errors
    /// `TimedOut` with what is still in flight; its memory is left to the kernel for good.
    pub fn shutdown(self, limit: Duration) -> Result<()> {
        self.side.stop(limit)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Err(error) = self.side.stop(self.drain) {
            // There is nobody left to tell, and what was lost must not stay unsaid.
            eprintln!("cairn: a core was dropped: {error}");
        }
    }
}
