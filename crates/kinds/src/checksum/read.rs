//! Reads: the bytes of the lower are compared with their checksums.

use block::{Buf, ByteRange, Mode as LockMode, Op, Result, bail};
use meta::journal::{Journal, Segment};

use super::device::{Inner, Mode};
use super::settle::Asker;
use super::sums::{BLOCK_BYTES, Blocks, range_of};

impl Inner {
    /// Reads `range` into `into`. Repairs or accepts blocks that differ from their checksums.
    pub async fn read(&self, range: ByteRange, into: &mut Buf, last_resort: bool) -> Result<()> {
        let shared = self.lock.lock(range, LockMode::Shared).await;
        let mut wrong = match &self.mode {
            Mode::Regions(_) => self.read_below(range, into).await?,
            Mode::Journal(journal) => self.read_through(journal, range, into).await?,
        };
        drop(shared);
        while wrong != 0 {
            let n = wrong.trailing_zeros() as usize;
            wrong &= wrong - 1;
            let from = n * BLOCK_BYTES as usize;
            let part = into.slice(from..from + BLOCK_BYTES as usize);
            let block = range.start() / BLOCK_BYTES + n as u64;
            self.settle(block, &part, Asker::Read { last_resort }).await.map(drop)?;
        }
        Ok(())
    }

    /// Reads a range from the lower, and its checksums at the same time. Returns the blocks that differ. The caller has
    /// locked the range.
    pub async fn read_below(&self, range: ByteRange, into: &mut Buf) -> Result<Blocks> {
        let child = self.data.start(Op::read(range, into.clone()));
        let loaded = if child.is_done() { Ok(()) } else { self.sums.load(range).await };
        *into = child.await.into_buf()?;
        loaded?;
        let wrong = match self.sums.compare_cached(range, into) {
            Some(wrong) => wrong,
            None => self.sums.compare_stored(range, into).await?,
        };
        Ok(if wrong == 0 { 0 } else { wrong & self.summed(range) })
    }

    /// Reads a range from the journal where it has newer bytes, and from the lower elsewhere. Returns the blocks that differ
    /// on the lower. The caller has locked the range.
    async fn read_through(
        &self,
        journal: &Journal,
        range: ByteRange,
        into: &mut Buf,
    ) -> Result<Blocks> {
        // Most ranges are in place, and need no list of segments.
        if !journal.is_newer(0, range) {
            return self.read_below(range, into).await;
        }
        let (mut wrong, mut at) = (0, range.start());
        while let Some(rest) = ByteRange::between(at, range.end()) {
            for segment in journal.find(0, rest) {
                let part = segment.range;
                let from = (part.start() - range.start()) as usize;
                let mut own = into.slice(from..from + part.len() as usize);
                if segment.newest.is_none() {
                    let target = own.clone();
                    let found = self.read_below(part, &mut own).await?;
                    wrong |= found << (from as u64 / BLOCK_BYTES);
                    if !own.same(&target) {
                        target.write().copy_from_slice(&own.read());
                    }
                } else if !read_ring(journal, &segment, &own).await? {
                    // The segment is in place by now.
                    break;
                }
                at = part.end();
            }
        }
        Ok(wrong)
    }

    /// Reads a block from the journal into `into`, if the ring has newer bytes than the lower. Returns whether it has.
    pub async fn read_newest(&self, block: u64, into: &Buf) -> Result<bool> {
        let Mode::Journal(journal) = &self.mode else { return Ok(false) };
        let segments = journal.find(0, range_of(block));
        let [segment] = &segments[..] else {
            bail!(Corrupt, "the journal has a part of a block");
        };
        match segment.newest {
            Some(_) => read_ring(journal, segment, into).await,
            None => Ok(false),
        }
    }
}

/// Copies the bytes of a segment in the ring to `into`. Returns `false` if the segment is in place by now.
async fn read_ring(journal: &Journal, segment: &Segment, into: &Buf) -> Result<bool> {
    let Some(content) = journal.read(segment).await? else { return Ok(false) };
    match content.data {
        Some(data) => into.write().copy_from_slice(&data.read()),
        None => into.write().fill(0),
    }
    Ok(true)
}
