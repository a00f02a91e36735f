//! The gate of a connection: open until it is shut, which ends the waits that it guards.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use block::Notify;

/// Whether more may come through a connection. Shut once, for good.
#[derive(Default)]
pub struct CancelToken {
    shut: Cell<bool>,
    waiting: Notify,
}

impl CancelToken {
    pub fn shut(&self) {
        self.shut.set(true);
        self.waiting.wake();
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
            self.waiting.wake_later(cx);
            Poll::Pending
        })
        .await
    }
}
