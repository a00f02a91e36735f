//! Tasks of one core that wait for something to become true.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// What the first of the two comes to, if it ends before the other or with it; the rest is dropped.
pub async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = ()>) -> Option<T> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => other.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Whoever waits. All are woken at once, and look for themselves.
#[derive(Default)]
pub struct Notify(RefCell<Vec<Waker>>);

impl Notify {
    /// Waits until `over` says so. It is asked at once, and after each [`Notify::wake`].
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

/// Counts what a device does in the background, for whoever waits until there is nothing of it.
#[derive(Clone, Default)]
pub struct TaskTracker(Rc<Background>);

#[derive(Default)]
struct Background {
    count: Cell<u32>,
    waiting: Notify,
}

/// One thing that is done in the background, for as long as it is kept.
pub struct TrackedTask(Rc<Background>);

/// Does something when it goes, unless it was told that all has come to its end: for a future that may be
/// dropped halfway.
pub struct ScopeGuard<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> ScopeGuard<F> {
    /// What is to be done.
    pub fn new(otherwise: F) -> Self {
        Self(Some(otherwise))
    }

    /// It is not to be done.
    pub fn done(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for ScopeGuard<F> {
    fn drop(&mut self) {
        if let Some(otherwise) = self.0.take() {
            otherwise();
        }
    }
}

impl TaskTracker {
    /// One more.
    pub fn begin(&self) -> TrackedTask {
        self.0.count.set(self.0.count.get() + 1);
        TrackedTask(self.0.clone())
    }

    /// Waits until there is none.
    pub async fn ended(&self) {
        self.0.waiting.until(|| self.0.count.get() == 0).await;
    }
}

impl Drop for TrackedTask {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0 {
            self.0.waiting.wake();
        }
    }
}
