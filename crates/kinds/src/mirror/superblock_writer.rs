//! What a running mirror keeps: who is in sync and where writes may be on their way, durable on the members
//! before anybody relies on it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{ByteRange, Error, MemberState as State, Mutex, Result, StateStore, What};

use super::device::Inner;
use super::intent::Intent;
use super::member::Member;
use super::opening::Decision;
use super::record::{Generation, Known, MemberState, Record};
use super::regions::Regions;
use super::scrub::Scrubbed;

/// The state that a mirror keeps in its members' labels.
pub struct SuperblockWriter {
    kept: Rc<dyn StateStore>,
    lineage: Rc<Lineage>,
    /// Of each member: what is known to be on it, and what was last sent there.
    known: RefCell<Vec<(Generation, Generation)>>,
    /// Of each member: whether it was copied as a whole while another one is away.
    refilled: Vec<bool>,
    pub intent: Intent,
    /// How long nobody has to have written to a region before it leaves the map.
    delay: Duration,
    flush_failed: Cell<bool>,
    /// States that were written.
    states: Cell<u64>,
    durable: Cell<Option<Durable>>,
    /// One state is written after the other.
    turn: Mutex,
}

/// What states are durable.
#[derive(Clone, Copy)]
struct Durable {
    /// How many changes of members and flags they tell of.
    version: u64,
    /// Whether the mirror was sure to stay when they were written. Otherwise they were held back: what has become
    /// of them nobody says, so they are written once more.
    is_committed: bool,
}

/// The numbers of states, of one mirror after the other in a process: what a successor writes is newer, whatever it
/// found, and what its predecessor has written comes before that, wherever it is.
struct Lineage {
    /// Drawn by the first opening.
    incarnation: u64,
    /// The highest change.
    events: Cell<u64>,
    /// The last of these states that was sent to each member, by its name. It may be on a disk that has not
    /// acknowledged it.
    sent: RefCell<BTreeMap<String, Generation>>,
}

impl SuperblockWriter {
    pub fn new(
        kept: Rc<dyn StateStore>,
        incarnation: u64,
        decision: &Decision,
        names: &[&str],
        regions: Regions,
        delay: Duration,
    ) -> Self {
        let before = kept.handed_over().and_then(|left| left.downcast::<Lineage>().ok());
        let lineage = before.unwrap_or_else(|| {
            let (events, sent) = Default::default();
            Rc::new(Lineage { incarnation, events, sent })
        });
        lineage.events.set(lineage.events.get().max(decision.events));
        let mut known = decision.known.clone();
        for ((_, sent), name) in known.iter_mut().zip(names) {
            let before = lineage.sent.borrow().get(*name).copied();
            *sent = before.filter(|_| !seeded::on(Bug::SentForgotten)).unwrap_or(*sent);
        }
        Self {
            kept,
            lineage,
            known: RefCell::new(known),
            refilled: decision.refilled.clone(),
            intent: Intent::new(regions),
            delay,
            flush_failed: Cell::new(false),
            states: Cell::new(0),
            durable: Cell::new(None),
            turn: Mutex::new(),
        }
    }

    /// How many states were written.
    pub fn states(&self) -> u64 {
        self.states.get()
    }

    /// What it leaves to its successor.
    pub fn leave(&self) -> Rc<dyn Any> {
        self.lineage.clone()
    }

    /// What was answered may be lost.
    pub fn flush_failed(&self) {
        self.flush_failed.set(true);
    }

    /// Grows with every change that a state tells of.
    fn version(&self, members: &[Member]) -> u64 {
        members.iter().map(Member::changes).sum::<u64>() + u64::from(self.flush_failed.get())
    }

    fn is_durable(&self, members: &[Member]) -> bool {
        self.durable.get().is_some_and(|durable| {
            let is_held = || !self.kept.is_committed();
            durable.version == self.version(members) && (durable.is_committed || is_held())
        })
    }

    /// Until the mirror is sure to stay.
    pub fn committed(&self) -> LocalFuture<()> {
        self.kept.committed()
    }

    /// Whether a state that stays is on the members, and the next one tells so. Before, none may claim that they
    /// have more than when the mirror was opened: an older image would count for a member.
    fn is_settled(&self) -> bool {
        self.durable.get().is_some_and(|durable| durable.is_committed)
    }

    /// The next state, sent to `ports`.
    fn next(&self, members: &[Member], ports: &[usize], scrubbed: Scrubbed) -> Record {
        let Lineage { incarnation, events, sent } = &*self.lineage;
        events.set(events.get() + 1);
        let generation = Generation { incarnation: *incarnation, events: events.get() };
        let mut all = self.known.borrow_mut();
        for port in ports {
            all[*port].1 = generation;
            sent.borrow_mut().insert(members[*port].lower.name().to_owned(), generation);
        }
        let member = |(n, member): (usize, &Member)| Known {
            name: member.lower.name().to_owned(),
            standing: match member.state() {
                State::InSync => MemberState::InSync,
                State::Copying | State::Stale | State::Spare => MemberState::Stale,
                State::Failed => MemberState::Failed,
            },
            known: all[n].0,
            sent: all[n].1,
            missing: member.missing(),
            refilled: self.refilled[n],
        };
        Record {
            generation,
            regions: *self.intent.regions(),
            scrubbed,
            active: self.intent.wanted(),
            flush_failed: self.flush_failed.get(),
            members: members.iter().enumerate().map(member).collect(),
        }
    }
}

impl Inner {
    /// Returns when everything that members have come to is durable on those that stay. A member that
    /// cannot take it is taken out, and the next state says so.
    ///
    /// # Errors
    /// What the last member in sync says if nobody is left who could remember it.
    pub async fn remember(&self) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.write_until(writer, || writer.is_durable(&self.members)).await
    }

    /// Writes states until one is durable that `is_known` accepts. A caller that waits for its turn finds its own
    /// changes in the state that is written meanwhile.
    async fn write_until(
        &self,
        writer: &SuperblockWriter,
        is_known: impl Fn() -> bool,
    ) -> Result<()> {
        while !is_known() {
            let _turn = writer.turn.lock().await;
            if !is_known() {
                self.write_state(writer).await?;
            }
        }
        Ok(())
    }

    /// Writes the next state. The caller has the turn.
    async fn write_state(&self, writer: &SuperblockWriter) -> Result<()> {
        let version = writer.version(&self.members);
        let takes = |n: &usize| self.members[*n].takes_writes();
        let ports: Vec<usize> = (0..self.members.len()).filter(takes).collect();
        let record = writer.next(&self.members, &ports, self.scrubbing.told());
        writer.states.set(writer.states.get() + 1);
        let (mut kept, is_committed) = (false, writer.kept.is_committed());
        let mut result = Ok(());
        for (port, answer) in writer.kept.write(&ports, record.encode()).await {
            match answer {
                Ok(()) => {
                    if is_committed {
                        writer.known.borrow_mut()[port].0 = record.generation;
                    }
                    kept |= self.members[port].state() == State::InSync;
                }
                Err(error) => {
                    self.members[port].count_error();
                    self.tell(What::LabelUnwritable, Some(port), error.to_string());
                    self.retire(port, Member::words_of("its label", &error));
                    result = Err(error);
                }
            }
        }
        if !kept {
            return result.and(Err(self.nobody()));
        }
        writer.durable.set(Some(Durable { version, is_committed }));
        writer.intent.made_durable(record.active);
        Ok(())
    }

    /// Who cannot take a state is out at once, whoever else is awaited still.
    pub fn hear_of_failures(&self) {
        let Some(writer) = &self.writer else { return };
        let me = self.me.clone();
        let told = move |port, error: &Error| {
            if let Some(mirror) = me.upgrade() {
                mirror.retire(port, Member::words_of("its label", error));
            }
        };
        writer.kept.on_failure(self.deadline.clone(), Rc::new(told));
    }

    /// What was held back until the mirror is sure to stay is written once more: who could not take it is out.
    pub fn remember_when_sure(&self) {
        let Some(writer) = self.writer.as_ref().filter(|writer| !writer.kept.is_committed()) else {
            return;
        };
        let (me, sure) = (self.me.clone(), writer.kept.committed());
        self.env.spawn("a mirror's beginning", async move {
            sure.await;
            if let Some(mirror) = me.upgrade() {
                mirror.remember_soon();
            }
        });
    }

    /// Writes the next state although nobody waits for it: what it says anew costs a copy less.
    ///
    /// # Errors
    /// As [`Inner::remember`].
    pub async fn write_next(&self, writer: &SuperblockWriter) -> Result<()> {
        let _turn = writer.turn.lock().await;
        self.write_state(writer).await
    }

    /// The same, soon, for changes that nobody waits for.
    pub fn remember_soon(&self) {
        if self.writer.is_none() {
            return;
        }
        let me = self.me.clone();
        self.tasks.spawn("a mirror's state", async move {
            if let Some(mirror) = me.upgrade() {
                // Whoever relies on it next tries again, and is told.
                let _ = mirror.remember().await;
            }
        });
    }

    /// Before a request changes bytes: that writes may be on their way there is durable, and so is who
    /// misses them.
    ///
    /// # Errors
    /// As [`Inner::remember`].
    pub async fn announce(&self, range: ByteRange) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        writer.intent.count_write();
        let is_known = || writer.intent.covers(range) && writer.is_durable(&self.members);
        if is_known() {
            return Ok(());
        }
        self.mark(writer, range);
        if seeded::on(Bug::RegionMarkedLate) {
            self.remember_soon();
            return Ok(());
        }
        self.write_until(writer, is_known).await
    }

    /// From now on there may be writes to a range; who takes none misses them.
    fn mark(&self, writer: &SuperblockWriter, range: ByteRange) {
        writer.intent.want(range);
        let wanted = writer.intent.wanted();
        for member in self.members.iter().filter(|member| !member.takes_writes()) {
            member.misses(&wanted);
        }
        if writer.intent.is_watched.replace(true) {
            return;
        }
        let (me, env, delay) = (self.me.clone(), self.env.clone(), writer.delay);
        self.env.spawn("a mirror's map", async move {
            loop {
                env.sleep(delay).await;
                let Some(mirror) = me.upgrade() else { return };
                if !mirror.look_at_map().await {
                    return;
                }
            }
        });
    }

    /// Takes regions out of the map that nobody writes to any more. Whether there are others left.
    async fn look_at_map(&self) -> bool {
        let Some(writer) = &self.writer else { return false };
        if self.tasks.is_closing() || !writer.is_settled() {
            return true;
        }
        let _one = self.tasks.enter();
        let busy = |range| self.lock.is_wanted(range) && !seeded::on(Bug::RegionLeftBusy);
        let quiet = writer.intent.quiet(busy);
        // What was written there is on all members before the map says that they are alike.
        if !quiet.is_empty() && (seeded::on(Bug::RegionUnflushed) || self.flush().await.is_ok()) {
            let _turn = writer.turn.lock().await;
            if writer.intent.leave(&quiet, busy) {
                // Whoever relies on the next state writes it again, and is told.
                let _ = self.write_state(writer).await;
            }
        }
        let is_watched = !writer.intent.is_empty();
        writer.intent.is_watched.set(is_watched);
        is_watched
    }
}
