//! The stop of a server: no new clients, replies to all begun requests, a flush of every device.

use std::time::Duration;

use block::units::format_duration;
use block::{Mono, first};
use graph::live::ChangeGuard;
use runtime::{Core, Signals};
use rustix::process::Signal;

use super::command::Command;
use super::{Serving, process, worker};
use crate::exit::{Exit, Failure, Result};
use crate::out;

/// Longest wait, after the last flush, until the listeners and the ring are closed.
const CLOSE: Duration = Duration::from_secs(5);

const AT_ONCE: &str = "stopped at once by a second signal; a power cut may lose unflushed writes";

/// The result of serving a graph.
pub enum Ended {
    /// All writes are flushed. The value is the exit code.
    Flushed(u8),
    /// Not all writes are flushed; the text has the reason.
    Unflushed(String),
    /// All writes are flushed, and another process continues to serve the graph.
    HandedOver,
}

impl Ended {
    /// Returns the result as a line for the log; `None` if the error of the process says more.
    pub fn words(&self) -> Option<&'static str> {
        match self {
            Self::Flushed(_) => Some("stopped, all writes are flushed"),
            Self::Unflushed(_) => None,
            Self::HandedOver => Some("handed over to another process"),
        }
    }

    /// Closes the core, and returns the result of the process.
    pub fn finish(self, core: Core) -> Result {
        match self {
            Self::Flushed(code) => {
                if let Err(error) = core.shutdown(CLOSE) {
                    // The request that still runs was given up before, and all data are flushed.
                    warn!("{error}");
                }
                if code == 0 { Ok(Exit::Ok) } else { Err(Failure::of(code, "")) }
            }
            Self::HandedOver => worker::leave(),
            Self::Unflushed(why) => {
                // The deadline is over, so there is no second wait.
                let _ = core.shutdown(Duration::ZERO);
                Err(Failure::new(Exit::Unflushed, why))
            }
        }
    }
}

impl Serving {
    /// Serves clients until a signal comes. Then stops the server, or hands the graph over to another process.
    pub async fn until_signal(&self, signals: &mut Signals, limit: Duration) -> Ended {
        let is = |number, signal: Signal| number == signal.as_raw();
        loop {
            match signals.next().await {
                Ok(signal) if is(signal, Signal::USR1) && self.record.is_some() => {
                    self.notify_again();
                }
                Ok(signal) if is(signal, Signal::USR1) || is(signal, Signal::USR2) => {
                    if let Some(ended) = self.hand_over().await {
                        return ended;
                    }
                    // After a failed hand-over, a worker of a daemon continues. Without a daemon, SIGUSR1 is a reload,
                    // which changes nothing then. SIGUSR2 is a restart: the process must stop, because the service
                    // manager starts the next one only then.
                    if self.record.is_none() && is(signal, Signal::USR2) {
                        return self.end(signals, limit, None, 0).await;
                    }
                }
                _ => return self.end(signals, limit, None, 0).await,
            }
        }
    }

    /// Serves clients until `command` ends or a signal comes. Then stops the server.
    pub async fn until_command(
        &self,
        mut command: Command,
        signals: &mut Signals,
        limit: Duration,
    ) -> Ended {
        match first(command.ended(), signals.next()).await {
            Ok(code) => self.end(signals, limit, None, code).await,
            Err(_) => self.end(signals, limit, Some(command), 0).await,
        }
    }

    /// Stops the server. A second signal ends the process without further waits.
    pub(super) async fn end(
        &self,
        signals: &mut Signals,
        limit: Duration,
        command: Option<Command>,
        code: u8,
    ) -> Ended {
        process::notify_manager("STOPPING=1");
        self.stopping.set(true);
        let stop = async {
            if let Some(mut command) = command {
                command.terminate();
                let _ = self.env.within(limit, command.ended()).await;
            }
            self.stop_for_good(limit).await
        };
        match first(stop, self.impatience(signals)).await {
            Ok(Ok(closed)) => {
                if code == 0 {
                    // The data are flushed even if the terminal is gone.
                    let closed = out::count(closed as u64, "connection");
                    let _ = out::print(&format!("flushed; closed {closed}.\n"));
                }
                Ended::Flushed(code)
            }
            Ok(Err(why)) => Ended::Unflushed(why),
            Err(_) => Ended::Unflushed(AT_ONCE.to_owned()),
        }
    }

    /// Waits until no other change of the graph is in progress, and keeps others out until the guard is dropped.
    ///
    /// # Errors
    /// `InUse` if the server has begun to stop: it makes no more changes.
    pub(super) async fn turn(&self) -> Result<ChangeGuard> {
        self.must_go_on()?;
        let turn = self.live.turn().await;
        self.must_go_on()?;
        Ok(turn)
    }

    /// Fails if the server has begun to stop.
    fn must_go_on(&self) -> Result<()> {
        if !self.stopping.get() {
            return Ok(());
        }
        let now = self.live.now();
        let why = format!("{} is stopping, and is not changed any more", now.graph.name());
        let next = "the same command when cairn status does not list it any more";
        Err(Failure::new(Exit::InUse, why).next(next))
    }

    /// Waits for a signal that ends the process without further waits. The signals of a supervisor (USR1, USR2) do
    /// not.
    async fn impatience(&self, signals: &mut Signals) {
        loop {
            match signals.next().await {
                Ok(signal) if signal == Signal::USR1.as_raw() => self.fdstore_put_again(),
                Ok(signal) if signal == Signal::USR2.as_raw() => {}
                _ => return,
            }
        }
    }

    /// Stops the server, and removes its memory from the supervisor, because a process that is started later must not
    /// inherit it.
    async fn stop_for_good(&self, limit: Duration) -> Result<usize, String> {
        let stopped = self.stop(limit).await;
        if let Err(error) = self.env.fdstore_remove_memory() {
            warn!("{error}");
        }
        stopped
    }

    /// Waits until begun requests are answered, and flushes all devices. Returns the number of closed connections; or
    /// the reason, if a write may not be flushed.
    async fn stop(&self, limit: Duration) -> Result<usize, String> {
        let Some(turn) = self.env.within(limit, self.live.turn()).await else {
            return Err(self.overdue(limit));
        };
        // The last change has ended, and the guard is never released, so no other change begins.
        std::mem::forget(turn);
        // Users of devices and begun requests get the full limit each, one after the other.
        let devices = self.attachments.end(limit).await;
        let deadline = self.env.now().after(limit);
        let (closed, answered) = self.server.stop(limit).await;
        if !answered {
            return Err(self.overdue(limit));
        }
        let left = deadline.since(self.env.now());
        match self.env.within(left, self.flush()).await {
            Some(Ok(())) => {
                // A device that is still in use may write after this flush, so the stop was not in order.
                devices?;
                self.close(deadline).await;
                Ok(closed)
            }
            Some(Err(failed)) => Err(format!("the flush at the end failed: {failed}")),
            None => Err(self.overdue(limit)),
        }
    }

    /// Closes the devices, and marks the labels as closed. After a failure the next start treats the disks as after a
    /// crash, and does unnecessary work.
    pub(super) async fn close(&self, deadline: Mono) {
        self.live.close_devices(deadline).await;
        let now = self.live.now();
        let Some(labels) = &now.labels else { return };
        let left = deadline.since(self.env.now());
        match self.env.within(left, labels.close()).await {
            Some(Ok(())) => {}
            Some(Err(error)) => note!("note: a label stays marked as open: {error}"),
            None => out::note("note: labels stay marked as open: disks did not answer in time"),
        }
    }

    pub(super) async fn flush(&self) -> Result<(), String> {
        let failed = self.live.flush().await;
        let failed: Vec<_> =
            failed.into_iter().map(|(name, error)| format!("{name}: {error}")).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Returns the message for a stop after the time `limit`, with the requests that are not answered.
    pub(super) fn overdue(&self, limit: Duration) -> String {
        let waiting = self.live.unanswered(&self.live.now());
        let limit = format_duration(limit);
        let clients = out::count(self.engine.in_flight(), "request");
        format!(
            "stopped after {limit} with {clients} unanswered; waiting: {}. A power cut may lose \
             unflushed writes",
            waiting.join(", ")
        )
    }
}
