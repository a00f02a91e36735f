//! Errors: a kind, a reason, a place, a message and a next step, each a field of the error. Callers match on the kind
//! and the reason. The message names the wrong value and the limit.

use std::fmt;
use std::sync::Arc;

use crate::Reason;

/// The result of a fallible operation in this project.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Category of an error. The categories are few and stable, and each maps to one errno ([`ErrorKind::errno`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value that can never be valid: a length, an offset, an option.
    Invalid,
    /// A range of a request that is not inside the device.
    OutOfRange,
    /// The device, the kernel or the file system does not support the operation.
    Unsupported,
    /// A write to a read-only device or file.
    ReadOnly,
    /// A device or the file system below it has no free space, or a write ends past the end of the device.
    NoSpace,
    /// A disk returned an error to a request.
    Io,
    /// The bytes on a disk differ from those that were written.
    Corrupt,
    /// The device failed earlier. It may have lost writes, so it refuses every request.
    Faulted,
    /// A request was not answered within the deadline that the message names.
    TimedOut,
    /// A needed part of a graph is missing, such as a member. The operation may run without the part after an
    /// explicit decision of the operator.
    Degraded,
    /// The named file, device or export does not exist.
    NotFound,
    /// The disk, address or name is in use by another process, machine or client.
    InUse,
    /// The caller lacks the permission or the key for the operation.
    Denied,
    /// The graph is stopping.
    Stopped,
    /// The operation would pass a limit that the message names.
    Limit,
}

impl ErrorKind {
    /// Returns the errno for this kind of error in NBD, FUSE and vhost-user.
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

/// An error with its message, cheap to pass on (one word) and cheap to clone (many tasks may wait for one flush).
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

/// Creates an [`Error`](crate::Error) from the name of its kind, or from `Reason::` and the name of its reason, and from
/// a message as for [`format!`].
#[macro_export]
macro_rules! error {
    (Reason::$reason:ident, $($message:tt)+) => {
        $crate::Error::because($crate::Reason::$reason, format!($($message)+))
    };
    ($kind:ident, $($message:tt)+) => {
        $crate::Error::new($crate::ErrorKind::$kind, format!($($message)+))
    };
}

/// Returns from the function with the error that [`error!`](crate::error) creates.
#[macro_export]
macro_rules! bail {
    ($($error:tt)+) => {
        return Err($crate::error!($($error)+))
    };
}

impl Error {
    /// Creates an error from a kind and a message: one sentence that names the wrong value and the limit.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Arc::new(Inner { kind, reason: None, message, next: None, place: None, os: None }))
    }

    /// Creates an error from a reason and a message; the kind is that of the reason.
    pub fn because(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(reason.kind(), message).with(|inner| inner.reason = Some(reason))
    }

    /// Adds the next step for the operator to the error: an imperative without a full stop.
    pub fn next(self, step: impl Into<String>) -> Self {
        let step = step.into();
        self.with(|inner| inner.next = Some(step))
    }

    /// Creates an error from an errno of the kernel and a description of the operation that failed.
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

    /// Creates an error from a standard I/O error and a description of the operation that failed, as [`Error::os`]
    /// does.
    pub fn io(error: &std::io::Error, tried: impl fmt::Display) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::os(errno, tried),
            None => Self::new(ErrorKind::Io, format!("{tried}: {error}")),
        }
    }

    /// Creates the error for a file whose size cannot be set to `bytes`.
    pub fn size(error: &std::io::Error, file: impl fmt::Display, bytes: u64) -> Self {
        if error.kind() != std::io::ErrorKind::FileTooLarge {
            return Self::io(error, format_args!("{file}: extending the file to {bytes} bytes"));
        }
        let message = format!("{file}: the file system does not support files of {bytes} bytes");
        Self::new(ErrorKind::Unsupported, message)
            .next("choose a smaller size, or a file on another file system")
    }

    /// Sets the place of the error (the name of a device, or a path) to `place`, unless the error has a place
    /// already.
    pub fn at(self, place: impl fmt::Display) -> Self {
        if self.0.place.is_some() {
            return self;
        }
        self.with(|inner| inner.place = Some(place.to_string()))
    }

    /// Sets the place of the error to `place`. If the error had another place, that place is added to the front of
    /// the message.
    pub fn within(self, place: &str) -> Self {
        self.with(|inner| {
            if let Some(inside) = inner.place.replace(place.to_owned())
                && inside != place
            {
                inner.message = format!("{inside}: {}", inner.message);
            }
        })
    }

    /// Removes the place of the error, and adds `before` and the place to the front of the message.
    pub fn message_after(self, before: &str) -> Self {
        self.within(before).with(|inner| {
            inner.place = None;
            inner.message = format!("{before}: {}", inner.message);
        })
    }

    /// Removes the place of the error, for a text that already contains the place.
    pub fn without_place(self) -> Self {
        self.with(|inner| inner.place = None)
    }

    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Returns the message of the error alone, without the place and the next step.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the message and the next step of the error, without the place.
    pub fn sentence(&self) -> String {
        match &self.0.next {
            Some(next) => format!("{}. Next: {next}", self.0.message),
            None => self.0.message.clone(),
        }
    }

    /// Returns the reason of the error; `None` if the error has only a kind.
    pub fn reason(&self) -> Option<Reason> {
        self.0.reason
    }

    /// Returns the place of the error: the name of a device, or a path; `None` if the error has no place.
    pub fn place(&self) -> Option<&str> {
        self.0.place.as_deref()
    }

    /// Returns the next step for the operator; `None` if the error names none.
    pub fn next_step(&self) -> Option<&str> {
        self.0.next.as_deref()
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the errno of the kernel from which the error was created; `None` for other errors.
    pub fn os_code(&self) -> Option<i32> {
        self.0.os
    }

    /// Returns the errno in the reply to a client for the error.
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
    fn error_text_shows_only_innermost_device() {
        let error = Error::new(ErrorKind::Io, "read of 4096 bytes").at("a").at("mirror");
        assert_eq!(error.to_string(), "a: read of 4096 bytes");
        assert_eq!(error.errno(), 5);
    }

    #[test]
    fn error_text_shows_device_message_and_next_step() {
        let error = Error::because(Reason::LabelStale, "it is older").next("take another disk");
        let error = error.at("b").within("b");
        assert_eq!(error.to_string(), "b: it is older. Next: take another disk");
        assert_eq!((error.kind(), error.place()), (ErrorKind::Corrupt, Some("b")));
        assert_eq!(error.within("vol").to_string(), "vol: b: it is older. Next: take another disk");
    }

    #[test]
    fn error_kind_distinguishes_full_disk_from_io_error() {
        assert_eq!(Error::os(28, "write").kind(), ErrorKind::NoSpace);
        assert_eq!(Error::os(5, "write").kind(), ErrorKind::Io);
    }

    #[test]
    fn result_type_has_size_of_one_machine_word() {
        assert_eq!(size_of::<Result<()>>(), 8);
    }
}
