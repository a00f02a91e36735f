//! The check whether a request of a client may be carried out.

use super::constants::{Command, CommandFlags, Errno, MAX_PAYLOAD_BYTES, TransmissionFlags};
use super::export::{ReplyStyle, Session};
use super::request::RequestHeader;

/// The refusal of an NBD request: the error number for the reply, and the reason in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The error number for the reply to the request.
    pub errno: Errno,
    /// The reason for the refusal, for the message of an error chunk.
    pub reason: &'static str,
}

const fn refusal(errno: Errno, reason: &'static str) -> Result<(), Refusal> {
    Err(Refusal { errno, reason })
}

/// Checks an NBD request against the rules of the protocol and the limits of the session's export.
///
/// A request that passes has a known command that the export supports, and only flags that this command permits. If
/// the request has a range, the range is not empty, lies inside the export, and is aligned to the minimum block size.
/// A read or write has at most [`MAX_PAYLOAD_BYTES`], also if the export has announced less. A disconnect always passes,
/// because it has no reply.
pub fn check(request: &RequestHeader, session: &Session) -> Result<(), Refusal> {
    if request.command == Command::Disconnect {
        return Ok(());
    }
    check_offered(request.command, session)?;
    check_flags(request, session)?;
    if request.command == Command::Flush {
        // These fields are reserved and must be zero (section "Request types").
        if request.offset != 0 || request.length != 0 {
            return refusal(Errno::EINVAL, "a flush must have offset 0 and length 0");
        }
        return Ok(());
    }
    check_range(request, session)
}

/// Refuses a command that the export's transmission flags do not offer.
fn check_offered(command: Command, session: &Session) -> Result<(), Refusal> {
    let flags = session.facts.flags;
    if command.modifies() && flags.has(TransmissionFlags::READ_ONLY) {
        return refusal(Errno::EPERM, "the export is read-only");
    }
    let offered = match command {
        Command::Read | Command::Write | Command::Disconnect => true,
        Command::Flush => flags.has(TransmissionFlags::FLUSH),
        Command::Trim => flags.has(TransmissionFlags::TRIM),
        Command::Cache => flags.has(TransmissionFlags::CACHE),
        Command::WriteZeroes => flags.has(TransmissionFlags::WRITE_ZEROES),
        Command::BlockStatus => {
            if session.contexts.is_empty() {
                return refusal(Errno::EINVAL, "no metadata context was selected");
            }
            true
        }
        Command::Unknown(_) => {
            return refusal(Errno::EINVAL, "the server does not know the command");
        }
    };
    if !offered {
        return refusal(Errno::EINVAL, "the export does not offer the command");
    }
    Ok(())
}

/// Refuses flags that the specification does not permit for the command (section "Command flags"). FUA is permitted
/// for every command if the export offers it. A write with an extended header must have a payload; no other request
/// may.
fn check_flags(request: &RequestHeader, session: &Session) -> Result<(), Refusal> {
    let offered = session.facts.flags;
    let when = |offer, flag| if offered.has(offer) { flag } else { CommandFlags::NONE };
    let extended_write = session.style == ReplyStyle::Extended && request.command == Command::Write;
    let own = match request.command {
        Command::Read => when(TransmissionFlags::DF, CommandFlags::DF),
        Command::WriteZeroes => {
            CommandFlags::NO_HOLE | when(TransmissionFlags::FAST_ZERO, CommandFlags::FAST_ZERO)
        }
        Command::BlockStatus => CommandFlags::REQ_ONE,
        Command::Write if extended_write => CommandFlags::PAYLOAD_LEN,
        _ => CommandFlags::NONE,
    };
    let allowed = own | when(TransmissionFlags::FUA, CommandFlags::FUA);
    if request.flags.without(allowed) != CommandFlags::NONE {
        return refusal(Errno::EINVAL, "a flag is not allowed on the command");
    }
    if extended_write && !request.flags.has(CommandFlags::PAYLOAD_LEN) {
        return refusal(Errno::EINVAL, "an extended write must announce its payload");
    }
    Ok(())
}

fn check_range(request: &RequestHeader, session: &Session) -> Result<(), Refusal> {
    let facts = &session.facts;
    if request.length == 0 {
        return refusal(Errno::EINVAL, "the length is zero");
    }
    let Some(end) = request.offset.checked_add(request.length) else {
        return refusal(Errno::EINVAL, "the end of the range (offset + length) exceeds 64 bits");
    };
    if end > facts.size_bytes {
        // ENOSPC for writes, EINVAL for the rest (section "Error values").
        let errno = match request.command {
            Command::Write | Command::WriteZeroes => Errno::ENOSPC,
            _ => Errno::EINVAL,
        };
        return refusal(errno, "the range ends past the end of the export");
    }
    let min = u64::from(facts.blocks.min());
    if !request.offset.is_multiple_of(min) || !request.length.is_multiple_of(min) {
        return refusal(Errno::EINVAL, "offset and length must be multiples of the block size");
    }
    let has_payload = matches!(request.command, Command::Read | Command::Write);
    // The announced maximum is advice: the engine divides a longer request.
    if has_payload && request.length > u64::from(MAX_PAYLOAD_BYTES) {
        return refusal(Errno::EINVAL, "the payload of a request has at most 64 MiB");
    }
    Ok(())
}
