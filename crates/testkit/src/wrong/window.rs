//! A test device that forwards all requests to one lower, and can break a rule on purpose.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::control::member::Fail;
use block::control::{Command, Reply, Verb as _, VerbInfo};
use block::env::LocalFuture;
use block::{
    Buf, ByteRange, Copies, Device, Env, Error, ErrorKind, Info, Lower, Op, Request, Result, State,
    push_extent,
};

use super::Sin;

pub(super) struct Window {
    info: Info,
    lower: Lower,
    env: Env,
    sin: Option<Sin>,
    earlier: RefCell<Vec<u8>>,
    kept: RefCell<Vec<Buf>>,
    discarded: RefCell<Vec<ByteRange>>,
    flush_told: Cell<bool>,
    count: Cell<u64>,
}

impl Window {
    pub fn new(lower: Lower, env: &Env, sin: Option<Sin>) -> Self {
        let mut info = lower.info().clone();
        match sin {
            Some(Sin::IgnoresLimit) => info.max_transfer *= 4,
            Some(Sin::Boasts) => info.size += 65536,
            _ => {}
        }
        Self {
            info,
            lower,
            env: env.clone(),
            sin,
            earlier: RefCell::default(),
            kept: RefCell::default(),
            discarded: RefCell::default(),
            flush_told: Cell::new(false),
            count: Cell::new(0),
        }
    }

    fn has(&self, sin: Sin) -> bool {
        self.sin == Some(sin)
    }

    fn every(&self, nth: u64) -> bool {
        self.count.set(self.count.get() + 1);
        self.count.get().is_multiple_of(nth)
    }

    async fn pass(&self, op: &mut Op) -> Result<()> {
        let result = self.lower.forward(op).await;
        if self.has(Sin::Panics) {
            assert!(result.is_ok(), "the seeded panic on an error of the lower");
        }
        result
    }

    async fn read(&self, op: &mut Op, range: ByteRange) -> Result<()> {
        let block = u64::from(self.info.block_size);
        if self.has(Sin::SharesBuffer)
            && let Op::Read { into, .. } = op
        {
            let twice = self.lower.start(Op::read(range, into.clone()));
            self.pass(op).await?;
            return twice.await.result;
        }
        if self.has(Sin::OffByOne) && range.start() > self.info.size / 2 {
            op.set_range(range.at(range.start() - block));
        }
        let mut avoided = Copies::NONE;
        if let Op::Read { avoid, last_resort, .. } = op {
            if self.has(Sin::DropsAvoid) {
                avoided = std::mem::take(avoid);
            }
            *last_resort &= !self.has(Sin::DropsLastResort);
        }
        self.pass(op).await?;
        op.set_range(range);
        op.add_copies(avoided);
        let Op::Read { into, .. } = op else {
            unreachable!("a read request is returned as a read")
        };
        if self.has(Sin::JunkAtEdge) && into.len() as u64 > block {
            into.write()[(range.len() - block) as usize..].fill(0x55);
        }
        if self.has(Sin::AnswersStale) {
            let earlier = self.earlier.replace(into.read().to_vec());
            if earlier.len() == into.len() && self.every(8) {
                into.write().copy_from_slice(&earlier);
            }
        }
        if self.has(Sin::LeaksBuffer) && self.every(16) {
            self.kept.borrow_mut().push(into.clone());
        }
        self.expose(range, into);
        Ok(())
    }

    /// Changes the bytes of a read of a discarded range, if the device has the fault `DiscardExposes` or
    /// `DiscardFlickers`.
    fn expose(&self, range: ByteRange, into: &Buf) {
        let discarded = self.discarded.borrow().iter().any(|other| other.overlaps(range));
        if !discarded || into.len() < 1024 {
            return;
        }
        let mut bytes = into.write();
        if self.has(Sin::DiscardExposes) {
            bytes.rotate_left(512);
        }
        if self.has(Sin::DiscardFlickers) && self.every(2) {
            bytes.fill(0);
        }
    }

    async fn write(&self, op: &mut Op, range: ByteRange) -> Result<()> {
        let block = u64::from(self.info.block_size);
        if let Op::Write { restores, .. } = op
            && self.has(Sin::DropsRestore)
        {
            *restores = Copies::NONE;
        }
        if self.has(Sin::NeverCompletes) && self.every(20) {
            std::future::pending::<()>().await;
        }
        if self.has(Sin::WritesPart) && range.len() > block {
            let first = ByteRange::new(range.start(), range.len() - block)
                .expect("blocks of the range are left");
            return self.pass(&mut op.part(first)).await;
        }
        if self.has(Sin::ChangesPayload)
            && let Op::Write { data, .. } = op
        {
            let own = data.clone();
            let child = self.lower.start(op.part(range));
            own.write()[0] ^= 1;
            return child.await.result;
        }
        self.pass(op).await
    }

    async fn discard(&self, op: &mut Op, range: ByteRange) -> Result<()> {
        self.pass(op).await?;
        self.discarded.borrow_mut().push(range);
        Ok(())
    }

    async fn flush(&self, op: &mut Op) -> Result<()> {
        let flushed = self.pass(op).await;
        if self.has(Sin::RetriesFlush) && flushed.is_err() {
            let _ = self.lower.flush().await;
            return Ok(());
        }
        if self.has(Sin::ForgetsFailedFlush) && flushed.is_err() && self.flush_told.replace(true) {
            return Ok(());
        }
        flushed
    }
}

impl Device for Window {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        if self.has(Sin::FailsAtRandom) && self.env.random("whim").is_multiple_of(100) {
            return Err(Error::new(ErrorKind::Io, "an error without a cause"));
        }
        let op = &mut request.op;
        let Some(range) = op.range() else { return self.flush(op).await };
        match op {
            Op::Read { .. } => self.read(op, range).await,
            Op::Write { .. } => self.write(op, range).await,
            Op::WriteZeroes { .. } if self.has(Sin::ZeroesNothing) => Ok(()),
            Op::Discard { .. } => self.discard(op, range).await,
            Op::Status { extents, .. } if self.has(Sin::StatusLies) => {
                push_extent(extents, range.len(), State::Zero);
                Ok(())
            }
            Op::WriteZeroes { .. } | Op::Status { .. } | Op::Flush => self.pass(op).await,
        }
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        match self.sin {
            Some(Sin::PanicsAtCommand | Sin::HidesCommand) => &[Fail::INFO],
            _ => &[],
        }
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        let name = &command.args::<Fail>().expect("the device declares no other command").member;
        assert!(self.has(Sin::HidesCommand), "the device has no member {name}");
        command.done(Ok(()))
    }
}
