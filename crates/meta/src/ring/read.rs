//! Reads of payload from a ring, from any copy of a redundant device below.

use block::{Buf, ByteRange, Copies, Lower, Op, Result};

use super::Ring;
use crate::io::step;

/// A ring on a device.
#[derive(Clone)]
pub struct RingDevice {
    /// The device.
    pub lower: Lower,
    /// First byte of the ring on the device.
    pub base: u64,
    /// Identity and length of the ring.
    pub ring: Ring,
}

impl RingDevice {
    /// Reads the bytes from an offset on into `into`, until `is_right` accepts them: first as the device below chooses, then
    /// from each of its copies. Returns whether they are right. A copy that cannot be read is wrong.
    pub async fn read(&self, offset: u64, into: &Buf, is_right: impl Fn(&[u8]) -> bool) -> bool {
        let has_read = self.read_copy(offset, into, None).await;
        if has_read.is_ok() && is_right(&into.read()) {
            return true;
        }
        let copies = self.lower.info().copies;
        for copy in (0..copies as usize).filter(|_| copies > 1) {
            match self.read_copy(offset, into, Some(copy)).await {
                Ok(true) if is_right(&into.read()) => return true,
                Ok(true) | Err(_) => {}
                Ok(false) => return false,
            }
        }
        false
    }

    /// Reads the bytes from an offset on. Returns `false` if the device below has no such copy.
    async fn read_copy(&self, offset: u64, into: &Buf, only: Option<usize>) -> Result<bool> {
        let avoid = only.map_or(Copies::NONE, Copies::all_but);
        let mut from = 0;
        for (place, len) in self.ring.parts(offset, into.len() as u64) {
            let end = from + len as usize;
            let mut at = self.base + place;
            while from < end {
                let to = end.min(from + step(&self.lower));
                let range = ByteRange::new(at, (to - from) as u64).expect("a part has bytes");
                let part = into.slice(from..to);
                let done = self
                    .lower
                    .call(Op::Read { range, into: part.clone(), avoid, last_resort: false })
                    .await;
                if only.is_some_and(|copy| !done.copies().has(copy)) {
                    return Ok(false);
                }
                let read = done.into_buf()?;
                if !read.same(&part) {
                    part.write().copy_from_slice(&read.read());
                }
                at += range.len();
                from = to;
            }
        }
        Ok(true)
    }
}
