//! The connections to one export, made again when they are lost.
//!
//! ```text
//!   up ──a connection is lost──▶ away ──connected, the same export──▶ replaying ──▶ resending ──▶ up
//!                                  └──── too long, or not the same export ────▶ out
//! ```
//!
//! All connections form one session: when one is lost, all are. In `replaying`, answered but unflushed changes are sent
//! again. In `resending`, changes that were in flight are sent again. Only then are other requests sent. So a client
//! never reads older bytes than before.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::env::{Address, Mono, PersistentMemory};
use block::seeded::{self, Bug};
use block::{
    ByteRange, Deadline, Env, Error, ErrorKind, FlushFault, Memory, Notify, Reservation, Result,
};
use crc_fast::{CrcAlgorithm, checksum};
use wire::nbd::{ClientConfig, Command, CommandFlags, ExportFacts, TransmissionFlags};

use super::client::{CONNECTION_BYTES, Client};
use super::ring::{self, Found, Ring};
use super::unflushed::{Change, Unflushed};

/// The pause between two attempts. It begins with the first value and doubles up to the longest. Each pause is drawn
/// between half the value and the value.
const REST_FIRST: Duration = Duration::from_millis(20);
const REST_LONGEST: Duration = Duration::from_secs(1);

/// A session that has lasted this long counts as good.
const STEADY: Duration = Duration::from_secs(10);

/// Most shorter sessions in a row. After more, either the server's replies or the requests end each session.
const SHORT_SESSIONS_MAX: u32 = 16;

/// Limit for an orderly end of the working connections of a lost session.
const DRAIN: Duration = Duration::from_secs(5);

/// Most changes that are replayed at once.
const REPLAY_WINDOW: usize = 16;

/// Prefix of the name under which the memory of a log is kept; the name of the disk follows.
const RING: &str = "unflushed/";

/// Error message for another disk of the same name beside the one in use.
const SAME_NAME: &str = "the running graph has a disk of this name on another server, and keeps \
                         its unflushed writes. Next: give the new disk another name";

/// How an NBD disk reaches its export, and how long it tries.
pub(super) struct Reach {
    pub name: String,
    /// URI of the export. The ring of the disk belongs to the export with this URI.
    pub uri: String,
    /// TLS settings of the connections; `None` for connections without TLS.
    pub tls: Option<tls::Client>,
    pub address: Address,
    pub export: String,
    pub connections: usize,
    pub timeout: Duration,
    /// Time for which requests to the disk are held while the server is away.
    pub hold: Duration,
}

/// The connections of an NBD disk to its export, made again when they are lost.
pub(super) struct Link {
    me: Weak<Self>,
    env: Env,
    target: Reach,
    facts: ExportFacts,
    state: RefCell<State>,
    /// Number of the current session.
    session: Cell<u64>,
    /// Begin of the outage; `None` while the session works.
    outage: Cell<Option<Mono>>,
    up_since: Cell<Mono>,
    short_sessions: Cell<u32>,
    rest: Cell<Duration>,
    /// Number of changes that were sent and are not answered.
    open_changes: Cell<usize>,
    waiting: Notify,
    /// Buffers for new connections.
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

/// The number of the session in which a request is sent: the answer counts only if that session still lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Session(u64);

/// The reason why an attempt to connect failed.
enum Refusal {
    /// The next attempt may succeed.
    Now(Error),
    /// No attempt will succeed.
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

/// Facts about an earlier process that had this disk.
struct Before {
    /// The reason why its log lacks unflushed changes of the server, if it does.
    lost: Option<&'static str>,
}

/// Makes the log of a disk. If a supervisor keeps memory for this process, the log outlives the process. It begins with
/// the changes that an earlier process has left in it.
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
        // The disk that had this memory in the same process has flushed.
        let ring = Ring::new(memory, identity)?;
        return Ok((Unflushed::lasting(log_bytes, env.pool(), ring, Vec::new()), None));
    }
    let (ring, Found { changes, lost }) = Ring::open(memory, identity, |len| env.buf(len))?;
    Ok((Unflushed::lasting(log_bytes, env.pool(), ring, changes), Some(Before { lost })))
}

impl Link {
    /// Connects to the export for the first time, and replays the log that an earlier process has left.
    ///
    /// # Errors
    /// Errors of connecting and of `log_bytes`, which computes the size of the log from the facts about the export;
    /// `Limit` if the pool has no room for the connections.
    pub async fn connect(
        env: &Env,
        target: Reach,
        log_bytes: impl FnOnce(&ExportFacts) -> Result<u64>,
    ) -> Result<Rc<Self>> {
        let clients = SoFar(connect_all(env, &target, Memory::Free).await?);
        let facts = clients.0[0].session().facts.clone();
        let log_bytes = log_bytes(&facts)?;
        // Buffers for new connections, for the case that all other buffers belong to requests that wait for them.
        let tls_bytes = if target.tls.is_some() { tls::CONNECTION_BYTES } else { 0 };
        let bytes = target.connections * (CONNECTION_BYTES + tls_bytes);
        let bytes = if target.hold.is_zero() { 0 } else { bytes };
        let reserve =
            env.pool().reserve_until_drop(bytes).map_err(|error| error.at(&target.name))?;
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

    /// Returns the facts about the export.
    pub fn facts(&self) -> &ExportFacts {
        &self.facts
    }

    /// Returns the name of the disk.
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// Waits for a working session and returns its connection with the fewest requests. With `again`, for a change that
    /// was sent in an earlier session, the wait ends in `resending` already.
    ///
    /// # Errors
    /// `Faulted` when the disk is out of service.
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

    /// Whether answers to requests of `session` still count.
    pub fn is_current(&self, session: Session) -> bool {
        self.session.get() == session.0
    }

    /// Counts a change that is sent to the server as open until the returned value is dropped.
    pub fn open_change(&self) -> OpenChange<'_> {
        self.open_changes.set(self.open_changes.get() + 1);
        OpenChange(self)
    }

    /// Ends `session`, after the loss of one of its connections.
    pub fn lost(&self, session: Session, why: &Error) {
        if !self.is_current(session) {
            return;
        }
        self.session.set(session.0 + 1);
        let clients = match &*self.state.borrow() {
            State::Up(clients) | State::Resending(clients) => clients.clone(),
            // The replay notices the loss itself, and another attempt follows.
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

    /// Takes the disk out of service for the reason `why`, and returns the error of all further requests.
    pub fn out(&self, why: impl Into<String>) -> Error {
        let words = format!("out of service: {}", why.into());
        let error = Error::new(ErrorKind::Faulted, words).at(&self.target.name);
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

    /// Makes all further flushes of the disk fail.
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
                format!("the server is back after {away} s; the disk replays unflushed writes"),
            )),
            State::Out(error) => Some((false, error.message().to_owned())),
        }
    }

    /// Watches for the end of each connection, even while no request uses it.
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

    /// Connects, checks that it is the same export, and replays the log.
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

    /// Enters the next state. If the disk has gone out of service meanwhile, fails for good and closes the connections
    /// of `next`.
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

    /// Enters `Up` if no change of an earlier session is open any more.
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

    /// Goes on after an earlier process was killed. Beside the replayed changes, the server may have changes that were
    /// never answered. Clients may read them now, so they must not be lost with the server's power: everything is
    /// flushed.
    async fn go_on(&self, before: Before, clients: &[Client]) -> Result<(), Refusal> {
        self.replay(clients).await?;
        if let Some(why) = before.lost {
            self.flush_failed(&Error::new(
                ErrorKind::Io,
                format!("in the previous process, {why}"),
            ));
            return Ok(());
        }
        let (client, stamp) = (&clients[0], self.log.stamp());
        if !self.facts.flags.has(TransmissionFlags::FLUSH) {
            // The export has become write-through: every answered change is durable.
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

    /// Sends answered but unflushed changes again. Overlapping changes keep their order: those in flight together do
    /// not overlap.
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

    /// Returns the message for a request that the server does not answer in time.
    pub fn overdue(&self) -> String {
        format!(
            "the server did not answer within {} s. Unflushed writes may be lost",
            self.deadline.limit().as_secs_f64()
        )
    }

    /// Returns the pause before the next attempt. Each is longer than the one before, up to the limit.
    fn rest(&self) -> Duration {
        let rest = self.rest.get();
        self.rest.set((2 * rest).min(REST_LONGEST));
        let half = rest.as_nanos() as u64 / 2;
        Duration::from_nanos(half + self.env.random("nbd reconnect") % (half + 1))
    }

    /// Returns the rest of the time for which requests are held.
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

/// Guard of a change that was sent to the server and is not answered.
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
    Error::new(ErrorKind::Io, "the disk is not connected to its server yet")
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

/// Connections that are closed if the attempt to make all of them is abandoned.
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

/// Returns a message about the first difference between the facts of an export before and now.
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

/// Tries to connect until the server is back, or it has been away for too long.
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
    /// Waits for the end of a session. Working connections are closed in order, so that the server carries out their
    /// requests before it closes too. Otherwise those requests could land on top of the next session's. After this no
    /// task touches a buffer of these connections any more.
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

    /// Returns to `Away` after a failed attempt, and closes its connections.
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
        self.out(format!(
            "the server was unreachable for {hold} s ({why}). Unflushed writes may be lost"
        ));
    }
}
