//! NBD URIs: the address of a server and the name of an export.
//!
//! ```text
//! nbd://host[:port]/export               nbds://host[:port]/export
//! nbd+unix:///export?socket=/path        nbds+unix:///export?socket=/path
//! ```
//!
//! The export is everything after the slash that ends the authority. It may contain slashes, and may be empty. A URI
//! with `nbds` may have the parameters `tls-certificates=DIR` and `tls-hostname=NAME`. `%` and two hexadecimal digits
//! represent a byte everywhere but in the scheme and the port.

use std::fmt;
use std::str::FromStr;

use block::env::Address;

use super::constants::{DEFAULT_PORT, MAX_STRING_BYTES};

/// Length in bytes of the longest NBD URI: an export name and a path of greatest length, with every byte escaped.
pub const MAX_URI_BYTES: usize = 32 << 10;

/// The names of a URI's parameters: the first one is for Unix sockets, the others are for TLS.
const PARAMETERS: [&str; 3] = ["socket", "tls-certificates", "tls-hostname"];

/// An NBD URI: the address of a server and the name of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdUri {
    /// Whether the connection to the server must use TLS.
    pub tls: bool,
    /// The address of the server. Its host is not empty, and an IPv6 address has no brackets; its path is not empty.
    pub address: Address,
    /// Name of the export; empty for the server's default export.
    pub export: String,
    /// Directory of `ca-cert.pem`, `client-cert.pem` and `client-key.pem`: the parameter `tls-certificates`.
    pub certificates: Option<String>,
    /// Name in the server's certificate if it is not the name of the host: the parameter `tls-hostname`.
    pub hostname: Option<String>,
}

/// The reason why a text is no valid NBD URI.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UriError {
    /// The text is too long; the number is its length in bytes.
    TooLong(usize),
    /// The scheme of the URI is missing, or is none of those in the module documentation.
    Scheme(String),
    /// The TCP URI names no host, or a host that is malformed.
    Host(String),
    /// The port in the URI is no number from 1 to 65535.
    Port(String),
    /// The Unix URI names a host, which it cannot have.
    UnixHost(String),
    /// The Unix URI has no `socket` parameter, or an empty one.
    NoSocket,
    /// The URI has a parameter that is unknown, occurs twice, or does not belong to its scheme.
    Parameter(String),
    /// The URI has a `%` without two hexadecimal digits after it, or bytes that are not UTF-8, or a NUL.
    Escape(String),
    /// The export's name in the URI is too long; the number is its length in bytes.
    Export(usize),
    /// The URI has a `#`, which begins a fragment. An NBD URI has no fragment.
    Fragment,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(len) => {
                write!(f, "the URI has {len} bytes; the limit is {MAX_URI_BYTES}")
            }
            Self::Scheme(found) => write!(
                f,
                "the scheme is {found:?}; use nbd://, nbds://, nbd+unix:// or nbds+unix://"
            ),
            Self::Host(found) => write!(
                f,
                "the host is {found:?}; write a name, an IPv4 or a bracketed IPv6 address"
            ),
            Self::Port(found) => {
                write!(f, "the port is {found:?}; a port is a number from 1 to 65535")
            }
            Self::UnixHost(found) => write!(
                f,
                "a Unix socket has the host {found:?}; write three slashes after the scheme"
            ),
            Self::NoSocket => {
                f.write_str("the URI of a Unix socket has no socket path; add ?socket=/path")
            }
            Self::Parameter(found) => {
                write!(f, "the parameter {found:?} is unknown or repeated; remove it")
            }
            Self::Escape(found) => write!(
                f,
                "{found:?} has a % without two hexadecimal digits, a NUL, or bytes that are not \
                 UTF-8; write a % itself as %25"
            ),
            Self::Export(len) => {
                write!(f, "the export's name has {len} bytes; the limit is {MAX_STRING_BYTES}")
            }
            Self::Fragment => {
                f.write_str("the URI of an export cannot have a fragment; write # as %23")
            }
        }
    }
}

impl std::error::Error for UriError {}

impl FromStr for NbdUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        if text.len() > MAX_URI_BYTES {
            return Err(UriError::TooLong(text.len()));
        }
        let scheme_error = |found: &str| UriError::Scheme(found.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(|| scheme_error(text))?;
        let (tls, unix) = match scheme.to_ascii_lowercase().as_str() {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(scheme_error(scheme)),
        };
        if rest.contains('#') {
            return Err(UriError::Fragment);
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, query),
            None => (rest, ""),
        };
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = unescape(export)?;
        if export.len() > MAX_STRING_BYTES {
            return Err(UriError::Export(export.len()));
        }
        let [socket, certificates, hostname] = parameters(query, [unix, tls, tls])?;
        let address = if unix { unix_address(authority, socket)? } else { tcp(authority)? };
        Ok(Self { tls, address, export, certificates, hostname })
    }
}

/// Parses the parameters of a URI. `possible` are the names of the parameters that the URI may have, each at most
/// once.
fn parameters(query: &str, possible: [bool; 3]) -> Result<[Option<String>; 3], UriError> {
    let mut values = [None, None, None];
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let wrong = || UriError::Parameter(parameter.to_owned());
        let (name, value) = parameter.split_once('=').ok_or_else(wrong)?;
        let place = PARAMETERS.iter().position(|known| *known == name).ok_or_else(wrong)?;
        if !possible[place] || values[place].is_some() {
            return Err(wrong());
        }
        values[place] = Some(unescape(value)?);
    }
    Ok(values)
}

fn unix_address(authority: &str, socket: Option<String>) -> Result<Address, UriError> {
    if !authority.is_empty() {
        return Err(UriError::UnixHost(authority.to_owned()));
    }
    match socket {
        Some(path) if !path.is_empty() => Ok(Address::Unix(path.into())),
        _ => Err(UriError::NoSocket),
    }
}

fn tcp(authority: &str) -> Result<Address, UriError> {
    let bad_host = || UriError::Host(authority.to_owned());
    // An IPv6 address holds colons, so it needs brackets.
    let (host, port) = match authority.strip_prefix('[') {
        Some(inner) => {
            let (host, after) = inner.split_once(']').ok_or_else(bad_host)?;
            let port = match after.strip_prefix(':') {
                None if !after.is_empty() => return Err(bad_host()),
                port => port,
            };
            (host, port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let host = unescape(host)?;
    if host.is_empty() || host.contains(['@', '[', ']']) {
        return Err(bad_host());
    }
    let port = match port {
        // A colon without a number means the default, as in every URI.
        None | Some("") => DEFAULT_PORT,
        Some(digits) => parse_port(digits)?,
    };
    Ok(Address::Tcp(host, port))
}

fn parse_port(digits: &str) -> Result<u16, UriError> {
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok());
    match number.flatten() {
        Some(port) if port != 0 => Ok(port),
        _ => Err(UriError::Port(digits.to_owned())),
    }
}

fn unescape(text: &str) -> Result<String, UriError> {
    let wrong = || UriError::Escape(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = if byte == b'%' {
            let high = rest.next().and_then(hex_digit).ok_or_else(wrong)?;
            let low = rest.next().and_then(hex_digit).ok_or_else(wrong)?;
            high << 4 | low
        } else {
            byte
        };
        if byte == 0 {
            return Err(wrong());
        }
        bytes.push(byte);
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Returns the text with every byte escaped but letters, digits, `-._~` and the bytes in `also`.
fn escape(f: &mut fmt::Formatter<'_>, text: &str, also: &[u8]) -> fmt::Result {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.contains(&byte) {
            write!(f, "{}", char::from(byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

/// Writes the canonical form of the URI. It parses to an equal URI.
impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.tls { "s" } else { "" };
        let mut socket = None;
        match &self.address {
            Address::Tcp(host, port) => {
                write!(f, "nbd{s}://")?;
                if host.contains(':') {
                    f.write_str("[")?;
                    escape(f, host, b":")?;
                    f.write_str("]")?;
                } else {
                    escape(f, host, b"")?;
                }
                if *port != DEFAULT_PORT {
                    write!(f, ":{port}")?;
                }
            }
            Address::Unix(path) => {
                write!(f, "nbd{s}+unix://")?;
                socket = Some(path.to_string_lossy());
            }
        }
        f.write_str("/")?;
        escape(f, &self.export, b"/:@")?;
        let values = [socket.as_deref(), self.certificates.as_deref(), self.hostname.as_deref()];
        let mut mark = '?';
        for (name, value) in PARAMETERS.iter().zip(values) {
            let Some(value) = value else { continue };
            write!(f, "{mark}{name}=")?;
            escape(f, value, b"/:@")?;
            mark = '&';
        }
        Ok(())
    }
}
