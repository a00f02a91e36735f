//! One request of a client, as a future.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use block::{Done, Op, Request, Result, Waiter};

use super::{Engine, NodeId, Sink};

impl Engine {
    /// Carries out a client's request: waits until it is admitted, then until it is done. If the future is dropped,
    /// a request that was admitted goes on.
    pub async fn call(&self, node: NodeId, mut op: Op) -> Done {
        let answer = Rc::new(Answer::default());
        while let Err(back) = self.submit(node, op, answer.clone(), 0) {
            op = back;
            self.wait_capacity(node, &op).await;
        }
        poll_fn(|cx| answer.poll(cx)).await
    }
}

/// The answer to one request of [`Engine::call`].
#[derive(Default)]
struct Answer {
    done: Cell<Option<Done>>,
    waiter: Waiter,
}

impl Answer {
    fn poll(&self, cx: &Context<'_>) -> Poll<Done> {
        match self.done.take() {
            Some(done) => Poll::Ready(done),
            None => {
                self.waiter.wake_later(cx);
                Poll::Pending
            }
        }
    }
}

impl Sink for Answer {
    fn done(&self, _: u64, request: Request, result: Result<()>) {
        self.done.set(Some(Done { op: request.op, result }));
        self.waiter.wake();
    }
}
