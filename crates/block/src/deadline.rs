//! Deadlines for many waits at once, without a timer for each.
//!
//! Each wait is recorded with its start time. One watcher task checks all waits, and ends when there are none. So a
//! request costs a few stores, and an idle device causes no wake-up.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::{Env, Mono, Waiter};

/// Number of times that the watcher task checks the waits within the time limit. So a wait ends late by at most the
/// limit divided by this number.
const LOOKS: u32 = 8;

/// A time limit for waits. Each wait for a future has the same limit.
#[derive(Clone)]
pub struct Deadline(Rc<Watch>);

struct Watch {
    env: Env,
    limit: Duration,
    waits: RefCell<Vec<Wait>>,
    free: RefCell<Vec<usize>>,
    waiting: Cell<usize>,
    watched: Cell<bool>,
}

#[derive(Default)]
struct Wait {
    since: Option<Mono>,
    waiter: Waiter,
}

impl Deadline {
    /// Creates a deadline that ends each wait after the time `limit`.
    pub fn new(env: &Env, limit: Duration) -> Self {
        Self(Rc::new(Watch {
            env: env.clone(),
            limit,
            waits: RefCell::default(),
            free: RefCell::default(),
            waiting: Cell::new(0),
            watched: Cell::new(false),
        }))
    }

    /// Returns the time limit of each wait.
    pub fn limit(&self) -> Duration {
        self.0.limit
    }

    /// Returns a future with the output of `future`. After the time limit it returns `future` itself, which the
    /// caller may await elsewhere. Dropping a child request only ends the wait for it; the request runs to its end.
    pub fn guard<F: Future + Unpin>(&self, future: F) -> Guard<F> {
        let watch = self.0.clone();
        let free = watch.free.borrow_mut().pop();
        let index = free.unwrap_or_else(|| {
            watch.waits.borrow_mut().push(Wait::default());
            watch.waits.borrow().len() - 1
        });
        watch.waits.borrow_mut()[index].since = Some(watch.env.now());
        watch.waiting.set(watch.waiting.get() + 1);
        if !watch.watched.replace(true) {
            watch.env.spawn("deadline", look_after(Rc::downgrade(&watch)));
        }
        Guard { future: Some(future), watch, index }
    }
}

async fn look_after(watch: Weak<Watch>) {
    loop {
        let Some(alive) = watch.upgrade() else { return };
        let pause = alive.env.sleep(alive.limit / LOOKS);
        drop(alive);
        pause.await;
        let Some(alive) = watch.upgrade() else { return };
        if alive.waiting.get() == 0 {
            alive.watched.set(false);
            return;
        }
        alive.wake_overdue();
    }
}

impl Watch {
    fn is_overdue(&self, wait: &Wait) -> bool {
        wait.since.is_some_and(|since| self.env.now().since(since) >= self.limit)
    }

    fn wake_overdue(&self) {
        let waits = self.waits.borrow();
        waits.iter().filter(|wait| self.is_overdue(wait)).for_each(|wait| wait.waiter.wake());
    }
}

/// A wait for a future with a time limit. After the limit the wait returns the future itself, as `Err`.
pub struct Guard<F> {
    future: Option<F>,
    watch: Rc<Watch>,
    index: usize,
}

impl<F: Future + Unpin> Future for Guard<F> {
    type Output = Result<F::Output, F>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let guard = self.get_mut();
        let future = guard.future.as_mut().expect("no guarded future is polled after its answer");
        if let Poll::Ready(output) = Pin::new(future).poll(cx) {
            guard.future = None;
            return Poll::Ready(Ok(output));
        }
        let wait = &guard.watch.waits.borrow()[guard.index];
        if guard.watch.is_overdue(wait) {
            let late = guard.future.take().expect("the guarded future was polled above");
            return Poll::Ready(Err(late));
        }
        wait.waiter.wake_later(cx);
        Poll::Pending
    }
}

impl<F> Drop for Guard<F> {
    fn drop(&mut self) {
        self.watch.waits.borrow_mut()[self.index] = Wait::default();
        self.watch.free.borrow_mut().push(self.index);
        self.watch.waiting.set(self.watch.waiting.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_world::TestWorld;
    use std::future::{pending, ready};
    use std::task::Waker;

    #[test]
    fn deadline_of_second_wait_starts_when_second_wait_begins() {
        let (world, env) = TestWorld::new();
        let deadline = Deadline::new(&env, Duration::from_secs(8));
        let mut cx = Context::from_waker(Waker::noop());
        let mut answered = deadline.guard(ready(7));
        assert!(matches!(Pin::new(&mut answered).poll(&mut cx), Poll::Ready(Ok(7))));
        drop(answered);
        world.advance(Duration::from_secs(60));
        let mut late = deadline.guard(pending::<()>());
        world.advance(Duration::from_secs(7));
        assert!(Pin::new(&mut late).poll(&mut cx).is_pending(), "its time begins with the wait");
        world.advance(Duration::from_secs(2));
        assert!(matches!(Pin::new(&mut late).poll(&mut cx), Poll::Ready(Err(_))));
    }
}
