//! What carries out the calls: a ring where the kernel allows one.

use std::io;
use std::time::Duration;

use crate::ring::Ring;
use crate::sys::Call;

/// The id of an operation and what the kernel said: bytes, or an errno below zero.
pub(crate) type Answer = (u64, i32);

/// How long a turn may wait for the first answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    No,
    Until(Duration),
    Forever,
}

/// The one that is in use.
pub(crate) enum Running {
    Ring(Ring),
}

impl Running {
    /// Whether sockets are to answer at once instead of waiting.
    pub(crate) fn nonblocking(&self) -> bool {
        match self {
            Self::Ring(_) => false,
        }
    }

    /// Begins a call; its answer comes from a later turn.
    pub(crate) fn submit(&mut self, id: u64, call: Call) {
        match self {
            Self::Ring(ring) => ring.submit(id, call),
        }
    }

    /// Asks for the end of an operation that waits for others; it is answered either way.
    pub(crate) fn cancel(&mut self, id: u64) {
        match self {
            Self::Ring(ring) => ring.cancel(id),
        }
    }

    /// Hands over what was submitted, without waiting.
    pub(crate) fn flush(&mut self) {
        match self {
            Self::Ring(ring) => ring.flush(),
        }
    }

    /// Whether a turn would find answers at once.
    pub(crate) fn ready(&mut self) -> bool {
        match self {
            Self::Ring(ring) => ring.ready(),
        }
    }

    /// Hands over what was submitted, waits, takes the answers.
    pub(crate) fn turn(&mut self, wait: Wait, answers: &mut Vec<Answer>) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.turn(wait, answers),
        }
    }
}
