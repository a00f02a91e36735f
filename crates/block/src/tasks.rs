//! The background tasks of one owner, such as a device. They end when the owner is dropped.

use std::cell::Cell;
use std::rc::Rc;

use crate::{Env, Notify, ScopeGuard, TaskTracker, TrackedTask, first};

/// The background tasks of one owner, such as a device. A group cannot be cloned, so it is dropped with its owner.
/// After that its tasks are not polled any more.
pub struct TaskGroup {
    env: Env,
    running: TaskTracker,
    shared: Rc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_closing: Cell<bool>,
    is_dropped: Cell<bool>,
    changed: Notify,
}

impl TaskGroup {
    /// Creates a task group without tasks.
    pub fn new(env: &Env) -> Self {
        Self { env: env.clone(), running: TaskTracker::default(), shared: Rc::default() }
    }

    /// Runs `task` in the group, until the task ends or the group is dropped. `name` is for traces.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + 'static) {
        let (one, shared) = (self.enter(), self.shared.clone());
        self.env.spawn(name, async move {
            let _one = one;
            let _ = first(task, shared.changed.until(|| shared.is_dropped.get())).await;
        });
    }

    /// Counts work outside of a task as a task of the group, until the returned guard is dropped.
    pub fn enter(&self) -> TrackedTask {
        self.running.begin()
    }

    /// Returns the environment in which the group runs its tasks.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Whether the group is closing, so that its tasks must end.
    pub fn is_closing(&self) -> bool {
        self.shared.is_closing.get()
    }

    /// Returns the list of tasks that wait for a change of the owner's state, or for the group to close. The owner
    /// wakes them at each change of its state.
    pub fn changed(&self) -> &Notify {
        &self.shared.changed
    }

    /// Waits until `over` returns true, or until the group closes or is dropped. `over` is called at once, and again after
    /// each change of the owner's state. The future does not refer to the owner, so the owner may be dropped meanwhile.
    pub fn wait(&self, over: impl Fn() -> bool + 'static) -> impl Future<Output = ()> + 'static {
        let shared = self.shared.clone();
        async move {
            let is_over = || shared.is_closing.get() || shared.is_dropped.get() || over();
            shared.changed.until(is_over).await;
        }
    }

    /// Makes the tasks of the group end, and waits until they have ended. If the future or the returned guard is
    /// dropped before [`ScopeGuard::done`], the group is open again, and `reopen` is called.
    pub async fn close(&self, reopen: impl FnOnce()) -> ScopeGuard<impl FnOnce()> {
        self.shared.is_closing.set(true);
        self.shared.changed.wake();
        let closing = ScopeGuard::new(|| {
            self.shared.is_closing.set(false);
            reopen();
        });
        self.running.ended().await;
        closing
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        self.shared.is_dropped.set(true);
        self.shared.changed.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_world::TestWorld;
    use std::future::pending;

    #[test]
    fn task_group_ends_tasks_when_dropped() {
        let (world, env) = TestWorld::new();
        let group = TaskGroup::new(&env);
        group.spawn("a task without an end", pending());
        world.run();
        assert_eq!(world.tasks(), 1);
        drop(group);
        world.run();
        assert_eq!(world.tasks(), 0);
    }

    #[test]
    fn task_group_close_waits_for_tasks() {
        let (world, env) = TestWorld::new();
        let group = Rc::new(TaskGroup::new(&env));
        let (end, closed) = (TaskTracker::default(), Rc::new(Cell::new(false)));
        let (ended, work) = (end.clone(), end.begin());
        group.spawn("a task", async move { ended.ended().await });
        let (closing, done) = (group.clone(), closed.clone());
        env.spawn("a close", async move {
            closing.close(|| unreachable!("the close is not dropped")).await.done();
            done.set(true);
        });
        world.run();
        assert!(group.is_closing() && !closed.get());
        drop(work);
        world.run();
        assert!(group.is_closing() && closed.get());
    }

    #[test]
    fn task_group_close_wakes_tasks_that_wait_for_close() {
        let (world, env) = TestWorld::new();
        let group = Rc::new(TaskGroup::new(&env));
        let closing = group.clone();
        group.spawn("a task", async move {
            closing.changed().until(|| closing.is_closing()).await;
        });
        world.run();
        let mut close = std::pin::pin!(group.close(|| unreachable!("the close is not dropped")));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(group.changed().is_awaited() && close.as_mut().poll(&mut cx).is_pending());
        assert!(!group.changed().is_awaited(), "all that waited were woken");
        world.run();
        let std::task::Poll::Ready(closed) = close.as_mut().poll(&mut cx) else {
            panic!("its only task has ended")
        };
        closed.done();
    }

    #[test]
    fn task_group_wait_ends_at_change_at_close_and_at_drop() {
        let (world, env) = TestWorld::new();
        let (over, ended) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let wait = |group: &TaskGroup| {
            let (over, ended) = (over.clone(), ended.clone());
            let waits = group.wait(move || over.get());
            env.spawn("a wait", async move {
                waits.await;
                ended.set(ended.get() + 1);
            });
            world.run();
        };
        let group = TaskGroup::new(&env);
        wait(&group);
        group.changed().wake();
        world.run();
        assert_eq!(ended.get(), 0);
        over.set(true);
        group.changed().wake();
        world.run();
        assert_eq!(ended.get(), 1);
        over.set(false);
        wait(&group);
        {
            let mut close = std::pin::pin!(group.close(|| {}));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let std::task::Poll::Ready(closed) = close.as_mut().poll(&mut cx) else {
                panic!("it has no tasks")
            };
            closed.done();
        }
        world.run();
        assert_eq!(ended.get(), 2);
        let group = TaskGroup::new(&env);
        wait(&group);
        drop(group);
        world.run();
        assert_eq!(ended.get(), 3);
    }

    #[test]
    fn task_group_reopens_when_close_is_dropped() {
        let (world, env) = TestWorld::new();
        let group = Rc::new(TaskGroup::new(&env));
        group.spawn("a task without an end", pending());
        let reopened = Cell::new(false);
        {
            let mut closing = std::pin::pin!(group.close(|| reopened.set(true)));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(closing.as_mut().poll(&mut cx).is_pending());
        }
        world.run();
        assert!(reopened.get() && !group.is_closing());
    }
}
