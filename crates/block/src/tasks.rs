//! The tasks of one owner, which end with it.

use std::cell::Cell;
use std::rc::Rc;

use crate::{Env, Notify, ScopeGuard, first};

/// The background tasks of one owner, such as a device. It is not cloned: when the owner is dropped, the group is dropped
/// with it, and its tasks are not polled any more.
pub struct TaskGroup {
    env: Env,
    shared: Rc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Tasks that have not ended.
    count: Cell<u32>,
    is_closing: Cell<bool>,
    is_dropped: Cell<bool>,
    changed: Notify,
}

/// A task that counts as one of the group's until this is dropped.
struct Member(Rc<Shared>);

impl TaskGroup {
    /// Creates a group without tasks.
    pub fn new(env: &Env) -> Self {
        Self { env: env.clone(), shared: Rc::default() }
    }

    /// Runs a task until it ends or the group is dropped. `name` is for traces.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + 'static) {
        self.shared.count.set(self.shared.count.get() + 1);
        let member = Member(self.shared.clone());
        self.env.spawn(name, async move {
            let shared = &member.0;
            first(task, shared.changed.until(|| shared.is_dropped.get())).await;
        });
    }

    /// Returns the environment of the tasks.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Whether the tasks are asked to end.
    pub fn is_closing(&self) -> bool {
        self.shared.is_closing.get()
    }

    /// The tasks of the group, and those who wait for them: woken when the group closes and when its last task ends. The
    /// owner wakes them when something changes that they wait for.
    pub fn changed(&self) -> &Notify {
        &self.shared.changed
    }

    /// Asks the tasks to end, and waits until they have. If the future or the returned guard is dropped before
    /// [`ScopeGuard::done`], the group is open again, and `reopen` is called.
    pub async fn close(&self, reopen: impl FnOnce()) -> ScopeGuard<impl FnOnce()> {
        self.shared.is_closing.set(true);
        self.shared.changed.wake();
        let closing = ScopeGuard::new(|| {
            self.shared.is_closing.set(false);
            reopen();
        });
        self.shared.changed.until(|| self.shared.count.get() == 0).await;
        closing
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        self.shared.is_dropped.set(true);
        self.shared.changed.wake();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0 {
            self.0.changed.wake();
        }
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
        let (end, closed) = (Rc::new(Notify::default()), Rc::new(Cell::new(false)));
        let ended = end.clone();
        group.spawn("a task", async move { ended.next().await });
        let (closing, done) = (group.clone(), closed.clone());
        env.spawn("a close", async move {
            closing.close(|| unreachable!("the close is not dropped")).await.done();
            done.set(true);
        });
        world.run();
        assert!(group.is_closing() && !closed.get());
        end.wake();
        world.run();
        assert!(group.is_closing() && closed.get());
    }

    #[test]
    fn task_group_is_open_again_after_dropped_close() {
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
