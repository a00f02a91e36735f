//! How the command ends: an exit code, and for a failure the sentence that explains it.

use std::fmt;
use std::process::{ExitCode, Termination};

use block::{Error, ErrorKind};

/// What the shell sees. `docs/exit-codes.md` explains each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// It worked.
    Ok = 0,
    /// None of the others.
    Other = 1,
    /// The command line cannot be carried out, whatever the state of the world.
    Usage = 2,
    /// The spec has faults.
    Spec = 3,
    /// There is no such file, device, export or running graph.
    NotFound = 4,
    /// Somebody else holds it.
    InUse = 5,
    /// No room.
    NoSpace = 6,
    /// A key or a permission is missing.
    Denied = 7,
    /// A disk or a connection failed.
    Io = 8,
    /// Not supported here.
    Unsupported = 9,
    /// Degraded, or damaged and repairable.
    Degraded = 10,
    /// Damaged.
    Damaged = 11,
    /// Stopped before everything was flushed.
    Unflushed = 12,
}

impl Exit {
    /// The code of a failure of that kind.
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

    /// The number itself.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

/// Why a command did not do what it was asked: what, value, limit, and what to do next.
#[derive(Debug)]
pub struct Failure {
    /// How the command ends.
    pub code: u8,
    /// One sentence or two; empty if everything has been said already.
    pub message: String,
    /// Whether the same would be said of the same again, until somebody does something.
    pub lasts: bool,
}

/// What a verb comes to.
pub type Result<T = Exit, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure with its words.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::of(exit.code(), message)
    }

    /// The same with a code that somebody else has chosen.
    pub fn of(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), lasts: false }
    }

    /// A failure whose words have been printed.
    pub fn told(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// What the operating system said, with what was tried.
    pub fn io(error: &std::io::Error, tried: impl fmt::Display) -> Self {
        Error::io(error, tried).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let next = error.os_code().map_or("", next_step);
        Self::new(Exit::of(error.kind()), format!("{error}{next}"))
    }
}

/// What to do when the operating system says no: it never says that itself.
fn next_step(errno: i32) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => ". Next: make it, or name another",
        Errno::ACCESS | Errno::PERM => ". Next: run as a user who may, or name another",
        Errno::NOSPC | Errno::DQUOT => ". Next: free some space there, or name another place",
        Errno::ROFS => ". Next: mount it so that it can be written, or name another",
        Errno::NOTDIR => ". Next: name one whose parents are directories",
        Errno::ISDIR => ". Next: name a file",
        Errno::NAMETOOLONG => ". Next: a shorter one: a name has at most 255 bytes, a path 4095",
        Errno::MFILE => ". Next: raise the limit of open files (ulimit -n)",
        Errno::CONNREFUSED | Errno::CONNRESET => ". Next: see whether the server runs",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_full_or_read_only_world_says_has_a_next_step() {
        for (errno, next) in [
            (
                rustix::io::Errno::ROFS.raw_os_error(),
                "Next: mount it so that it can be written, or name another",
            ),
            (
                rustix::io::Errno::MFILE.raw_os_error(),
                "Next: raise the limit of open files (ulimit -n)",
            ),
        ] {
            let error = std::io::Error::from_raw_os_error(errno);
            assert!(Failure::io(&error, "making run").message.ends_with(next), "{error}");
        }
    }

    #[test]
    fn the_codes_are_those_that_scripts_know() {
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
