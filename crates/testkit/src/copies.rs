//! The part of the battery that reads, restores and breaks each copy of the device under test alone.

use block::{Buf, ByteRange, Copies, Done, Info, Lower, Op, Result};
use sim::draw::Stream;
use sim::workload::Mix;

use crate::bench::{Bench, stuck};
use crate::refusal::{Broken, Refusal};

/// Ranges of which the battery breaks and restores a copy, in each run.
const ROUNDS: u64 = 3;

/// Longest range of which it does so, in blocks.
const BLOCKS: u64 = 5;

/// Writes junk to one copy of a range as if it restored that copy, and checks that all other copies keep their bytes.
/// Then restores the copy. At the end all lowers fail every read that is no last resort.
pub fn copies(bench: &mut Bench<'_>) -> Result<(), Refusal> {
    bench.begin(4, 30, Mix { abandon: 0, ..Mix::ALL });
    bench.finish()?;
    // All copies must be equal and in use.
    bench.settle()?;
    let info = bench.facts().clone();
    let draw = Stream::new(bench.world.seed(), "copies", 0);
    let (graph, top) = bench.top();
    let device = Copied { bench, lower: graph.lower(top), draw };
    for _ in 0..ROUNDS {
        let blocks = BLOCKS.min(u64::from(info.max_transfer / info.block_size));
        let range = device.draw_range(&info, blocks);
        device.break_and_restore(range, device.draw.below(info.copies.into()) as usize)?;
    }
    device.last_resort(device.draw_range(&info, 1))?;
    bench.settle()?;
    bench.verify()
}

/// The device under test, as a device above it sees it.
struct Copied<'b, 's> {
    bench: &'b Bench<'s>,
    lower: Lower,
    draw: Stream,
}

/// The bytes of a read, and whether they are those of the copy that was asked for.
type OfCopy = (Vec<u8>, bool);

fn refuse(words: impl std::fmt::Display) -> Refusal {
    Refusal::new(Broken::Named, words)
}

impl Copied<'_, '_> {
    fn draw_range(&self, info: &Info, blocks: u64) -> ByteRange {
        let (block, all) = (u64::from(info.block_size), info.size / u64::from(info.block_size));
        let at = self.draw.below(all);
        let count = self.draw.within(1, blocks.min(all - at));
        ByteRange::new(at * block, count * block).expect("a range has a block")
    }

    fn blocks(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> + use<> {
        let block = u64::from(self.lower.info().block_size);
        (range.start()..range.end())
            .step_by(block as usize)
            .map(move |at| ByteRange::new(at, block).expect("a block has bytes"))
    }

    fn buf(&self, len: u64) -> std::result::Result<Buf, Refusal> {
        self.bench.world.env().buf(len as usize).map_err(refuse)
    }

    fn call(&self, op: Op) -> std::result::Result<Done, Refusal> {
        let lower = self.lower.clone();
        self.bench.world.block_on(async move { lower.call(op).await }).map_err(stuck)
    }

    fn read(
        &self,
        range: ByteRange,
        avoid: Copies,
        last_resort: bool,
    ) -> std::result::Result<Result<(Vec<u8>, Copies)>, Refusal> {
        let into = self.buf(range.len())?;
        let done = self.call(Op::Read { range, into, avoid, last_resort })?;
        let copies = done.copies();
        if !avoid.is_within(copies) {
            return Err(refuse(format_args!("a read avoids {avoid:x?} and reports {copies:x?}")));
        }
        Ok(done.into_buf().map(|buf| (buf.read().to_vec(), copies)))
    }

    fn read_copy(&self, range: ByteRange, n: usize) -> std::result::Result<OfCopy, Refusal> {
        let (bytes, copies) = self.read(range, Copies::all_but(n), false)?.map_err(refuse)?;
        Ok((bytes, copies.has(n)))
    }

    fn restore(
        &self,
        range: ByteRange,
        bytes: &[u8],
        copies: Copies,
    ) -> std::result::Result<(), Refusal> {
        let data = self.buf(range.len())?;
        data.write().copy_from_slice(bytes);
        self.call(Op::restore(range, data, copies))?.result.map_err(refuse)
    }

    /// Breaks copy `n` of a range and restores it, and reads each copy of each block before, in between and afterwards.
    fn break_and_restore(&self, range: ByteRange, n: usize) -> std::result::Result<(), Refusal> {
        if self.lower.info().read_only {
            return Ok(());
        }
        let (right, _) = self.read(range, Copies::NONE, false)?.map_err(refuse)?;
        let before = self.copies_of(range)?;
        self.compare(range, &before, &before, |_| &right)?;
        let junk: Vec<u8> = right.iter().map(|byte| byte ^ 0x5a).collect();
        self.restore(range, &junk, Copies::NONE.with(n))?;
        let broken = self.copies_of(range)?;
        self.compare(range, &before, &broken, |copy| if copy == n { &junk } else { &right })?;
        for (block, at) in self.blocks(range).zip(0..) {
            let another = before.iter().enumerate().any(|(m, copy)| m != n && copy[at].1);
            let (bytes, _) = self.read(block, Copies::NONE.with(n), false)?.map_err(refuse)?;
            if another && bytes != part(&right, range, block) {
                return Err(refuse(format_args!(
                    "a read of {block} returns copy {n}, to be avoided"
                )));
            }
        }
        self.restore(range, &right, Copies::NONE.with(n))?;
        let beyond = self.lower.info().copies as usize;
        if Copies::NONE.with(beyond) != Copies::NONE {
            self.restore(range, &junk, Copies::NONE.with(beyond))?;
        }
        self.compare(range, &before, &self.copies_of(range)?, |_| &right)
    }

    /// Reads each copy of each block of a range.
    fn copies_of(&self, range: ByteRange) -> std::result::Result<Vec<Vec<OfCopy>>, Refusal> {
        let copies = 0..self.lower.info().copies as usize;
        copies.map(|n| self.blocks(range).map(|block| self.read_copy(block, n)).collect()).collect()
    }

    /// Compares the copies of each block with the bytes that `expected` returns for each copy.
    fn compare<'e>(
        &self,
        range: ByteRange,
        before: &[Vec<OfCopy>],
        now: &[Vec<OfCopy>],
        expected: impl Fn(usize) -> &'e Vec<u8>,
    ) -> std::result::Result<(), Refusal> {
        for (block, at) in self.blocks(range).zip(0..) {
            for (n, (before, now)) in before.iter().zip(now).enumerate() {
                let ((was, existed), (is, exists)) = (&before[at], &now[at]);
                if existed != exists {
                    return Err(refuse(format_args!("copy {n} of {block} comes or goes")));
                }
                // A block of zeros may be a hole, which has no copy that could be written.
                let is_hole = was.iter().all(|byte| *byte == 0) && was == is;
                if *exists && is != part(expected(n), range, block) && !is_hole {
                    let words = format!("copy {n} of {block} has other bytes than expected");
                    return Err(refuse(words));
                }
            }
            let has_data = before.iter().any(|copy| copy[at].0.iter().any(|byte| *byte != 0));
            if has_data && !before.iter().any(|copy| copy[at].1) {
                return Err(refuse(format_args!("no copy of {block} can be read by its number")));
            }
        }
        Ok(())
    }

    /// Lets all lowers fail reads that are no last resort. A device that passes on the copies of its lowers must return
    /// the bytes to a last resort.
    fn last_resort(&self, range: ByteRange) -> std::result::Result<(), Refusal> {
        let (right, _) = self.read(range, Copies::NONE, false)?.map_err(refuse)?;
        let unverified = |on| {
            self.bench.members.iter().for_each(|member| member.watch.unverified.set(on));
        };
        unverified(true);
        // It may succeed: the device may have the bytes in memory, or know that the range is a hole.
        let _ = self.read(range, Copies::NONE, false)?;
        let last = self.read(range, Copies::NONE, true)?;
        unverified(false);
        if self.lower.info().copies == 1 || self.bench.members.is_empty() {
            return Ok(());
        }
        let bytes = last.map_err(|error| refuse(format_args!("a last resort fails: {error}")))?.0;
        if bytes != right { Err(refuse("a last resort returns other bytes")) } else { Ok(()) }
    }
}

fn part(bytes: &[u8], range: ByteRange, block: ByteRange) -> &[u8] {
    let from = (block.start() - range.start()) as usize;
    &bytes[from..from + block.len() as usize]
}
