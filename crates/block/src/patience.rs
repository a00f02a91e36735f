//! Writes that wait until a thin device below has space for them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::{Done, Env, ErrorKind, Lower, ScopeGuard};

/// Longest time that a write waits for space below. So long has an operator to free some.
pub const NO_SPACE_MAX: Duration = Duration::from_secs(300);

/// Pause between two tries of a write.
const RETRY: Duration = Duration::from_millis(500);

/// The patience of a device that cannot take back a write which its lower refuses: the write is a part of a record, or
/// of a tree. The lower may be a file on a full file system, or another thin device. Instead of failing, the device
/// repeats such a write until the lower has space.
pub struct Patience {
    env: Env,
    lower: Lower,
    /// Whether writes wait at all: a start or a stop of the device rather fails.
    waits: Cell<bool>,
    waiting: Cell<u32>,
}

impl Patience {
    /// Creates the patience for writes to `lower`. Until [`Patience::set`] no write waits.
    pub fn new(env: &Env, lower: &Lower) -> Rc<Self> {
        let (env, lower) = (env.clone(), lower.clone());
        Rc::new(Self { env, lower, waits: Cell::default(), waiting: Cell::default() })
    }

    /// Sets whether writes wait for space. Those that wait now fail soon after `false`.
    pub fn set(&self, waits: bool) {
        self.waits.set(waits);
    }

    /// Returns the number of writes that wait for space.
    pub fn waiting(&self) -> u32 {
        self.waiting.get()
    }

    /// Returns the answer of a write. A write that the lower refused for lack of space is repeated first, for at most
    /// [`NO_SPACE_MAX`].
    pub async fn settle(&self, mut done: Done) -> Done {
        if !is_refused(&done) || !self.waits.get() {
            return done;
        }
        let begun = self.env.now();
        self.waiting.set(self.waiting.get() + 1);
        let _waits = ScopeGuard::new(|| self.waiting.set(self.waiting.get() - 1));
        let goes_on = || self.waits.get() && self.env.now().since(begun) < NO_SPACE_MAX;
        while is_refused(&done) && goes_on() {
            self.env.sleep(RETRY).await;
            done = self.lower.call(done.op).await;
        }
        done
    }
}

fn is_refused(done: &Done) -> bool {
    done.result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
}
