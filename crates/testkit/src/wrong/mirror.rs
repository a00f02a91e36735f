//! A test mirror of two members that can break a rule on purpose.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{
    ByteRange, Copies, CopyNumbers, Device, Env, Error, ErrorKind, Info, Lower, Mode, Mutex, Op,
    RangeLock, Request, Result, State, StateStore, push_extent,
};

use super::Sin;

pub(super) struct Mirror {
    info: Info,
    members: Vec<Lower>,
    numbers: Vec<CopyNumbers>,
    /// For each member, whether it has failed, so that it misses writes.
    failed: Vec<Cell<bool>>,
    /// The store in the labels where the mirror records its failed members, also for the next process.
    kept: Rc<dyn StateStore>,
    /// The record that the mirror last wrote to the labels. The lock `marking` orders these writes.
    marked: RefCell<Vec<u8>>,
    marking: Mutex,
    env: Env,
    lock: RangeLock,
    flushing: RangeLock,
    turn: Cell<usize>,
    resynced: Cell<bool>,
    sin: Option<Sin>,
}

impl Mirror {
    pub fn new(
        members: Vec<Lower>,
        kept: Rc<dyn StateStore>,
        env: &Env,
        sin: Option<Sin>,
    ) -> Result<Self> {
        let found = kept.found(0);
        if found.labelled && !found.fresh && found.state.is_none() {
            let words = "the members are not new, and have no state";
            return Err(Error::new(ErrorKind::NotFound, words));
        }
        let states = (0..members.len()).filter_map(|port| kept.found(port).state.as_ref());
        let newest = states.max_by_key(|state| state.sequence);
        let newest = newest.filter(|_| sin != Some(Sin::ForgetsStale));
        let has_failed = |n: usize| newest.is_some_and(|state| state.bytes[n] != 0);
        let infos = || members.iter().map(Lower::info);
        let (info, copies) = (Info::over(infos()), CopyNumbers::count(infos()));
        let info = info.expect("the mirror has members");
        Ok(Self {
            info: Info { size: members[0].info().size, copies, ..info },
            numbers: CopyNumbers::of(infos()).collect(),
            failed: (0..members.len()).map(|n| Cell::new(has_failed(n))).collect(),
            members,
            kept,
            marked: RefCell::default(),
            marking: Mutex::new(),
            env: env.clone(),
            lock: RangeLock::new(),
            flushing: RangeLock::new(),
            turn: Cell::new(0),
            resynced: Cell::new(false),
            sin,
        })
    }

    fn has(&self, sin: Sin) -> bool {
        self.sin == Some(sin)
    }

    fn whole(&self) -> ByteRange {
        ByteRange::new(0, self.info.size).expect("a device has at least one byte")
    }

    fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|n| !self.failed[*n].get())
    }

    /// Marks a member as failed after the error of a request. Returns the error if the member is the last in service.
    fn eject(&self, member: usize, error: Error) -> Result<()> {
        if self.failed[member].get() {
            return Ok(());
        }
        if self.live().count() == 1 {
            return Err(error);
        }
        if !self.has(Sin::SwallowsErrors) {
            self.failed[member].set(true);
        }
        Ok(())
    }

    /// Records the failed members durably in the labels of the others, before the mirror acknowledges a request that
    /// they missed.
    pub async fn remember(&self) -> Result<()> {
        let _turn = self.marking.lock().await;
        let state: Vec<_> = self.failed.iter().map(|failed| u8::from(failed.get())).collect();
        if !self.kept.found(0).labelled || *self.marked.borrow() == state {
            return Ok(());
        }
        let ports: Vec<_> = self.live().collect();
        let written = self.kept.write(&ports, state.clone());
        self.marked.replace(state);
        if self.has(Sin::MarksLate) {
            self.env.spawn("a mark without a waiter", async move { drop(written.await) });
            return Ok(());
        }
        let mut answers = written.await.into_iter();
        answers.find_map(|(_, answer)| answer.err()).map_or(Ok(()), Err)
    }

    /// Copies the bytes of one member to all others at the first request, because after a start members may differ
    /// where writes were in flight.
    async fn resync(&self) -> Result<()> {
        if self.resynced.replace(true) || self.has(Sin::NeverResyncs) {
            return Ok(());
        }
        let _held = self.lock.lock(self.whole(), Mode::Exclusive).await;
        if self.has(Sin::RevivesEarly) {
            self.revive().await?;
        }
        let step = u64::from(self.info.max_transfer);
        let mut at = 0;
        while let Some(range) = ByteRange::between(at, self.info.size.min(at + step)) {
            let mut read = Op::read(range, self.env.buf(range.len() as usize)?);
            self.read_any(&mut read, 0).await?;
            let Op::Read { into, .. } = read else {
                unreachable!("a read request is returned as a read")
            };
            for n in 0..self.members.len() {
                if let Err(error) = self.members[n].write(range, into.clone()).await {
                    self.eject(n, error)?;
                }
            }
            at = range.end();
        }
        // The bytes that reads show from now on must survive, and so must the copies made by the resync.
        for member in &self.members {
            member.flush().await?;
        }
        self.revive().await
    }

    /// Marks all members as in sync, and records that in the labels.
    async fn revive(&self) -> Result<()> {
        self.failed.iter().for_each(|failed| failed.set(false));
        self.remember().await
    }

    /// Reads from a member in service, selected by the number `turn`: if possible, from one with a copy that the read does
    /// not avoid. If the member fails, reads from another member.
    async fn read_any(&self, op: &mut Op, turn: usize) -> Result<()> {
        loop {
            let Op::Read { avoid, .. } = op else { unreachable!("only reads are read") };
            let avoided = *avoid;
            let has_other = |n: &usize| !self.numbers[*n].set().is_within(avoided);
            let mut live: Vec<_> = self.live().collect();
            if live.iter().any(has_other) {
                live.retain(has_other);
            }
            let n = live[turn % live.len()];
            *avoid = self.numbers[n].avoid(avoided);
            let read = self.members[n].forward(op).await;
            let Op::Read { avoid, .. } = op else { unreachable!("a read stays a read") };
            *avoid = avoided.or(self.numbers[n].above(*avoid));
            match read {
                Ok(()) => return Ok(()),
                Err(error) => self.eject(n, error)?,
            }
            if self.has(Sin::SwallowsErrors) {
                return Ok(());
            }
        }
    }

    fn next(&self) -> usize {
        self.turn.replace(self.turn.get() + 1)
    }

    async fn change(&self, range: ByteRange, op: &Op) -> Result<()> {
        let _held = match self.has(Sin::ReordersOverlaps) {
            true => None,
            false => Some(self.lock.lock(range, Mode::Exclusive).await),
        };
        let mut children = Vec::new();
        for n in self.live() {
            children.push((n, self.members[n].start(self.copy_of(op, range))));
        }
        if self.has(Sin::AcknowledgesEarly) {
            return Ok(());
        }
        let mut result = Ok(());
        for (n, child) in children {
            if let Err(error) = child.await.result {
                result = result.and(self.eject(n, error));
            }
        }
        self.remember().await.and(result)
    }

    /// Carries out a write that restores copies, member by member.
    async fn restore(&self, op: &Op, range: ByteRange, restores: Copies) -> Result<()> {
        let _held = self.lock.lock(range, Mode::Exclusive).await;
        for n in self.live() {
            let other = if self.has(Sin::RestoresOther) { self.members.len() - 1 - n } else { n };
            let named = self.numbers[other].below(restores);
            let mut part = op.part(range);
            if let Op::Write { restores, .. } = &mut part {
                *restores = if self.has(Sin::RestoresAll) { Copies::NONE } else { named };
            }
            if named != Copies::NONE || self.has(Sin::RestoresAll) {
                self.members[n].call(part).await.result?;
            }
        }
        Ok(())
    }

    fn copy_of(&self, op: &Op, range: ByteRange) -> Op {
        let durable = !self.has(Sin::IgnoresFua);
        match op.part(range) {
            Op::Write { range, data, fua, restores } => {
                Op::Write { range, data, fua: fua && durable, restores }
            }
            Op::WriteZeroes { range, unmap, fua } => {
                Op::WriteZeroes { range, unmap, fua: fua && durable }
            }
            // The members may differ in the effect of a discard, but not of zeroes.
            Op::Discard { range, fua } if !self.has(Sin::DiscardsCopies) => {
                Op::WriteZeroes { range, unmap: true, fua: fua && durable }
            }
            other => other,
        }
    }

    async fn flush(&self) -> Result<()> {
        if self.has(Sin::IgnoresFlush) {
            return Ok(());
        }
        let joins = self.has(Sin::JoinsFlush) && !self.flushing.is_empty();
        let _flushing = self.flushing.lock(self.whole(), Mode::Exclusive).await;
        if joins {
            return Ok(());
        }
        let skipped = usize::from(self.has(Sin::FlushSkipsMember));
        let mut children = Vec::new();
        for n in self.live().skip(skipped) {
            children.push((n, self.members[n].start(Op::Flush)));
        }
        let mut result = Ok(());
        for (n, child) in children {
            if let Err(error) = child.await.result {
                result = result.and(self.eject(n, error));
            }
        }
        self.remember().await.and(result)
    }
}

impl Device for Mirror {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.resync().await?;
        let Some(range) = request.op.range() else { return self.flush().await };
        match &mut request.op {
            Op::Read { .. } => {
                let _held = self.lock.lock(range, Mode::Shared).await;
                self.read_any(&mut request.op, self.next()).await
            }
            Op::Status { extents, .. } => {
                // Equal copies may still report zeros differently.
                push_extent(extents, range.len(), State::Data);
                Ok(())
            }
            Op::Write { restores, .. } if *restores != Copies::NONE => {
                let restores = *restores;
                self.restore(&request.op, range, restores).await
            }
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard { .. } => {
                self.change(range, &request.op).await
            }
            Op::Flush => Err(Error::new(ErrorKind::Invalid, "a flush has no range")),
        }
    }
}
