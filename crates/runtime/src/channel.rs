//! The channel of a FUSE mount: one read of `/dev/fuse` is one request, one write one answer.
//!
//! Messages are moved by plain system calls on the core's own thread: they copy, and never wait. The
//! ring only waits for the next one. The descriptor is never cloned and nothing is spliced, so that
//! one day another process can take it over with all that is not answered.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use block::env::{Channel, Ticket, stopped};
use block::{Buf, Error, ErrorKind, Result};

use crate::side::Side;
use crate::slab::{Held, Op};
use crate::sys;

const DEVICE: &str = "/dev/fuse";

struct Fuse {
    side: Rc<Side>,
    file: Rc<OwnedFd>,
    name: Rc<str>,
    lacks: Option<String>,
}

/// Opens the device and mounts.
pub(crate) fn mount(side: Rc<Side>, at: &Path) -> Result<Rc<dyn Channel>> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK;
    let file =
        sys::open(Path::new(DEVICE), flags, 0).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::new(
                ErrorKind::Unsupported,
                format!("{DEVICE}: {error}: this kernel has no FUSE, or its module is not loaded"),
            ),
            _ => Error::io(&error, DEVICE),
        })?;
    sys::mount_fuse(file.as_raw_fd(), at)
        .map_err(|error| Error::io(&error, format_args!("mounting on {}", at.display())))?;
    let lacks = sys::set_io_flusher().err().map(|error| {
        format!(
            "PR_SET_IO_FLUSHER: {error}: when memory is short, writes to the device may wait for each \
             other"
        )
    });
    let name = at.display().to_string().into();
    Ok(Rc::new(Fuse { side, file: Rc::new(file), name, lacks }))
}

impl Fuse {
    fn error(&self, error: &std::io::Error, tried: &str) -> Error {
        match error.raw_os_error() {
            // Unmounted, or broken off by force.
            Some(libc::ENODEV | libc::ECONNABORTED) => stopped(),
            _ => Error::io(error, format_args!("{}: {tried}", self.name)),
        }
    }
}

impl Channel for Fuse {
    fn recv(&self, head: &Buf, rest: &Buf) -> Result<Option<usize>> {
        let (mut head, mut rest) = (head.write(), rest.write());
        loop {
            match sys::read_two(self.file.as_raw_fd(), &mut head, &mut rest) {
                Ok(n) => return Ok(Some(n)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(None),
                    // The request was taken back while it was read.
                    Some(libc::EINTR | libc::ENOENT) => {}
                    _ => return Err(self.error(&error, "receive")),
                },
            }
        }
    }

    fn ready(&self) -> Ticket {
        let (file, name) = (self.file.clone(), Some(self.name.clone()));
        let held = Held { op: Op::Ready, file, disk: None, name, buf: None, peer: None };
        self.side.start(held, Vec::new(), false)
    }

    fn send(&self, head: &[u8], rest: Option<&Buf>) -> Result<()> {
        let rest = rest.map(Buf::read);
        let rest = rest.as_deref().unwrap_or_default();
        loop {
            match sys::write_two(self.file.as_raw_fd(), head, rest) {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(self.error(&error, "send")),
            }
        }
    }

    fn pin(&self, buf: &Buf) -> Result<()> {
        let mut bytes = buf.write();
        sys::lock_memory(&mut bytes).map_err(|error| {
            let len = bytes.len();
            Error::new(
                ErrorKind::Limit,
                format!(
                    "locking {len} bytes of memory: {error}. Next: raise the limit of locked memory \
                     (ulimit -l), or give CAP_IPC_LOCK"
                ),
            )
        })
    }

    fn lacks(&self) -> Option<&str> {
        self.lacks.as_deref()
    }
}
