//! What a device sees of the one below: a handle to start requests on.

use std::future::{Future, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Context, Poll};

use crate::control::{Command, Reply, Verb};
use crate::env::LocalFuture;
use crate::seeded::{self, Bug};
use crate::{Buf, ByteRange, Info, Op, Result};

/// The side of the executor that a device reaches: one device below, and the requests started on
/// it. `graph` implements it; a device never sees more.
pub trait Core {
    /// Begins `op`; it runs until it first waits, or to its end. While it runs, `op` is a flush that
    /// nobody carries out.
    fn start(&self, op: &mut Op) -> Started;
    /// The answer, once.
    fn poll(&self, child: ChildId, cx: &mut Context<'_>) -> Poll<Done>;
    /// Nobody waits any more. The work goes on, its answer is dropped.
    fn abandon(&self, child: ChildId);
    /// Carries out a command on the device below.
    fn control(&self, command: Command) -> LocalFuture<Result<Reply>> {
        Box::pin(ready(Err(command.unknown_to("the device below"))))
    }
}

/// How far a request came at once.
pub enum Started {
    /// To its end; the operation is back where it was.
    Done(Result<()>),
    /// To its first wait; the rest comes under this number.
    Running(ChildId),
}

/// Which child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChildId(pub u64);

/// A finished request: its operation, with the buffers, and how it went.
#[derive(Debug)]
pub struct Done {
    /// The operation that was started. A read has its bytes in it.
    pub op: Op,
    /// How it went.
    pub result: Result<()>,
}

impl Done {
    /// The buffer of a read or write that succeeded.
    ///
    /// # Errors
    /// The request's own.
    ///
    /// # Panics
    /// If the operation had no buffer.
    pub fn into_buf(self) -> Result<Buf> {
        self.result?;
        match self.op {
            Op::Read { into, .. } => Ok(into),
            Op::Write { data, .. } => Ok(data),
            other => panic!("a {} has no buffer", other.verb()),
        }
    }
}

/// A device below, seen from above. A clone is a second handle to the same one.
#[derive(Clone)]
pub struct Lower {
    core: Rc<dyn Core>,
    node: usize,
    info: Rc<Info>,
    name: Rc<str>,
}

impl Lower {
    /// A handle to the device behind `node`; made by the graph only.
    pub fn new(core: Rc<dyn Core>, node: usize, info: Info, name: Rc<str>) -> Self {
        Self { core, node, info: Rc::new(info), name }
    }

    /// The facts about the device below.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Its name in the spec.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The graph's number for it.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Begins a request. It goes on whether or not somebody waits.
    pub fn start(&self, mut op: Op) -> Child {
        match self.core.start(&mut op) {
            Started::Done(result) => Child(State::Done(Done { op, result })),
            Started::Running(id) => Child(State::Running(self.core.clone(), id)),
        }
    }

    /// Carries out `op` and gives it back with the answer.
    pub async fn call(&self, op: Op) -> Done {
        self.start(op).await
    }

    /// Passes a request on unchanged; its answer is in it afterwards. An answer of another lower, which did not
    /// count, is removed first.
    ///
    /// # Errors
    /// The lower device's.
    #[inline]
    pub async fn forward(&self, op: &mut Op) -> Result<()> {
        if let Op::Status { extents, .. } = op
            && !seeded::on(Bug::StatusLeftOver)
        {
            extents.clear();
        }
        match self.core.start(op) {
            Started::Done(result) => result,
            Started::Running(id) => {
                let done = Child(State::Running(self.core.clone(), id)).await;
                *op = done.op;
                done.result
            }
        }
    }

    /// Carries out a command on the device below, or where its range lies further down.
    ///
    /// # Errors
    /// `Unsupported` if a device on the way neither knows the command nor shows where its bytes are; else the device's own.
    pub async fn control<V: Verb>(&self, command: Command) -> Result<V::Answer> {
        self.core.control(command).await?.answer::<V>()
    }

    /// Reads `range` into `into`, and says where the bytes are.
    ///
    /// # Errors
    /// The lower device's.
    pub async fn read(&self, range: ByteRange, into: Buf) -> Result<Buf> {
        self.call(Op::read(range, into)).await.into_buf()
    }

    /// Writes `data` to `range`, to be durable after a flush.
    ///
    /// # Errors
    /// The lower device's.
    pub async fn write(&self, range: ByteRange, data: Buf) -> Result<()> {
        self.call(Op::write(range, data)).await.result
    }

    /// Makes durable what completed before.
    ///
    /// # Errors
    /// The lower device's.
    pub async fn flush(&self) -> Result<()> {
        self.call(Op::Flush).await.result
    }
}

/// A request in flight below. Await it for the answer; drop it and the answer is dropped, the work
/// is not.
#[must_use = "the answer of a child tells whether it worked"]
pub struct Child(State);

enum State {
    Done(Done),
    Running(Rc<dyn Core>, ChildId),
    Fetched,
}

impl Future for Child {
    type Output = Done;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        if let State::Running(core, id) = &self.0 {
            let done = task::ready!(core.poll(*id, cx));
            self.0 = State::Fetched;
            return Poll::Ready(done);
        }
        match std::mem::replace(&mut self.0, State::Fetched) {
            State::Done(done) => Poll::Ready(done),
            _ => panic!("a child is not polled after its answer"),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let State::Running(core, id) = &self.0 {
            core.abandon(*id);
        }
    }
}
