//! A worker process, from its start until its last thread has ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A worker process, identified by a pidfd, so that no later process with the same id is taken for it.
pub struct Worker {
    pid: u32,
    handle: AsyncFd<OwnedFd>,
    /// The child process, if this process has started the worker.
    child: Option<Child>,
}

impl Worker {
    /// Starts a worker process.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let child = command.spawn()?;
        // Only this process waits for it, so its number is still its own.
        let handle = handle(child.id())?;
        Ok(Self { pid: child.id(), handle, child: Some(child) })
    }

    /// Opens a worker process that another process has started; `None` if it has ended.
    pub fn adopt(pid: u32) -> io::Result<Option<Self>> {
        match handle(pid) {
            Ok(handle) => Ok(Some(Self { pid, handle, child: None })),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the process id of the worker.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal to the worker, if the worker has not ended.
    pub fn signal(&self, signal: Signal) {
        // It may have ended just now; `gone` reports that.
        let _ = pidfd_send_signal(self.handle.get_ref(), signal);
    }

    /// Waits until the last thread of the worker has ended, so that all of its descriptors are closed.
    pub async fn gone(&self) {
        // Without a pidfd the end could not be noticed, but a wait on an open one does not fail.
        let _ = self.handle.readable().await;
    }

    /// Removes the ended worker from the process table. Returns the exit status if the worker was a child of this
    /// process.
    pub fn reap(mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut().and_then(|child| child.wait().ok());
        if status.is_none() {
            // It may be a child of this process from before an exec. If not, the call fails without harm.
            let which = WaitId::PidFd(self.handle.get_ref().as_fd());
            let _ = waitid(which, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        status
    }
}

#[allow(
    deprecated,
    reason = "the new one is unsafe, for types that change their descriptor: an OwnedFd never does"
)]
fn handle(pid: u32) -> io::Result<AsyncFd<OwnedFd>> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    AsyncFd::with_interest(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[tokio::test]
    async fn parent_and_adopter_see_end_of_worker() {
        let mut sleep = Command::new("sleep");
        sleep.arg("60");
        let worker = Worker::start(sleep).unwrap();
        let other = Worker::adopt(worker.pid()).unwrap().expect("it lives");
        other.signal(Signal::KILL);
        worker.gone().await;
        other.gone().await;
        assert_eq!(worker.reap().and_then(|status| status.signal()), Some(9));
        assert_eq!(other.reap(), None);
        let mut done = Command::new("true").spawn().unwrap();
        done.wait().unwrap();
        assert!(Worker::adopt(done.id()).unwrap().is_none());
    }
}
