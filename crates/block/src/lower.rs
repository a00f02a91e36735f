//! The handle of a device to one of its lowers, on which the device starts requests.

use std::future::{Future, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Context, Poll};

use crate::control::{Command, Reply, Verb};
use crate::env::LocalFuture;
use crate::seeded::{self, Bug};
use crate::{Buf, ByteRange, Copies, Info, Op, Result};

/// The access of a device to one lower: the requests that the device has started on the lower. The engine implements
/// it. A device has no other access to its lowers.
pub trait Core {
    /// Starts `op` on the lower. The request runs until it waits for the first time, or until it ends. While the
    /// request runs, `op` is a placeholder: a flush that is not carried out.
    fn start(&self, op: &mut Op) -> Started;
    /// Returns the finished request `child`, with its operation and result. It is returned once.
    fn poll(&self, child: ChildId, cx: &mut Context<'_>) -> Poll<Done>;
    /// Ends the wait for the request `child`. The request runs to its end, and its result is dropped.
    fn abandon(&self, child: ChildId);
    /// Carries out a command on the lower, or on the devices below it that hold the command's range.
    fn control(&self, command: Command) -> LocalFuture<Result<Reply>> {
        Box::pin(ready(Err(command.unknown_to("the device below"))))
    }
}

/// State of a child request after its start.
pub enum Started {
    /// The request has ended with this result, and the caller's `op` has its operation again.
    Done(Result<()>),
    /// The request waits; [`Core::poll`] returns it under this number when it has ended.
    Running(ChildId),
}

/// Number of a child request: a request that a device has started on a lower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChildId(pub u64);

/// A finished child request: its operation with the buffers, and its result.
#[derive(Debug)]
pub struct Done {
    /// Operation of the request. For a read, its buffer has the bytes.
    pub op: Op,
    /// Result of the child request.
    pub result: Result<()>,
}

impl Done {
    /// Returns the copies that a read has avoided, and those that it has read: the copies that another read must avoid to
    /// read other bytes. If the read has added none, it found no other copy than those to avoid.
    ///
    /// # Panics
    /// If the operation was no read.
    pub fn copies(&self) -> Copies {
        match &self.op {
            Op::Read { avoid, .. } => *avoid,
            other => panic!("a {} request reads no copy", other.verb()),
        }
    }

    /// Returns the buffer of a read or write request that succeeded.
    ///
    /// # Errors
    /// The error of the request.
    ///
    /// # Panics
    /// If the operation had no buffer.
    pub fn into_buf(self) -> Result<Buf> {
        self.result?;
        match self.op {
            Op::Read { into, .. } => Ok(into),
            Op::Write { data, .. } => Ok(data),
            other => panic!("a {} request has no buffer", other.verb()),
        }
    }
}

/// A handle of a device to one of its lowers. A clone refers to the same lower.
#[derive(Clone)]
pub struct Lower {
    core: Rc<dyn Core>,
    flush_id: usize,
    info: Rc<Info>,
    name: Rc<str>,
}

impl Lower {
    /// Creates a handle to a lower. Only the engine calls it. Two lowers have the same `flush_id` if a flush of one is a
    /// flush of the other.
    pub fn new(core: Rc<dyn Core>, flush_id: usize, info: Info, name: Rc<str>) -> Self {
        Self { core, flush_id, info: Rc::new(info), name }
    }

    /// Returns the facts about the lower.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the name of the lower in the spec.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a flush of this lower is also a flush of `other`: both are parts of the same device, or the same.
    pub fn is_flushed_with(&self, other: &Self) -> bool {
        self.flush_id == other.flush_id
    }

    /// Starts `op` on the lower. The request runs to its end even if the returned child is dropped.
    pub fn start(&self, mut op: Op) -> Child {
        match self.core.start(&mut op) {
            Started::Done(result) => Child(State::Done(Done { op, result })),
            Started::Running(id) => Child(State::Running(self.core.clone(), id)),
        }
    }

    /// Carries out `op` on the lower, and returns the operation with its result.
    pub async fn call(&self, op: Op) -> Done {
        self.start(op).await
    }

    /// Carries out `op` on the lower, unchanged. Afterwards `op` has the bytes that were read or the block status. If
    /// `op` has a block status from another lower, it is removed first.
    ///
    /// # Errors
    /// Errors of the lower.
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

    /// Carries out a command on the lower, or on the devices below it that hold the command's range.
    ///
    /// # Errors
    /// `Unsupported` if a device on the path neither knows the command nor can resolve the command's range; otherwise
    /// the errors of the devices that carry out the command.
    pub async fn control<V: Verb>(&self, command: Command) -> Result<V::Answer> {
        self.core.control(command).await?.answer::<V>()
    }

    /// Reads `range` of the lower, and returns the buffer with the bytes: `into`, or another buffer from the lower.
    ///
    /// # Errors
    /// Errors of the lower.
    pub async fn read(&self, range: ByteRange, into: Buf) -> Result<Buf> {
        self.call(Op::read(range, into)).await.into_buf()
    }

    /// Writes `data` to `range` of the lower. The write is durable after a flush.
    ///
    /// # Errors
    /// Errors of the lower.
    pub async fn write(&self, range: ByteRange, data: Buf) -> Result<()> {
        self.call(Op::write(range, data)).await.result
    }

    /// Returns whether the lower reports that all bytes of `range` read as zeros.
    ///
    /// # Errors
    /// Errors of the lower.
    pub async fn is_zero(&self, range: ByteRange) -> Result<bool> {
        let done = self.call(Op::Status { range, extents: Vec::new() }).await;
        done.result?;
        let Op::Status { extents, .. } = done.op else {
            unreachable!("a request returns with its own operation")
        };
        let zero = extents.iter().take_while(|extent| extent.state.is_zero());
        Ok(zero.map(|extent| extent.len).sum::<u64>() >= range.len())
    }

    /// Makes all writes durable that the lower completed before.
    ///
    /// # Errors
    /// Errors of the lower.
    pub async fn flush(&self) -> Result<()> {
        self.call(Op::Flush).await.result
    }
}

/// A request in flight on a lower. Awaiting it returns the finished request. Dropping it ends only the wait; the
/// request runs to its end.
#[must_use = "the answer of a child request reports whether the request succeeded"]
pub struct Child(State);

enum State {
    Done(Done),
    Running(Rc<dyn Core>, ChildId),
    Fetched,
}

impl Child {
    /// Whether the request ended at its start, so that its answer is here.
    #[inline]
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Done(_))
    }
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
            _ => panic!("a child request is not polled after its answer"),
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
