//! Signals of the operating system, as a stream.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;

use block::env::Ticket;
use block::{Error, Result};

use crate::reactor::Reactor;
use crate::slab::{Held, Op};
use crate::sys;

/// Signals that end a program.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Signals that a supervisor sends to its worker.
const OF_A_KEEPER: [i32; 2] = [libc::SIGUSR1, libc::SIGUSR2];

/// A stream of the signals SIGINT, SIGTERM and SIGHUP; if it was created for a worker, also of a supervisor's SIGUSR1
/// and SIGUSR2.
pub struct Signals {
    side: Rc<Reactor>,
    file: Rc<OwnedFd>,
    // Kept when a wait is given up, so that no signal is lost with it.
    ticket: Option<Ticket>,
}

/// Runs `start` with SIGINT, SIGTERM and SIGHUP unblocked, as [`Signals::let_through`] does, on a thread without a
/// core.
pub fn let_signals_through<T>(start: impl FnOnce() -> T) -> T {
    sys::let_through(&SIGNALS, start)
}

/// Makes SIGINT, SIGTERM and SIGHUP wait in this thread, also over the execution of another program, which must call
/// [`release_signals`] when it can handle them.
pub fn hold_signals() {
    sys::hold(&SIGNALS, true);
}

/// Delivers SIGINT, SIGTERM and SIGHUP to this thread again, first those that have waited since [`hold_signals`].
pub fn release_signals() {
    sys::hold(&SIGNALS, false);
}

impl Signals {
    pub(crate) fn new(side: Rc<Reactor>, kept: bool) -> Result<Self> {
        let others: &[i32] = if kept { &OF_A_KEEPER } else { &[] };
        let file = sys::signalfd(&[&SIGNALS, others].concat())
            .map_err(|error| Error::io(&error, "setting up the signal descriptor"))?;
        Ok(Self { side, file: Rc::new(file), ticket: None })
    }

    /// Runs `start` with SIGINT, SIGTERM and SIGHUP unblocked in this thread. A program that `start` starts inherits
    /// the mask, and could otherwise not be ended by these signals. A signal that comes during `start` is not lost.
    pub fn let_through<T>(&self, start: impl FnOnce() -> T) -> T {
        sys::let_through(&SIGNALS, start)
    }

    /// Waits for the next signal of the stream, and returns its number.
    ///
    /// # Errors
    /// `Stopped` if the core stops.
    pub async fn next(&mut self) -> Result<i32> {
        let ticket = self.ticket.get_or_insert_with(|| {
            let file = self.file.clone();
            self.side.start(Held::new(Op::Next, file, None), Vec::new(), false)
        });
        let outcome = poll_fn(|cx| Pin::new(&mut *ticket).poll(cx)).await;
        self.ticket = None;
        outcome.result.map(|signal| signal as i32)
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "to send a signal to this very thread")]

    use std::time::Duration;

    use crate::{Config, Core, Engine};

    #[test]
    fn signal_reader_returns_signals_in_order_on_both_engines() {
        for engine in [Engine::Ring, Engine::Threads] {
            let core = Core::new(Config { engine, ..Config::default() }).unwrap();
            let mut signals = core.signals().unwrap();
            let env = core.env();
            core.block_on(async {
                let none = env.within(Duration::from_millis(5), signals.next()).await;
                assert!(none.is_none());
                for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
                    // SAFETY: it is blocked in this thread, so it only waits to be read.
                    assert_eq!(unsafe { libc::raise(signal) }, 0);
                    assert_eq!(signals.next().await.unwrap(), signal);
                }
            });
        }
    }

    #[test]
    fn child_program_starts_with_signals_unblocked() {
        let core = Core::new(Config::default()).unwrap();
        let mut signals = core.signals().unwrap();
        let blocked = |mask: &str| {
            let line = mask.lines().find(|line| line.starts_with("SigBlk:")).unwrap();
            u64::from_str_radix(line[7..].trim(), 16).unwrap() >> (libc::SIGTERM - 1) & 1 == 1
        };
        let output = signals.let_through(|| {
            // SAFETY: it is handled while it is let through.
            assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0);
            std::process::Command::new("cat").arg("/proc/self/status").output().unwrap()
        });
        assert!(!blocked(&String::from_utf8(output.stdout).unwrap()));
        let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(blocked(&own));
        core.block_on(async {
            let limit = Duration::from_secs(10);
            let next = core.env().within(limit, signals.next()).await;
            assert_eq!(next.expect("it was not lost").unwrap(), libc::SIGTERM);
        });
    }
}
