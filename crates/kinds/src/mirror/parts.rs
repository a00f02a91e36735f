//! Writes of parts of blocks to members that cannot read the rest of the block: a member with checksums has larger blocks than
//! the mirror, and one of them may have rotted. The mirror gives the member the whole block of another member, and repeats the
//! write in parts.

use block::control::Cause;
use block::seeded::{self, Bug};
use block::{ByteRange, Error, ErrorKind, Locked, Op, Result, error};

use super::device::{Inner, copy_of};

impl Inner {
    /// Returns the smallest range of whole blocks that holds `range`.
    pub(super) fn whole_blocks(&self, range: ByteRange) -> ByteRange {
        let block = self.whole_block_bytes();
        let end = range.end().next_multiple_of(block).min(self.regions.size());
        ByteRange::between(range.start() - range.start() % block, end).unwrap_or(range)
    }

    /// Returns the blocks of which `range` has only a part.
    fn parts(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let is_part =
            move |block: &ByteRange| block.start() < range.start() || block.end() > range.end();
        self.blocks(range).filter(is_part)
    }

    /// Whether a member may carry out `op` after it has got whole blocks: it failed because bytes of a block were wrong, of
    /// which `op` changes only a part.
    pub(super) fn may_mend(&self, op: &Op, error: &Error) -> bool {
        let is_part = |range| self.parts(range).next().is_some();
        error.kind() == ErrorKind::Corrupt
            && op.range().is_some_and(is_part)
            && !seeded::on(Bug::PartFailsMember)
    }

    /// Carries out `op` on member `index`, which could not read a block of which `op` changes a part: writes such blocks with
    /// the bytes of another member, and repeats `op`. Counts a read error of the member. `alone` is the lock of the blocks.
    ///
    /// # Errors
    /// The error of the last member that was read; errors of the writes.
    pub(super) async fn write_after_mend(
        &self,
        index: usize,
        op: &Op,
        alone: &mut Option<Locked>,
    ) -> Result<()> {
        let member = &self.members[index];
        if !seeded::on(Bug::PartUncounted) && member.read_failed(self.env.now()) {
            let why = "too many blocks could not be read; the last for a write";
            self.retire(index, Cause::Reads, why.to_owned());
        }
        let range = op.range().expect("a request that changes bytes has a range");
        for block in self.parts(range) {
            let room = self.env.pool().scratch(block.len() as usize).await?;
            let data = self.read_best(block, Some(index), room).await?;
            self.put_again(index, Op::write(block, data), alone).await?;
            self.rewritten(index, block);
        }
        // The member would also read the blocks between the first and the last one, and they may have rotted too.
        for part in self.split(range) {
            self.put_again(index, part_of(op, part), alone).await?;
        }
        Ok(())
    }

    /// Splits a range behind a first block, and in front of a last one, of which it has only a part.
    fn split(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let block = self.whole_block_bytes();
        let first = range.start().next_multiple_of(block).min(range.end());
        let last = (range.end() - range.end() % block).max(first);
        let ends = [(range.start(), first), (first, last), (last, range.end())];
        ends.into_iter().filter_map(|(start, end)| ByteRange::between(start, end))
    }

    /// Carries out a write on a member, unless the mirror has taken the member out, or waits for a late request to it.
    async fn put_again(&self, index: usize, op: Op, alone: &mut Option<Locked>) -> Result<()> {
        match self.members[index].takes_writes() && alone.is_some() {
            true => self.put(index, op, alone).await,
            false => {
                Err(error!(Faulted, "the member takes no writes")
                    .at(self.members[index].lower.name()))
            }
        }
    }
}

/// Returns the operation that makes the change of `op` in a part of its range.
fn part_of(op: &Op, range: ByteRange) -> Op {
    match copy_of(op) {
        Op::Write { range: whole, data, fua, restores } => {
            let start = (range.start() - whole.start()) as usize;
            let data = data.slice(start..start + range.len() as usize);
            Op::Write { range, data, fua, restores }
        }
        Op::WriteZeroes { unmap, fua, .. } => Op::WriteZeroes { range, unmap, fua },
        Op::Discard { fua, .. } => Op::Discard { range, fua },
        other => other,
    }
}
