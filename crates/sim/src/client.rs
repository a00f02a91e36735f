//! A simulated client that sends requests to a device directly through the engine. Each request completes exactly once,
//! even if the client does not wait for the reply.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use block::{Error, ErrorKind, Info, Op, Request, Result, Waiter, check};
use engine::{Engine, NodeId, Portal, Sink};

/// A client that sends requests to one device of a graph, directly through the engine. A clone refers to the same
/// client.
#[derive(Clone)]
pub struct Client {
    engine: Engine,
    portal: Portal,
    info: Info,
    calls: Rc<Calls>,
}

/// The reply to a client's request.
#[derive(Debug)]
pub struct Answer {
    /// The operation of the request, with its buffers.
    pub op: Op,
    /// Whether the request succeeded, or its error.
    pub result: Result<()>,
}

#[derive(Default)]
struct Calls {
    next: Cell<u64>,
    open: RefCell<BTreeMap<u64, Wait>>,
}

enum Wait {
    For(Waiter),
    Done(Answer),
    Abandoned,
}

impl Client {
    /// Creates a client of the device `node`, with a new portal.
    pub fn new(engine: &Engine, node: NodeId) -> Self {
        Self::of(engine, engine.portal("client", node))
    }

    /// Creates a client that sends requests through `portal`.
    pub fn of(engine: &Engine, portal: Portal) -> Self {
        Self { engine: engine.clone(), info: portal.info(), portal, calls: Rc::default() }
    }

    /// Returns the facts (size, block size, limits) about the device behind the portal when the client was created.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the number of requests whose reply the client has not taken yet.
    pub fn open(&self) -> usize {
        self.calls.open.borrow().len()
    }

    /// Waits until the engine has a slot and buffers for a request with the operation `op`.
    pub async fn room(&self, op: &Op) {
        self.engine.wait_capacity(&self.portal, op, None).await;
    }

    /// Sends a request. The request runs to its end even if the returned [`Call`] is dropped.
    pub fn send(&self, op: Op) -> Call {
        let token = self.calls.next.replace(self.calls.next.get() + 1);
        self.calls.open.borrow_mut().insert(token, Wait::For(Waiter::default()));
        let refused = match check(&self.info, &op) {
            Err(error) => Some((op, error)),
            Ok(()) => match self.engine.submit(&self.portal, op, self.calls.clone(), token) {
                Ok(()) => None,
                Err(op) => Some((op, Error::new(ErrorKind::Limit, "no request slot is free"))),
            },
        };
        if let Some((op, error)) = refused {
            let answer = Answer { op, result: Err(error) };
            self.calls.open.borrow_mut().insert(token, Wait::Done(answer));
        }
        Call { calls: self.calls.clone(), token }
    }
}

impl Sink for Calls {
    fn done(&self, token: u64, request: Request, result: Result<()>) {
        let answer = Wait::Done(Answer { op: request.op, result });
        let mut open = self.open.borrow_mut();
        match open.insert(token, answer) {
            Some(Wait::For(waiter)) => {
                drop(open);
                waiter.wake();
            }
            Some(Wait::Abandoned) => {
                let dropped = open.remove(&token);
                drop(open);
                drop(dropped);
            }
            Some(Wait::Done(_)) | None => panic!("the request {token} completed twice"),
        }
    }
}

/// A future of the reply to a client's request.
#[must_use = "the answer reports whether the request succeeded"]
pub struct Call {
    calls: Rc<Calls>,
    token: u64,
}

impl Future for Call {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut open = self.calls.open.borrow_mut();
        if let Some(Wait::For(waiter)) = open.get(&self.token) {
            waiter.wake_later(cx);
            return Poll::Pending;
        }
        match open.remove(&self.token) {
            Some(Wait::Done(answer)) => Poll::Ready(answer),
            Some(Wait::For(_) | Wait::Abandoned) | None => {
                panic!("a request is not polled after its answer")
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut open = self.calls.open.borrow_mut();
        let wait = open.remove(&self.token);
        if let Some(Wait::For(_)) = wait {
            open.insert(self.token, Wait::Abandoned);
        }
        drop(open);
        drop(wait);
    }
}
