//! The doors to the world: disks, network, clock and timers, randomness. Nothing else of Cairn may
//! touch time, threads, files or sockets. `runtime` is the real side, `sim` the seeded one.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::{
    Buf, BufPool, Error, ErrorKind, Event, Events, OneShot, Result, Secret, Wanted, first,
};

mod storage;
mod ticket;

pub use storage::{CacheMode, DiskIo, Open, Place, Storage, StorageFacts, StorageNow};
pub use ticket::{Outcome, Ticket, Tickets};

/// A future of one core, boxed; for what happens once, not once per request.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The world, as a handle that is cheap to clone.
#[derive(Clone)]
pub struct Env(Rc<dyn World>);

/// A point on the monotonic clock: time since some fixed past.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mono(pub Duration);

impl Mono {
    /// The time from `earlier` to this, zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `delay` later.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }
}

/// One side of the doors. Implemented twice.
pub trait World {
    /// Now, read once per turn of the core.
    fn now(&self) -> Mono;
    /// Now, read anew: for who measures work, which may be over within a turn.
    fn clock(&self) -> Mono {
        self.now()
    }
    /// The wall clock since 1970: for labels and messages, never for decisions.
    fn wall(&self) -> Duration;
    /// Wakes `waker` at `at` or soon after.
    fn set_timer(&self, at: Mono, waker: &Waker) -> TimerId;
    /// Forgets a timer.
    fn clear_timer(&self, timer: TimerId);
    /// A random number from the stream of that name.
    fn random(&self, stream: &'static str) -> u64;
    /// Runs a task on this core until it ends.
    fn spawn(&self, name: &'static str, task: LocalFuture<()>);
    /// Runs a job that may hold a core for long on another thread; resolves when it has run.
    fn work(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()>;
    /// Fills `into` with random bytes that are good for keys, and keeps no copy of them.
    fn random_secret(&self, into: &mut [u8]) {
        for word in into.chunks_mut(8) {
            let random = self.random("secret").to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
    }
    /// Gets a key or a passphrase, as it is: at most [`crate::SECRET_BYTES_MAX`] bytes, and one at
    /// least. May hold the core while a person types.
    ///
    /// # Errors
    /// `Denied` in all that a person can put right, with what to do; `Unsupported` in a world
    /// without secrets.
    fn secret(&self, wanted: &Wanted) -> LocalFuture<Result<Secret>> {
        let why = format!("{}: there are no secrets in this world", wanted.prompt);
        Box::pin(std::future::ready(Err(Error::new(ErrorKind::Unsupported, why))))
    }
    /// Has the key of an open device held for the next process, which cannot get it where this one did:
    /// nobody types it again. Nobody is there to hold it, or it can be had again: nothing happens.
    ///
    /// # Errors
    /// `Unsupported` where there is no memory for it; what the system says.
    fn keep_secret(&self, _who: &str, _key: &Secret) -> Result<()> {
        Ok(())
    }
    /// The key that a process before this one has had held for `who`.
    ///
    /// # Errors
    /// `Corrupt` if it is no key; what the system says.
    fn kept_secret(&self, _who: &str) -> Result<Option<Secret>> {
        Ok(None)
    }
    /// The buffers of this core.
    fn pool(&self) -> &BufPool;
    /// The facts that [`World::open`] would find; changes nothing and takes no lock.
    ///
    /// # Errors
    /// `NotFound` (not for a file that would be created), `Denied`, `Unsupported`.
    fn probe(&self, open: &Open) -> Result<StorageFacts>;
    /// Opens a disk.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `InUse` with the holder if it can be known, `Unsupported`.
    fn open(&self, open: &Open) -> Result<Rc<dyn Storage>>;
    /// Listens for connections.
    ///
    /// # Errors
    /// `InUse`, `Denied`, and what else the kernel says.
    fn listen(&self, at: &Address) -> Result<Rc<dyn Listener>>;
    /// Connects.
    fn connect(&self, to: &Address) -> LocalFuture<Result<Rc<dyn Socket>>>;
    /// Mounts a file system on a directory; its requests come as messages through the channel. It is
    /// dead once the channel is gone, and stays mounted until somebody unmounts it.
    ///
    /// # Errors
    /// `Denied` without the right to mount; `NotFound`, and what else the kernel says; `Unsupported`
    /// where there are no mounts.
    fn mount(&self, at: &Path) -> Result<Rc<dyn Channel>> {
        let why = format!("{}: nothing can be mounted here", at.display());
        Err(Error::new(ErrorKind::Unsupported, why))
    }
    /// The names of what a process before this one has entrusted ([`Channel::entrust`]) and nobody has
    /// taken over yet.
    fn left(&self) -> Vec<String> {
        Vec::new()
    }
    /// Gives up what was left under `name`, and has whoever holds it close it.
    ///
    /// # Errors
    /// What the system says.
    fn forsake(&self, _name: &str) -> Result<()> {
        Ok(())
    }
    /// Has `bytes` held under `name` for the next process, by whoever outlives this one; whether there is
    /// somebody.
    ///
    /// # Errors
    /// What the system says.
    fn leave(&self, _name: &str, _bytes: &[u8]) -> Result<bool> {
        Ok(false)
    }
    /// Takes the bytes that were left under `name`. Nobody gets them a second time, whatever becomes of
    /// this process.
    ///
    /// # Errors
    /// `NotFound` if nothing was left under that name; `Limit` if it is more than `most` bytes; what the
    /// system says.
    fn take_bytes(&self, name: &str, _most: usize) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::NotFound, format!("{name}: nobody has left it to this process")))
    }
    /// Takes over the connection that was entrusted under `name` ([`Socket::entrust`]).
    ///
    /// # Errors
    /// `NotFound` if nothing was left under that name; what the system says.
    fn take_socket(&self, name: &str) -> Result<Rc<dyn Socket>> {
        Err(Error::new(ErrorKind::NotFound, format!("{name}: nobody has left it to this process")))
    }
    /// Whether somebody outlives this process, and holds for the next one what it is entrusted with.
    fn is_kept(&self) -> bool {
        false
    }
    /// Memory that outlives this process, held under `name`: what was left under that name, whatever size it
    /// has; else `bytes` of zeros. Within one process a name is always the same memory, and one has it at a
    /// time: until it is dropped.
    ///
    /// # Errors
    /// `Unsupported` where nobody holds anything; `InUse` if somebody has it; what the system says.
    fn remains(&self, name: &str, _bytes: u64) -> Result<Remains> {
        let words = format!("{name}: nobody outlives this process");
        Err(Error::new(ErrorKind::Unsupported, words))
    }
    /// Has all such memory held once more, by whoever does so now; and keys of open devices.
    ///
    /// # Errors
    /// What the system says.
    fn entrust_remains(&self) -> Result<()> {
        Ok(())
    }
    /// Nothing of such memory is of use any more, nor are keys of open devices: they go with this
    /// process.
    ///
    /// # Errors
    /// What the system says.
    fn forsake_remains(&self) -> Result<()> {
        Ok(())
    }
    /// Takes over the channel of a mount that was entrusted under `name`: nothing is asked again by
    /// itself ([`Channel::resend`]). `at` is where it is mounted; `counts` is a file that keeps what
    /// [`Channel::came_again`] counts: without it nothing is counted.
    ///
    /// # Errors
    /// `NotFound` if nothing was left under that name.
    fn take_over(&self, name: &str, _at: &Path, _counts: &Path) -> Result<Rc<dyn Channel>> {
        Err(Error::new(ErrorKind::NotFound, format!("{name}: nobody has left it to this process")))
    }

    /// Something has happened to a device. Nobody need hear of it.
    fn tell(&self, _event: Event) {}
    /// What was told lately, where that is kept.
    fn events(&self) -> Option<Rc<Events>> {
        None
    }

    /// A whole small file, such as a certificate. A world without files has none.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `Limit` if it is longer than `most` bytes.
    fn read_file(&self, path: &Path, _most: usize) -> Result<Vec<u8>> {
        Err(no_files(path))
    }

    /// As [`World::read_file`], into locked memory, such as the key of a certificate.
    ///
    /// # Errors
    /// As there.
    fn read_secret(&self, path: &Path, _most: usize) -> Result<Secret> {
        Err(no_files(path))
    }
}

fn no_files(path: &Path) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{}: there are no files here", path.display()))
}

/// Memory that outlives this process.
pub struct Remains {
    /// The memory.
    pub memory: Rc<dyn Lasting>,
    /// Whether a process before this one has left it.
    pub left: bool,
}

/// Memory that outlives a process, though not the machine's power. What is written is in it when the call
/// returns.
pub trait Lasting {
    /// Bytes of it.
    fn len(&self) -> u64;
    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Fills `into` from `at`.
    ///
    /// # Errors
    /// What the system says; past its end.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;
    /// Puts `bytes` at `at`.
    ///
    /// # Errors
    /// What the system says, which may have no memory; past its end.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;
}

/// A timer that was set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TimerId(pub Mono, pub u64);

impl Env {
    /// A handle to `world`.
    pub fn new(world: Rc<dyn World>) -> Self {
        Self(world)
    }

    /// See [`World::now`].
    pub fn now(&self) -> Mono {
        self.0.now()
    }

    /// See [`World::clock`].
    pub fn clock(&self) -> Mono {
        self.0.clock()
    }

    /// See [`World::wall`].
    pub fn wall(&self) -> Duration {
        self.0.wall()
    }

    /// See [`World::random`].
    pub fn random(&self, stream: &'static str) -> u64 {
        self.0.random(stream)
    }

    /// See [`World::spawn`].
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + 'static) {
        self.0.spawn(name, Box::pin(task));
    }

    /// See [`World::work`].
    pub fn work(&self, job: impl FnOnce() + Send + 'static) -> LocalFuture<()> {
        self.0.work(Box::new(job))
    }

    /// See [`World::random_secret`].
    pub fn random_secret(&self, into: &mut [u8]) {
        self.0.random_secret(into);
    }

    /// See [`World::secret`].
    ///
    /// # Errors
    /// As there.
    pub async fn secret(&self, wanted: &Wanted) -> Result<Secret> {
        self.0.secret(wanted).await
    }

    /// See [`World::keep_secret`].
    ///
    /// # Errors
    /// As there.
    pub fn keep_secret(&self, who: &str, key: &Secret) -> Result<()> {
        self.0.keep_secret(who, key)
    }

    /// See [`World::kept_secret`].
    ///
    /// # Errors
    /// As there.
    pub fn kept_secret(&self, who: &str) -> Result<Option<Secret>> {
        self.0.kept_secret(who)
    }

    /// A buffer of `len` bytes from this core's pool.
    ///
    /// # Errors
    /// As [`BufPool::take`].
    pub fn buf(&self, len: usize) -> Result<Buf> {
        self.0.pool().take(len)
    }

    /// See [`World::pool`].
    pub fn pool(&self) -> &BufPool {
        self.0.pool()
    }

    /// See [`World::tell`].
    pub fn tell(&self, event: Event) {
        self.0.tell(event);
    }

    /// See [`World::events`].
    pub fn events(&self) -> Option<Rc<Events>> {
        self.0.events()
    }

    /// See [`World::probe`].
    ///
    /// # Errors
    /// As there.
    pub fn probe(&self, open: &Open) -> Result<StorageFacts> {
        self.0.probe(open)
    }

    /// See [`World::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(&self, open: &Open) -> Result<Rc<dyn Storage>> {
        self.0.open(open)
    }

    /// See [`World::listen`].
    ///
    /// # Errors
    /// As there.
    pub fn listen(&self, at: &Address) -> Result<Rc<dyn Listener>> {
        self.0.listen(at)
    }

    /// See [`World::connect`].
    ///
    /// # Errors
    /// `NotFound`, `Denied`, and what else the kernel says.
    pub async fn connect(&self, to: &Address) -> Result<Rc<dyn Socket>> {
        self.0.connect(to).await
    }

    /// See [`World::mount`].
    ///
    /// # Errors
    /// As there.
    pub fn mount(&self, at: &Path) -> Result<Rc<dyn Channel>> {
        self.0.mount(at)
    }

    /// See [`World::left`].
    pub fn left(&self) -> Vec<String> {
        self.0.left()
    }

    /// See [`World::forsake`].
    ///
    /// # Errors
    /// As there.
    pub fn forsake(&self, name: &str) -> Result<()> {
        self.0.forsake(name)
    }

    /// See [`World::leave`].
    ///
    /// # Errors
    /// As there.
    pub fn leave(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.0.leave(name, bytes)
    }

    /// See [`World::take_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn take_bytes(&self, name: &str, most: usize) -> Result<Vec<u8>> {
        self.0.take_bytes(name, most)
    }

    /// See [`World::take_socket`].
    ///
    /// # Errors
    /// As there.
    pub fn take_socket(&self, name: &str) -> Result<Rc<dyn Socket>> {
        self.0.take_socket(name)
    }

    /// See [`World::is_kept`].
    pub fn is_kept(&self) -> bool {
        self.0.is_kept()
    }

    /// See [`World::remains`].
    ///
    /// # Errors
    /// As there.
    pub fn remains(&self, name: &str, bytes: u64) -> Result<Remains> {
        self.0.remains(name, bytes)
    }

    /// See [`World::entrust_remains`].
    ///
    /// # Errors
    /// As there.
    pub fn entrust_remains(&self) -> Result<()> {
        self.0.entrust_remains()
    }

    /// See [`World::forsake_remains`].
    ///
    /// # Errors
    /// As there.
    pub fn forsake_remains(&self) -> Result<()> {
        self.0.forsake_remains()
    }

    /// See [`World::take_over`].
    ///
    /// # Errors
    /// As there.
    pub fn take_over(&self, name: &str, at: &Path, counts: &Path) -> Result<Rc<dyn Channel>> {
        self.0.take_over(name, at, counts)
    }

    /// See [`World::read_file`].
    ///
    /// # Errors
    /// As there.
    pub fn read_file(&self, path: &Path, most: usize) -> Result<Vec<u8>> {
        self.0.read_file(path, most)
    }

    /// See [`World::read_secret`].
    #[allow(clippy::missing_errors_doc, reason = "as there")]
    pub fn read_secret(&self, path: &Path, most: usize) -> Result<Secret> {
        self.0.read_secret(path, most)
    }

    /// Waits for `delay`.
    pub fn sleep(&self, delay: Duration) -> Sleep {
        self.sleep_until(self.now().after(delay))
    }

    /// Waits until `at`.
    pub fn sleep_until(&self, at: Mono) -> Sleep {
        Sleep { env: self.clone(), at, timer: None }
    }

    /// Lets whoever else is ready go first. Background passes call it between their steps.
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

    /// What `future` answers within `limit`; `None` past it. Work below that the future has started
    /// goes on: only the waiting ends.
    pub async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        first(future, self.sleep(limit)).await.ok()
    }

    /// Runs `future` as a task of its own, and returns its output. The task goes on if the waiting is dropped. `name` is for
    /// traces.
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

/// A wait for a point in time.
pub struct Sleep {
    env: Env,
    at: Mono,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = self.timer.take() {
            self.env.0.clear_timer(timer);
        }
        if self.env.now() >= self.at {
            return Poll::Ready(());
        }
        self.timer = Some(self.env.0.set_timer(self.at, cx.waker()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.env.0.clear_timer(timer);
        }
    }
}

/// Where to listen or connect.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    /// A unix socket, made with mode 0600.
    Unix(PathBuf),
    /// Host and port.
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

/// What listeners are called while they are held for the next process.
pub const LISTENER: &str = "listener";

/// An open listener.
pub trait Listener {
    /// The next connection.
    fn accept(&self) -> LocalFuture<Result<Rc<dyn Socket>>>;
    /// Where it listens; the port that the kernel chose, if it was asked to.
    fn address(&self) -> Address;
    /// Stops; a waiting accept answers `Stopped`.
    fn close(&self);
    /// Calls off the accept that waits: it answers whoever has come already, or an error. Who comes
    /// afterwards waits for the next one.
    fn call_off(&self);
    /// Has it held as [`LISTENER`] by whoever outlives this process, if there is somebody: until it is
    /// closed, who connects while no process is there waits for the next one. One that was given to this
    /// process under another name stays with its owner.
    ///
    /// # Errors
    /// What the system says.
    fn entrust(&self) -> Result<()> {
        Ok(())
    }
}

/// A connection: bytes both ways, one receive and one send in flight at most.
pub trait Socket {
    /// Receives up to the buffer's length; the outcome's count is 0 at the end.
    fn recv(&self, into: Buf) -> Ticket;
    /// Sends from the parts in order; the outcome's count may be less than all.
    fn send(&self, parts: Vec<Buf>) -> Ticket;
    /// Ends both directions; what is in flight completes with an error or a short count.
    fn shutdown(&self);
    /// Who is at the other end, in words.
    fn peer(&self) -> String;
    /// Calls off the receive that is on its way: it answers what has arrived already, or an error, and
    /// no byte of the stream is lost.
    fn call_off(&self);
    /// Whether the other end sends no more bytes: it is closed, or closed for sending. Bytes that it sent before may
    /// not be received yet. `false` where this is not known.
    fn is_gone(&self) -> bool {
        false
    }
    /// Whether another process could go on with it: there is nothing to it but its bytes.
    fn may_outlive(&self) -> bool {
        false
    }
    /// Has it held under `name` by whoever outlives this process. The name has at most 255 characters of
    /// ASCII, and no colon. Answers whether there is somebody.
    ///
    /// # Errors
    /// What the system says.
    fn entrust(&self, _name: &str) -> Result<bool> {
        Ok(false)
    }
}

/// A channel of messages: each is received whole or not at all, and sent whole. What is received and
/// sent is moved at once; only the wait for the next message is a wait.
pub trait Channel {
    /// Takes the next message, into `head` and then into `rest`: its length; `None` if there is none
    /// now.
    ///
    /// # Errors
    /// `Stopped` at the end of the channel, and what else the kernel says.
    fn recv(&self, head: &Buf, rest: &Buf) -> Result<Option<usize>>;
    /// Ends when there may be a message, or the channel is at its end.
    fn ready(&self) -> Ticket;
    /// Sends one message: `head`, and then `rest`.
    ///
    /// # Errors
    /// `NotFound` if nobody waits for it any more, and what else the kernel says.
    fn send(&self, head: &[u8], rest: Option<&Buf>) -> Result<()>;
    /// Makes sure that the buffer's memory is there and stays: a message is moved whatever happens to
    /// this process meanwhile.
    ///
    /// # Errors
    /// `Limit` past what may be locked.
    fn pin(&self, buf: &Buf) -> Result<()>;
    /// What the kernel did not grant and would be better granted, in words.
    fn lacks(&self) -> Option<&str>;
    /// Has it held under `name` by whoever outlives this process: it pauses then instead of ending. The
    /// name has at most 255 characters of ASCII, and no colon. Answers whether there is somebody.
    ///
    /// # Errors
    /// What the system says.
    fn entrust(&self, _name: &str) -> Result<bool> {
        Ok(false)
    }
    /// The name under which it is held.
    fn entrusted(&self) -> Option<String> {
        None
    }
    /// Takes that back: it ends with this process.
    ///
    /// # Errors
    /// What the system says.
    fn withdraw(&self) -> Result<()> {
        Ok(())
    }
    /// Ends it at once: who waits for an answer gets an error, and nobody goes on with it.
    ///
    /// # Errors
    /// What the system says to [`Channel::withdraw`]; it has ended all the same.
    fn close(&self) -> Result<()> {
        Ok(())
    }
    /// Of one that was taken over: lets all that others have received and not answered come again.
    /// Once, before the first message is taken, and when nobody else works on any of them.
    ///
    /// # Errors
    /// What the kernel says.
    fn resend(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "this channel cannot send again"))
    }
    /// The request of that number has come again, and is about to be begun: how often it has come
    /// again, over all processes. That is written down before this returns.
    ///
    /// # Errors
    /// What the file says that keeps the counts.
    fn came_again(&self, _number: u64) -> Result<u64> {
        Ok(1)
    }
}

/// The error of whatever is asked of a core that is going down.
pub fn stopped() -> Error {
    Error::new(ErrorKind::Stopped, "the graph is going down")
}
