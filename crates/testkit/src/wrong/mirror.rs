//! Two copies of everything, with room for sins.

use std::cell::Cell;

use block::{
    ByteRange, Device, Env, Error, ErrorKind, Info, Lower, Mode, Needs, Op, RangeLock, Request,
    Result, State, push_extent,
};

use super::Sin;

pub(super) struct Copies {
    info: Info,
    members: Vec<Lower>,
    /// Members that failed; forgotten with the process, which a real mirror may not.
    failed: Vec<Cell<bool>>,
    env: Env,
    lock: RangeLock,
    flushing: RangeLock,
    turn: Cell<usize>,
    resynced: Cell<bool>,
    sin: Option<Sin>,
}

impl Copies {
    pub fn new(members: Vec<Lower>, env: &Env, sin: Option<Sin>) -> Self {
        let info = Info::over(members.iter().map(Lower::info)).expect("there are members");
        Self {
            info: Info { size: members[0].info().size, ..info },
            failed: members.iter().map(|_| Cell::new(false)).collect(),
            members,
            env: env.clone(),
            lock: RangeLock::new(),
            flushing: RangeLock::new(),
            turn: Cell::new(0),
            resynced: Cell::new(false),
            sin,
        }
    }

    fn has(&self, sin: Sin) -> bool {
        self.sin == Some(sin)
    }

    fn whole(&self) -> ByteRange {
        ByteRange::new(0, self.info.size).expect("a device has bytes")
    }

    fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|n| !self.failed[*n].get())
    }

    /// Puts the member out of service, unless it is the last.
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

    /// After a start nobody knows which member got what was in flight: the first one is right.
    async fn resync(&self) -> Result<()> {
        if self.resynced.replace(true) || self.has(Sin::NeverResyncs) {
            return Ok(());
        }
        let _held = self.lock.lock(self.whole(), Mode::Exclusive).await;
        let step = u64::from(self.info.max_transfer);
        let mut at = 0;
        while let Some(range) = ByteRange::between(at, self.info.size.min(at + step)) {
            let mut read = Op::read(range, self.env.buf(range.len() as usize)?);
            self.read_any(&mut read, 0).await?;
            let Op::Read { into, .. } = read else { unreachable!("a read comes back as one") };
            for n in self.live().collect::<Vec<_>>() {
                if let Err(error) = self.members[n].write(range, into.clone()).await {
                    self.eject(n, error)?;
                }
            }
            at = range.end();
        }
        // What is shown from now on may not go again.
        self.flush().await
    }

    /// Reads from the member whose turn it is, or from another.
    async fn read_any(&self, op: &mut Op, turn: usize) -> Result<()> {
        loop {
            let live: Vec<_> = self.live().collect();
            let n = live[turn % live.len()];
            match self.members[n].forward(op).await {
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
        result
    }

    fn copy_of(&self, op: &Op, range: ByteRange) -> Op {
        let durable = !self.has(Sin::IgnoresFua);
        match op.part(range) {
            Op::Write { range, data, fua } => Op::Write { range, data, fua: fua && durable },
            Op::WriteZeroes { range, unmap, fua } => {
                Op::WriteZeroes { range, unmap, fua: fua && durable }
            }
            // Members may differ in what they make of a discard; of zeros they may not.
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
        result
    }
}

impl Device for Copies {
    fn info(&self) -> &Info {
        &self.info
    }

    fn needs(&self) -> Needs {
        Needs::children(self.members.len() as u32)
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
                // Copies that were written together may still tell of zeros differently.
                push_extent(extents, range.len(), State::Data);
                Ok(())
            }
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard { .. } => {
                self.change(range, &request.op).await
            }
            Op::Flush => Err(Error::new(ErrorKind::Invalid, "a flush has no range")),
        }
    }
}
