//! The connections to one export, made again when they are gone.
//!
//! ```text
//!   up ──a connection is lost──▶ away ──connected, the same export──▶ replaying ──▶ resending ──▶ up
//!                                  └──── too long, or not the same export ────▶ out
//! ```
//!
//! All connections are one session: when one is lost, all are. While it is `replaying`, what was
//! answered and not flushed is sent again; while it is `resending`, changes that were on their way;
//! only then comes anything else. So nobody sees less than was seen before.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::env::{Address, Mono, Remains};
use block::seeded::{self, Bug};
use block::{
    ByteRange, Deadline, Env, Error, ErrorKind, FlushFault, Memory, Notify, Reservation, Result,
};
use crc_fast::{CrcAlgorithm, checksum};
use wire::nbd::{ClientConfig, Command, CommandFlags, ExportFacts, TransmissionFlags};

use super::client::{CONNECTION_BYTES, Client};
use super::ring::{self, Found, Ring};
use super::unflushed::{Change, Unflushed};

/// The rest between two attempts: from the first, doubled up to the longest, each drawn between its
/// half and its whole.
const REST_FIRST: Duration = Duration::from_millis(20);
const REST_LONGEST: Duration = Duration::from_secs(1);

/// A session that has lasted this long was a good one.
const STEADY: Duration = Duration::from_secs(10);

/// So many sessions in a row that were not: what the server says, or what it is asked, ends each.
const SHORT_SESSIONS_MAX: u32 = 16;

/// How long connections of a lost session that still work may take to end in order.
const DRAIN: Duration = Duration::from_secs(5);

/// Changes that are replayed at once.
const REPLAY_WINDOW: usize = 16;

/// What the memory of a log is held as, before the name of the disk.
const RING: &str = "unflushed/";

/// Why another disk of the same name is not opened beside the one in use.
const SAME_NAME: &str = "the running graph has a disk of this name on another server, and what that one has not \
                         flushed outlives this process. Next: give the new disk another name";

/// How to reach the export, and how long to try.
pub(super) struct Reach {
    pub name: String,
    /// Which export it is.
    pub uri: String,
    /// TLS, and nothing without it.
    pub tls: Option<tls::Client>,
    pub address: Address,
    pub export: String,
    pub connections: usize,
    pub timeout: Duration,
    /// How long requests are held while the server is away.
    pub hold: Duration,
}

/// The connections to one export.
pub(super) struct Link {
    me: Weak<Self>,
    env: Env,
    target: Reach,
    facts: ExportFacts,
    state: RefCell<State>,
    /// Counts the sessions.
    session: Cell<u64>,
    /// Since when there was no whole session.
    outage: Cell<Option<Mono>>,
    up_since: Cell<Mono>,
    short_sessions: Cell<u32>,
    rest: Cell<Duration>,
    /// Changes that were sent and not answered.
    open_changes: Cell<usize>,
    waiting: Notify,
    /// For connecting again.
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

/// Which session an answer is from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Session(u64);

/// Why an attempt to connect came to nothing.
enum Refusal {
    /// The next may do better.
    Now(Error),
    /// None will.
    Ever(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Now(error)
    }
}

impl Refusal {
    fn told(self) -> Error {
        match self {
            Self::Now(error) => error,
            Self::Ever(words) => Error::new(ErrorKind::Io, words),
        }
    }
}

/// There was a process before this one.
struct Before {
    /// Why what it has left is not all that the server may forget, if it is not.
    lost: Option<&'static str>,
}

/// The log of a disk: where somebody outlives this process it does, too, with what a process before this one
/// has left in it.
fn log_of(env: &Env, target: &Reach, log_bytes: u64) -> Result<(Rc<Unflushed>, Option<Before>)> {
    if log_bytes == 0 || !env.is_kept() {
        return Ok((Unflushed::new(log_bytes, env.pool()), None));
    }
    let name = format!("{RING}{}", target.name);
    let identity = checksum(CrcAlgorithm::Crc64Nvme, target.uri.as_bytes());
    let Remains { memory, left } =
        env.remains(&name, ring::memory_bytes(log_bytes)).map_err(|error| match error.kind() {
            ErrorKind::InUse => Error::new(ErrorKind::InUse, SAME_NAME),
            _ => error,
        })?;
    if !left {
        // Whoever had it in this process has flushed.
        let ring = Ring::new(memory, identity)?;
        return Ok((Unflushed::lasting(log_bytes, env.pool(), ring, Vec::new()), None));
    }
    let (ring, Found { changes, lost }) = Ring::open(memory, identity, |len| env.buf(len))?;
    Ok((Unflushed::lasting(log_bytes, env.pool(), ring, changes), Some(Before { lost })))
}

impl Link {
    /// Connects for the first time, and sends again what a process before this one has left.
    ///
    /// # Errors
    /// What connecting and `log_bytes` say, which makes of the facts how much may be kept; `Limit` if
    /// the pool has no room for the connections.
    pub async fn connect(
        env: &Env,
        target: Reach,
        log_bytes: impl FnOnce(&ExportFacts) -> Result<u64>,
    ) -> Result<Rc<Self>> {
        let clients = SoFar(connect_all(env, &target, Memory::Free).await?);
        let facts = clients.0[0].session().facts.clone();
        let log_bytes = log_bytes(&facts)?;
        // For connecting again while all buffers are with requests that wait for it.
        let tls_bytes = if target.tls.is_some() { tls::CONNECTION_BYTES } else { 0 };
        let bytes = target.connections * (CONNECTION_BYTES + tls_bytes);
        let bytes = if target.hold.is_zero() { 0 } else { bytes };
        let reserve = env.pool().standing(bytes).map_err(|error| error.at(&target.name))?;
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
            gone_on.map_err(|refusal| refusal.told().at(&link.target.name))?;
        }
        let clients = clients.keep();
        link.watch(&clients);
        *link.state.borrow_mut() = State::Up(clients);
        Ok(link)
    }

    /// What the server said of the export.
    pub fn facts(&self) -> &ExportFacts {
        &self.facts
    }

    /// The name of the disk.
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// The connection with the fewest requests, as soon as there is one: for `again`, a change that
    /// was sent before, a little earlier than for others.
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

    /// Whether what that session answered still counts.
    pub fn is_current(&self, session: Session) -> bool {
        self.session.get() == session.0
    }

    /// A change is being sent; it counts as open until this is dropped.
    pub fn open_change(&self) -> OpenChange<'_> {
        self.open_changes.set(self.open_changes.get() + 1);
        OpenChange(self)
    }

    /// A connection of that session is gone, and with it the session.
    pub fn lost(&self, session: Session, why: &Error) {
        if !self.is_current(session) {
            return;
        }
        self.session.set(session.0 + 1);
        let clients = match &*self.state.borrow() {
            State::Up(clients) | State::Resending(clients) => clients.clone(),
            // Whoever replays finds it out, and tries again.
            State::Replaying(_) | State::Away(_) | State::Out(_) => return,
        };
        if self.target.hold.is_zero() {
            let words = format!(
                "the connection is gone: {}. What was not flushed may be lost",
                why.message()
            );
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
        let link = self.me.upgrade().expect("it is being called");
        self.env.spawn("an NBD disk's reconnect", come_back(link, clients));
    }

    /// The disk does nothing more.
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

    /// Flushes fail from now on.
    pub fn flush_failed(&self, error: &Error) {
        self.flush_fault.note(error, &self.target.name);
        self.log.give_up();
    }

    fn forgot(&self) {
        let words = "the connection was lost with more unflushed than `replay` keeps";
        self.flush_failed(&Error::new(ErrorKind::Io, words));
    }

    /// How it is, in words, and whether it serves; `None` if there is nothing to say.
    pub fn story(&self) -> Option<(bool, String)> {
        let ago = |since: Mono| self.env.now().since(since).as_secs();
        let away = self.outage.get().map_or(0, ago);
        let hold = self.target.hold.as_secs_f64();
        match &*self.state.borrow() {
            State::Up(_) => None,
            State::Away(why) => Some((
                true,
                format!("the server is away for {away} s, {hold} s at most; {}", why.message()),
            )),
            State::Replaying(_) | State::Resending(_) => Some((
                true,
                format!("the server is back after {away} s; sending again what was not flushed"),
            )),
            State::Out(error) => Some((false, error.message().to_owned())),
        }
    }

    /// Learns when a connection ends, whether or not somebody uses it.
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

    /// Connects, finds the same export, and brings it to where the last session was.
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

    /// The next state, unless the disk has gone out of service meanwhile, for good: then the connections of that state
    /// are closed.
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

    /// Up, if no change of an earlier session is open any more.
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

    /// Goes on where a process before this one was killed. Beside what is sent again the server may have changes
    /// that were never answered: who reads them now must not see them go with its power, so all is flushed.
    async fn go_on(&self, before: Before, clients: &[Client]) -> Result<(), Refusal> {
        self.replay(clients).await?;
        if let Some(why) = before.lost {
            self.flush_failed(&Error::new(ErrorKind::Io, format!("before this process, {why}")));
            return Ok(());
        }
        let (client, stamp) = (&clients[0], self.log.stamp());
        if !self.facts.flags.has(TransmissionFlags::FLUSH) {
            // It writes through by now: what it has answered is there.
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

    /// Sends again what was answered and not flushed, in an order that keeps overlaps right: those
    /// that go together touch different bytes.
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

    /// In words: an answer did not come.
    pub fn overdue(&self) -> String {
        format!(
            "no answer within {} s. What was not flushed may be lost",
            self.deadline.limit().as_secs_f64()
        )
    }

    /// The rest before the next attempt; each is longer than the one before.
    fn rest(&self) -> Duration {
        let rest = self.rest.get();
        self.rest.set((2 * rest).min(REST_LONGEST));
        let half = rest.as_nanos() as u64 / 2;
        Duration::from_nanos(half + self.env.random("nbd reconnect") % (half + 1))
    }

    /// What is left of the time for which requests are held.
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

/// A change that was sent and is not answered.
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
    Error::new(ErrorKind::Io, "not connected yet")
}

fn replay_refused(client: &Client, range: ByteRange, error: Error) -> Refusal {
    match client.gone() {
        Some(gone) => Refusal::Now(gone),
        None => Refusal::Ever(format!(
            "the server came back and refused to write again {} bytes at {} that were not flushed: {}",
            range.len(),
            range.start(),
            error.message()
        )),
    }
}

/// Connections that are closed again if somebody stops waiting for the rest of them.
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

/// What is not as it was with the export, in words.
fn differs(was: &ExportFacts, is: &ExportFacts) -> Option<String> {
    let sizes =
        |facts: &ExportFacts| (facts.blocks.min(), facts.blocks.preferred(), facts.blocks.max());
    let what = if was.size_bytes != is.size_bytes {
        format!("{} bytes, before it were {}", is.size_bytes, was.size_bytes)
    } else if was.flags != is.flags {
        format!("the flags {:#06x}, before it were {:#06x}", is.flags.0, was.flags.0)
    } else if sizes(was) != sizes(is) {
        format!("the block sizes {:?}, before it were {:?}", sizes(is), sizes(was))
    } else {
        return None;
    };
    Some(format!(
        "the server came back with another export: it has {what}. What was not flushed may be lost"
    ))
}

/// Tries until the server is back, or it has been away for too long.
async fn come_back(link: Rc<Link>, gone: Vec<Client>) {
    if link.short_sessions.get() > SHORT_SESSIONS_MAX {
        let why = gone.iter().find_map(Client::gone).unwrap_or_else(lost_words);
        link.out(format!(
            "the connection was lost {SHORT_SESSIONS_MAX} times in a row within {} s of coming back: {}",
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
    /// Waits for the end of a session. Connections that still work are closed in order, and the server
    /// carries out what it has of them before it closes too: otherwise that could land on top of what
    /// the next session sends. After this nothing touches a buffer of theirs any more.
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

    /// An attempt came to nothing.
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
            _ => "it did not take what had to be sent again".to_owned(),
        };
        let hold = self.target.hold.as_secs_f64();
        self.out(format!(
            "the server has been away for {hold} s ({why}). What was not flushed may be lost"
        ));
    }
}
