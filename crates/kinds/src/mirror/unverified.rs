//! Blocks that a member below cannot verify. A member with checksums of its own answers them with an error after an unclean
//! stop, and takes their bytes as they are for a last resort alone. The mirror rewrites them on all members: with the bytes of a
//! member that verifies them, or else with those of a last resort.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use block::control::copies::Pending;
use block::control::{Command, Nothing};
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Copies, Error, ErrorKind, Mode, Op, Result, What};
use block::{all, first};

use super::device::{Alone, Inner};
use super::verifier::change;

/// Bytes that are rewritten at once, unless a member has larger blocks: the bytes of one checksum.
const BLOCK_BYTES: u64 = 4096;

/// The member from which a block was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// The first member that was read. It verifies the block.
    First,
    /// Another member, or the first one without verification.
    Other,
}

impl Inner {
    /// Begins to rewrite the blocks that members cannot verify: at the opening, and when a member reports more.
    pub(super) fn watch_members(self: &Rc<Self>) {
        if self.is_read_only() || seeded::on(Bug::UnverifiedStay) {
            return;
        }
        for (index, member) in self.members.iter().enumerate() {
            // A member with several copies rewrites its blocks itself.
            if member.lower.info().copies != 1 {
                continue;
            }
            let (me, lower) = (self.me.clone(), member.lower.clone());
            self.tasks.spawn("a mirror's unverified blocks", async move {
                while let Some(mirror) = me.upgrade().filter(|mirror| !mirror.tasks.is_closing()) {
                    let closed = mirror.tasks.wait(|| false);
                    let has_changed = Cell::new(false);
                    let change = async {
                        has_changed.set(first(change(&lower), closed).await == Ok(true));
                    };
                    let rewrite = async move { mirror.rewrite_unverified(index).await };
                    // The member is asked for changes first, so that it reports each one that the answer lacks.
                    let both: Vec<Pin<Box<dyn Future<Output = ()>>>> =
                        vec![Box::pin(change), Box::pin(rewrite)];
                    all(both).await;
                    if !has_changed.get() {
                        return;
                    }
                }
            });
        }
    }

    /// Rewrites all blocks that member `index` reports as unverified.
    async fn rewrite_unverified(&self, index: usize) {
        let (lower, mut from) = (self.members[index].lower.clone(), Some(0));
        while let Some(rest) = from.and_then(|at| ByteRange::between(at, self.regions.size())) {
            let command = Command::new::<Pending>(Nothing {}).at(rest);
            let Ok(pending) = lower.control::<Pending>(command).await else { return };
            for range in pending.iter().filter_map(|range| range.intersect(rest)) {
                for block in self.blocks(range) {
                    if self.tasks.is_closing() || !self.members[index].takes_writes() {
                        return;
                    }
                    if self.rewrite_block(block, Some(index)).await.is_err() {
                        self.emit(What::RangeUnreadable, Some(index), block.to_string());
                    }
                    self.env.give_way().await;
                }
            }
            from = pending.upto_bytes.filter(|upto| *upto > rest.start());
        }
    }

    /// Returns the number of bytes of a block with a checksum, or of a member's block if it is larger.
    pub(super) fn whole_block_bytes(&self) -> u64 {
        BLOCK_BYTES.max(self.block_bytes().into())
    }

    /// Returns the blocks that cover a range of the mirror.
    pub(super) fn blocks(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> + use<> {
        let block = self.whole_block_bytes();
        let (start, size) = (range.start() - range.start() % block, self.regions.size());
        let ends = move |at: u64| ByteRange::between(at, size.min(at + block));
        (start..range.end()).step_by(block as usize).filter_map(ends)
    }

    /// Reads `range` for a client after no member could verify it as a whole: reads each block, and rewrites those that the
    /// first member cannot verify. A device above with other copies, or one that verifies, asks for a last resort itself.
    ///
    /// # Errors
    /// `error`, that of the first read, if it has another cause, or if such devices are above; else that of a block.
    pub(super) async fn reread(
        &self,
        range: ByteRange,
        into: &mut Buf,
        error: Error,
    ) -> Result<()> {
        let is_asked_last = self.is_verified() || self.verification.redundancy_above;
        let may_help = error.kind() == ErrorKind::Corrupt || self.divided().next().is_some();
        if !may_help || is_asked_last || self.is_read_only() {
            return Err(error);
        }
        for block in self.blocks(range) {
            let room = self.env.pool().scratch(block.len() as usize).await?;
            let mut alone = Some(Alone::new(self.lock.lock(block, Mode::Exclusive).await));
            let (data, source) = self.read_best(block, None, room).await?;
            if source == Source::Other || self.is_divided_in(block) {
                self.put_on_all(block, data.clone(), &mut alone).await?;
            }
            // A second read of the range could find other blocks rotten.
            let part = range.intersect(block).expect("the block is one of the range");
            let (to, from) = (part.start() - range.start(), part.start() - block.start());
            let len = part.len() as usize;
            let found = data.read();
            into.write()[to as usize..][..len].copy_from_slice(&found[from as usize..][..len]);
        }
        Ok(())
    }

    /// Rewrites a block on all members that take writes. Member `suspect` is read after the other ones.
    ///
    /// # Errors
    /// The error of the last member that was read; errors of the writes.
    pub(super) async fn rewrite_block(
        &self,
        block: ByteRange,
        suspect: Option<usize>,
    ) -> Result<()> {
        // Wait before the lock: requests that hold buffers may wait for the lock.
        let room = self.env.pool().wait_for(block.len() as usize).await?;
        let mut alone = Some(Alone::new(self.lock.lock(block, Mode::Exclusive).await));
        let (data, _) = self.read_best(block, suspect, room).await?;
        self.put_on_all(block, data, &mut alone).await
    }

    /// Writes a block to all members that take writes. `alone` is its lock.
    async fn put_on_all(
        &self,
        block: ByteRange,
        data: Buf,
        alone: &mut Option<Alone>,
    ) -> Result<()> {
        let writing = self.announce(block).await?;
        *alone = alone.take().map(|alone| alone.writing(writing));
        let done = self.to_all(&Op::write(block, data), alone).await;
        self.remembered().await.and(done)
    }

    /// Reads a block from a member that verifies it: from the members in sync, then from those with all acknowledged writes. If
    /// none does, takes the bytes as they are that the first of them gives.
    pub(super) async fn read_best(
        &self,
        block: ByteRange,
        suspect: Option<usize>,
        room: Buf,
    ) -> Result<(Buf, Source)> {
        let (mut room, mut failed, mut source) = (Some(room), self.nobody(), Source::First);
        let others = self.in_sync().filter(|n| Some(*n) != suspect);
        let last = self.in_sync().filter(|n| Some(*n) == suspect);
        let verified = others.chain(last).chain(self.divided());
        let divided = self.divided().filter(|_| !seeded::on(Bug::DividedNoLastResort));
        let last_resorts = self.in_sync().chain(divided);
        let order = verified.map(|n| (n, false)).chain(last_resorts.map(|n| (n, true)));
        for (index, last_resort) in order.collect::<Vec<_>>() {
            let into = match room.take() {
                Some(room) => room,
                None => self.env.pool().scratch(block.len() as usize).await?,
            };
            match self.read_once(index, block, into, last_resort).await {
                Ok(data) => return Ok((data, source)),
                Err((error, back)) => (failed, room, source) = (error, back, Source::Other),
            }
        }
        Err(failed)
    }

    /// Reads a block from one member. An error comes with the buffer, unless a late read may still fill it.
    async fn read_once(
        &self,
        index: usize,
        range: ByteRange,
        into: Buf,
        last_resort: bool,
    ) -> Result<Buf, (Error, Option<Buf>)> {
        let member = &self.members[index];
        let begun = member.changes();
        let read = Op::Read { range, into, avoid: Copies::NONE, last_resort };
        let guard = self.deadline.guard(member.lower.start(read));
        let Some(done) = self.answer(index, "read", guard, &mut None).await else {
            return Err((self.no_answer(index), None));
        };
        let Op::Read { into, .. } = done.op else { unreachable!("it stays a read") };
        match done.result {
            Ok(()) if self.is_believed(index, begun) => Ok(into),
            Ok(()) => Err((self.nobody(), Some(into))),
            Err(error) => Err((error, Some(into))),
        }
    }
}
