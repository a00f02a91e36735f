//! The virtual clock of a simulated world: the queue of future events, and a hash of the past events.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use block::Mono;
use block::env::TimerId;

use crate::counters::Counters;
use crate::draw::mix;

/// A simulated component (disk or connection) that schedules events on the virtual clock.
pub(crate) trait Fire {
    /// Handles the event that the component has scheduled under the number `id`, when its time comes.
    fn fire(&self, id: u64);
}

pub(crate) enum Event {
    Wake(Waker),
    Fire(Rc<dyn Fire>, u64),
}

/// The virtual clock of one simulated world, which disks, connections and tasks share.
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
            // Not zero, so that a bug in code that takes zero for "never" stays visible.
            now: Cell::new(Duration::from_secs(1000)),
            next: Cell::new(1),
            events: RefCell::default(),
            trace: Cell::new(mix(seed)),
        })
    }

    pub fn now(&self) -> Mono {
        Mono(self.now.get())
    }

    /// Returns a number that is larger than the number of every earlier call. Such numbers order all events of the
    /// simulated world.
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

    /// Returns the virtual time of the next event; `None` if no event is scheduled.
    pub fn next_at(&self) -> Option<Mono> {
        self.events.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    /// Advances the virtual clock to the next event, and carries out the event. Returns `false` if no event is
    /// scheduled.
    pub fn step(&self) -> bool {
        let Some(((at, _), event)) = self.events.borrow_mut().pop_first() else { return false };
        self.now.set(self.now.get().max(at.0));
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Fire(whom, id) => whom.fire(id),
        }
        true
    }

    /// Adds an event to the hash of past events: an event of type `what` happened to object `which`.
    pub fn record(&self, what: u64, which: u64) {
        let moment = self.now.get().as_nanos() as u64;
        self.trace.set(mix(self.trace.get() ^ mix(what) ^ mix(which).rotate_left(17) ^ moment));
    }

    pub fn trace(&self) -> u64 {
        self.trace.get()
    }

    /// Drops all scheduled events and their wakers.
    pub fn clear(&self) {
        let events = self.events.take();
        drop(events);
    }
}
