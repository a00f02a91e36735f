//! What a running mirror keeps: who is in sync, durable on the members before anybody relies on it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Kept, RangeLock, Result};

use super::device::Inner;
use super::member::{Member, State};
use super::opening::Decision;
use super::record::{Known, Point, Record, Standing};

/// The state that a mirror keeps in its members' labels.
pub struct Ledger {
    kept: Rc<dyn Kept>,
    /// Drawn by this opening.
    opening: u64,
    change: Cell<u64>,
    /// Of each member: what is known to be on it, and what was last sent there.
    known: RefCell<Vec<(Point, Point)>>,
    active: Cell<bool>,
    flush_failed: Cell<bool>,
    /// How many changes of members and flags are durable.
    durable: Cell<Option<u64>>,
    /// One state is written after the other.
    turn: RangeLock,
}

/// The highest change of a mirror that was closed. What its successor writes is newer, whatever that one found.
struct Reached(u64);

impl Ledger {
    pub fn new(kept: Rc<dyn Kept>, opening: u64, decision: &Decision) -> Self {
        let before = kept.handed_over().and_then(|left| left.downcast::<Reached>().ok());
        let reached = before.map_or(0, |before| before.0);
        Self {
            kept,
            opening,
            change: Cell::new(decision.change.max(reached)),
            known: RefCell::new(decision.known.clone()),
            active: Cell::new(false),
            flush_failed: Cell::new(false),
            durable: Cell::new(None),
            turn: RangeLock::new(),
        }
    }

    /// What it leaves to its successor.
    pub fn leave(&self) -> Rc<dyn Any> {
        Rc::new(Reached(self.change.get()))
    }

    /// From now on writes may be on their way.
    pub fn activate(&self) {
        self.active.set(true);
    }

    /// What was answered may be lost.
    pub fn flush_failed(&self) {
        self.flush_failed.set(true);
    }

    /// Grows with every change that a state tells of.
    fn version(&self, members: &[Member]) -> u64 {
        let flags = u64::from(self.active.get()) + u64::from(self.flush_failed.get());
        members.iter().map(Member::changes).sum::<u64>() + flags
    }

    fn is_durable(&self, members: &[Member]) -> bool {
        self.durable.get() == Some(self.version(members))
    }

    /// The next state, sent to `ports`.
    fn next(&self, members: &[Member], ports: &[usize]) -> Record {
        self.change.set(self.change.get() + 1);
        let point = Point { opening: self.opening, change: self.change.get() };
        let mut all = self.known.borrow_mut();
        ports.iter().for_each(|port| all[*port].1 = point);
        let member = |(member, (known, sent)): (&Member, &(Point, Point))| Known {
            name: member.lower.name().to_owned(),
            standing: match member.state() {
                State::InSync => Standing::InSync,
                State::Copying | State::Stale => Standing::Stale,
                State::Failed => Standing::Failed,
            },
            known: *known,
            sent: *sent,
        };
        Record {
            point,
            active: self.active.get(),
            flush_failed: self.flush_failed.get(),
            members: members.iter().zip(all.iter()).map(member).collect(),
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
        let Some(ledger) = &self.ledger else { return Ok(()) };
        while !ledger.is_durable(&self.members) {
            let _turn = ledger.turn.turn().await;
            if ledger.is_durable(&self.members) {
                break;
            }
            self.write_state(ledger).await?;
        }
        Ok(())
    }

    async fn write_state(&self, ledger: &Ledger) -> Result<()> {
        let version = ledger.version(&self.members);
        let takes = |n: &usize| self.members[*n].state().takes_writes();
        let ports: Vec<usize> = (0..self.members.len()).filter(takes).collect();
        let record = ledger.next(&self.members, &ports);
        let mut kept = false;
        let mut result = Ok(());
        for (port, answer) in ledger.kept.write(&ports, record.encode()).await {
            match answer {
                Ok(()) => {
                    ledger.known.borrow_mut()[port].0 = record.point;
                    kept |= self.members[port].state() == State::InSync;
                }
                Err(error) => {
                    self.members[port].count_error();
                    self.retire(port, Member::words_of("its label", &error));
                    result = Err(error);
                }
            }
        }
        if !kept {
            return result.and(Err(self.nobody()));
        }
        ledger.durable.set(Some(version));
        Ok(())
    }

    /// The same, soon, for changes that nobody waits for.
    pub fn remember_soon(&self) {
        if self.ledger.is_none() {
            return;
        }
        let me = self.me.clone();
        let one = self.underway.begin();
        self.env.spawn("a mirror's state", async move {
            let _one = one;
            if let Some(mirror) = me.upgrade() {
                // Whoever relies on it next tries again, and is told.
                let _ = mirror.remember().await;
            }
        });
    }

    /// Before a request changes bytes: that writes may be on their way is durable, and so is who
    /// misses them.
    ///
    /// # Errors
    /// As [`Inner::remember`].
    pub async fn announce(&self) -> Result<()> {
        let Some(ledger) = &self.ledger else { return Ok(()) };
        ledger.activate();
        if ledger.is_durable(&self.members) {
            return Ok(());
        }
        self.remember().await
    }
}
