//! Writes of parts of blocks to members that cannot read the rest of the block: a member with checksums has larger blocks than
//! the mirror, and one of them may have rotted. The mirror gives the member the whole block: the bytes of another member, with
//! the change.

use block::control::Cause;
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Error, ErrorKind, Op, Result, error};

use super::device::{Alone, Inner};

impl Inner {
    /// Returns the smallest range of whole blocks that holds `range`.
    pub(super) fn whole_blocks(&self, range: ByteRange) -> ByteRange {
        let block = self.whole_block_bytes();
        let end = range.end().next_multiple_of(block).min(self.regions.size());
        ByteRange::between(range.start() - range.start() % block, end).unwrap_or(range)
    }

    /// Returns the blocks that `range` covers only in part.
    fn parts(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let is_part =
            move |block: &ByteRange| block.start() < range.start() || block.end() > range.end();
        self.blocks(range).filter(is_part)
    }

    /// Returns the blocks that `range` covers as a whole; `None` if there are none. The last block of a mirror may be shorter.
    fn without_parts(&self, range: ByteRange) -> Option<ByteRange> {
        let is_whole = |block: &ByteRange| range.contains(*block);
        let mut whole = self.blocks(range).filter(is_whole);
        let first = whole.next()?;
        let last = whole.last().unwrap_or(first);
        ByteRange::between(first.start(), last.end())
    }

    /// Whether a member may carry out `op` after it has got whole blocks: it failed because bytes of a block were wrong, of
    /// which `op` changes only a part.
    pub(super) fn may_mend(&self, op: &Op, error: &Error) -> bool {
        let is_part = |range| self.parts(range).next().is_some();
        error.kind() == ErrorKind::Corrupt
            && op.range().is_some_and(is_part)
            && !seeded::on(Bug::PartFailsMember)
    }

    /// Carries out `op` on member `index`, which could not read a block of which `op` changes a part. Writes such blocks as a
    /// whole, with bytes of another member around the change, so that the member reads nothing. Counts a read error of the
    /// member. `alone` is the lock of the blocks.
    ///
    /// # Errors
    /// The error of the last member that was read; errors of the writes.
    pub(super) async fn write_after_mend(
        &self,
        index: usize,
        op: &Op,
        alone: &mut Option<Alone>,
    ) -> Result<()> {
        let member = &self.members[index];
        if !seeded::on(Bug::PartUncounted) && member.read_failed(self.env.now()) {
            let why = "too many blocks could not be read; the last for a write";
            self.retire(index, Cause::Reads, why.to_owned());
        }
        let range = op.range().expect("a request that changes bytes has a range");
        for block in self.parts(range) {
            let room = self.env.pool().scratch(block.len() as usize).await?;
            let (data, _) = self.read_best(block, Some(index), room).await?;
            // The buffer of a read may belong to the member that has answered.
            let own = self.env.pool().scratch(block.len() as usize).await?;
            own.write().copy_from_slice(&data.read());
            put_change(op, block, &own);
            self.put_again(index, Op::write(block, own), alone).await?;
            self.rewritten(index, block);
        }
        if let Some(whole) = self.without_parts(range) {
            self.put_again(index, op.part(whole), alone).await?;
        }
        self.flush_if_fua(index, op).await
    }

    async fn flush_if_fua(&self, index: usize, op: &Op) -> Result<()> {
        if op.fua() { self.members[index].lower.flush().await } else { Ok(()) }
    }

    /// Carries out a write on a member, unless the mirror has taken the member out, or waits for a late request to it.
    pub(super) async fn put_again(
        &self,
        index: usize,
        op: Op,
        alone: &mut Option<Alone>,
    ) -> Result<()> {
        match self.members[index].takes_writes() && alone.is_some() {
            true => self.put(index, op, alone).await,
            false => {
                Err(error!(Faulted, "the member takes no writes")
                    .at(self.members[index].lower.name()))
            }
        }
    }
}

/// Puts the bytes of `op` that are in `block` into `data`, the bytes of that block. A discard on members of a mirror reads as
/// zeros.
fn put_change(op: &Op, block: ByteRange, data: &Buf) {
    let Some(changed) = op.range().and_then(|range| range.intersect(block)) else { return };
    let at = (changed.start() - block.start()) as usize;
    let mut bytes = data.write();
    let into = &mut bytes[at..at + changed.len() as usize];
    match op.part(changed) {
        Op::Write { data, .. } => into.copy_from_slice(&data.read()),
        _ => into.fill(0),
    }
}
