//! Wakers of slots that need no allocation: each waker is a number in a pointer. Each engine has a queue of woken
//! slots.
//!
//! The number consists of the number of the engine, and of the index and the generation of the slot. A wake pushes
//! index and generation into the queue of the engine. Wakers are not counted or freed, so a clone of a waker copies
//! only the number.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;
use std::rc::{Rc, Weak};
use std::task::{RawWaker, RawWakerVTable, Waker};

thread_local! {
    static ENGINES: RefCell<Vec<Weak<Ready>>> = const { RefCell::new(Vec::new()) };
}

/// The queue of an engine: the slots whose wakers were woken, in the order of waking.
pub(super) struct Ready {
    engine: usize,
    keys: RefCell<VecDeque<Key>>,
    driver: RefCell<Option<Waker>>,
    woken: Cell<bool>,
}

/// The index and the generation of a slot. The generation changes when the slot is freed, so a waker that outlives its
/// request wakes no later request in the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub index: u32,
    pub generation: u16,
}

// 16 bits of engine, 16 of generation, 32 of index make one pointer.
const _: () = assert!(usize::BITS == 64, "a waker needs a pointer of 64 bits");

impl Ready {
    /// Creates the queue of a new engine on the calling thread.
    pub fn new() -> Rc<Self> {
        ENGINES.with_borrow_mut(|engines| {
            let engine = engines.iter().position(|e| e.strong_count() == 0).unwrap_or_else(|| {
                engines.push(Weak::new());
                engines.len() - 1
            });
            assert!(engine < 1 << 16, "engine number {engine} of a thread is above 65535");
            let ready = Rc::new(Self {
                engine,
                keys: RefCell::default(),
                driver: RefCell::default(),
                woken: Cell::new(false),
            });
            engines[engine] = Rc::downgrade(&ready);
            ready
        })
    }

    /// Returns a waker for the slot that `key` names.
    pub fn waker(&self, key: Key) -> Waker {
        let number = self.engine << 48 | (key.generation as usize) << 32 | key.index as usize;
        // SAFETY: the data is a number, never dereferenced; so the contract holds on any thread.
        unsafe { Waker::from_raw(raw(number)) }
    }

    /// Returns the number of woken slots in the queue.
    pub fn len(&self) -> usize {
        self.keys.borrow().len()
    }

    /// Removes the `n`-th woken slot from the queue.
    pub fn take(&self, n: usize) -> Option<Key> {
        let mut keys = self.keys.borrow_mut();
        if n == 0 { keys.pop_front() } else { keys.remove(n) }
    }

    /// Sets `driver`, the waker of the task that drives the engine. The queue wakes this task when a slot enters the
    /// queue.
    pub fn drive(&self, driver: &Waker) {
        self.woken.set(false);
        let mut kept = self.driver.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(driver)) {
            *kept = Some(driver.clone());
        }
    }

    fn push(&self, key: Key) {
        self.keys.borrow_mut().push_back(key);
        self.wake_driver();
    }

    /// Wakes the task that drives the engine, once until it runs.
    pub fn wake_driver(&self) {
        if !self.woken.replace(true)
            && let Some(driver) = &*self.driver.borrow()
        {
            driver.wake_by_ref();
        }
    }
}

fn raw(number: usize) -> RawWaker {
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| raw(data.addr()),
        |data| wake(data.addr()),
        |data| wake(data.addr()),
        |_| {},
    );
    RawWaker::new(ptr::without_provenance(number), &TABLE)
}

fn wake(number: usize) {
    let key = Key { index: number as u32, generation: (number >> 32) as u16 };
    let ready = ENGINES.with_borrow(|engines| engines.get(number >> 48).and_then(Weak::upgrade));
    // If the engine was dropped, there is nothing to wake. Other threads never get a waker of a slot: everything that a
    // kind awaits lives on the thread of its engine, and the future of `Env::work` is woken on that thread.
    if let Some(ready) = ready {
        ready.push(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_waker_queues_slot_in_own_engine_only() {
        let ready = Ready::new();
        let other = Ready::new();
        let key = Key { index: 70_000, generation: 65_535 };
        let waker = ready.waker(key).clone();
        other.drive(Waker::noop());
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(ready.len(), 2);
        assert_eq!(ready.take(0), Some(key));
        assert_eq!(other.len(), 0);
    }
}
