//! The earlier specs of a graph, at the end of a label.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{COPY_BYTES_MAX, COUNT_MAX, Wrong, damaged};
use crate::Past;

/// Maximum number of earlier specs in a label.
pub const PAST_MAX: usize = 16;

/// Maximum length in bytes of all earlier specs in a label, with their headers.
pub const PAST_BYTES_MAX: usize = 32 << 10;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    count: U32,
    zero: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PastHeader {
    epoch: U64,
    until_unix_s: U64,
    length: U32,
    zero: U32,
}

const _: () = assert!(size_of::<Head>() == 8 && size_of::<PastHeader>() == 24);

/// Returns the first specs of `past`, the newest, that fit into a copy of a label after its first `used` bytes.
fn fitting(past: &[Past], used: usize) -> &[Past] {
    let mut room = COPY_BYTES_MAX.saturating_sub(used + size_of::<Head>()).min(PAST_BYTES_MAX);
    let fits = |past: &&Past| {
        let bytes = size_of::<PastHeader>() + past.spec.len();
        let left = room.checked_sub(bytes);
        room = left.unwrap_or(room);
        left.is_some()
    };
    let count = past.iter().take(PAST_MAX).take_while(fits).count();
    &past[..count]
}

/// Appends the newest of the earlier specs that fit to `copy`, a copy of a label that is being encoded. Returns whether
/// any fits.
pub fn encode(past: &[Past], copy: &mut Vec<u8>) -> bool {
    let past = fitting(past, copy.len());
    if past.is_empty() {
        return false;
    }
    copy.extend_from_slice(Head { count: (past.len() as u32).into(), zero: 0.into() }.as_bytes());
    for Past { epoch, until_unix_s, spec } in past {
        let (length, zero) = ((spec.len() as u32).into(), 0.into());
        let header = PastHeader {
            epoch: (*epoch).into(),
            until_unix_s: (*until_unix_s).into(),
            length,
            zero,
        };
        copy.extend_from_slice(header.as_bytes());
        copy.extend_from_slice(spec.as_bytes());
    }
    true
}

/// Decodes the list of earlier specs in a label. Returns the specs, and the bytes after the list.
///
/// # Errors
/// The reason why the bytes are no list of earlier specs.
pub fn decode(bytes: &[u8]) -> Result<(Vec<Past>, &[u8]), Wrong> {
    let cut = || damaged("the list of past specs is truncated");
    let (head, mut rest) = Head::ref_from_prefix(bytes).map_err(|_| cut())?;
    let count = head.count.get() as usize;
    if !(1..=PAST_MAX).contains(&count) || head.zero.get() != 0 {
        return Err(damaged(format_args!("{count} past specs; 1 to {PAST_MAX} are possible")));
    }
    let (mut past, mut room) = (Vec::with_capacity(count), PAST_BYTES_MAX);
    for _ in 0..count {
        let (header, after) = PastHeader::ref_from_prefix(rest).map_err(|_| cut())?;
        let length = header.length.get() as usize;
        let left = room.checked_sub(size_of::<PastHeader>() + length);
        let epoch = header.epoch.get();
        let (Some(left), 1..) = (left.filter(|_| length <= after.len()), length) else {
            return Err(damaged(format_args!("a past spec of {length} bytes does not fit")));
        };
        if epoch > COUNT_MAX || header.zero.get() != 0 {
            return Err(damaged(format_args!("a past spec has the impossible epoch {epoch}")));
        }
        let (spec, after) = after.split_at(length);
        let spec = std::str::from_utf8(spec).map_err(|_| damaged("a past spec is not UTF-8"))?;
        let until_unix_s = header.until_unix_s.get();
        past.push(Past { epoch, until_unix_s, spec: spec.to_owned() });
        (room, rest) = (left, after);
    }
    Ok((past, rest))
}
