//! Access to the world: disks, network, clock and timers, randomness. No other part of Cairn may use time, threads,
//! files or sockets. `runtime` implements access to the real world, `sim` the seeded simulation.
//!
//! Some methods hand state over to the next process. In this module the *supervisor* is the process that outlives
//! this process and holds descriptors, memory and keys for the next one: Cairn's own supervisor, or a service
//! manager.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::{
    Buf, BufPool, Error, ErrorKind, Event, Events, OneShot, Result, Secret, Wanted, error, first,
};

mod storage;
mod ticket;

pub use storage::{CacheMode, DiskIo, Open, PathState, Storage, StorageFacts, StorageNow};
pub use ticket::{Outcome, Ticket, Tickets};

/// A boxed future on one core, for work that is not done for each request.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A handle to the environment of a core: its disks, network, clock, timers and randomness. Cheap to clone.
#[derive(Clone)]
pub struct Env(Rc<dyn World>);

/// A point in time on the monotonic clock, as the time since a fixed point in the past.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Mono(pub Duration);

impl Mono {
    /// Returns the time from `earlier` to this point; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the point in time that is `delay` later than this point.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }
}

/// An implementation of the environment of a core: disks, network, clock, timers and randomness. `runtime` has one,
/// and `sim` has one.
pub trait World {
    /// Returns the present monotonic time, which the core reads once in each turn of its event loop.
    fn now(&self) -> Mono;
    /// Returns the present monotonic time, read from the clock at this call. It is for measuring work that may end
    /// within one turn of the event loop.
    fn clock(&self) -> Mono {
        self.now()
    }
    /// Returns the time of the wall clock since 1970. It may be used in labels and messages, never for decisions.
    fn wall(&self) -> Duration;
    /// Sets a timer that wakes `waker` at the time `at`, or soon after.
    fn set_timer(&self, at: Mono, waker: &Waker) -> TimerId;
    /// Clears a timer that [`World::set_timer`] has set.
    fn clear_timer(&self, timer: TimerId);
    /// Returns a random number from the random stream named `stream`.
    fn random(&self, stream: &'static str) -> u64;
    /// Runs `task` on this core until the task ends. `name` is for traces.
    fn spawn(&self, name: &'static str, task: LocalFuture<()>);
    /// Runs `job` on another thread, because the job may use a core for long. The future resolves when the job has
    /// ended.
    fn work(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()>;
    /// Fills `into` with random bytes that can serve as a key, and stores no copy of them.
    fn random_secret(&self, into: &mut [u8]) {
        for word in into.chunks_mut(8) {
            let random = self.random("secret").to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
    }
    /// Returns the key or passphrase that `wanted` describes, unchanged: 1 to [`crate::SECRET_BYTES_MAX`] bytes. May
    /// block the core while the operator types a passphrase.
    ///
    /// # Errors
    /// `Denied`, with the next step, for every failure that the operator can correct; `Unsupported` in an environment
    /// without secrets.
    fn secret(&self, wanted: &Wanted) -> LocalFuture<Result<Secret>> {
        let why = format!("{}: this environment has no keys", wanted.prompt);
        Box::pin(std::future::ready(Err(Error::new(ErrorKind::Unsupported, why))))
    }
    /// Passes the key of the open device `full_name` to the supervisor, so that the next process can open the device
    /// without a passphrase from the operator. Does nothing if there is no supervisor, or if the next process can
    /// read the key from its source.
    ///
    /// # Errors
    /// `Unsupported` if the system has no memory that can be passed to the supervisor; errors of the system.
    fn keep_secret(&self, _who: &str, _key: &Secret) -> Result<()> {
        Ok(())
    }
    /// Returns the key that an earlier process passed to the supervisor for the device `full_name`; `None` if there is no
    /// such key.
    ///
    /// # Errors
    /// `Corrupt` if the supervisor holds an invalid key for the device; errors of the system.
    fn kept_secret(&self, _who: &str) -> Result<Option<Secret>> {
        Ok(None)
    }
    /// Returns the buffer pool of this core.
    fn pool(&self) -> &BufPool;
    /// Returns the facts about the disk that [`World::open`] would open, without changing or locking the disk.
    ///
    /// # Errors
    /// `NotFound` (not for a file that an opening would create), `Denied`, `Unsupported`.
    fn probe(&self, open: &Open) -> Result<StorageFacts>;
    /// Opens and locks the disk that `open` describes.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `InUse` with the process that has the disk if it is known, `Unsupported`.
    fn open(&self, open: &Open) -> Result<Rc<dyn Storage>>;
    /// Removes the files that [`World::open`] has created in this process, if their paths still lead to them. The
    /// caller makes sure that nothing has used them. An environment without files does nothing.
    fn remove_created(&self) {}
    /// Listens for connections at the address `at`.
    ///
    /// # Errors
    /// `InUse`, `Denied`, and other errors of the kernel.
    fn listen(&self, at: &Address) -> Result<Rc<dyn Listener>>;
    /// Connects to the server at the address `to`.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, and other errors of the kernel.
    fn connect(&self, to: &Address) -> LocalFuture<Result<Rc<dyn Socket>>>;
    /// Mounts a FUSE file system on the directory `at`, and returns the channel to the kernel. The kernel's requests
    /// come as messages through the channel. After the channel has ended, the mount returns errors until it is
    /// unmounted.
    ///
    /// # Errors
    /// `Denied` without the right to mount; `NotFound`, and other errors of the kernel; `Unsupported` in an
    /// environment without mounts.
    fn mount(&self, at: &Path) -> Result<Rc<dyn Channel>> {
        Err(error!(Unsupported, "{}: this environment cannot mount a volume", at.display()))
    }
    /// Returns the names of all state (channels, connections, bytes) that an earlier process passed to the
    /// supervisor, and that this process has not taken over yet.
    fn inherited(&self) -> Vec<String> {
        Vec::new()
    }
    /// Makes the supervisor close the state that it holds under the name `name`.
    ///
    /// # Errors
    /// Errors of the system.
    fn fdstore_remove(&self, _name: &str) -> Result<()> {
        Ok(())
    }
    /// Passes `bytes` to the supervisor under the name `name`, for the next process. Returns whether there is a
    /// supervisor.
    ///
    /// # Errors
    /// Errors of the system.
    fn fdstore_put(&self, _name: &str, _bytes: &[u8]) -> Result<bool> {
        Ok(false)
    }
    /// Takes over the bytes that an earlier process passed to the supervisor under `name`. The bytes can be taken
    /// only once, even if this process dies.
    ///
    /// # Errors
    /// `NotFound` if the supervisor holds no bytes under `name`; `Limit` if there are more than `most` bytes; errors
    /// of the system.
    fn take_bytes(&self, name: &str, _most: usize) -> Result<Vec<u8>> {
        Err(nothing_left(name))
    }
    /// Takes over the connection that an earlier process passed to the supervisor under `name`
    /// ([`Socket::fdstore_put`]).
    ///
    /// # Errors
    /// `NotFound` if the supervisor holds no connection under `name`; errors of the system.
    fn take_socket(&self, name: &str) -> Result<Rc<dyn Socket>> {
        Err(nothing_left(name))
    }
    /// Whether a supervisor outlives this process, and holds state for the next process.
    fn has_supervisor(&self) -> bool {
        false
    }
    /// Returns the memory called `name`, which outlives this process. If an earlier process left the memory, it has
    /// the size and the bytes of that memory; otherwise it has `bytes` zeros. Only one user of this process may have
    /// the memory at a time, until the user drops it.
    ///
    /// # Errors
    /// `Unsupported` without a supervisor; `InUse` if another user has the memory; errors of the system.
    fn persistent_memory(&self, name: &str, _bytes: u64) -> Result<PersistentMemory> {
        Err(error!(Unsupported, "{name}: no supervisor keeps memory for the next process"))
    }
    /// Passes all persistent memory and the keys of open devices to the present supervisor again.
    ///
    /// # Errors
    /// Errors of the system.
    fn fdstore_put_memory(&self) -> Result<()> {
        Ok(())
    }
    /// Removes all persistent memory and the keys of open devices from the supervisor, so that they end with this
    /// process.
    ///
    /// # Errors
    /// Errors of the system.
    fn fdstore_remove_memory(&self) -> Result<()> {
        Ok(())
    }
    /// Takes over the channel of the mount at `at` that an earlier process passed to the supervisor under `name`. The
    /// kernel sends unanswered requests again only after [`Channel::resend`]. `counts` is the path of the file in
    /// which [`Channel::came_again`] counts repeated requests.
    ///
    /// # Errors
    /// `NotFound` if the supervisor holds no channel under `name`.
    fn take_over(&self, name: &str, _at: &Path, _counts: &Path) -> Result<Rc<dyn Channel>> {
        Err(nothing_left(name))
    }

    /// Records an event of a device for monitoring programs. The event may be lost.
    fn emit(&self, _event: Event) {}
    /// Returns the recent events of this process's devices; `None` if the environment stores no events.
    fn events(&self) -> Option<Rc<Events>> {
        None
    }

    /// Reads the whole file at `path`, such as a certificate. An environment without files returns an error for every
    /// path.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `Limit` if the file is longer than `most` bytes.
    fn read_file(&self, path: &Path, _most: usize) -> Result<Vec<u8>> {
        Err(no_files(path))
    }

    /// Reads the whole small file at `path` into locked memory, such as the key of a certificate.
    ///
    /// # Errors
    /// As [`World::read_file`].
    fn read_secret(&self, path: &Path, _most: usize) -> Result<Secret> {
        Err(no_files(path))
    }
}

/// Returns the error for state under the name `name` that no earlier process has passed to the supervisor.
pub fn nothing_left(name: &str) -> Error {
    error!(NotFound, "{name}: no earlier process left this state to this process")
}

fn no_files(path: &Path) -> Error {
    error!(Unsupported, "{}: this environment has no files", path.display())
}

/// Memory that outlives this process, and whether an earlier process left it.
pub struct PersistentMemory {
    /// The memory that outlives this process.
    pub memory: Rc<dyn Lasting>,
    /// Whether an earlier process left the memory; otherwise it is new.
    pub left: bool,
}

/// Memory that outlives a process, but not a loss of power. A write is complete when its call returns.
pub trait Lasting {
    /// Returns the length of the memory in bytes.
    fn len(&self) -> u64;
    /// Whether the memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads the bytes of the memory from offset `at` into `into`.
    ///
    /// # Errors
    /// Errors of the system; a range past the end of the memory.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;
    /// Writes `bytes` into the memory at offset `at`.
    ///
    /// # Errors
    /// Errors of the system, which may lack memory; a range past the end of the memory.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;
}

/// Handle of a timer: its time, and a number that differs for timers of one time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TimerId(pub Mono, pub u64);

impl Deref for Env {
    type Target = dyn World;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Env {
    /// Creates a handle to `world`.
    pub fn new(world: Rc<dyn World>) -> Self {
        Self(world)
    }

    /// Runs `task` as [`World::spawn`] does.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + 'static) {
        self.0.spawn(name, Box::pin(task));
    }

    /// Runs `job` as [`World::work`] does.
    pub fn work(&self, job: impl FnOnce() + Send + 'static) -> LocalFuture<()> {
        self.0.work(Box::new(job))
    }

    /// Returns a buffer of `len` bytes from this core's pool.
    ///
    /// # Errors
    /// As [`BufPool::take`].
    pub fn buf(&self, len: usize) -> Result<Buf> {
        self.pool().take(len)
    }

    /// Returns a future that resolves after `delay`.
    pub fn sleep(&self, delay: Duration) -> Sleep {
        self.sleep_until(self.now().after(delay))
    }

    /// Returns a future that resolves at `at`.
    pub fn sleep_until(&self, at: Mono) -> Sleep {
        Sleep { env: self.clone(), at, timer: None }
    }

    /// Lets all other ready tasks of the core run first. Background work calls it between two steps.
    pub async fn give_way(&self) {
        let mut gave = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut gave, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Returns the output of `future`; `None` if `future` takes longer than `limit`. Requests that `future` has
    /// started on lowers run to their end: only the wait ends.
    pub async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        first(future, self.sleep(limit)).await.ok()
    }

    /// Runs `future` as a task of its own, and returns its output. The task goes on if the wait is dropped. `name` is
    /// for traces.
    pub async fn run_to_end<T: 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> T {
        let output = Rc::new(OneShot::default());
        let given = output.clone();
        self.spawn(name, async move { given.set(future.await) });
        output.wait().await
    }
}

/// A future that resolves at a point in time.
pub struct Sleep {
    env: Env,
    at: Mono,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = self.timer.take() {
            self.env.clear_timer(timer);
        }
        if self.env.now() >= self.at {
            return Poll::Ready(());
        }
        self.timer = Some(self.env.set_timer(self.at, cx.waker()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.env.clear_timer(timer);
        }
    }
}

/// Address of a socket, for listening or connecting.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    /// Path of a unix socket, which is created with mode 0600.
    Unix(PathBuf),
    /// Host and TCP port.
    Tcp(String, u16),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// Name under which the supervisor holds listeners for the next process.
pub const LISTENER: &str = "listener";

/// An open socket that listens for connections.
pub trait Listener {
    /// Waits for the next connection of a client.
    fn accept(&self) -> LocalFuture<Result<Rc<dyn Socket>>>;
    /// Returns the address on which the listener listens. If the kernel chose the port, the address has that port.
    fn address(&self) -> Address;
    /// Closes the listener; a waiting accept returns `Stopped`.
    fn close(&self);
    /// Cancels the waiting accept: the accept returns a connection that has already arrived, or an error. Later
    /// connections wait for the next accept.
    fn call_off(&self);
    /// Passes the listener to the supervisor as [`LISTENER`], if there is a supervisor. Then connections that arrive
    /// while no process runs wait for the next process, until the listener is closed. A listener that this process
    /// got under another name from a service manager stays with the service manager.
    ///
    /// # Errors
    /// Errors of the system.
    fn fdstore_put(&self) -> Result<()> {
        Ok(())
    }
}

/// A connection: a stream of bytes in each direction, with at most one receive and one send in flight.
pub trait Socket {
    /// Receives bytes of the stream, up to the length of `into`. At the end of the stream the outcome has the count
    /// 0.
    fn recv(&self, into: Buf) -> Ticket;
    /// Sends the bytes of `parts` in order. The outcome has the number of bytes that were sent, which may be less
    /// than all.
    fn send(&self, parts: Vec<Buf>) -> Ticket;
    /// Ends both directions of the connection. Operations in flight complete with an error or a short count.
    fn shutdown(&self);
    /// Returns a description of the connection's peer in words.
    fn peer(&self) -> String;
    /// Cancels the receive in flight: the receive returns the bytes that have already arrived, or an error. No byte
    /// of the stream is lost.
    fn call_off(&self);
    /// Whether the connection's peer can send no more bytes: the peer has closed the connection, or its sending
    /// direction. Bytes that the peer sent before may not be received yet. `false` if the environment cannot detect
    /// this.
    fn is_gone(&self) -> bool {
        false
    }
    /// Returns the number of sent bytes that the connection's peer has not received yet. 0 if the environment cannot
    /// detect this.
    fn unreceived_bytes(&self) -> u64 {
        0
    }
    /// Whether another process could continue the connection: the connection has no state besides its socket.
    fn may_outlive(&self) -> bool {
        false
    }
    /// Passes the connection to the supervisor under `name`. The name has at most 255 characters of ASCII, and no
    /// colon. Returns whether there is a supervisor.
    ///
    /// # Errors
    /// Errors of the system.
    fn fdstore_put(&self, _name: &str) -> Result<bool> {
        Ok(false)
    }
}

/// A channel of messages between this process and the kernel. Each message is received and sent completely or not at
/// all. Receiving and sending never wait; only [`Channel::ready`] waits.
pub trait Channel {
    /// Receives the next message of the channel: its first bytes into `head`, the others into `rest`. Returns the
    /// length of the message; `None` if there is no message now.
    ///
    /// # Errors
    /// `Stopped` at the end of the channel, and other errors of the kernel.
    fn recv(&self, head: &Buf, rest: &Buf) -> Result<Option<usize>>;
    /// Resolves when the channel may have a message, or has ended.
    fn ready(&self) -> Ticket;
    /// Sends one message: the bytes of `head`, then those of `rest`.
    ///
    /// # Errors
    /// `NotFound` if the message is a reply for which the kernel does not wait any more, and other errors of the
    /// kernel.
    fn send(&self, head: &[u8], rest: Option<&Buf>) -> Result<()>;
    /// Locks the memory of `buf`, so that the kernel can complete a message in the buffer even if this process dies
    /// meanwhile.
    ///
    /// # Errors
    /// `Limit` if more memory may not be locked.
    fn pin(&self, buf: &Buf) -> Result<()>;
    /// Returns a description of the useful features that the kernel does not support on the channel; `None` if it
    /// supports all.
    fn lacks(&self) -> Option<&str>;
    /// Passes the channel to the supervisor under `name`. Then the channel pauses when this process ends, instead of
    /// ending too. The name has at most 255 characters of ASCII, and no colon. Returns whether there is a supervisor.
    ///
    /// # Errors
    /// Errors of the system.
    fn fdstore_put(&self, _name: &str) -> Result<bool> {
        Ok(false)
    }
    /// Returns the name under which the supervisor holds the channel; `None` if the supervisor does not hold it.
    fn fdstore_name(&self) -> Option<String> {
        None
    }
    /// Removes the channel from the supervisor, so that the channel ends with this process.
    ///
    /// # Errors
    /// Errors of the system.
    fn fdstore_remove(&self) -> Result<()> {
        Ok(())
    }
    /// Ends the channel at once: programs that wait for a reply get an error, and no process can continue the
    /// channel.
    ///
    /// # Errors
    /// Errors of [`Channel::fdstore_remove`]; the channel has ended all the same.
    fn close(&self) -> Result<()> {
        Ok(())
    }
    /// Makes the kernel send again all requests that earlier processes received and did not answer. It may be called
    /// once after the channel was taken over, before the first message is received, and while no other process
    /// carries out such a request.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn resend(&self) -> Result<()> {
        Err(error!(Unsupported, "this FUSE channel cannot request unanswered requests again"))
    }
    /// Counts one more start of the resent request `number`. Returns how often that request was resent, to all
    /// processes together. The count is stored before the method returns.
    ///
    /// # Errors
    /// Errors of the file with the counts.
    fn came_again(&self, _number: u64) -> Result<u64> {
        Ok(1)
    }
}

/// Returns the error for every call to a core that is stopping.
pub fn stopped() -> Error {
    error!(Stopped, "the graph is stopping")
}
