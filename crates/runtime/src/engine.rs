//! The mechanism by which a core makes its system calls: a ring if the kernel permits one, else threads.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use block::{Error, Result};

use crate::executor::Queue;
use crate::ring::Ring;
use crate::sys::Call;
use crate::threads::{DISK_THREADS, Threads};

/// The id of an operation and the result of its system call: a number of bytes, or a negative errno.
pub(crate) type Answer = (u64, i32);

/// The longest wait of a turn for the first completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    No,
    Until(Duration),
    Forever,
}

/// The choice of the mechanism by which a core makes system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// An io_uring, or threads if the kernel allows none.
    Auto,
    /// An io_uring, or an error if the kernel allows none.
    Ring,
    /// Threads for calls on disks, and `poll` for sockets.
    Threads,
}

/// The mechanism that makes the system calls of a core.
pub(crate) enum Running {
    Ring(Box<Ring>),
    Threads(Threads),
}

/// Starts the mechanism for a core's system calls. Returns the mechanism, and a line for the log about it.
pub(crate) fn start(engine: Engine, queue: &Arc<Queue>) -> Result<(Running, String)> {
    let threads = |why: &str| {
        let words = format!("{why}; {DISK_THREADS} threads do the I/O of disks");
        Ok((Running::Threads(Threads::new(queue.clone())), words))
    };
    if engine == Engine::Threads {
        return threads("the engine \"threads\" was chosen, so io_uring is not used");
    }
    let error = match Ring::new() {
        Ok(ring) => {
            let words = ring.words().to_owned();
            return Ok((Running::Ring(Box::new(ring)), words));
        }
        Err(error) => error,
    };
    match refusal(&error) {
        Some(why) if engine == Engine::Auto => threads(why),
        _ => Err(Error::io(&error, "cannot set up io_uring (engine \"threads\" works without)")),
    }
}

/// Returns the reason if `error` means that this process cannot have a ring; `None` for other errors.
fn refusal(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EPERM => Some("this process may not use io_uring (EPERM)"),
        libc::EACCES => Some("this process may not use io_uring (EACCES)"),
        libc::ENOSYS => Some("the kernel has no io_uring of Linux 5.11 or later (ENOSYS)"),
        _ => None,
    }
}

impl Running {
    /// Whether sockets must be nonblocking for this mechanism.
    pub(crate) fn nonblocking(&self) -> bool {
        matches!(self, Self::Threads(_))
    }

    /// Submits a system call of the operation `id`. A later turn returns the result.
    pub(crate) fn submit(&mut self, id: u64, call: Call) {
        match self {
            Self::Ring(ring) => ring.submit(id, call),
            Self::Threads(threads) => threads.submit(id, call),
        }
    }

    /// Cancels the operation `id`, which waits for another process. The operation is completed in any case.
    pub(crate) fn cancel(&mut self, id: u64) {
        match self {
            Self::Ring(ring) => ring.cancel(id),
            Self::Threads(threads) => threads.cancel(id),
        }
    }

    /// Submits the queued system calls to the kernel, without waiting.
    pub(crate) fn flush(&mut self) {
        match self {
            Self::Ring(ring) => ring.flush(),
            // The threads have them already.
            Self::Threads(_) => {}
        }
    }

    /// Whether a turn would return results without waiting.
    pub(crate) fn ready(&mut self) -> bool {
        match self {
            Self::Ring(ring) => ring.ready(),
            Self::Threads(threads) => threads.ready(),
        }
    }

    /// Submits the queued system calls, waits for results as `wait` permits, and adds the results to `answers`.
    pub(crate) fn turn(&mut self, wait: Wait, answers: &mut Vec<Answer>) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.turn(wait, answers),
            Self::Threads(threads) => threads.turn(wait, answers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_engine_uses_threads_only_when_io_uring_is_forbidden() {
        let of = |errno| refusal(&io::Error::from_raw_os_error(errno));
        assert_eq!(of(libc::EPERM), Some("this process may not use io_uring (EPERM)"));
        assert!(of(libc::ENOSYS).is_some());
        assert_eq!(of(libc::ENOMEM), None);
        assert_eq!(of(libc::EMFILE), None);
    }
}
