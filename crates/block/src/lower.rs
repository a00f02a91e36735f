//! What a device sees of the one below: a handle to start requests on.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::{Buf, ByteRange, Info, Op, Result};

/// The side of the executor that devices reach. `graph` implements it; a device never sees more.
pub trait Core {
    /// Begins `op` on the device behind `node`; it runs until it first waits.
    fn start(&self, node: usize, op: Op) -> ChildId;
    /// The answer, once.
    fn poll(&self, child: ChildId, cx: &mut Context<'_>) -> Poll<Done>;
    /// Nobody waits any more. The work goes on, its answer is dropped.
    fn abandon(&self, child: ChildId);
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
    info: Info,
    name: Rc<str>,
}

impl Lower {
    /// A handle to the device behind `node`; made by the graph only.
    pub fn new(core: Rc<dyn Core>, node: usize, info: Info, name: Rc<str>) -> Self {
        Self { core, node, info, name }
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
    pub fn start(&self, op: Op) -> Child {
        Child { id: self.core.start(self.node, op), core: Some(self.core.clone()) }
    }

    /// Carries out `op` and gives it back with the answer.
    pub async fn call(&self, op: Op) -> Done {
        self.start(op).await
    }

    /// Passes a request on unchanged: what it brings back is in it.
    ///
    /// # Errors
    /// The lower device's.
    pub async fn forward(&self, op: &mut Op) -> Result<()> {
        let done = self.start(std::mem::replace(op, Op::Flush)).await;
        *op = done.op;
        done.result
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
pub struct Child {
    core: Option<Rc<dyn Core>>,
    id: ChildId,
}

impl Future for Child {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        let core = self.core.as_ref().expect("a child is not polled after its answer");
        let polled = core.poll(self.id, cx);
        if polled.is_ready() {
            self.core = None;
        }
        polled
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.abandon(self.id);
        }
    }
}
