//! A failed flush stays failed.

use std::cell::{Cell, RefCell};

use crate::seeded::{self, Bug};
use crate::{Error, ErrorKind, Mutex, Result};

/// Remembers the first flush that failed. After it nobody knows what was lost, so no later one can
/// make it good, whatever the device below says then.
#[derive(Default)]
pub struct FlushFault {
    first: RefCell<Option<Error>>,
    /// Held by the flush that is under way.
    turn: Mutex,
    /// Flushes that were begun.
    begun: Cell<u64>,
    /// The last of them that has succeeded, counted from 1.
    succeeded: Cell<u64>,
}

impl FlushFault {
    /// Carries out a flush of the device of that name, one at a time. The kernel reports a lost write to one of several
    /// flushes, and the others succeed without it. Flushes that wait for the turn share the next one.
    ///
    /// # Errors
    /// The error of this flush; `Faulted` if one before it has failed.
    pub async fn flush(&self, name: &str, flush: impl Future<Output = Result<()>>) -> Result<()> {
        let asked = self.begun.get();
        let _alone = match seeded::on(Bug::FlushBeside) {
            true => None,
            false => Some(self.turn.lock().await),
        };
        self.check()?;
        if self.succeeded.get() > asked {
            // That flush began after this one was asked for.
            return Ok(());
        }
        let number = self.begun.get() + 1;
        self.begun.set(number);
        flush.await.inspect_err(|error| self.note(error, name))?;
        self.succeeded.set(number);
        Ok(())
    }

    /// Whether flushes may still succeed.
    ///
    /// # Errors
    /// `Faulted`, with what the failed one said.
    pub fn check(&self) -> Result<()> {
        self.first.borrow().clone().map_or(Ok(()), Err)
    }

    /// Notes that a flush of the device of that name has failed, unless one did before.
    pub fn note(&self, error: &Error, name: &str) {
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            let words = match error.kind() {
                // It has been said below already.
                ErrorKind::Faulted => error.message().to_owned(),
                _ => format!(
                    "an earlier flush failed ({}); what it should have kept may be lost",
                    error.message()
                ),
            };
            *first = Some(Error::new(ErrorKind::Faulted, words).at(name));
        }
    }

    /// What is to be said of it, if a flush has failed.
    pub fn error(&self) -> Option<Error> {
        self.first.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_stays_and_is_told_once() {
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
