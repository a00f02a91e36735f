//! A gate: open until somebody shuts it, and one task that wants to know.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

/// Whether more may come through a connection. Shut once, for good.
#[derive(Default)]
pub struct CancelToken {
    shut: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
}

impl CancelToken {
    pub fn shut(&self) {
        self.shut.set(true);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }

    pub fn is_shut(&self) -> bool {
        self.shut.get()
    }

    /// What `future` answers; `None` once the gate is shut, which counts more.
    pub async fn unless<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.shut.get() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waiting = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
