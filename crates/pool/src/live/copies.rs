//! Reads of bytes with a checksum: if the bytes are wrong, the other copies of a redundant device below are read.

use block::{Buf, ByteRange, Copies, Env, Lower, Op, Result};

/// Whether the device below keeps several copies of `range` now: whether a read can avoid the copy that another read used.
///
/// # Errors
/// `NoMemory` if no buffer is free for the read.
pub async fn has_copies(env: &Env, lower: &Lower, range: ByteRange) -> Result<bool> {
    let mut avoid = Copies::NONE;
    for _ in 0..2 {
        let into = env.pool().wait_for(range.len() as usize).await?;
        let copies = lower.call(Op::Read { range, into, avoid, last_resort: false }).await.copies();
        if copies == avoid {
            return Ok(false);
        }
        avoid = copies;
    }
    Ok(true)
}

/// Reads `range` of `lower` into `into`, from one copy after the other, until `is_right` accepts the bytes. Then the right
/// bytes are written over the wrong copies, unless `heals` is false. The copy with the right bytes is not written, so a
/// power cut in the middle does not damage it. Returns `None` if no copy is right.
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
        let done = lower.call(Op::Read { range, into, avoid, last_resort: false }).await;
        let copies = done.copies();
        into = done.into_buf()?;
        if is_right(&into.read()) {
            if !is_first && heals {
                // The next read tries again if this write fails.
                let _ = lower.call(Op::restore(range, into.clone(), avoid)).await;
            }
            return Ok(Some(into));
        }
        if copies == avoid || lower.info().copies == 1 {
            return Ok(None);
        }
        avoid = copies;
    }
}
