//! A failed flush stays failed.

use std::cell::RefCell;

use crate::{Error, ErrorKind, Result};

/// Remembers the first flush that failed. After it nobody knows what was lost, so no later one can
/// make it good, whatever the device below says then.
#[derive(Default)]
pub struct FlushFault(RefCell<Option<Error>>);

impl FlushFault {
    /// Whether flushes may still succeed.
    ///
    /// # Errors
    /// `Faulted`, with what the failed one said.
    pub fn check(&self) -> Result<()> {
        self.0.borrow().clone().map_or(Ok(()), Err)
    }

    /// Notes that a flush of the device of that name has failed, unless one did before.
    pub fn note(&self, error: &Error, name: &str) {
        let mut first = self.0.borrow_mut();
        if first.is_none() {
            let words = match error.kind() {
                // It has been said below already.
                ErrorKind::Faulted => error.words().to_owned(),
                _ => format!(
                    "an earlier flush failed ({}); what it should have kept may be lost",
                    error.words()
                ),
            };
            *first = Some(Error::new(ErrorKind::Faulted, words).at(name));
        }
    }

    /// What is to be said of it, if a flush has failed.
    pub fn error(&self) -> Option<Error> {
        self.0.borrow().clone()
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
