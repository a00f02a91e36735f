//! The mechanism with io_uring: one system call for each turn, for sockets and disks together.
//!
//! One of the few modules with unsafe code: submissions point at memory that slots own.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode};

use crate::engine::{Answer, Wait};
use crate::sys::Call;

const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 4096;

// Most kernel threads for `fsync`, `fallocate` and buffered writes.
const KERNEL_THREADS: [u32; 2] = [8, 8];

// Number of disk requests that are submitted together before the turn ends. A device that idles while a
// longer batch is gathered loses a fifth of its requests per second (measured at depth 32).
const DISK_BATCH: u32 = 4;

// Id of a cancellation; its own completion is ignored.
const CANCEL: u64 = u64::MAX;

/// An io_uring, and the submissions that do not fit into it yet.
pub(crate) struct Ring {
    ring: IoUring,
    waiting: VecDeque<Entry>,
    gathered: u32,
    no_iowait: EnterFlags,
    task_run_flag: bool,
}

impl Ring {
    /// Creates an io_uring with the features that the kernel supports.
    pub(crate) fn new() -> io::Result<Self> {
        let best = IoUring::builder()
            .dontfork()
            .setup_clamp()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(SUBMISSIONS);
        let (ring, task_run_flag) = match best {
            Ok(ring) => (ring, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (IoUring::builder().dontfork().setup_cqsize(COMPLETIONS).build(SUBMISSIONS)?, false)
            }
            Err(error) => return Err(error),
        };
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        let mut threads = KERNEL_THREADS;
        // Kernels before 5.15 do not know this call; their own limits hold there.
        let _ = ring.submitter().register_iowq_max_workers(&mut threads);
        let no_iowait = if ring.params().is_feature_no_iowait() {
            EnterFlags::NO_IOWAIT
        } else {
            EnterFlags::empty()
        };
        Ok(Self { ring, waiting: VecDeque::new(), gathered: 0, no_iowait, task_run_flag })
    }

    /// Returns a line for the log about the features of the io_uring.
    pub(crate) fn words(&self) -> &'static str {
        if self.task_run_flag {
            "io_uring with one issuer and deferred task work"
        } else {
            "io_uring without deferred task work, which this kernel lacks"
        }
    }

    /// Queues a system call of the operation `id` for the next submission. Every few calls on disks are submitted at
    /// once.
    pub(crate) fn submit(&mut self, id: u64, call: Call) {
        self.push(entry(call).user_data(id));
        if let Call::Read { .. } | Call::Write { .. } = call {
            self.gathered += 1;
            if self.gathered == DISK_BATCH {
                // Entries that the kernel does not take now are offered again by the next enter.
                let _ = self.enter(0, EnterFlags::empty(), None);
            }
        }
    }

    /// Cancels the operation `id`, which waits for another process.
    pub(crate) fn cancel(&mut self, id: u64) {
        self.push(opcode::AsyncCancel::new(id).build().user_data(CANCEL));
    }

    fn push(&mut self, entry: Entry) {
        if self.waiting.is_empty() && self.fits(&entry) {
            return;
        }
        // The queue is full: the kernel takes it now or, if memory is short, at the next turn.
        self.waiting.push_back(entry);
        self.flush();
    }

    fn fits(&mut self, entry: &Entry) -> bool {
        // SAFETY: a slot owns the memory that the entry points at until the completion.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Submits the queued system calls to the kernel, without waiting.
    pub(crate) fn flush(&mut self) {
        loop {
            let before = self.queued();
            if before == 0 {
                return;
            }
            // Entries that the kernel does not take now are offered again by the next enter.
            let _ = self.enter(0, EnterFlags::GETEVENTS, None);
            self.refill();
            if self.queued() >= before {
                return;
            }
        }
    }

    fn refill(&mut self) {
        while let Some(entry) = self.waiting.pop_front() {
            if !self.fits(&entry) {
                self.waiting.push_front(entry);
                return;
            }
        }
    }

    fn queued(&mut self) -> usize {
        self.ring.submission().len() + self.waiting.len()
    }

    fn enter(&mut self, want: u32, flags: EnterFlags, limit: Option<&Timespec>) -> io::Result<()> {
        let submit = self.ring.submission().len() as u32;
        self.gathered = 0;
        let flags = flags | EnterFlags::EXT_ARG;
        let flags = if want > 0 { flags | self.no_iowait } else { flags };
        let args = match limit {
            Some(limit) => SubmitArgs::new().timespec(limit),
            None => SubmitArgs::new(),
        };
        // SAFETY: the argument is of the type that EXT_ARG names and lives over the call, and the queue holds
        // `submit` entries.
        unsafe { self.ring.submitter().enter(submit, want, flags.bits(), Some(&args)) }.map(drop)
    }

    /// Whether a turn would find completions in the io_uring.
    pub(crate) fn ready(&mut self) -> bool {
        let kernel_has_more = {
            let queue = self.ring.submission();
            queue.taskrun() || queue.cq_overflow()
        };
        kernel_has_more || !self.ring.completion().is_empty()
    }

    /// Submits the queued system calls, waits for completions as `wait` permits, and adds their results to `answers`.
    pub(crate) fn turn(&mut self, wait: Wait, answers: &mut Vec<Answer>) -> io::Result<()> {
        self.refill();
        if wait == Wait::No && self.queued() == 0 && !self.ready() {
            return Ok(());
        }
        let limit = match wait {
            Wait::Until(limit) => Some(timespec(limit)),
            Wait::No | Wait::Forever => None,
        };
        // A backlog is submitted before any sleep.
        let want = u32::from(wait != Wait::No && self.waiting.is_empty());
        let entered = self.enter(want, EnterFlags::GETEVENTS, limit.as_ref());
        answers.extend(
            self.ring
                .completion()
                .filter(|answer| answer.user_data() != CANCEL)
                .map(|answer| (answer.user_data(), answer.result())),
        );
        match entered.map_err(|error| error.raw_os_error()) {
            // Timeout; signal; completions must be taken first; memory is short: all of these pass.
            Ok(())
            | Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ENOMEM)) => {
                Ok(())
            }
            Err(errno) => Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO))),
        }
    }
}

fn timespec(limit: Duration) -> Timespec {
    Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos())
}

/// Returns the entry for a kernel thread if the call could sleep (`away`), otherwise unchanged.
fn apart(entry: Entry, away: bool) -> Entry {
    if away { entry.flags(Flags::ASYNC) } else { entry }
}

fn entry(call: Call) -> Entry {
    match call {
        Call::Read { fd, ptr, len, offset, apart: away } => {
            apart(opcode::Read::new(Fd(fd), ptr, len).offset(offset).build(), away)
        }
        Call::Write { fd, ptr, len, offset, dsync, apart: away } => {
            let flags = if dsync { libc::RWF_DSYNC } else { 0 };
            apart(opcode::Write::new(Fd(fd), ptr, len).offset(offset).rw_flags(flags).build(), away)
        }
        Call::Fsync { fd } => opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build(),
        Call::Fallocate { fd, mode, offset, len } => {
            opcode::Fallocate::new(Fd(fd), len).offset(offset).mode(mode).build()
        }
        Call::Recv { fd, ptr, len } => opcode::Recv::new(Fd(fd), ptr, len).build(),
        Call::Send { fd, msg } => {
            opcode::SendMsg::new(Fd(fd), msg).flags(libc::MSG_NOSIGNAL as u32).build()
        }
        Call::Accept { fd } => {
            let none = std::ptr::null_mut();
            opcode::Accept::new(Fd(fd), none, std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build()
        }
        Call::Connect { fd, addr } => {
            // SAFETY: the slot owns the address until the completion.
            let addr = unsafe { &*addr };
            opcode::Connect::new(Fd(fd), addr.as_ptr().cast(), addr.addr_len()).build()
        }
        Call::Ready { fd } => opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build(),
        // Reads at the stream's own position.
        Call::Next { fd, ptr, len } => opcode::Read::new(Fd(fd), ptr, len).offset(u64::MAX).build(),
    }
}
