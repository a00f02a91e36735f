//! Waiting of the tasks of one core for a condition.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Returns the output of `one`, or as an error the output of `other` if `other` ends first. The other future is
/// dropped.
pub async fn first<T, U>(
    one: impl Future<Output = T>,
    other: impl Future<Output = U>,
) -> Result<T, U> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}

/// List of tasks that wait for a condition. All of them are woken at the same time, and each checks its own
/// condition.
///
/// A task is in the list once, even if it is polled often. The list reuses its memory, so that waiting allocates no
/// memory in the steady state.
#[derive(Default)]
pub struct Notify {
    wakers: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Waits until `over` returns true. `over` is called at once, and again after each [`Notify::wake`].
    pub async fn until(&self, over: impl Fn() -> bool) {
        self.until_some(|| over().then_some(())).await;
    }

    /// Waits until `look` returns a value, and returns that value. `look` is called at once, and again after each
    /// [`Notify::wake`].
    pub async fn until_some<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match look() {
            Some(found) => Poll::Ready(found),
            None => {
                self.wake_later(cx);
                Poll::Pending
            }
        })
        .await
    }

    /// Adds the task of `cx` to the list, until the next [`Notify::wake`]. It is for a future that checks its
    /// condition itself.
    pub fn wake_later(&self, cx: &Context<'_>) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
    }

    /// Whether the list has a task. That task may have stopped waiting since.
    pub fn is_awaited(&self) -> bool {
        !self.wakers.borrow().is_empty()
    }

    /// Wakes all tasks of the list, and removes them from it.
    #[inline]
    pub fn wake(&self) {
        if self.is_awaited() {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        let mut woken = self.wakers.take();
        woken.drain(..).for_each(Waker::wake);
        let mut wakers = self.wakers.borrow_mut();
        if wakers.is_empty() {
            *wakers = woken;
        }
    }
}

/// The one task that waits for an event. If a second task waits, it replaces the first.
///
/// A waiter has room for one task and allocates no memory; [`Notify`] has room for several tasks.
#[derive(Default)]
pub struct Waiter(Cell<Option<Waker>>);

impl Waiter {
    /// Registers the task of `cx`, in place of an earlier task, until the next [`Waiter::wake`].
    #[inline]
    pub fn wake_later(&self, cx: &Context<'_>) {
        self.0.set(Some(cx.waker().clone()));
    }

    /// Wakes the registered task, if there is one.
    #[inline]
    pub fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }

    /// Removes the registered task without waking it.
    #[inline]
    pub fn clear(&self) {
        self.0.take();
    }
}

/// A cell that passes one value from one task to another.
pub struct OneShot<T> {
    answer: Cell<Option<T>>,
    waiter: Waiter,
}

impl<T> Default for OneShot<T> {
    fn default() -> Self {
        Self { answer: Cell::new(None), waiter: Waiter::default() }
    }
}

impl<T> OneShot<T> {
    /// Puts the value `answer` into the cell, and wakes the task that waits for it.
    pub fn set(&self, answer: T) {
        self.answer.set(Some(answer));
        self.waiter.wake();
    }

    /// Waits until the cell has a value, and takes the value out of the cell.
    pub async fn wait(&self) -> T {
        poll_fn(|cx| {
            let answer = self.answer.take();
            if answer.is_none() {
                self.waiter.wake_later(cx);
            }
            answer.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Counter of the background tasks of a device. Other tasks can wait until the count is zero.
#[derive(Clone, Default)]
pub struct TaskTracker(Rc<Background>);

#[derive(Default)]
struct Background {
    count: Cell<u32>,
    waiting: Notify,
}

/// Guard of one background task of a device. The task is counted until the guard is dropped.
pub struct TrackedTask(Rc<Background>);

/// Guard that calls a function when it is dropped, unless [`ScopeGuard::done`] was called before. It is for futures
/// that may be dropped before their end.
pub struct ScopeGuard<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> ScopeGuard<F> {
    /// Creates a guard that calls `otherwise` when it is dropped.
    pub fn new(otherwise: F) -> Self {
        Self(Some(otherwise))
    }

    /// Disarms the guard: its function is not called.
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
    /// Adds a background task to the count, until the returned guard is dropped.
    pub fn begin(&self) -> TrackedTask {
        self.0.count.set(self.0.count.get() + 1);
        TrackedTask(self.0.clone())
    }

    /// Waits until the count of background tasks is zero.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn notify_wakes_task_once_after_repeated_polls() {
        let (count, notify, over) =
            (Arc::new(Count::default()), Notify::default(), Cell::new(false));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let mut waiting = pin!(notify.until(|| over.get()));
        for _ in 0..3 {
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
        }
        assert!(notify.is_awaited());
        over.set(true);
        notify.wake();
        assert!(!notify.is_awaited() && waiting.as_mut().poll(&mut cx).is_ready());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn waiter_wakes_only_latest_registered_task_once() {
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let waiter = Waiter::default();
        for count in &counts {
            waiter.wake_later(&Context::from_waker(&Waker::from(count.clone())));
        }
        waiter.wake();
        waiter.wake();
        waiter.wake_later(&Context::from_waker(&Waker::from(counts[0].clone())));
        waiter.clear();
        waiter.wake();
        assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
    }

    #[test]
    fn one_shot_wakes_waiting_task_when_answer_is_set() {
        let (count, answer) = (Arc::new(Count::default()), OneShot::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let mut waiting = pin!(answer.wait());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        answer.set(7);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(7));
    }

    #[test]
    fn notify_keeps_list_memory_after_wake() {
        let notify = Notify::default();
        notify.wake_later(&Context::from_waker(Waker::noop()));
        notify.wake();
        assert!(notify.wakers.borrow().capacity() > 0);
    }
}
