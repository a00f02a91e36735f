//! The scan: it reads the regions marked at the opening, and the ranges in which copies below may differ.

use std::cell::Cell;
use std::pin::{Pin, pin};

use block::control::copies::{Changed, Pending, Verdict, Verified};
use block::control::{Command, Nothing};
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Copies, ErrorKind, Mode as LockMode, Op, Result, all, first};

use super::device::{Inner, Mode, Redundancy};
use super::settle::{Asker, Copied};
use super::sums::{BLOCK_BYTES, Blocks, PIECE_BLOCKS, PIECE_BYTES, ZEROS, blocks_of};

/// Bytes that the scan reads at once.
pub const SCAN_BYTES: u64 = PIECE_BYTES;

impl Inner {
    /// Scans what an unclean stop has left, and the ranges in which copies below may differ. Scans again whenever the lower
    /// reports more ranges, until `closed` ends. The ranges that an error has left wait for the next scan.
    pub async fn scan_always(&self, closed: impl Future<Output = ()>) {
        let mut closed = pin!(closed);
        while !self.is_closing.get() {
            let has_changed = Cell::new(false);
            let change = async {
                let change = self.data.control::<Changed>(Command::new::<Changed>(Nothing {}));
                let change = first(change, closed.as_mut()).await;
                has_changed.set(matches!(change, Ok(Ok(_))));
            };
            let scan = async {
                // A report names the error.
                let _ = self.scan().await;
            };
            // The lower is asked for changes first, so that it reports each one that the scan does not see.
            let both: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> =
                vec![Box::pin(change), Box::pin(scan)];
            all(both).await;
            if !has_changed.get() || seeded::on(Bug::ReturnsUnscanned) {
                return;
            }
        }
    }

    /// Scans once. Regions marked at the opening stay marked after an error.
    pub async fn scan(&self) -> Result<()> {
        let has_marks = match &self.mode {
            Mode::Regions(regions) => regions.unverified().next().is_some(),
            Mode::Journal(_) => false,
        };
        let scanned = self.scan_all().await;
        if has_marks && scanned.is_ok() && !self.is_closing.get() {
            // The regions are cleared after a flush. If it fails, so does the next one of a client.
            let _ = self.flush().await;
        }
        *self.unscanned.borrow_mut() = scanned.clone().err();
        scanned
    }

    async fn scan_all(&self) -> Result<()> {
        // The pending ranges come first: the devices below learn from the question for which ranges there is a verifier.
        let mut scanned = self.scan_pending().await;
        if let Mode::Regions(regions) = &self.mode {
            for part in regions.unverified() {
                // An error ends the scan of its range only.
                let part = self.scan_range(part).await;
                scanned = scanned.and(part);
                if self.is_closing.get() {
                    break;
                }
            }
        }
        scanned
    }

    /// Scans the ranges in which copies below may differ.
    async fn scan_pending(&self) -> Result<()> {
        let mut scanned = Ok(());
        let mut from = (self.redundancy == Redundancy::Below).then_some(0);
        while let Some(rest) = from.and_then(|at| ByteRange::between(at, self.info.size)) {
            let command = Command::new::<Pending>(Nothing {}).at(rest);
            let pending = match self.data.control::<Pending>(command).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => break,
                pending => pending?,
            };
            for range in pending.iter() {
                let part = self.scan_range(range).await;
                scanned = scanned.and(part);
            }
            from = pending.upto_bytes.filter(|upto| *upto > rest.start());
        }
        scanned
    }

    /// Waits until the device closes.
    async fn closes(&self) {
        self.lefts.1.until(|| self.is_closing.get()).await;
    }

    async fn scan_range(&self, range: ByteRange) -> Result<()> {
        let mut at = range.start() / BLOCK_BYTES * BLOCK_BYTES;
        let end = range.end().next_multiple_of(BLOCK_BYTES).min(self.info.size);
        while let Some(piece) = ByteRange::between(at, end.min(at + SCAN_BYTES)) {
            if self.is_closing.get() {
                break;
            }
            let step = first(self.pace.step_of(piece.len()), self.closes()).await;
            self.scan_piece(piece).await?;
            if let Ok(step) = step {
                step.done(piece.len());
            }
            at = piece.end();
        }
        Ok(())
    }

    /// Reads all copies of a range, and settles the blocks that differ from their checksums.
    async fn scan_piece(&self, range: ByteRange) -> Result<()> {
        let room = self.env.pool().wait_for(range.len() as usize).await?;
        let summed = self.summed(range);
        let wrong = self.compare_copies(range, &room).await? & summed;
        let (first, count) = blocks_of(range);
        let (mut left, mut alike) = (Vec::new(), summed & !wrong);
        for n in 0..count {
            let block = first + n as u64;
            if wrong >> n & 1 == 0 {
                continue;
            }
            let from = n * BLOCK_BYTES as usize;
            let part = room.slice(from..from + BLOCK_BYTES as usize);
            // An error leaves a block unverified that could not be read, or that the device above must write.
            match self.settle(block, &part, Asker::Scan).await {
                Ok(Copied::All) => alike |= 1 << n,
                Ok(Copied::Some) => {}
                Err(_) if self.is_unverified(block) => left.push(block),
                Err(_) => {}
            }
        }
        self.note_scanned(range, &left);
        if self.redundancy == Redundancy::Below {
            self.report_verdicts(range, alike).await?;
        }
        Ok(())
    }

    /// Reports to the device below that all copies of a range were read. `alike`: blocks whose copies are all right.
    async fn report_verdicts(&self, range: ByteRange, alike: Blocks) -> Result<()> {
        let (first, count) = blocks_of(range);
        let is_alike = |n: &usize| alike >> n & 1 == 1;
        let blocks: Vec<usize> = (0..count).collect();
        for run in blocks.chunk_by(|one, next| is_alike(one) == is_alike(next)) {
            let at = (first + run[0] as u64) * BLOCK_BYTES;
            let part =
                ByteRange::new(at, run.len() as u64 * BLOCK_BYTES).expect("a run has blocks");
            let verdict = Verdict { alike: is_alike(&run[0]) };
            let command = Command::new::<Verified>(verdict).at(part);
            match self.data.control::<Verified>(command).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
                told => told.map(drop)?,
            }
        }
        Ok(())
    }

    /// Notes that the scan has been through a range, except the blocks in `left`, which stay unverified.
    fn note_scanned(&self, range: ByteRange, left: &[u64]) {
        let Mode::Regions(regions) = &self.mode else { return };
        if seeded::on(Bug::AcceptedAfterScan) {
            return;
        }
        let left = if seeded::on(Bug::ScanForgetsUnverified) { &[] } else { left };
        let mut at = range.start();
        for block in left {
            let start = block * BLOCK_BYTES;
            if let Some(part) = ByteRange::between(at, start) {
                regions.verified(part);
            }
            at = start + BLOCK_BYTES;
        }
        if let Some(part) = ByteRange::between(at, range.end()) {
            regions.verified(part);
        }
        if !left.is_empty() {
            self.left.borrow_mut().extend(left);
            self.lefts.0.set(self.lefts.0.get() + 1);
            self.lefts.1.wake();
        }
    }

    /// Reads each copy of a range, and returns the blocks of which any copy differs from its checksum, or cannot be read. A
    /// block with newer bytes in the journal is settled from there.
    async fn compare_copies(&self, range: ByteRange, room: &Buf) -> Result<Blocks> {
        let _shared = self.lock.lock(range, LockMode::Shared).await;
        let (first, count) = blocks_of(range);
        let mut sums = [ZEROS; PIECE_BLOCKS];
        let sums = &mut sums[..count];
        self.sums.get(first, sums).await?;
        let copies = match self.redundancy {
            Redundancy::Below => self.data.info().copies.clamp(1, block::COPIES_MAX),
            Redundancy::None | Redundancy::Above => 1,
        };
        let mut wrong = 0;
        for n in 0..copies as usize {
            let avoid = if copies == 1 { Copies::NONE } else { Copies::all_but(n) };
            let into = room.clone();
            let done = self.data.call(Op::Read { range, into, avoid, last_resort: false }).await;
            match done.into_buf() {
                Ok(read) => wrong |= self.sums.compare(range, &read, sums),
                // Some block of the range is unreadable; each is tried alone.
                Err(_) => wrong = Blocks::MAX,
            }
        }
        let all = if count == PIECE_BLOCKS { Blocks::MAX } else { (1 << count) - 1 };
        Ok(wrong & all)
    }
}
