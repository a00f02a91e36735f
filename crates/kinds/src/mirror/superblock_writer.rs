//! Writes the state of a running mirror to the labels: the members in sync and the dirty regions are durable on the
//! members before a request relies on them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::control::Cause;
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

/// The writer of a mirror's state to the labels of its members.
pub struct SuperblockWriter {
    kept: Rc<dyn StateStore>,
    lineage: Rc<Lineage>,
    /// For each member, the state that is known to be on it, and the last one that was sent to it.
    known: RefCell<Vec<(Generation, Generation)>>,
    /// Whether each member was copied as a whole while another one is away.
    refilled: Vec<bool>,
    pub intent: Intent,
    /// Time without writes after which a region leaves the bitmap.
    delay: Duration,
    flush_failed: Cell<bool>,
    /// Number of states written.
    states: Cell<u64>,
    durable: Cell<Option<Durable>>,
    /// Serialises the writing of states.
    turn: Mutex,
}

/// The last durable state.
#[derive(Clone, Copy)]
struct Durable {
    /// The number of changes of members and flags that it covers.
    version: u64,
    /// Whether the mirror was committed when it was written. Before, a state is held back and its outcome is not
    /// reported, so it must be written once more.
    is_committed: bool,
}

/// Numbers of states, shared by the successive mirrors of a process. A state of a successor is newer than all states of
/// its predecessors, on whichever disks these are.
struct Lineage {
    /// Random number drawn by the first opening.
    incarnation: u64,
    /// The highest state number.
    events: Cell<u64>,
    /// By member name, the last of these states that was sent to it. It may be on a disk that has not acknowledged it.
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

    /// Returns the number of states that the mirror has written to labels.
    pub fn states(&self) -> u64 {
        self.states.get()
    }

    /// Returns the identity and the highest number of the mirror's states, for the device that replaces the mirror.
    pub fn leave(&self) -> Rc<dyn Any> {
        self.lineage.clone()
    }

    /// Records that a failed flush may have lost acknowledged writes.
    pub fn flush_failed(&self) {
        self.flush_failed.set(true);
    }

    /// Returns a number that rises with every change that a state covers.
    fn version(&self, members: &[Member]) -> u64 {
        members.iter().map(Member::changes).sum::<u64>() + u64::from(self.flush_failed.get())
    }

    fn is_durable(&self, members: &[Member]) -> bool {
        self.durable.get().is_some_and(|durable| {
            let is_held = || !self.kept.is_committed();
            durable.version == self.version(members) && (durable.is_committed || is_held())
        })
    }

    /// Waits until the change of the graph that makes the mirror is committed.
    pub fn committed(&self) -> LocalFuture<()> {
        self.kept.committed()
    }

    /// Whether a committed state is on the members, which the next one then records. Before, no state may record that
    /// members have more than when the mirror was opened: an older image would pass for a member.
    fn is_settled(&self) -> bool {
        self.durable.get().is_some_and(|durable| durable.is_committed)
    }

    /// Creates the next state, which is sent to `ports`.
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
            state: match member.state() {
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
    /// Returns when all changes of members are durable in the labels of the remaining members. A member to whose labels
    /// the state cannot be written is retired, and the next state records that.
    ///
    /// # Errors
    /// The error of the last member in sync, if no member is left to record the changes.
    pub async fn remember(&self) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.write_until(writer, || writer.is_durable(&self.members)).await
    }

    /// Writes states until `is_known` accepts one as durable. A caller that waits for its turn may find its own changes
    /// in the state that is written meanwhile.
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

    /// Writes the next state. The caller holds the lock `turn`.
    async fn write_state(&self, writer: &SuperblockWriter) -> Result<()> {
        let version = writer.version(&self.members);
        let takes = |n: &usize| self.members[*n].takes_writes();
        let ports: Vec<usize> = (0..self.members.len()).filter(takes).collect();
        let record = writer.next(&self.members, &ports, self.scrubbing.recorded());
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
                    self.emit(What::LabelUnwritable, Some(port), error.to_string());
                    self.retire(port, Cause::Request, Member::words_of("a label write", &error));
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

    /// Retires a member as soon as a write of its labels fails, while writes of other labels are still awaited.
    pub fn hear_of_failures(&self) {
        let Some(writer) = &self.writer else { return };
        let me = self.me.clone();
        let told = move |port, error: &Error| {
            if let Some(mirror) = me.upgrade() {
                mirror.retire(port, Cause::Request, Member::words_of("a label write", error));
            }
        };
        writer.kept.on_failure(self.deadline.clone(), Rc::new(told));
    }

    /// Writes the held-back state of the mirror again once the change of the graph is committed, and retires members
    /// whose labels cannot be written.
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

    /// Writes the next state of the mirror to the labels although no caller waits for it, because it shortens a later
    /// resync.
    ///
    /// # Errors
    /// As [`Inner::remember`].
    pub async fn write_next(&self, writer: &SuperblockWriter) -> Result<()> {
        let _turn = writer.turn.lock().await;
        self.write_state(writer).await
    }

    /// Spawns a task that writes the state of the mirror to the labels, for changes that no caller waits for.
    pub fn remember_soon(&self) {
        if self.writer.is_none() {
            return;
        }
        let me = self.me.clone();
        self.tasks.spawn("a mirror's state", async move {
            if let Some(mirror) = me.upgrade() {
                // The next caller that relies on the state tries again, and gets the error.
                let _ = mirror.remember().await;
            }
        });
    }

    /// Makes durable in labels, before a request changes `range`, that the regions of `range` are dirty, and which
    /// members miss its writes.
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

    /// Marks the regions of a range as dirty. Members that take no writes miss them from now on.
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

    /// Removes regions from the bitmap that are not written any more. Returns whether it must be checked again.
    async fn look_at_map(&self) -> bool {
        let Some(writer) = &self.writer else { return false };
        if self.tasks.is_closing() || !writer.is_settled() {
            return true;
        }
        let _one = self.tasks.enter();
        let busy = |range| self.lock.is_wanted(range) && !seeded::on(Bug::RegionLeftBusy);
        let quiet = writer.intent.quiet(busy);
        // Writes there must be durable on all members before the bitmap claims that these are identical.
        if !quiet.is_empty() && (seeded::on(Bug::RegionUnflushed) || self.flush().await.is_ok()) {
            let _turn = writer.turn.lock().await;
            if writer.intent.leave(&quiet, busy) {
                // The next caller that relies on a state writes it again, and gets the error.
                let _ = self.write_state(writer).await;
            }
        }
        let is_watched = !writer.intent.is_empty();
        writer.intent.is_watched.set(is_watched);
        is_watched
    }
}
