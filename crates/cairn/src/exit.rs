//! The end of the `cairn` command: its exit code and, after a failure, the message that explains it.

use std::fmt;

use block::{Error, ErrorKind, Reason};

/// The exit code of the `cairn` command. `docs/exit-codes.md` explains each code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// The command succeeded.
    Ok = 0,
    /// The command failed, and no other code fits.
    Other = 1,
    /// The command line cannot be carried out in any state of the system.
    Usage = 2,
    /// The spec has faults.
    Spec = 3,
    /// A file, device, export or running graph does not exist.
    NotFound = 4,
    /// Another process uses the file, disk, address or graph.
    InUse = 5,
    /// A disk or a file system has no free space.
    NoSpace = 6,
    /// A key or a permission is missing.
    Denied = 7,
    /// A disk or a connection failed.
    Io = 8,
    /// This version, this kernel or this disk does not support the operation.
    Unsupported = 9,
    /// A graph is degraded, or its labels are damaged and can be repaired.
    Degraded = 10,
    /// A label or data are damaged and cannot be repaired.
    Damaged = 11,
    /// The graph stopped before all writes were flushed.
    Unflushed = 12,
}

impl Exit {
    /// Returns the exit code for a kind of error.
    pub fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid | ErrorKind::OutOfRange => Self::Usage,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::InUse => Self::InUse,
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::Denied | ErrorKind::ReadOnly => Self::Denied,
            ErrorKind::Io | ErrorKind::TimedOut => Self::Io,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::Corrupt | ErrorKind::Faulted => Self::Damaged,
            ErrorKind::Degraded => Self::Degraded,
            _ => Self::Other,
        }
    }

    /// Returns the exit code of a command that ends with this error.
    pub fn of_error(error: &Error) -> Self {
        match error.reason() {
            // The spec must be changed, though its text has no fault.
            Some(Reason::LabelForgotten) => Self::Spec,
            _ => Self::of(error.kind()),
        }
    }

    /// Returns the exit code as a number.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// The failure of a command: its exit code and its causes.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the command.
    pub code: u8,
    /// The errors that caused the failure. Empty if all of them have been printed.
    pub causes: Vec<Error>,
    /// Whether a second try would fail in the same way, until the operator changes something.
    pub lasts: bool,
}

/// Creates a [`Failure`] from the name of its exit code, and from a message as for [`format!`].
macro_rules! failure {
    ($exit:ident, $($message:tt)+) => {
        $crate::exit::Failure::new($crate::exit::Exit::$exit, format!($($message)+))
    };
}

/// Returns from the function with the failure that `failure!` creates.
macro_rules! fail {
    ($($failure:tt)+) => {
        return Err(failure!($($failure)+))
    };
}

/// The result of a verb of the command line.
pub type Result<T = Exit, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Returns a failure with one cause.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::of(exit.code(), message)
    }

    /// Returns a failure with one cause, and with the exit code `code` from another process.
    pub fn of(code: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        let cause = Some(message).filter(|message| !message.is_empty());
        // The exit code carries the kind of the failure, so this kind does not matter.
        let causes = cause.map(|message| Error::new(ErrorKind::Invalid, message));
        Self { code, causes: causes.into_iter().collect(), lasts: false }
    }

    /// Returns a failure with these causes, and the exit code of the first.
    pub fn because(causes: Vec<Error>) -> Self {
        let code = causes.first().map_or(Exit::Other, Exit::of_error).code();
        Self { code, causes, lasts: false }
    }

    /// Returns a failure whose message has been printed already.
    pub fn printed(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// Returns the failure of the operation that `tried` describes, with an error of the operating system.
    pub fn io(error: &std::io::Error, tried: impl fmt::Display) -> Self {
        Error::io(error, tried).into()
    }

    /// Adds to the last cause the next step for the operator.
    pub fn next(mut self, step: impl Into<String>) -> Self {
        if let Some(last) = self.causes.pop() {
            self.causes.push(last.next(step));
        }
        self
    }

    /// Replaces the causes by the one cause `message`, with the same exit code.
    pub fn reworded(self, message: impl Into<String>) -> Self {
        Self { lasts: self.lasts, ..Self::of(self.code, message) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, cause) in self.causes.iter().enumerate() {
            let line = if n > 0 { "\nerror: " } else { "" };
            write!(f, "{line}{cause}")?;
        }
        Ok(())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let next = error.os_code().and_then(next_step).filter(|_| error.next_step().is_none());
        let failure = Self::because(vec![error]);
        match next {
            Some(next) => failure.next(next),
            None => failure,
        }
    }
}

/// Returns the next step for the operator after an error of the operating system.
fn next_step(errno: i32) -> Option<&'static str> {
    use rustix::io::Errno;
    Some(match Errno::from_raw_os_error(errno) {
        Errno::NOENT => "create that file or directory, or use another path",
        Errno::ACCESS | Errno::PERM => "run as a user with that permission, or use another path",
        Errno::NOSPC | Errno::DQUOT => "free some space on that file system, or use another one",
        Errno::ROFS => "mount that file system read-write, or use another one",
        Errno::NOTDIR => "use a path whose parents are directories",
        Errno::ISDIR => "use the path of a file",
        Errno::NAMETOOLONG => "use a shorter path: a name has at most 255 bytes, a path 4095",
        Errno::MFILE => "raise the limit of open files (ulimit -n)",
        Errno::CONNREFUSED | Errno::CONNRESET => "check whether the server runs",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_error_message_has_next_step() {
        for (errno, next) in [
            (
                rustix::io::Errno::ROFS.raw_os_error(),
                "Next: mount that file system read-write, or use another one",
            ),
            (
                rustix::io::Errno::MFILE.raw_os_error(),
                "Next: raise the limit of open files (ulimit -n)",
            ),
        ] {
            let error = std::io::Error::from_raw_os_error(errno);
            assert!(Failure::io(&error, "making run").to_string().ends_with(next), "{error}");
        }
    }

    #[test]
    fn error_kinds_map_to_documented_exit_codes() {
        let of = |kind| Exit::of(kind).code();
        assert_eq!(of(ErrorKind::Invalid), 2);
        assert_eq!(of(ErrorKind::NotFound), 4);
        assert_eq!(of(ErrorKind::InUse), 5);
        assert_eq!(of(ErrorKind::NoSpace), 6);
        assert_eq!(of(ErrorKind::Denied), 7);
        assert_eq!(of(ErrorKind::TimedOut), 8);
        assert_eq!(of(ErrorKind::Unsupported), 9);
        assert_eq!(of(ErrorKind::Faulted), 11);
        assert_eq!(of(ErrorKind::Limit), 1);
        assert_eq!(Exit::Spec.code(), 3);
        assert_eq!(Exit::Degraded.code(), 10);
        assert_eq!(Exit::Unflushed.code(), 12);
    }
}
