//! The check of every request, made once before the first device gets the request.

use crate::{Error, ErrorKind, Info, Op, Result, error};

/// Checks that a device with the facts `info` may get the operation `op`. The device may then rely on this: the range
/// is inside the device and aligned, the buffer has the length of the range, and the operation is permitted.
///
/// # Errors
/// `OutOfRange`, `Invalid` or `ReadOnly`, with the value and the limit.
#[inline]
pub fn check(info: &Info, op: &Op) -> Result<()> {
    let Some(range) = op.range() else { return Ok(()) };
    let writes = op.writes();
    if range.end() > info.size || !range.is_aligned(info.block_size) || (writes && info.read_only) {
        return Err(refuse(info, op));
    }
    match op {
        Op::Read { into: buf, .. } | Op::Write { data: buf, .. } => {
            assert_eq!(
                buf.len() as u64,
                range.len(),
                "the buffer of a request has the length of the request's range"
            );
            debug_assert!(
                buf.as_ptr().addr().is_multiple_of(info.buf_align as usize),
                "the payload of a request is aligned as its device requires"
            );
            if range.len() > u64::from(info.max_transfer) {
                return Err(refuse(info, op));
            }
            Ok(())
        }
        Op::WriteZeroes { .. } | Op::Discard { .. } | Op::Status { .. } | Op::Flush => Ok(()),
    }
}

#[cold]
fn refuse(info: &Info, op: &Op) -> Error {
    let range = op.range().expect("only requests with a range are refused");
    let verb = op.verb();
    if range.end() > info.size {
        let kind = if op.writes() { ErrorKind::NoSpace } else { ErrorKind::OutOfRange };
        return Error::new(
            kind,
            format!(
                "{verb} of {} bytes at {} ends past the device's size of {} bytes",
                range.len(),
                range.start(),
                info.size
            ),
        );
    }
    if op.writes() && info.read_only {
        return error!(ReadOnly, "{verb} to a read-only device");
    }
    if !range.is_aligned(info.block_size) {
        return error!(
            Invalid,
            "{verb} of {} bytes at {}: both must be multiples of the block size {}",
            range.len(),
            range.start(),
            info.block_size
        );
    }
    error!(Invalid, "{verb} of {} bytes; the limit is {} bytes", range.len(), info.max_transfer)
}
