//! Reads of bytes with a checksum: if the bytes are wrong, the other copies of a redundant device below are read.

use block::{Buf, ByteRange, Copies, Lower, Op, Result};

/// Reads `range` of `lower` into `into`, from one copy after the other, until `is_right` accepts the bytes. Then the right
/// bytes are written over all copies, unless `heals` is false. Returns `None` if no copy is right.
///
/// # Errors
/// The error of a read.
pub async fn read_right(
    lower: &Lower,
    range: ByteRange,
    into: Buf,
    heals: bool,
    is_right: impl Fn(&[u8]) -> bool,
) -> Result<Option<Buf>> {
    let (mut into, mut avoid) = (into, Copies::NONE);
    loop {
        let is_first = avoid == Copies::NONE;
        let done = lower.call(Op::Read { range, into, avoid }).await;
        let copies = done.copies();
        into = done.into_buf()?;
        if is_right(&into.read()) {
            if !is_first && heals {
                // The next read tries again if this write fails.
                let _ = lower.write(range, into.clone()).await;
            }
            return Ok(Some(into));
        }
        if copies == avoid {
            return Ok(None);
        }
        avoid = copies;
    }
}
