//! The first failed flush of a device, kept so that later flushes of the device fail too.

use std::cell::{Cell, RefCell};

use crate::seeded::{self, Bug};
use crate::{Error, ErrorKind, Mutex, Result};

/// The first failed flush of a device, if any flush has failed. After the failure it is unknown which writes were
/// lost. So no later flush can make them durable, even if the lower reports success.
#[derive(Default)]
pub struct FlushFault {
    first: RefCell<Option<Error>>,
    /// Lock that the running flush of the device holds.
    turn: Mutex,
    /// Number of flushes of the device that were started.
    begun: Cell<u64>,
    /// Number of the last flush of the device that has succeeded, from 1; 0 if no flush has.
    succeeded: Cell<u64>,
}

impl FlushFault {
    /// Runs `flush`, a flush of the device `name`; flushes of one device run one at a time. The kernel reports a lost
    /// write to only one of several concurrent flushes, and the others succeed. All flushes that wait for the same
    /// running flush share the next one.
    ///
    /// # Errors
    /// The error of this flush; `Faulted` if an earlier flush of the device has failed.
    pub async fn flush(&self, name: &str, flush: impl Future<Output = Result<()>>) -> Result<()> {
        let asked = self.begun.get();
        let _alone = match seeded::on(Bug::FlushBeside) {
            true => None,
            false => Some(self.turn.lock().await),
        };
        self.check()?;
        if self.succeeded.get() > asked {
            // That flush was started after this one was requested.
            return Ok(());
        }
        let number = self.begun.get() + 1;
        self.begun.set(number);
        flush.await.inspect_err(|error| self.note(error, name))?;
        self.succeeded.set(number);
        Ok(())
    }

    /// Checks that no flush of the device has failed so far.
    ///
    /// # Errors
    /// `Faulted`, with the message of the flush that failed.
    pub fn check(&self) -> Result<()> {
        self.first.borrow().clone().map_or(Ok(()), Err)
    }

    /// Records `error` as the failed flush of the device `name`, if no flush has failed before.
    pub fn note(&self, error: &Error, name: &str) {
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            let words = match error.kind() {
                // The message below explains it already.
                ErrorKind::Faulted => error.message().to_owned(),
                _ => format!("an earlier flush failed ({}); writes may be lost", error.message()),
            };
            *first = Some(Error::new(ErrorKind::Faulted, words).at(name));
        }
    }

    /// Returns the error that all later flushes return; `None` if no flush of the device has failed.
    pub fn error(&self) -> Option<Error> {
        self.first.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_fault_reports_first_failed_flush() {
        let fault = FlushFault::default();
        assert!(fault.check().is_ok());
        fault.note(&Error::os(5, "/dev/x: flush").at("a"), "a");
        fault.note(&Error::os(28, "/dev/x: flush").at("a"), "a");
        let error = fault.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Faulted);
        let words = error.to_string();
        assert!(words.starts_with("a: an earlier flush failed (/dev/x: flush: Input"), "{words}");
        let above = FlushFault::default();
        above.note(&error, "b");
        assert_eq!(above.error().unwrap().to_string().matches("earlier").count(), 1);
    }
}
