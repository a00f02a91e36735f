//! The executor of a core: tasks in the order in which they became ready, and wakers for every thread.
//!
//! A waker on the core's own thread adds its task to a queue without a lock. A waker on another thread adds the task
//! to a locked list; if the core sleeps, the waker also writes to the core's bell, an eventfd on which the core
//! waits.
//!
//! One of the few modules with unsafe code: only the core's thread may use the queue without a lock.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use block::env::LocalFuture;

use crate::sys;

static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Never given out twice, unlike a thread's address.
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The id of a task: the number of its slot, and the number of tasks that had the slot before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskId {
    index: u32,
    generation: u32,
}

/// The id of the future of [`crate::Core::block_on`] in the queue of ready tasks.
pub(crate) const MAIN: TaskId = TaskId { index: u32::MAX, generation: 0 };

/// The queue of a core's ready tasks. Wakers of every thread add tasks to it.
pub(crate) struct Queue {
    owner: u64,
    local: UnsafeCell<VecDeque<TaskId>>,
    injected: Mutex<Vec<TaskId>>,
    asleep: AtomicBool,
    bell: OwnedFd,
}

// SAFETY: `local` is touched by `Queue::local` only, which hands it to no thread but the owner's. The other
// fields can be shared.
unsafe impl Sync for Queue {}

impl Queue {
    pub(crate) fn new(bell: OwnedFd) -> Self {
        Self {
            owner: THREAD.with(|thread| *thread),
            local: UnsafeCell::default(),
            injected: Mutex::default(),
            asleep: AtomicBool::new(false),
            bell,
        }
    }

    fn local<R>(&self, with: impl FnOnce(&mut VecDeque<TaskId>) -> R) -> Option<R> {
        // A thread that has lost its locals does not run a core.
        if THREAD.try_with(|thread| *thread) != Ok(self.owner) {
            return None;
        }
        // SAFETY: this is the owner's thread, and no `with` in this file calls back into here, so this is the
        // only reference.
        Some(with(unsafe { &mut *self.local.get() }))
    }

    /// Appends a task to the queue of ready tasks.
    pub(crate) fn push(&self, task: TaskId) {
        if self.local(|local| local.push_back(task)).is_some() {
            return;
        }
        self.injected.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.wake_core();
    }

    /// Writes to the core's bell if the core sleeps. The caller must make its change before, so that the core finds
    /// the change.
    pub(crate) fn wake_core(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            sys::ring_bell(self.bell.as_raw_fd());
        }
    }

    /// Takes the first task from the queue of ready tasks.
    pub(crate) fn pop(&self) -> Option<TaskId> {
        self.local(VecDeque::pop_front).flatten()
    }

    /// Returns the number of ready tasks in the queue.
    pub(crate) fn len(&self) -> usize {
        self.local(|local| local.len()).unwrap_or(0)
    }

    /// Whether other threads have added tasks to the locked list.
    pub(crate) fn has_injected(&self) -> bool {
        !self.injected.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Moves the tasks from the locked list to the queue.
    pub(crate) fn take_injected(&self) {
        let mut injected = self.injected.lock().unwrap_or_else(PoisonError::into_inner);
        self.local(|local| local.extend(injected.drain(..)));
    }

    /// Marks the core as asleep or awake. While the core is asleep, other threads write to its bell. A caller that
    /// checks the queues after this call finds all tasks that were added without writing to the bell.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }
}

/// The waker of one task. Cloning the waker allocates no memory.
pub(crate) struct TaskWaker {
    task: TaskId,
    scheduled: AtomicBool,
    queue: Arc<Queue>,
}

impl TaskWaker {
    pub(crate) fn new(task: TaskId, queue: Arc<Queue>) -> Arc<Self> {
        Arc::new(Self { task, scheduled: AtomicBool::new(false), queue })
    }

    /// Marks the task as running: a wake after this call makes the task ready again.
    pub(crate) fn running(&self) {
        self.scheduled.store(false, Ordering::SeqCst);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::SeqCst) {
            self.queue.push(self.task);
        }
    }
}

/// The tasks of one core that have not ended.
#[derive(Default)]
pub(crate) struct Tasks {
    places: Vec<TaskSlot>,
    free: Vec<u32>,
}

struct TaskSlot {
    generation: u32,
    // `None` while the task runs, and after it has ended.
    task: Option<Task>,
}

/// A task of a core, with its future.
pub(crate) struct Task {
    id: TaskId,
    name: &'static str,
    future: LocalFuture<()>,
    waker: Waker,
    state: Arc<TaskWaker>,
}

impl Task {
    /// Polls the future of the task once.
    pub(crate) fn poll(&mut self) -> Poll<()> {
        let _named = Named(self.name);
        self.state.running();
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }
}

/// Guard that prints the name of a task if the task panics.
struct Named(&'static str);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("cairn: the task \"{}\" panicked", self.0);
        }
    }
}

impl Tasks {
    /// Adds a task to the core, and makes it ready.
    pub(crate) fn add(&mut self, name: &'static str, future: LocalFuture<()>, queue: &Arc<Queue>) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(TaskSlot { generation: 0, task: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        let id = TaskId { index, generation: place.generation };
        let state = TaskWaker::new(id, queue.clone());
        let waker = Waker::from(state.clone());
        waker.wake_by_ref();
        place.task = Some(Task { id, name, future, waker, state });
    }

    /// Takes a task out of the list, to poll it. Returns `None` if the task has ended.
    pub(crate) fn take(&mut self, id: TaskId) -> Option<Task> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        place.task.take()
    }

    /// Puts a polled task that has not ended back into the list.
    pub(crate) fn put(&mut self, task: Task) {
        let index = task.id.index as usize;
        self.places[index].task = Some(task);
    }

    /// Frees the slot of a task that has ended.
    pub(crate) fn end(&mut self, task: &Task) {
        self.retire(task.id.index);
    }

    fn retire(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        self.free.push(index);
    }

    /// Takes every task out of the list, so that the caller can drop them.
    pub(crate) fn clear(&mut self) -> Vec<Task> {
        let left: Vec<Task> =
            self.places.iter_mut().filter_map(|place| place.task.take()).collect();
        for task in &left {
            self.retire(task.id.index);
        }
        left
    }
}
