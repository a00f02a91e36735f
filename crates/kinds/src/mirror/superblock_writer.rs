//! Writes the state of a running mirror to the labels beneath its members. The state, with the members in sync and the
//! dirty regions, is durable before the mirror carries out or acknowledges a request that relies on it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use block::control::Cause;
use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{Copies, Error, MemberState as State, Mutex, Result, StateStore, What};

use super::device::Inner;
use super::maps::Maps;
use super::member::Member;
use super::opening::Decision;
use super::record::{Generation, Known, MemberState, Record};
use super::scrub::Scrubbed;

/// The writer of a mirror's state to the labels of its members.
pub struct SuperblockWriter {
    kept: Rc<dyn StateStore>,
    lineage: Rc<Lineage>,
    /// For each member, the last state of the mirror that is known to be in the member's labels, and the last state
    /// that was sent to these labels.
    known: RefCell<Vec<(Generation, Generation)>>,
    /// For each member, the [`Known::refilled`] to record: whether a resync copies or copied all its bytes, and another
    /// member has been absent since.
    refilled: Vec<bool>,
    /// [`Decision::torn`].
    torn: Vec<usize>,
    pub maps: Maps,
    flush_failed: Cell<bool>,
    /// Number of states that this mirror has written to labels since it opened.
    states: Cell<u64>,
    durable: Cell<Option<Durable>>,
    /// Lock that a task holds while it writes a state, so that states are written one after the other.
    turn: Mutex,
}

/// The last state of the mirror that is durable in labels.
#[derive(Clone, Copy)]
struct Durable {
    /// The [`SuperblockWriter::version`] when the state was made: changes of members and flags up to this number are
    /// durable.
    version: u64,
    /// The [`Maps::version`] when the state was made.
    maps: u64,
    /// Whether the live change that made the mirror was committed when the state was written. Before the commit, the
    /// store holds a state back and does not report the outcome of its write, so the state must be written once more.
    is_committed: bool,
}

/// The numbers of states, shared by the successive mirrors of one process. A mirror that replaces another mirror counts
/// on, so that its states are newer than all states of the replaced mirror on any disk.
struct Lineage {
    /// Random number that the first of the successive mirrors drew at its opening.
    incarnation: u64,
    /// The number of the newest state of the successive mirrors.
    events: Cell<u64>,
    /// By member name, the last state that was sent to the labels of the member. The state may be on a disk that has
    /// not acknowledged its write.
    sent: RefCell<BTreeMap<String, Generation>>,
}

impl SuperblockWriter {
    pub fn new(
        kept: Rc<dyn StateStore>,
        incarnation: u64,
        decision: &Decision,
        names: &[&str],
        maps: Maps,
    ) -> Self {
        let before = kept.handed_over().and_then(|left| left.downcast::<Lineage>().ok());
        let lineage = before.unwrap_or_else(|| {
            let (events, sent) = Default::default();
            Rc::new(Lineage { incarnation, events, sent })
        });
        lineage.events.set(lineage.events.get().max(decision.events));
        let mut known = decision.known_by(lineage.incarnation);
        for ((_, sent), name) in known.iter_mut().zip(names) {
            let before = lineage.sent.borrow().get(*name).copied();
            *sent = before.filter(|_| !seeded::on(Bug::SentForgotten)).unwrap_or(*sent);
        }
        Self {
            kept,
            lineage,
            known: RefCell::new(known),
            refilled: decision.refilled.clone(),
            torn: decision.torn.clone(),
            maps,
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

    /// Returns the numbers of the mirror's states ([`Lineage`]), as the hand-over to the mirror that replaces this
    /// mirror.
    pub fn leave(&self) -> Rc<dyn Any> {
        self.lineage.clone()
    }

    /// Makes the next states record that a failed flush may have lost acknowledged writes.
    pub fn flush_failed(&self) {
        self.flush_failed.set(true);
    }

    /// Returns a number that rises with every change of a member or flag that the next state must record.
    fn version(&self, members: &[Member]) -> u64 {
        members.iter().map(Member::changes).sum::<u64>() + u64::from(self.flush_failed.get())
    }

    fn is_durable(&self, members: &[Member]) -> bool {
        self.durable.get().is_some_and(|durable| {
            let is_held = || !self.kept.is_committed();
            durable.version == self.version(members) && (durable.is_committed || is_held())
        })
    }

    /// Waits until the live change that makes the mirror is committed.
    pub fn committed(&self) -> LocalFuture<()> {
        self.kept.committed()
    }

    /// Whether a state of the mirror that was written after the commit of the live change is durable in the labels.
    /// Before such a state is durable, no state may record that members have more writes than at the opening of the
    /// mirror: an older image could be taken for a member.
    pub fn is_settled(&self) -> bool {
        self.durable.get().is_some_and(|durable| durable.is_committed)
    }

    /// Creates the next state of the mirror, and records that it is sent to the members at `ports`.
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
            missing: self.maps.to_labels(member.missing(), members.len()),
            refilled: self.refilled[n],
            content: member.content(),
        };
        Record {
            generation,
            regions: self.maps.in_labels(members.len()),
            scrubbed,
            active: self.maps.active_in_labels(members.len()),
            flush_failed: self.flush_failed.get(),
            members: members.iter().enumerate().map(member).collect(),
            room: self.maps.room(),
        }
    }
}

impl Inner {
    /// Writes the last state of a member to all of its disks, if only some of them have it. The states of this opening
    /// record one state as known to be in the labels of the member: after a crash during the first one, a disk with
    /// another state would count as an older image.
    pub async fn complete_torn(&self) {
        let Some(writer) = &self.writer else { return };
        // Before the commit of a live change, the store holds states back.
        if !writer.kept.is_committed() || seeded::on(Bug::TornStateLeft) {
            return;
        }
        for port in &writer.torn {
            let last = writer.kept.found(*port).state.clone().expect("a torn state is in a label");
            // A failure marks the member as failed, as for each later state.
            let _ = writer.kept.write(&[*port], last.bytes).await;
        }
    }

    /// Waits until all changes of members are durable in the labels of the remaining members. Marks a member as failed
    /// if its labels cannot be written; the next state of the mirror records the failure.
    ///
    /// # Errors
    /// The error of a label write, if no member in sync could record the changes.
    pub async fn remember(&self) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.write_until(writer, || writer.is_durable(&self.members)).await
    }

    /// Waits until all changes of members and of the maps that must be in labels are durable there.
    ///
    /// # Errors
    /// As [`Inner::remember`].
    pub async fn remember_maps(&self, writer: &SuperblockWriter) -> Result<()> {
        let maps = writer.maps.version();
        let is_known = || {
            let has_maps = writer.durable.get().is_some_and(|durable| durable.maps >= maps);
            has_maps && writer.is_durable(&self.members)
        };
        self.write_until(writer, is_known).await
    }

    /// Writes states of the mirror until `is_known` returns that the changes that the caller waits for are durable.
    /// While the caller waits for the lock `turn`, another task may write a state with these changes.
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

    /// Writes the next state of the mirror to the labels of all members that take writes. The caller holds the lock
    /// `turn`.
    async fn write_state(&self, writer: &SuperblockWriter) -> Result<()> {
        let (version, maps) = (writer.version(&self.members), writer.maps.version());
        let takes = |n: &usize| self.members[*n].takes_writes();
        let ports: Vec<usize> = (0..self.members.len()).filter(takes).collect();
        let record = writer.next(&self.members, &ports, self.scrubbing.recorded());
        writer.states.set(writer.states.get() + 1);
        let (mut kept, is_committed) = (Copies::NONE, writer.kept.is_committed());
        let mut result = Ok(());
        for (port, answer) in writer.kept.write(&ports, record.encode()).await {
            match answer {
                Ok(()) => {
                    if is_committed {
                        writer.known.borrow_mut()[port].0 = record.generation;
                    }
                    kept = kept.with(port);
                }
                Err(error) => {
                    self.members[port].count_error();
                    self.emit(What::LabelUnwritable, Some(port), error.to_string());
                    self.retire(port, Cause::Request, Member::words_of("a label write", &error));
                    result = Err(error);
                }
            }
        }
        // A divided member may have replaced the last member in sync. The next state records that.
        if !self.in_sync().any(|port| kept.has(port)) {
            return result.and(Err(self.nobody()));
        }
        writer.durable.set(Some(Durable { version, maps, is_committed }));
        if let Some(store) = writer.maps.store() {
            let takes_writes = |port: &usize| self.members[*port].takes_writes();
            let gone = (0..self.members.len()).filter(|port| !takes_writes(port));
            gone.for_each(|port| store.leave(port));
        }
        Ok(())
    }

    /// Arranges that the mirror marks a member as failed as soon as a write of its labels fails or is late, before the
    /// writes of the other labels have ended.
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

    /// Spawns a task that writes the state of the mirror once more after the live change that makes the mirror is
    /// committed. The task marks members whose labels cannot be written as failed.
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

    /// Writes the next state of the mirror to the labels although no request relies on it: the state shortens a later
    /// resync or scrub.
    ///
    /// # Errors
    /// As [`Inner::remember`].
    pub async fn write_next(&self, writer: &SuperblockWriter) -> Result<()> {
        let _turn = writer.turn.lock().await;
        self.write_state(writer).await
    }

    /// Spawns a task that writes the state of the mirror to the labels, for changes on which no request relies yet.
    pub fn remember_soon(&self) {
        if self.writer.is_none() {
            return;
        }
        let me = self.me.clone();
        self.tasks.spawn("a mirror's state", async move {
            if let Some(mirror) = me.upgrade() {
                // The next request that relies on the state writes it again, and gets the error.
                let _ = mirror.remember().await;
            }
        });
    }
}
