//! The mechanism without io_uring: threads make the system calls on disks, and `poll` waits for sockets.
//!
//! One of the few modules with unsafe code: system calls point at memory that slots own.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{Answer, Wait};
use crate::executor::Queue;
use crate::sys::{self, Call};
use crate::workers::Workers;

/// Number of threads for the disks of a core.
pub(crate) const DISK_THREADS: usize = 4;

/// The mechanism of a core without io_uring: threads for disks, and the sockets for which operations wait.
pub(crate) struct Threads {
    disks: Workers<DiskJob>,
    ended: Arc<Ended>,
    streams: Vec<Stream>,
    polls: Vec<libc::pollfd>,
    // Results of calls that completed on submission or were cancelled.
    answered: Vec<Answer>,
}

struct DiskJob {
    id: u64,
    call: Call,
    ended: Arc<Ended>,
}

/// Results of system calls on the threads for disks.
struct Ended {
    answers: Mutex<Vec<Answer>>,
    queue: Arc<Queue>,
}

#[derive(Clone, Copy)]
struct Stream {
    id: u64,
    call: Call,
    fd: RawFd,
    events: i16,
}

impl Ended {
    fn answers(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskJob {
    fn run(self) {
        // SAFETY: the slot owns the memory that the call points at until it gets the result.
        let res = unsafe { sys::perform(self.call) };
        self.ended.answers().push((self.id, res));
        self.ended.queue.wake_core();
    }
}

impl Threads {
    /// Creates the mechanism without io_uring. Its threads wake the core of `queue` when they have results.
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Self {
            disks: Workers::new("cairn-disk", DISK_THREADS, DiskJob::run),
            ended: Arc::new(Ended { answers: Mutex::default(), queue }),
            streams: Vec::new(),
            polls: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Submits a system call of the operation `id`.
    pub(crate) fn submit(&mut self, id: u64, call: Call) {
        let (fd, events) = match call {
            Call::Read { .. }
            | Call::Write { .. }
            | Call::Fsync { .. }
            | Call::Fallocate { .. } => {
                self.disks.push(DiskJob { id, call, ended: self.ended.clone() });
                return;
            }
            Call::Recv { fd, .. }
            | Call::Accept { fd }
            | Call::Next { fd, .. }
            | Call::Ready { fd } => (fd, libc::POLLIN),
            Call::Send { fd, .. } | Call::Connect { fd, .. } => (fd, libc::POLLOUT),
        };
        let stream = Stream { id, call, fd, events };
        // Streams that are not sockets would block the core here.
        let res = match call {
            Call::Next { .. } | Call::Ready { .. } => -libc::EAGAIN,
            // SAFETY: the slot owns the memory that the call points at.
            _ => unsafe { sys::perform(call) },
        };
        let in_progress = matches!(call, Call::Connect { .. }) && res == -libc::EINPROGRESS;
        let not_yet = !matches!(call, Call::Connect { .. }) && res == -libc::EAGAIN;
        if in_progress || not_yet {
            self.streams.push(stream);
        } else {
            self.answered.push((id, res));
        }
    }

    /// Cancels the operation `id`, if it waits for a socket.
    pub(crate) fn cancel(&mut self, id: u64) {
        if let Some(index) = self.streams.iter().position(|stream| stream.id == id) {
            self.streams.remove(index);
            self.answered.push((id, -libc::ECANCELED));
        }
    }

    /// Whether there are results, without a `poll` of the sockets.
    pub(crate) fn ready(&self) -> bool {
        !self.answered.is_empty() || !self.ended.answers().is_empty()
    }

    /// Waits for results as `wait` permits, and adds them to `answers`.
    pub(crate) fn turn(&mut self, wait: Wait, answers: &mut Vec<Answer>) -> io::Result<()> {
        let limit = match wait {
            Wait::Forever => None,
            Wait::Until(limit) => Some(limit),
            Wait::No => Some(std::time::Duration::ZERO),
        };
        let polls = self.streams.iter().map(|stream| libc::pollfd {
            fd: stream.fd,
            events: stream.events,
            revents: 0,
        });
        self.polls.clear();
        self.polls.extend(polls);
        let polled = match sys::poll(&mut self.polls, limit) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(false),
            other => other,
        };
        if let Ok(true) = polled {
            let mut polls = self.polls.iter();
            self.streams.retain(|stream| {
                let res = match polls.next().map_or(0, |poll| poll.revents) {
                    0 => -libc::EAGAIN,
                    events => stream.proceed(events),
                };
                if res != -libc::EAGAIN {
                    answers.push((stream.id, res));
                }
                res == -libc::EAGAIN
            });
        }
        answers.append(&mut self.answered);
        answers.append(&mut self.ended.answers());
        polled.map(drop)
    }
}

impl Stream {
    /// Makes the system call on a socket that is ready, and returns its result.
    fn proceed(&self, events: i16) -> i32 {
        if let Call::Connect { fd, .. } = self.call {
            return -sys::socket_error(fd);
        }
        // SAFETY: the slot owns the memory that the call points at.
        let res = unsafe { sys::perform(self.call) };
        // A unix listener that was shut down never gets a connection again.
        let over = res == -libc::EAGAIN && events & (libc::POLLHUP | libc::POLLERR) != 0;
        if over { -libc::EINVAL } else { res }
    }
}
