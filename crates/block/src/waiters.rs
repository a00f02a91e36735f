//! Tasks of one core that wait for something to become true.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Whoever waits. All are woken at once, and look for themselves.
#[derive(Default)]
pub struct Waiters(RefCell<Vec<Waker>>);

impl Waiters {
    /// Waits until `over` says so. It is asked at once, and after each [`Waiters::wake`].
    pub async fn until(&self, over: impl Fn() -> bool) {
        poll_fn(|cx| {
            if over() {
                return Poll::Ready(());
            }
            self.0.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Something has changed.
    pub fn wake(&self) {
        self.0.take().into_iter().for_each(Waker::wake);
    }
}
