//! The connections of an NBD disk to its export, which are made again when they are lost.
//!
//! ```text
//!   up ──a connection is lost──▶ away ──connected, the same export──▶ replaying ──▶ resending ──▶ up
//!                                  └──── too long, or not the same export ────▶ out
//! ```
//!
//! All connections of a disk form one session: when one is lost, the session ends. In `replaying`, the disk sends again
//! the changes that the server has completed and not flushed. In `resending`, it sends again the changes that were in
//! flight when the session ended. Only after that, in `up`, it sends other requests. So a client of the disk never
//! reads older bytes than before.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::env::{Address, Mono, PersistentMemory};
use block::seeded::{self, Bug};
use block::{
    ByteRange, Deadline, Env, Error, ErrorKind, FlushFault, Memory, Notify, Reservation, Result,
    error,
};
use crc_fast::{CrcAlgorithm, checksum};
use wire::nbd::{ClientConfig, Command, CommandFlags, ExportFacts, TransmissionFlags};

use super::client::{CONNECTION_BYTES, Client};
use super::ring::{self, Found, Ring};
use super::unflushed::{Change, Unflushed};

/// Pause between two attempts to connect: the first one, and the longest. Each pause is twice as long as the previous
/// one, up to the longest. The actual pause is random, between half of this value and the value.
const REST_FIRST: Duration = Duration::from_millis(20);
const REST_LONGEST: Duration = Duration::from_secs(1);

/// Duration of a session from which the session does not count as short.
const STEADY: Duration = Duration::from_secs(10);

/// Maximum number of short sessions in a row. If there are more, replies of the server or requests of the disk must be
/// the reason, and the disk goes out of service.
const SHORT_SESSIONS_MAX: u32 = 16;

/// Time limit for the orderly end of a lost session: for its connections that still work.
const DRAIN: Duration = Duration::from_secs(5);

/// Maximum number of changes in flight during a replay.
const REPLAY_WINDOW: usize = 16;

/// Prefix of the name of the persistent memory for the ring of a disk; the name of the disk follows.
const RING: &str = "unflushed/";

/// Error message for a second disk with the name of a disk that is in use.
const SAME_NAME: &str = "the running graph has a disk of this name on another server, and keeps \
                         its unflushed writes. Next: give the new disk another name";

/// The export of an NBD disk, and the settings of the connections to it.
pub(super) struct Reach {
    pub name: String,
    /// URI of the export. The ring of the disk is valid only for the export with this URI.
    pub uri: String,
    /// TLS settings of the connections; `None` for connections without TLS.
    pub tls: Option<tls::Client>,
    pub address: Address,
    pub export: String,
    pub connections: usize,
    pub timeout: Duration,
    /// Time for which requests to the disk wait while its server is unreachable (option `reconnect`).
    pub hold: Duration,
}

impl Reach {
    /// Returns the bytes of the buffer pool that a disk on this export reserves. Its requests may hold all other buffers
    /// while they wait for a new connection.
    pub fn standing_bytes(&self) -> usize {
        let tls_bytes = if self.tls.is_some() { tls::CONNECTION_BYTES } else { 0 };
        if self.hold.is_zero() { 0 } else { self.connections * (CONNECTION_BYTES + tls_bytes) }
    }
}

/// The connections of an NBD disk to its export, which are made again when they are lost.
pub(super) struct Link {
    me: Weak<Self>,
    env: Env,
    target: Reach,
    facts: ExportFacts,
    state: RefCell<State>,
    /// Number of the current session. It rises whenever a session ends.
    session: Cell<u64>,
    /// Time at which the outage began; `None` while a session works.
    outage: Cell<Option<Mono>>,
    up_since: Cell<Mono>,
    short_sessions: Cell<u32>,
    rest: Cell<Duration>,
    /// Number of changes that were sent to the server and are not completed.
    open_changes: Cell<usize>,
    waiting: Notify,
    /// Reserved buffers for new connections.
    _reserve: Reservation,
    pub(super) deadline: Deadline,
    pub(super) log: Rc<Unflushed>,
    pub(super) flush_fault: FlushFault,
    pub(super) reconnects: Cell<u64>,
    pub(super) replayed: Cell<u64>,
}

enum State {
    Up(Vec<Client>),
    Away(Error),
    Replaying(Vec<Client>),
    Resending(Vec<Client>),
    Out(Error),
}

/// The number of the session in which a request was sent. The reply counts only if this session has not ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Session(u64);

/// The reason why an attempt to connect to the server failed.
enum Refusal {
    /// An error after which a later attempt may succeed.
    Now(Error),
    /// An error after which no attempt can succeed, as a message: the disk goes out of service.
    Ever(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Now(error)
    }
}

impl Refusal {
    fn into_error(self) -> Error {
        match self {
            Self::Now(error) => error,
            Self::Ever(words) => Error::new(ErrorKind::Io, words),
        }
    }
}

/// Facts about the log that an earlier process with this disk has left.
struct Before {
    /// The reason why the log lacks unflushed changes that the server may have; `None` if the log is complete.
    lost: Option<&'static str>,
}

/// Creates the log of unflushed changes of a disk. If a supervisor holds memory for this process, the log is copied
/// there, and begins with the changes that an earlier process has left in that memory.
fn log_of(env: &Env, target: &Reach, log_bytes: u64) -> Result<(Rc<Unflushed>, Option<Before>)> {
    if log_bytes == 0 || !env.has_supervisor() {
        return Ok((Unflushed::new(log_bytes, env.pool()), None));
    }
    let name = format!("{RING}{}", target.name);
    let identity = checksum(CrcAlgorithm::Crc64Nvme, target.uri.as_bytes());
    let PersistentMemory { memory, left } = env
        .persistent_memory(&name, ring::memory_bytes(log_bytes))
        .map_err(|error| match error.kind() {
            ErrorKind::InUse => Error::new(ErrorKind::InUse, SAME_NAME),
            _ => error,
        })?;
    if !left {
        // The disk that used this memory before, in this process, has flushed all changes.
        let ring = Ring::new(memory, identity)?;
        return Ok((Unflushed::lasting(log_bytes, env.pool(), ring, Vec::new()), None));
    }
    let (ring, Found { changes, lost }) = Ring::open(memory, identity, |len| env.buf(len))?;
    Ok((Unflushed::lasting(log_bytes, env.pool(), ring, changes), Some(Before { lost })))
}

impl Link {
    /// Connects to the export `target` for the first time, and replays the log that an earlier process has left.
    ///
    /// # Errors
    /// Errors of connecting and of `log_bytes`, which returns the size of the log for the facts about the export;
    /// `Limit` if the buffer pool has no room for the connections.
    pub async fn connect(
        env: &Env,
        target: Reach,
        log_bytes: impl FnOnce(&ExportFacts) -> Result<u64>,
    ) -> Result<Rc<Self>> {
        let clients = SoFar(connect_all(env, &target, Memory::Free).await?);
        let facts = clients.0[0].session().facts.clone();
        let log_bytes = log_bytes(&facts)?;
        let reserve = env.pool().reserve_until_drop(target.standing_bytes());
        let reserve = reserve.map_err(|error| error.at(&target.name))?;
        let (log, before) =
            log_of(env, &target, log_bytes).map_err(|error| error.at(&target.name))?;
        let link = Rc::new_cyclic(|me| Self {
            me: me.clone(),
            env: env.clone(),
            facts,
            state: RefCell::new(State::Away(lost_words())),
            session: Cell::new(0),
            outage: Cell::new(None),
            up_since: Cell::new(env.now()),
            short_sessions: Cell::new(0),
            rest: Cell::new(REST_FIRST),
            open_changes: Cell::new(0),
            waiting: Notify::default(),
            _reserve: reserve,
            deadline: Deadline::new(env, target.timeout),
            log,
            flush_fault: FlushFault::default(),
            reconnects: Cell::new(0),
            replayed: Cell::new(0),
            target,
        });
        if let Some(before) = before {
            let gone_on = link.go_on(before, &clients.0).await;
            gone_on.map_err(|refusal| refusal.into_error().at(&link.target.name))?;
        }
        let clients = clients.keep();
        link.watch(&clients);
        *link.state.borrow_mut() = State::Up(clients);
        Ok(link)
    }

    /// Returns the facts about the export from the first handshake.
    pub fn facts(&self) -> &ExportFacts {
        &self.facts
    }

    /// Returns the name of the disk.
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// Waits for a working session, and returns its connection with the fewest requests in flight. `again` is for a
    /// change that was sent in an earlier session: then the wait ends already in `resending`.
    ///
    /// # Errors
    /// `Faulted` if the disk is out of service.
    pub async fn client(&self, again: bool) -> Result<(Session, Client)> {
        let serving = |state: &State| match state {
            State::Up(clients) => Some(Ok(least_busy(clients))),
            State::Resending(clients) if again => Some(Ok(least_busy(clients))),
            State::Out(error) => Some(Err(error.clone())),
            _ => None,
        };
        let client = self.waiting.until_some(|| serving(&self.state.borrow())).await?;
        Ok((Session(self.session.get()), client))
    }

    /// Whether `session` is the current session, so that replies to its requests count.
    pub fn is_current(&self, session: Session) -> bool {
        self.session.get() == session.0
    }

    /// Counts a change that is sent to the server as open, until the returned guard is dropped.
    pub fn open_change(&self) -> OpenChange<'_> {
        self.open_changes.set(self.open_changes.get() + 1);
        OpenChange(self)
    }

    /// Ends `session`, one of whose connections was lost for the reason `why`. Spawns the task that connects again.
    pub fn lost(&self, session: Session, why: &Error) {
        if !self.is_current(session) {
            return;
        }
        self.session.set(session.0 + 1);
        let clients = match &*self.state.borrow() {
            State::Up(clients) | State::Resending(clients) => clients.clone(),
            // The replay sees the loss by itself, and is followed by another attempt.
            State::Replaying(_) | State::Away(_) | State::Out(_) => return,
        };
        if self.target.hold.is_zero() {
            let words =
                format!("the connection was lost: {}. Unflushed writes may be lost", why.message());
            self.out(words);
            return;
        }
        if self.log.has_forgotten() {
            self.forgot();
        }
        let now = self.env.now();
        if now.since(self.up_since.get()) >= STEADY {
            self.short_sessions.set(0);
            self.rest.set(REST_FIRST);
        } else {
            self.short_sessions.set(self.short_sessions.get() + 1);
        }
        if self.outage.get().is_none() {
            self.outage.set(Some(now));
        }
        *self.state.borrow_mut() = State::Away(why.clone());
        clients.iter().for_each(Client::close);
        let link = self.me.upgrade().expect("the link lives while its connections run");
        self.env.spawn("an NBD disk's reconnect", come_back(link, clients));
    }

    /// Takes the disk out of service for the reason `why`. Returns the error with which all further requests fail.
    pub fn out(&self, why: impl Into<String>) -> Error {
        let error = error!(Faulted, "out of service: {}", why.into()).at(&self.target.name);
        let clients = {
            let mut state = self.state.borrow_mut();
            if let State::Out(first) = &*state {
                return first.clone();
            }
            match std::mem::replace(&mut *state, State::Out(error.clone())) {
                State::Up(all) | State::Replaying(all) | State::Resending(all) => all,
                State::Away(_) | State::Out(_) => Vec::new(),
            }
        };
        clients.iter().for_each(|client| client.sever(error.clone()));
        self.flush_failed(&error);
        self.waiting.wake();
        error
    }

    /// Makes all further flushes of the disk fail, and empties the log of unflushed changes.
    pub fn flush_failed(&self, error: &Error) {
        self.flush_fault.note(error, &self.target.name);
        self.log.give_up();
    }

    fn forgot(&self) {
        let words = "the connection was lost with more unflushed bytes than `replay` keeps";
        self.flush_failed(&Error::new(ErrorKind::Io, words));
    }

    /// Returns whether the disk serves, and a description of its state. Returns `None` in normal operation.
    pub fn state_summary(&self) -> Option<(bool, String)> {
        let ago = |since: Mono| self.env.now().since(since).as_secs();
        let away = self.outage.get().map_or(0, ago);
        let hold = self.target.hold.as_secs_f64();
        match &*self.state.borrow() {
            State::Up(_) => None,
            State::Away(why) => Some((
                true,
                format!(
                    "the server is unreachable for {away} s, requests wait up to {hold} s; {}",
                    why.message()
                ),
            )),
            State::Replaying(_) | State::Resending(_) => Some((
                true,
                format!("the server is back after {away} s; unflushed writes are replayed"),
            )),
            State::Out(error) => Some((false, error.message().to_owned())),
        }
    }

    /// Spawns a task for each connection of the current session that ends the session when the connection is lost, even
    /// while no request uses it.
    fn watch(&self, clients: &[Client]) {
        let session = Session(self.session.get());
        for client in clients {
            let (link, client) = (self.me.clone(), client.clone());
            self.env.spawn("an NBD disk's watch", async move {
                let why = client.ended().await;
                if let Some(link) = link.upgrade() {
                    link.lost(session, &why);
                }
            });
        }
    }

    /// Connects to the server, checks that the export is the same as before, and replays the log.
    async fn attempt(&self) -> Result<(), Refusal> {
        let clients = connect_all(&self.env, &self.target, Memory::Reserved).await?;
        if let Some(words) = differs(&self.facts, &clients[0].session().facts) {
            clients.iter().for_each(Client::close);
            return Err(Refusal::Ever(words));
        }
        self.becomes(State::Replaying(clients.clone()))?;
        if !seeded::on(Bug::ReplaySkipped) {
            self.replay(&clients).await?;
        }
        self.becomes(State::Resending(clients.clone()))?;
        self.reconnects.set(self.reconnects.get() + 1);
        self.watch(&clients);
        self.resent();
        self.waiting.wake();
        Ok(())
    }

    /// Enters the state `next`. If the disk has gone out of service meanwhile, closes the connections of `next` and
    /// returns an error instead.
    fn becomes(&self, next: State) -> Result<(), Refusal> {
        let mut state = self.state.borrow_mut();
        if let State::Out(error) = &*state {
            let words = error.message().to_owned();
            drop(state);
            if let State::Replaying(clients) | State::Resending(clients) = next {
                clients.iter().for_each(Client::close);
            }
            return Err(Refusal::Ever(words));
        }
        *state = next;
        Ok(())
    }

    /// Lets the disk serve all requests again after an outage, once no change of an earlier session is in flight.
    fn resent(&self) {
        let mut state = self.state.borrow_mut();
        if self.open_changes.get() == 0
            && let State::Resending(clients) = &mut *state
        {
            *state = State::Up(std::mem::take(clients));
            self.outage.set(None);
            self.up_since.set(self.env.now());
            drop(state);
            self.waiting.wake();
        }
    }

    /// Replays the log of an earlier process that was killed, and flushes the server. Besides the replayed changes, the
    /// server may have changes of that process that were never completed. Clients may read these from now on, so a
    /// power failure of the server must not undo them.
    async fn go_on(&self, before: Before, clients: &[Client]) -> Result<(), Refusal> {
        self.replay(clients).await?;
        if let Some(why) = before.lost {
            self.flush_failed(&error!(Io, "in the previous process, {why}"));
            return Ok(());
        }
        let (client, stamp) = (&clients[0], self.log.stamp());
        if !self.facts.flags.has(TransmissionFlags::FLUSH) {
            // The server writes through now: every completed change is durable.
            self.log.flushed(stamp);
            return Ok(());
        }
        if seeded::on(Bug::KilledNotFlushed) {
            return Ok(());
        }
        let ticket = client.start(Command::Flush, CommandFlags::NONE, 0, 0, None);
        let Ok(outcome) = self.deadline.guard(ticket).await else {
            return Err(Refusal::Ever(self.overdue()));
        };
        match (outcome.result, client.gone()) {
            (Ok(_), _) => self.log.flushed(stamp),
            (Err(_), Some(gone)) => return Err(Refusal::Now(gone)),
            (Err(error), None) => self.flush_failed(&error),
        }
        Ok(())
    }

    /// Sends the changes in the log again, in their order. Only changes that do not overlap are in flight together, so
    /// that overlapping ones keep their order.
    async fn replay(&self, clients: &[Client]) -> Result<(), Refusal> {
        let mut at = 0;
        loop {
            let mut window: Vec<Change> = Vec::new();
            while window.len() < REPLAY_WINDOW
                && let Some(change) = self.log.entry(at + window.len())
                && (seeded::on(Bug::ReplayUnordered)
                    || !window.iter().any(|other| other.range.overlaps(change.range)))
            {
                window.push(change);
            }
            if window.is_empty() {
                return Ok(());
            }
            at += window.len();
            let started = window.into_iter().enumerate().map(|(n, change)| {
                let client = &clients[n % clients.len()];
                let Change { command, flags, range, data } = change;
                (client, range, client.start(command, flags, range.start(), range.len(), data))
            });
            for (client, range, ticket) in started.collect::<Vec<_>>() {
                let Ok(outcome) = self.deadline.guard(ticket).await else {
                    return Err(Refusal::Ever(self.overdue()));
                };
                let refused = outcome.result.err();
                refused.map_or(Ok(()), |error| Err(replay_refused(client, range, error)))?;
                self.replayed.set(self.replayed.get() + 1);
            }
        }
    }

    /// Returns the message about a request that the server did not complete within the time limit.
    pub fn overdue(&self) -> String {
        format!(
            "the server did not answer within {} s. Unflushed writes may be lost",
            self.deadline.limit().as_secs_f64()
        )
    }

    /// Returns the pause before the next attempt to connect. Each pause is longer than the previous one, up to the
    /// longest.
    fn rest(&self) -> Duration {
        let rest = self.rest.get();
        self.rest.set((2 * rest).min(REST_LONGEST));
        let half = rest.as_nanos() as u64 / 2;
        Duration::from_nanos(half + self.env.random("nbd reconnect") % (half + 1))
    }

    /// Returns the time for which requests still wait for the unreachable server before the disk goes out of service.
    fn left(&self) -> Duration {
        let begun = self.outage.get().unwrap_or_else(|| self.env.now());
        self.target.hold.saturating_sub(self.env.now().since(begun))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let State::Up(clients) = &*self.state.borrow() {
            clients.iter().for_each(Client::close);
        }
    }
}

/// A guard of a change that was sent to the server and is not completed.
pub(super) struct OpenChange<'a>(&'a Link);

impl Drop for OpenChange<'_> {
    fn drop(&mut self) {
        self.0.open_changes.set(self.0.open_changes.get() - 1);
        self.0.resent();
    }
}

fn least_busy(clients: &[Client]) -> Client {
    let client = clients.iter().min_by_key(|client| client.depth());
    client.expect("a session has connections").clone()
}

fn lost_words() -> Error {
    error!(Io, "the disk is not connected to its server yet")
}

fn replay_refused(client: &Client, range: ByteRange, error: Error) -> Refusal {
    match client.gone() {
        Some(gone) => Refusal::Now(gone),
        None => Refusal::Ever(format!(
            "the server came back and refused the replay of {} unflushed bytes at {}: {}",
            range.len(),
            range.start(),
            error.message()
        )),
    }
}

/// The connections of an attempt that is not complete. They are closed if the attempt is dropped.
struct SoFar(Vec<Client>);

impl SoFar {
    fn keep(mut self) -> Vec<Client> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for SoFar {
    fn drop(&mut self) {
        self.0.iter().for_each(Client::close);
    }
}

async fn connect_all(env: &Env, target: &Reach, memory: Memory) -> Result<Vec<Client>> {
    let mut so_far = SoFar(Vec::new());
    for _ in 0..target.connections {
        let config = ClientConfig::connect(target.export.clone());
        so_far.0.push(
            Client::connect_with(env, &target.address, config, target.tls.as_ref(), memory).await?,
        );
    }
    Ok(so_far.keep())
}

/// Returns a message about the first difference between the facts of the export before the outage and now; `None` if
/// there is none.
fn differs(was: &ExportFacts, is: &ExportFacts) -> Option<String> {
    let sizes =
        |facts: &ExportFacts| (facts.blocks.min(), facts.blocks.preferred(), facts.blocks.max());
    let what = if was.size_bytes != is.size_bytes {
        format!("{} bytes instead of {}", is.size_bytes, was.size_bytes)
    } else if was.flags != is.flags {
        format!("the flags {:#06x} instead of {:#06x}", is.flags.0, was.flags.0)
    } else if sizes(was) != sizes(is) {
        format!("the block sizes {:?} instead of {:?}", sizes(is), sizes(was))
    } else {
        return None;
    };
    Some(format!(
        "the server came back with another export, which has {what}. Unflushed writes may be lost"
    ))
}

/// Tries to connect to the server until an attempt succeeds. Takes the disk out of service if the server stays
/// unreachable for too long.
async fn come_back(link: Rc<Link>, gone: Vec<Client>) {
    if link.short_sessions.get() > SHORT_SESSIONS_MAX {
        let why = gone.iter().find_map(Client::gone).unwrap_or_else(lost_words);
        link.out(format!(
            "the connection was lost {SHORT_SESSIONS_MAX} times in a row within {} s of a \
             reconnect: {}",
            STEADY.as_secs(),
            why.message()
        ));
        return;
    }
    link.bury(&gone).await;
    drop(gone);
    loop {
        link.env.sleep(link.rest().min(link.left())).await;
        let left = link.left();
        let tried = link.env.within(left, link.attempt()).await;
        match tried {
            Some(Ok(())) => return,
            Some(Err(Refusal::Ever(words))) => {
                link.out(words);
                return;
            }
            Some(Err(Refusal::Now(why))) => link.put_away(why).await,
            None => {
                link.give_up();
                return;
            }
        }
    }
}

impl Link {
    /// Waits for the end of a lost session. Its connections that still work are closed in order, so that the server
    /// completes their requests before it closes them. Otherwise the server could carry out those requests after
    /// requests of the next session. After the wait, no task uses a buffer of these connections any more.
    async fn bury(&self, session: &[Client]) {
        let ended = async || {
            for client in session {
                client.ended().await;
            }
        };
        self.env.within(DRAIN.min(self.left()), ended()).await;
        session.iter().for_each(|client| client.sever(lost_words()));
        self.env.within(self.left(), ended()).await;
    }

    /// Returns to `Away` after a failed attempt to connect, and closes the connections of the attempt.
    async fn put_away(&self, why: Error) {
        let state = {
            let mut state = self.state.borrow_mut();
            if let State::Out(_) = *state {
                return;
            }
            std::mem::replace(&mut *state, State::Away(why))
        };
        if let State::Replaying(clients) = state {
            clients.iter().for_each(Client::close);
            self.bury(&clients).await;
        }
    }

    fn give_up(&self) {
        let why = match &*self.state.borrow() {
            State::Away(why) => why.message().to_owned(),
            _ => "the server did not complete the replay of unflushed writes".to_owned(),
        };
        let hold = self.target.hold.as_secs_f64();
        self.out(format!("no server for {hold} s ({why}). Unflushed writes may be lost"));
    }
}
