//! Reads of payload from a ring, from any copy of a redundant device below.

use block::{Buf, Lower};

use super::Ring;
use crate::copies::Source;

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
        let found = self.source(offset, into.len()).right(into, is_right).await;
        found.is_ok_and(|wrong| wrong.is_some())
    }

    /// Reads as [`RingDevice::read`] does, and writes the right bytes over the copies that differ. No other task may write the
    /// ring.
    pub(crate) async fn read_and_restore(
        &self,
        offset: u64,
        into: &Buf,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let source = self.source(offset, into.len());
        let Ok(Some(wrong)) = source.right(into, is_right).await else { return false };
        // A copy that cannot be written is asked again by the next reader.
        let _ = source.restore(into, wrong).await;
        true
    }

    pub(super) fn source(&self, offset: u64, len: usize) -> Source<'_> {
        let parts = self.ring.parts(offset, len as u64);
        Source { lower: &self.lower, parts: parts.map(|(place, len)| (self.base + place, len)) }
    }
}
