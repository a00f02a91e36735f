//! The implementation of [`block::Env`] on a real machine. A core is one thread with one ring (io_uring), and has its
//! own tasks, timers, disks and sockets.
//!
//! In each turn of its event loop a core runs the ready tasks and submits all new operations with one system call,
//! which also waits for the first completion or the next timer. An idle core makes no wake-up.
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
pub use crate::fd_passing::{PASSED_FDS_MAX, inherit_from, pass_fds};
pub use crate::fdstore::{
    INHERITED_MAX, NAME_MAX_BYTES, beat, fdstore_put, inherit, notify_manager, take_all, withdraw,
};
pub use crate::one_shot_keys::give_key;
pub use crate::signals::{Signals, hold_signals, let_signals_through, release_signals};

/// Settings of a core.
#[derive(Clone, Debug)]
pub struct Config {
    /// The mechanism by which the core makes system calls.
    pub engine: Engine,
    /// Most bytes of the core's buffers that may be in use at the same time.
    pub pool_limit_bytes: usize,
    /// Most bytes of returned buffers that the core stores for later requests.
    pub pool_keep_bytes: usize,
    /// Time in microseconds that a turn spins for a completion before the core sleeps, while completions come soon.
    /// On a machine with one processor a core never spins.
    pub spin_us: u32,
    /// Most worker threads of the core, for [`block::Env::work`]. 0 means two, or one if the machine has only one
    /// processor.
    pub work_threads: usize,
    /// Longest time that dropping a core waits for operations in flight.
    pub drain: Duration,
    /// Function that is called with each warning of the core for the operator.
    pub note: fn(&str),
    /// Whether a key may be read from the terminal, or from a descriptor that this process has inherited.
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

/// A core: one thread's event loop with its tasks, timers, disks and sockets. All its tasks run on this thread.
pub struct Core {
    side: Rc<Reactor>,
    env: Env,
    words: String,
    drain: Duration,
}

impl Core {
    /// Creates a core on the calling thread.
    ///
    /// # Errors
    /// The error of the kernel when it creates a ring or an eventfd.
    pub fn new(config: Config) -> Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let bell = sys::eventfd().map_err(|error| Error::io(&error, "creating an eventfd"))?;
        let bell_end = bell.try_clone().map_err(|error| Error::io(&error, "copying an eventfd"))?;
        let queue = Arc::new(Queue::new(bell));
        let (engine, words) = engine::start(config.engine, &queue)?;
        // Threads complete operations when they are scheduled: a spin would keep that processor busy.
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

    /// Returns a line for the log about the mechanism by which the core makes its system calls.
    pub fn engine_words(&self) -> &str {
        &self.words
    }

    /// Returns the environment for tasks of this core.
    pub fn env(&self) -> Env {
        self.env.clone()
    }

    /// Returns a stream of the signals SIGINT, SIGTERM and SIGHUP, which are blocked in this thread and in threads
    /// that it starts later. So a program must call this method before it starts a thread.
    ///
    /// # Errors
    /// The error of the kernel when it creates a signalfd.
    pub fn signals(&self) -> Result<Signals> {
        Signals::new(self.side.clone(), false)
    }

    /// Returns a stream as [`Core::signals`] does, with SIGUSR1 and SIGUSR2 too, which a supervisor sends to its
    /// worker.
    ///
    /// # Errors
    /// As [`Core::signals`].
    pub fn signals_of_keeper(&self) -> Result<Signals> {
        Signals::new(self.side.clone(), true)
    }

    /// Runs the tasks of this core until `future` has ended, and returns its output.
    ///
    /// # Panics
    /// After [`Core::shutdown`], and if the kernel refuses further calls on the ring.
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
                panic!("the I/O loop of a thread failed: {error}");
            }
        }
    }

    /// Ends this core: it starts no further operation, drops its tasks, cancels operations that wait for other
    /// processes, and waits up to `limit` until the kernel has completed all operations. Then it closes its ring.
    ///
    /// # Errors
    /// `TimedOut` with the operations that are still in flight. Their memory is never freed.
    pub fn shutdown(self, limit: Duration) -> Result<()> {
        self.side.stop(limit)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Err(error) = self.side.stop(self.drain) {
            // There is no other way left to report the lost operations, and they must not go unreported.
            eprintln!("cairn: I/O was lost when a thread ended: {error}");
        }
    }
}
