//! How serving ends: nobody is let in any more, what was begun is answered, every device is flushed.

use std::time::Duration;

use block::units::format_duration;
use block::{Mono, first};
use runtime::{Core, Signals};
use rustix::process::Signal;

use super::command::Command;
use super::{Serving, process, worker};
use crate::exit::{Exit, Failure, Result};
use crate::out;

/// For what is left to do when everything is flushed: closing listeners and the ring.
const CLOSE: Duration = Duration::from_secs(5);

const AT_ONCE: &str =
    "stopped at once by a second signal; what was not flushed may be lost with power";

/// What serving came to.
pub enum Ended {
    /// All is flushed; with the code to end with.
    Flushed(u8),
    /// Not all is flushed, for the reason given.
    Unflushed(String),
    /// All is flushed, and another process goes on with it.
    HandedOver,
}

impl Ended {
    /// Closes the core and makes it an exit code.
    pub fn finish(self, core: Core) -> Result {
        match self {
            Self::Flushed(code) => {
                if let Err(error) = core.shutdown(CLOSE) {
                    // Whatever it is, somebody gave it up before, and everything is flushed.
                    out::note(&format!("warning: {error}"));
                }
                if code == 0 { Ok(Exit::Ok) } else { Err(Failure::of(code, "")) }
            }
            Self::HandedOver => worker::leave(),
            Self::Unflushed(why) => {
                // What did not come within the deadline is not waited for a second time.
                let _ = core.shutdown(Duration::ZERO);
                Err(Failure::new(Exit::Unflushed, why))
            }
        }
    }
}

impl Serving {
    /// Serves until a signal comes, then stops, or hands over to another process.
    pub async fn until_signal(&self, signals: &mut Signals, limit: Duration) -> Ended {
        loop {
            match signals.next().await {
                Ok(signal) if signal == Signal::USR1.as_raw() => self.tell_again(),
                Ok(signal) if signal == Signal::USR2.as_raw() => {
                    if let Some(ended) = self.hand_over().await {
                        return ended;
                    }
                    // A daemon lets it go on. A service manager starts the next one when this one has ended.
                    if self.record.is_none() {
                        return self.end(signals, limit, None, 0).await;
                    }
                }
                _ => return self.end(signals, limit, None, 0).await,
            }
        }
    }

    /// Serves until the command ends, or a signal comes, then stops.
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

    /// Stops, unless a second signal comes before that is done.
    pub(super) async fn end(
        &self,
        signals: &mut Signals,
        limit: Duration,
        command: Option<Command>,
        code: u8,
    ) -> Ended {
        process::tell_manager("STOPPING=1");
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
                    // A terminal that is gone does not make it less flushed.
                    let closed = out::count(closed as u64, "connection");
                    let _ = out::print(&format!("flushed; closed {closed}.\n"));
                }
                Ended::Flushed(code)
            }
            Ok(Err(why)) => Ended::Unflushed(why),
            Err(_) => Ended::Unflushed(AT_ONCE.to_owned()),
        }
    }

    /// Until a signal says that nobody waits any more. What a keeper has to say says no such thing.
    async fn impatience(&self, signals: &mut Signals) {
        loop {
            match signals.next().await {
                Ok(signal) if signal == Signal::USR1.as_raw() => self.entrust_again(),
                Ok(signal) if signal == Signal::USR2.as_raw() => {}
                _ => return,
            }
        }
    }

    /// Stops, and leaves nothing for a next process: it would be told of what it has not been asked for.
    async fn stop_for_good(&self, limit: Duration) -> Result<usize, String> {
        let stopped = self.stop(limit).await;
        if let Err(error) = self.env.forsake_remains() {
            out::note(&format!("warning: {error}"));
        }
        stopped
    }

    /// Answers what is begun and flushes. Says how many connections were closed, or what is missing.
    async fn stop(&self, limit: Duration) -> Result<usize, String> {
        let Some(turn) = self.env.within(limit, self.live.turn()).await else {
            return Err(self.overdue(limit));
        };
        // A change that was under way has ended, one way or the other; there will be no other one.
        std::mem::forget(turn);
        // Whoever uses a device has as long as what is begun has afterwards.
        let devices = self.attachments.end(limit).await;
        let deadline = self.env.now().after(limit);
        let (closed, answered) = self.server.stop(limit).await;
        if !answered {
            return Err(self.overdue(limit));
        }
        let left = deadline.since(self.env.now());
        match self.env.within(left, self.flush()).await {
            Some(Ok(())) => {
                // Who still uses a device may write behind this flush: then it was not closed in order.
                devices?;
                self.close(deadline).await;
                Ok(closed)
            }
            Some(Err(failed)) => Err(format!("not everything was flushed: {failed}")),
            None => Err(self.overdue(limit)),
        }
    }

    /// Closes the devices, and tells the labels that all is flushed. Where that fails, the next start takes it for a
    /// crash, and does again what it need not.
    pub(super) async fn close(&self, deadline: Mono) {
        self.live.close_devices(deadline).await;
        let now = self.live.now();
        let Some(labels) = &now.labels else { return };
        let left = deadline.since(self.env.now());
        match self.env.within(left, labels.close()).await {
            Some(Ok(())) => {}
            Some(Err(error)) => out::note(&format!("note: a label stays marked as open: {error}")),
            None => out::note("note: labels stay marked as open: no answer in time"),
        }
    }

    pub(super) async fn flush(&self) -> Result<(), String> {
        let failed = self.live.flush().await;
        let failed: Vec<_> =
            failed.into_iter().map(|(name, error)| format!("{name}: {error}")).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// What is still waited for.
    pub(super) fn overdue(&self, limit: Duration) -> String {
        let waiting = self.live.unanswered(&self.live.now());
        let limit = format_duration(limit);
        let clients = out::count(self.engine.in_flight(), "request");
        format!(
            "stopped after {limit} with {clients} unanswered; waiting: {}. What was not \
             flushed may be lost with power",
            waiting.join(", ")
        )
    }
}
