//! Conversion of NBD commands to operations of devices, and of results to parts of NBD replies.

use block::{Buf, ByteRange, Copies, ErrorKind, Extent, Op, State};
use wire::nbd::{AllocationFlags, Command, CommandFlags, Errno, RequestHeader};

/// Length in bytes of the pieces in which the range of an NBD cache command is read.
pub const PREFETCH_BYTES: u64 = 1 << 20;

/// Returns the byte range of an NBD request that [`wire::nbd::check()`] has accepted.
///
/// # Panics
/// If the request has not been checked.
pub fn range_of(header: &RequestHeader) -> ByteRange {
    ByteRange::new(header.offset, header.length)
        .expect("the range of a checked request is not empty and within 64 bits")
}

/// Returns the operation for an NBD request that the codec has checked. `buf` is the buffer of a read or a write.
///
/// # Panics
/// If the request has no single operation, or a read or write has no buffer.
pub fn op_of(header: &RequestHeader, buf: Option<Buf>) -> Op {
    let fua = header.flags.has(CommandFlags::FUA);
    let buf = || buf.expect("a read or write has a buffer");
    match header.command {
        Command::Read => Op::read(range_of(header), buf()),
        Command::Write => {
            Op::Write { range: range_of(header), data: buf(), fua, restores: Copies::NONE }
        }
        Command::Flush => Op::Flush,
        Command::BlockStatus => Op::Status { range: range_of(header), extents: Vec::new() },
        Command::Trim | Command::WriteZeroes => zeroing(header, range_of(header)),
        Command::Cache | Command::Disconnect | Command::Unknown(_) => {
            unreachable!("the command {:?} is not one operation", header.command)
        }
    }
}

/// Returns the operation for the part `range` of a trim or of a write of zeroes.
pub fn zeroing(header: &RequestHeader, range: ByteRange) -> Op {
    let fua = header.flags.has(CommandFlags::FUA);
    match header.command {
        Command::Trim => Op::Discard { range, fua },
        _ => Op::WriteZeroes { range, unmap: !header.flags.has(CommandFlags::NO_HOLE), fua },
    }
}

/// Returns the NBD error number for a kind of error.
pub fn errno_of(kind: ErrorKind) -> Errno {
    Errno::from_wire(kind.errno() as u32)
}

/// Returns the extents of `range` in the metadata context `base:allocation`, converted from the block status of a
/// device; only the first extent if `only_one`.
pub fn allocation(extents: &[Extent], range: ByteRange, only_one: bool) -> Vec<wire::nbd::Extent> {
    let mut left = range.len();
    let mut all = Vec::with_capacity(extents.len());
    for extent in extents {
        let length = extent.len.min(left);
        if length == 0 || (only_one && !all.is_empty()) {
            break;
        }
        left -= length;
        let flags = match extent.state {
            State::Data => AllocationFlags::NONE,
            State::Zero => AllocationFlags::ZERO,
            State::Hole => AllocationFlags::ZERO | AllocationFlags::HOLE,
        };
        all.push(wire::nbd::Extent { length, status: u64::from(flags.0) });
    }
    all
}
