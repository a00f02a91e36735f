//! Errors: a kind, a reason, a place, a message and a next step, each a field. Callers match on the kind and the reason. The
//! message names the value and the limit.

use std::fmt;
use std::sync::Arc;

use crate::Reason;

/// The result of anything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What sort of failure it was. Few, stable, and each with one errno ([`ErrorKind::errno`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value that nobody could carry out: a length, an offset, an option.
    Invalid,
    /// A range that is not inside the device.
    OutOfRange,
    /// The device, the kernel or the file system cannot do this.
    Unsupported,
    /// A write to something that may only be read.
    ReadOnly,
    /// No room: the disk below is full.
    NoSpace,
    /// The disk answered with an error.
    Io,
    /// The bytes are not what was written.
    Corrupt,
    /// The device failed earlier; what it may have lost is not known, so it does nothing more.
    Faulted,
    /// No answer within a named deadline.
    TimedOut,
    /// Not all that is needed is there, and it may go on without once somebody says so.
    Degraded,
    /// There is no such file, device or export.
    NotFound,
    /// Somebody else holds it.
    InUse,
    /// The permission, or the key, is missing.
    Denied,
    /// The graph is going down.
    Stopped,
    /// A named limit is reached.
    Limit,
}

impl ErrorKind {
    /// The errno that stands for this kind at every edge: NBD, FUSE, vhost-user.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Invalid => 22,                                            // EINVAL
            Self::OutOfRange => 22,                                         // EINVAL
            Self::Unsupported => 95,                                        // ENOTSUP
            Self::ReadOnly | Self::Denied => 1,                             // EPERM
            Self::NoSpace => 28,                                            // ENOSPC
            Self::Io | Self::Corrupt | Self::Faulted | Self::TimedOut => 5, // EIO
            Self::Degraded => 5,                                            // EIO
            Self::NotFound => 2,                                            // ENOENT
            Self::InUse => 16,                                              // EBUSY
            Self::Stopped => 108,                                           // ESHUTDOWN
            Self::Limit => 12,                                              // ENOMEM
        }
    }
}

/// A failure: cheap to pass on (one word), cheap to clone (a flush that many wait for).
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Arc<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    reason: Option<Reason>,
    message: String,
    next: Option<String>,
    place: Option<String>,
    os: Option<i32>,
}

impl Error {
    /// An error with one sentence that names the value and the limit.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Arc::new(Inner { kind, reason: None, message, next: None, place: None, os: None }))
    }

    /// An error of that reason, and of the reason's kind.
    pub fn because(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(reason.kind(), message).with(|inner| inner.reason = Some(reason))
    }

    /// The same error, with the next step for a person: an imperative without a full stop.
    pub fn next(self, step: impl Into<String>) -> Self {
        let step = step.into();
        self.with(|inner| inner.next = Some(step))
    }

    /// What the kernel answered, with what was tried.
    pub fn os(errno: i32, tried: impl fmt::Display) -> Self {
        let kind = match errno {
            2 | 6 | 19 => ErrorKind::NotFound, // ENOENT, ENXIO, ENODEV
            1 | 13 => ErrorKind::Denied,       // EPERM, EACCES
            11 | 16 => ErrorKind::InUse,       // EAGAIN, EBUSY
            // ENOTDIR, EISDIR, EINVAL, ENAMETOOLONG
            20 | 21 | 22 | 36 => ErrorKind::Invalid,
            28 | 122 => ErrorKind::NoSpace,    // ENOSPC, EDQUOT
            30 => ErrorKind::ReadOnly,         // EROFS
            38 | 95 => ErrorKind::Unsupported, // ENOSYS, EOPNOTSUPP
            62 | 110 => ErrorKind::TimedOut,   // ETIME, ETIMEDOUT
            12 | 23 | 24 => ErrorKind::Limit,  // ENOMEM, ENFILE, EMFILE
            _ => ErrorKind::Io,
        };
        let cause = std::io::Error::from_raw_os_error(errno);
        Self::new(kind, format!("{tried}: {cause}")).with(|inner| inner.os = Some(errno))
    }

    /// [`Error::os`] from a standard I/O error.
    pub fn io(error: &std::io::Error, tried: impl fmt::Display) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::os(errno, tried),
            None => Self::new(ErrorKind::Io, format!("{tried}: {error}")),
        }
    }

    /// Why a file does not get that size.
    pub fn size(error: &std::io::Error, file: impl fmt::Display, bytes: u64) -> Self {
        if error.kind() != std::io::ErrorKind::FileTooLarge {
            return Self::io(error, format_args!("{file}: making it {bytes} bytes long"));
        }
        let message = format!("{file}: this file system has no files of {bytes} bytes");
        Self::new(ErrorKind::Unsupported, message).next("a smaller size, or a file on another one")
    }

    /// The same error, with where it happened; the innermost place is kept.
    pub fn at(self, place: impl fmt::Display) -> Self {
        if self.0.place.is_some() {
            return self;
        }
        self.with(|inner| inner.place = Some(place.to_string()))
    }

    /// The same error, at `place`. Another place that it had becomes part of the message.
    pub fn within(self, place: &str) -> Self {
        self.with(|inner| {
            if let Some(inside) = inner.place.replace(place.to_owned())
                && inside != place
            {
                inner.message = format!("{inside}: {}", inner.message);
            }
        })
    }

    /// The same error without its place: it becomes part of the message, behind `before`.
    pub fn message_after(self, before: &str) -> Self {
        self.within(before).with(|inner| {
            inner.place = None;
            inner.message = format!("{before}: {}", inner.message);
        })
    }

    /// The same error without its place, for a text that names the place already.
    pub fn without_place(self) -> Self {
        self.with(|inner| inner.place = None)
    }

    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// The sentence alone, without the place and the next step.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The message and the next step, without the place.
    pub fn sentence(&self) -> String {
        match &self.0.next {
            Some(next) => format!("{}. Next: {next}", self.0.message),
            None => self.0.message.clone(),
        }
    }

    /// The reason, if the kind alone does not say it.
    pub fn reason(&self) -> Option<Reason> {
        self.0.reason
    }

    /// The place where it happened: the name of a device or a path.
    pub fn place(&self) -> Option<&str> {
        self.0.place.as_deref()
    }

    /// The next step for a person, if there is one.
    pub fn next_step(&self) -> Option<&str> {
        self.0.next.as_deref()
    }

    /// What sort of failure it was.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The number that the kernel gave, if it was the kernel.
    pub fn os_code(&self) -> Option<i32> {
        self.0.os
    }

    /// The number to answer a client with.
    pub fn errno(&self) -> i32 {
        self.0.kind.errno()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.0.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.sentence())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_place_stays() {
        let error = Error::new(ErrorKind::Io, "read of 4096 bytes").at("a").at("mirror");
        assert_eq!(error.to_string(), "a: read of 4096 bytes");
        assert_eq!(error.errno(), 5);
    }

    #[test]
    fn error_shows_place_message_and_next_step() {
        let error = Error::because(Reason::LabelStale, "it is older").next("take another disk");
        let error = error.at("b").within("b");
        assert_eq!(error.to_string(), "b: it is older. Next: take another disk");
        assert_eq!((error.kind(), error.place()), (ErrorKind::Corrupt, Some("b")));
        assert_eq!(error.within("vol").to_string(), "vol: b: it is older. Next: take another disk");
    }

    #[test]
    fn a_full_disk_is_told_from_a_broken_one() {
        assert_eq!(Error::os(28, "write").kind(), ErrorKind::NoSpace);
        assert_eq!(Error::os(5, "write").kind(), ErrorKind::Io);
    }

    #[test]
    fn a_result_is_one_word() {
        assert_eq!(size_of::<Result<()>>(), 8);
    }
}
