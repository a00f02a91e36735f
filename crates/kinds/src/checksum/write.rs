//! Writes and zeroes. In marked regions, data and checksums are written in parallel.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Error, Mode as LockMode, Op, Result, error};
use meta::regions::{Regions, Writing};

use super::device::{Inner, Mode};
use super::sums::{BLOCK_BYTES, PIECE_BLOCKS, Sum, ZEROS, blocks_of, range_of};

/// Most bytes that one step of a zeroing covers.
pub const ZERO_BYTES: u64 = 4 << 20;

impl Inner {
    /// Writes `data` to `range`, with its checksums.
    pub async fn write(&self, range: ByteRange, data: &Buf) -> Result<()> {
        let _alone = self.lock.lock(range, LockMode::Exclusive).await;
        match &self.mode {
            Mode::Regions(regions) => self.write_marked(regions, range, data).await,
            Mode::Journal(journal) => self.write_ahead(journal, range, data).await,
        }
    }

    async fn write_marked(&self, regions: &Regions, range: ByteRange, data: &Buf) -> Result<()> {
        let early = seeded::on(Bug::WrittenUnmarked)
            .then(|| self.data.start(Op::write(range, data.clone())));
        let writing = regions.begin(range).await?;
        let child = early.unwrap_or_else(|| self.data.start(Op::write(range, data.clone())));
        let (first, count) = blocks_of(range);
        let mut sums = [ZEROS; PIECE_BLOCKS];
        let sums = &mut sums[..count];
        self.sums.compute(range, data, sums);
        let mut old = [ZEROS; PIECE_BLOCKS];
        let old = &mut old[..count];
        let known = self.sums.get(first, old).await;
        let posted = match known {
            Ok(()) => self.sums.post(first, sums).await,
            Err(error) => Err(error),
        };
        match (child.await.result, posted) {
            (Ok(()), Ok(())) => {
                self.note_fit(range);
                Ok(())
            }
            (Err(error), Ok(())) => {
                self.look_behind(range, old, &Rc::new(writing)).await;
                Err(error)
            }
            (_, Err(error)) => {
                self.doubt(range, &Rc::new(writing));
                Err(error)
            }
        }
    }

    /// Notes that the blocks of a range fit their checksums now. Any later difference is damage.
    pub fn note_fit(&self, range: ByteRange) {
        self.doubts.remove(range);
        let Mode::Regions(regions) = &self.mode else { return };
        if !seeded::on(Bug::AcceptedWritten) {
            regions.verified(range);
        }
        let (first, count) = blocks_of(range);
        let mut left = self.left.borrow_mut();
        let settled: Vec<u64> = left.range(first..first + count as u64).copied().collect();
        for block in settled {
            left.remove(&block);
        }
    }

    /// Compares the blocks of a range behind a failed write with their checksums, which are the new ones. `old` has those
    /// before the write; they are posted again for blocks that have their old bytes.
    async fn look_behind(&self, range: ByteRange, old: &[Sum], writing: &Rc<Writing>) {
        if seeded::on(Bug::FailedWriteUnread) {
            return;
        }
        let (first, _) = blocks_of(range);
        for (block, old) in (first..).zip(old) {
            if !matches!(self.fits_now(block, *old).await, Ok(true)) {
                self.doubt(range_of(block), writing);
            }
        }
    }

    /// Whether a block fits its present checksum, or `old`, which is posted then.
    async fn fits_now(&self, block: u64, old: Sum) -> Result<bool> {
        let range = range_of(block);
        let into = self.env.pool().scratch(BLOCK_BYTES as usize).await?;
        let found = self.data.read(range, into).await?;
        let mut now = [ZEROS];
        self.sums.get(block, &mut now).await?;
        if self.sums.compare(range, &found, &now) == 0 {
            return Ok(true);
        }
        if self.sums.compare(range, &found, &[old]) != 0 {
            return Ok(false);
        }
        self.sums.post(block, &[old]).await.map(|()| true)
    }

    /// Lists the blocks of a range as unverified.
    fn doubt(&self, range: ByteRange, writing: &Rc<Writing>) {
        let (first, count) = blocks_of(range);
        let mut fits = true;
        for block in first..first + count as u64 {
            fits &= self.doubts.add(block, writing);
        }
        if fits {
            return;
        }
        let failed: Error = error!(Faulted, "too many writes failed, and their bytes are unknown")
            .at(self.data.name())
            .next("open the device again when its disk works");
        self.failure.borrow_mut().get_or_insert(failed);
    }

    /// Zeroes or discards the range of `op`, in steps.
    pub async fn zero(&self, op: &Op) -> Result<()> {
        let whole = op.range().expect("the operation has a range");
        if matches!(op, Op::Discard { .. }) && !self.info.discard {
            return Ok(());
        }
        let mut at = whole.start();
        while let Some(step) = ByteRange::between(at, whole.end().min(at + ZERO_BYTES)) {
            let _alone = self.lock.lock(step, LockMode::Exclusive).await;
            match &self.mode {
                Mode::Regions(regions) => self.zero_marked(regions, below(op, step)).await?,
                Mode::Journal(journal) => self.zero_ahead(journal, op, step).await?,
            }
            at = step.end();
        }
        Ok(())
    }

    /// Zeroes a range on the lower; then posts its checksums, so that they need not be known before.
    async fn zero_marked(&self, regions: &Regions, op: Op) -> Result<()> {
        let range = op.range().expect("the operation has a range");
        let writing = regions.begin(range).await?;
        let done = match seeded::on(Bug::ZeroSumWithoutZeros) {
            true => Ok(()),
            false => self.data.call(op).await.result,
        };
        let (first, count) = blocks_of(range);
        if let Err(error) = done {
            let writing = Rc::new(writing);
            for block in first..first + count as u64 {
                if !matches!(self.fits_now(block, ZEROS).await, Ok(true)) {
                    self.doubt(range_of(block), &writing);
                }
            }
            return Err(error);
        }
        let cleared = self.sums.clear(first, count as u64).await;
        match &cleared {
            Ok(()) => self.note_fit(range),
            Err(_) => self.doubt(range, &Rc::new(writing)),
        }
        cleared
    }
}

/// Returns a part of a zeroing or discard, for the lower. A flush afterwards makes it durable.
pub fn below(op: &Op, range: ByteRange) -> Op {
    match op {
        Op::Discard { .. } => Op::Discard { range, fua: false },
        Op::WriteZeroes { unmap, .. } => Op::WriteZeroes { range, unmap: *unmap, fua: false },
        other => unreachable!("a {} request zeroes nothing", other.verb()),
    }
}
