//! Virtual time: a heap of what will happen, and the record of what has.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use block::Mono;
use block::env::TimerId;

use crate::counters::Counters;
use crate::draw::mix;

/// Somebody for whom a moment was set.
pub(crate) trait Fire {
    /// The moment that was set with `id` is now.
    fn fire(&self, id: u64);
}

pub(crate) enum Event {
    Wake(Waker),
    Fire(Rc<dyn Fire>, u64),
}

/// The time of one world, shared by all that live in it.
pub(crate) struct Clock {
    pub seed: u64,
    pub counters: Counters,
    now: Cell<Duration>,
    next: Cell<u64>,
    events: RefCell<BTreeMap<(Mono, u64), Event>>,
    trace: Cell<u64>,
}

impl Clock {
    pub fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self {
            seed,
            counters: Counters::default(),
            // Not zero: code that takes zero for "never" is wrong about it.
            now: Cell::new(Duration::from_secs(1000)),
            next: Cell::new(1),
            events: RefCell::default(),
            trace: Cell::new(mix(seed)),
        })
    }

    pub fn now(&self) -> Mono {
        Mono(self.now.get())
    }

    /// A number larger than all before: the order of everything that happens.
    pub fn tick(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    pub fn schedule(&self, at: Mono, event: Event) -> TimerId {
        let number = self.tick();
        self.events.borrow_mut().insert((at, number), event);
        TimerId(at, number)
    }

    pub fn forget(&self, timer: TimerId) {
        self.events.borrow_mut().remove(&(timer.0, timer.1));
    }

    /// When the next thing happens.
    pub fn next_at(&self) -> Option<Mono> {
        self.events.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets the next thing happen; time jumps there.
    pub fn step(&self) -> bool {
        let Some(((at, _), event)) = self.events.borrow_mut().pop_first() else { return false };
        self.now.set(self.now.get().max(at.0));
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Fire(whom, id) => whom.fire(id),
        }
        true
    }

    /// Puts on record that `what` happened to `which`.
    pub fn record(&self, what: u64, which: u64) {
        let moment = self.now.get().as_nanos() as u64;
        self.trace.set(mix(self.trace.get() ^ mix(what) ^ mix(which).rotate_left(17) ^ moment));
    }

    pub fn trace(&self) -> u64 {
        self.trace.get()
    }

    /// Forgets all that would happen, and with it who waits for it.
    pub fn clear(&self) {
        let events = self.events.take();
        drop(events);
    }
}
