//! The channel of a FUSE mount: a read of `/dev/fuse` returns a request of the kernel, and a write sends a reply.
//!
//! Messages are received and sent by plain system calls on the core's own thread, which copy and never wait. The ring
//! only waits for the next message. The descriptor is never cloned, and no pages are spliced. So another process can
//! take over the descriptor with all requests without a reply; requests that were received through a clone would end
//! with the clone.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use block::env::{Channel, Outcome, Ticket, stopped};
use block::{Buf, Error, Result, error};
use rustix::io::{Errno, readv, writev};

use crate::fdstore;
use crate::reactor::Reactor;
use crate::replay_counts::Again;
use crate::slab::{Held, Op};
use crate::sys;

const DEVICE: &str = "/dev/fuse";

/// Returns the notification that makes the kernel send requests without a reply again (since Linux 6.9): the length,
/// the number of the notification, and no request number.
fn resend() -> [u8; 16] {
    const NOTIFY_RESEND: u32 = 7;
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    message
}

struct Fuse {
    side: Rc<Reactor>,
    /// The descriptor of the channel; `None` after the channel was closed.
    file: RefCell<Option<Rc<OwnedFd>>>,
    name: Rc<str>,
    lacks: Option<String>,
    /// Name under which the descriptor store has the channel for the next process; `None` if it does not.
    fdstore_name: RefCell<Option<String>>,
    /// Counts of resent requests, in a channel that was taken over.
    again: Option<RefCell<Again>>,
}

/// Opens `/dev/fuse` and mounts a FUSE file system on the directory `at`. Returns the channel of the mount.
pub(crate) fn mount(side: Rc<Reactor>, at: &Path) -> Result<Rc<dyn Channel>> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK;
    let file =
        sys::open(Path::new(DEVICE), flags, 0).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                error!(Unsupported, "{DEVICE}: {error}: the kernel has no FUSE, or not its module")
            }
            _ => Error::io(&error, DEVICE),
        })?;
    sys::mount_fuse(file.as_raw_fd(), at)
        .map_err(|error| Error::io(&error, format_args!("mounting on {}", at.display())))?;
    Ok(Rc::new(Fuse::new(side, file, at)))
}

/// Takes over the channel of a mount that another process has served. If the file with the counts of resent requests
/// cannot be opened, the channel works without counts: a request that kills every process which begins it is rare.
pub(crate) fn take_over(
    side: Rc<Reactor>,
    name: &str,
    at: &Path,
    counts: &Path,
) -> Result<Rc<dyn Channel>> {
    let left = fdstore::take_named(name)?;
    let again = Again::open(counts).inspect_err(|error| not_counted(&side, counts, error)).ok();
    let (fdstore_name, again) = (RefCell::new(Some(left.name)), again.map(RefCell::new));
    Ok(Rc::new(Fuse { fdstore_name, again, ..Fuse::new(side, left.file, at) }))
}

fn not_counted(side: &Reactor, counts: &Path, error: &std::io::Error) {
    side.note(&format!(
        "warning: {}: {error}: resent FUSE requests are not counted across restarts. Next: make \
         room in /run",
        counts.display()
    ));
}

impl Fuse {
    fn new(side: Rc<Reactor>, file: OwnedFd, at: &Path) -> Self {
        let lacks = sys::set_io_flusher().err().map(|error| {
            format!(
                "PR_SET_IO_FLUSHER: {error}: when memory is short, writes to the mounted volume \
                 may deadlock"
            )
        });
        let file = RefCell::new(Some(Rc::new(file)));
        let name = at.display().to_string().into();
        Self { side, file, name, lacks, fdstore_name: RefCell::default(), again: None }
    }

    fn file(&self) -> Result<Rc<OwnedFd>> {
        self.file.borrow().clone().ok_or_else(stopped)
    }

    /// Reduces the file of counts at the first time without a message. The kernel has then sent again all requests that
    /// other processes left without a reply, and only these need counts. A failure is logged.
    fn settle(&self) {
        let Some(again) = &self.again else { return };
        let mut again = again.borrow_mut();
        if let Err(error) = again.settle() {
            not_counted(&self.side, again.path(), &error);
        }
    }

    fn error(&self, error: Errno, tried: &str) -> Error {
        match error {
            // The file system was unmounted, or aborted by force.
            Errno::NODEV | Errno::CONNABORTED => stopped(),
            _ => Error::os(error.raw_os_error(), format_args!("{}: {tried}", self.name)),
        }
    }
}

impl Channel for Fuse {
    fn recv(&self, head: &Buf, rest: &Buf) -> Result<Option<usize>> {
        let file = self.file()?;
        let (mut head, mut rest) = (head.write(), rest.write());
        loop {
            let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut rest)];
            match readv(&*file, &mut parts) {
                Ok(n) => return Ok(Some(n)),
                Err(Errno::AGAIN) => {
                    self.settle();
                    return Ok(None);
                }
                // The kernel cancelled the request while it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(error) => return Err(self.error(error, "receive")),
            }
        }
    }

    fn ready(&self) -> Ticket {
        let file = match self.file() {
            Ok(file) => file,
            Err(error) => return Ticket::ready(Outcome::bare(Err(error))),
        };
        let name = Some(self.name.clone());
        self.side.start(Held::new(Op::Ready, file, name), Vec::new(), false)
    }

    fn send(&self, head: &[u8], rest: Option<&Buf>) -> Result<()> {
        let file = self.file()?;
        let rest = rest.map(Buf::read);
        let rest = rest.as_deref().unwrap_or_default();
        let parts = [IoSlice::new(head), IoSlice::new(rest)];
        let parts = if rest.is_empty() { &parts[..1] } else { &parts };
        loop {
            match writev(&*file, parts) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error(error, "send")),
            }
        }
    }

    fn pin(&self, buf: &Buf) -> Result<()> {
        let mut bytes = buf.write();
        sys::lock_memory(&mut bytes).map_err(|error| {
            let len = bytes.len();
            error!(Limit, "cannot lock {len} bytes of memory: {error}").next(
                "raise the limit of locked memory (ulimit -l), or give the process CAP_IPC_LOCK",
            )
        })
    }

    fn lacks(&self) -> Option<&str> {
        self.lacks.as_deref()
    }

    fn fdstore_put(&self, name: &str) -> Result<bool> {
        let held = fdstore::fdstore_put(name, self.file()?.as_fd())?;
        *self.fdstore_name.borrow_mut() = held.then(|| name.to_owned());
        Ok(held)
    }

    fn fdstore_name(&self) -> Option<String> {
        self.fdstore_name.borrow().clone()
    }

    fn fdstore_remove(&self) -> Result<()> {
        let name = self.fdstore_name.take();
        name.map_or(Ok(()), |name| fdstore::withdraw(&name))
    }

    fn close(&self) -> Result<()> {
        // The kernel ends a mount once the last descriptor is closed.
        self.file.take();
        self.fdstore_remove()
    }

    fn resend(&self) -> Result<()> {
        self.send(&resend(), None)
    }

    fn came_again(&self, number: u64) -> Result<u64> {
        let Some(again) = &self.again else { return Ok(1) };
        let count = again.borrow_mut().note(number);
        count.map_err(|error| {
            Error::io(&error, format_args!("{}: writing counts of resent requests", self.name))
        })
    }
}
