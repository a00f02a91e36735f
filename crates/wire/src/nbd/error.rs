//! Errors that end a connection.

use std::fmt;

use super::constants::{OptionCode, ReplyCode};

/// The result of parsing messages of an NBD peer.
pub(crate) type Result<T, E = ProtocolError> = std::result::Result<T, E>;

/// A violation of the NBD protocol by the peer, a value of the peer that passes a limit, or the peer's refusal of a
/// required option.
///
/// The position in the stream is lost, or the stream is useless: the caller must send the output, and close the
/// connection. Invalid input after which the position is known is no such error; it gets an error reply.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A message of the peer does not start with its magic number.
    BadMagic {
        /// Name of the message.
        what: &'static str,
        /// The magic number that was received.
        found: u64,
        /// The magic number that the message must have.
        expected: u64,
    },
    /// A count or length in a message of the peer passes a limit.
    OverLimit {
        /// Name of the count or length.
        what: &'static str,
        /// The received count or length.
        value: u64,
        /// The largest count or length that is accepted.
        limit: u64,
    },
    /// A field in a message of the peer has a value that the protocol does not allow.
    Invalid {
        /// Name of the field.
        what: &'static str,
        /// The received value of the field.
        value: u64,
        /// The rule that the value breaks.
        rule: &'static str,
    },
    /// A text of the peer is not UTF-8 or has a NUL; this is the name of its field.
    BadText(&'static str),
    /// The peer does not use fixed newstyle, the only supported handshake. The text names the handshake of the peer.
    NotFixedNewstyle(&'static str),
    /// `NBD_OPT_EXPORT_NAME` has the name of an export that does not exist; the option has no error reply. The text
    /// is the name.
    UnknownExport(String),
    /// `NBD_OPT_EXPORT_NAME` was refused; the option has no error reply. The text is the reason.
    NotServed(String),
    /// The server refused an option that the client requires.
    Refused {
        /// The option that the server refused.
        option: OptionCode,
        /// The type of the server's reply.
        reply: ReplyCode,
        /// The message in the server's reply; may be empty.
        message: String,
    },
    /// The caller advanced the handshake after its end.
    HandshakeOver,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadMagic { what, found, expected } => {
                write!(f, "the magic of the {what} is {found:#x} and must be {expected:#x}")
            }
            Self::OverLimit { what, value, limit } => {
                write!(f, "the {what} is {value}, the limit is {limit}")
            }
            Self::Invalid { what, value, rule } => write!(f, "the {what} is {value} and {rule}"),
            Self::BadText(what) => write!(f, "the {what} is not UTF-8 or contains a NUL"),
            Self::NotFixedNewstyle(found) => write!(
                f,
                "the peer offers the {found} handshake, but only fixed newstyle is supported"
            ),
            Self::UnknownExport(name) => {
                write!(f, "the server has no export {name:?}; list the exports to see the names")
            }
            Self::NotServed(why) => f.write_str(why),
            Self::Refused { option, reply, message } => {
                write!(f, "the server refused {option} with {reply}")?;
                if !message.is_empty() {
                    write!(f, ": {message}")?;
                }
                match *reply {
                    ReplyCode::ERR_TLS_REQD => f.write_str("; connect with TLS"),
                    ReplyCode::ERR_UNKNOWN => f.write_str("; list the exports to see the names"),
                    ReplyCode::ERR_SHUTDOWN => f.write_str("; connect again later"),
                    _ => Ok(()),
                }
            }
            Self::HandshakeOver => f.write_str("bytes were passed to a handshake that has ended"),
        }
    }
}

impl std::error::Error for ProtocolError {}

pub(crate) fn require_magic(what: &'static str, found: u64, expected: u64) -> Result<()> {
    if found != expected {
        return Err(ProtocolError::BadMagic { what, found, expected });
    }
    Ok(())
}

/// Returns the error for a value of the peer that breaks a rule.
pub(crate) fn invalid(
    what: &'static str,
    value: impl Into<u64>,
    rule: &'static str,
) -> ProtocolError {
    ProtocolError::Invalid { what, value: value.into(), rule }
}

/// Returns the error for a count or length of the peer that passes its limit.
pub(crate) fn over_limit(
    what: &'static str,
    value: impl Into<u64>,
    limit: impl Into<u64>,
) -> ProtocolError {
    ProtocolError::OverLimit { what, value: value.into(), limit: limit.into() }
}

pub(crate) fn require_within(what: &'static str, value: usize, limit: usize) -> Result<()> {
    if value > limit {
        return Err(over_limit(what, value as u64, limit as u64));
    }
    Ok(())
}
