//! Resync: copies to a member the regions that it misses. Also rewrites ranges that a member could not read.

use std::rc::{Rc, Weak};

use block::control::Cause;
use block::seeded::{self, Bug};
use block::{
    Buf, ByteRange, Child, Copies, Error, ErrorKind, Info, MemberState as State, Mode, Op,
    Progress, Result, STEP_BYTES_MAX, What, error,
};

use super::device::{Alone, Inner};
use super::holes::Way;
use super::member::Member;
use super::regions::Bitmap;
use super::superblock_writer::SuperblockWriter;

/// Most bytes that a resync copies before it writes the next state of the mirror to the labels. An interrupted resync
/// resumes from the last such state.
const UNTOLD_BYTES_MAX: u64 = 64 << 20;

/// Divisor of the bytes that a resync copies in all. The quotient limits the same bytes as [`UNTOLD_BYTES_MAX`]; the
/// lower limit counts.
const UNTOLD_SHARE: u64 = 16;

/// Most concurrent repairs of ranges that a member could not read. After further read errors, clients get the bytes of
/// another member, but no repair begins.
const REPAIRS_MAX: u32 = 16;

/// A running resync: the task that copies missed regions to one member.
struct Copy {
    mirror: Weak<Inner>,
    index: usize,
    /// [`Member::changes`] of the member when the resync began. The resync ends if the number has changed since.
    begun: u64,
    /// Copied regions that no state in the labels records as copied yet.
    copied: Bitmap,
    done: u64,
    unrecorded: u64,
    unrecorded_max: u64,
}

impl Copy {
    async fn run(&mut self) {
        while let Some(region) = self.next().await {
            if !self.region(region).await {
                return;
            }
        }
        if let Some(mirror) = self.goes_on() {
            mirror.end_resync(self.index, self.begun).await;
        }
    }

    /// Returns the next region to copy; `None` if none is left, or if the resync ends. Beneath a verifier, waits until the
    /// verifier has been through a region.
    async fn next(&self) -> Option<usize> {
        loop {
            let mirror = self.goes_on()?;
            let mut left = mirror.members[self.index].missing();
            left.subtract(&self.copied);
            left.next(0)?;
            let may_copy =
                |region: &usize| mirror.may_copy(self.index, mirror.regions.range(*region));
            if let Some(region) = left.iter().find(may_copy) {
                return Some(region);
            }
            let passed = mirror.pass(self.index);
            drop(mirror);
            passed.await;
        }
    }

    /// Returns the mirror if the resync may continue: the mirror exists and is not closing, and the state of the member
    /// has not changed since the resync began.
    fn goes_on(&self) -> Option<Rc<Inner>> {
        let mirror = self.mirror.upgrade()?;
        let ours = mirror.members[self.index].changes() == self.begun;
        (ours && !mirror.tasks.is_closing()).then_some(mirror)
    }

    /// Marks the member as failed because of `error`, unless the state of the member has changed since the resync
    /// began.
    fn fail(&self, what: &str, error: &Error) {
        if let Some(mirror) = self.goes_on() {
            mirror.leave_out(
                self.index,
                State::Failed,
                Cause::Request,
                Member::words_of(what, error),
            );
        }
    }

    /// Copies one region to the member. Returns whether the resync may continue.
    async fn region(&mut self, region: usize) -> bool {
        let Some(mirror) = self.goes_on() else { return false };
        let range = mirror.regions.range(region);
        let parts = mirror.ways(self.index, range).await;
        drop(mirror);
        for (part, way) in parts {
            let is_done = match way {
                Way::Skip => self.skip(part),
                Way::Zero | Way::Copy => self.in_steps(part, way).await,
            };
            if !is_done {
                return false;
            }
        }
        self.copied.insert(region);
        self.unrecorded += range.len();
        self.unrecorded < self.unrecorded_max || self.record_progress().await
    }

    /// Counts a part that the member has already.
    fn skip(&mut self, part: ByteRange) -> bool {
        let Some(mirror) = self.goes_on() else { return false };
        self.done += part.len();
        mirror.members[self.index].copied(self.done);
        true
    }

    /// Copies or zeroes a range in steps at the pace of the mirror. Returns whether the resync may continue.
    async fn in_steps(&mut self, range: ByteRange, way: Way) -> bool {
        let Some(mirror) = self.goes_on() else { return false };
        let (pace, env) = (mirror.pace.clone(), mirror.env.clone());
        drop(mirror);
        let mut at = range.start();
        while at < range.end() {
            let step = pace.step().await;
            let Some(mirror) = self.goes_on() else { return false };
            let len = step.bytes().min(mirror.step_bytes());
            let part = ByteRange::between(at, range.end().min(at + len))
                .expect("bytes of the range are left to copy");
            if !self.part(&mirror, part, way).await {
                return false;
            }
            step.done(part.len());
            at = part.end();
            drop(mirror);
            env.give_way().await;
        }
        true
    }

    async fn part(&mut self, mirror: &Inner, part: ByteRange, way: Way) -> bool {
        let member = &mirror.members[self.index];
        let mut copied = mirror.copy(self.index, part, way).await;
        // A source that does not answer would cost a deadline for each block. It fails, if the member can replace it.
        match &copied {
            Err(Uncopied::Unread(error)) if error.kind() == ErrorKind::TimedOut => {
                let words = Member::words_of("a read for the resync", error);
                let source = mirror.in_sync().next().filter(|source| mirror.is_last(*source));
                if let Some(source) = source.filter(|_| mirror.is_divided(self.index)) {
                    mirror.retire(source, Cause::Request, words);
                }
            }
            Err(Uncopied::Unread(_)) => copied = mirror.copy_by_blocks(self.index, part).await,
            _ => {}
        }
        if member.changes() != self.begun {
            return false;
        }
        if let Err(Uncopied::Unread(error) | Uncopied::Unwritten(error)) = copied {
            self.fail("the resync", &error);
            return false;
        }
        self.done += part.len();
        member.copied(self.done);
        true
    }

    /// Makes the copied regions durable on the member, and writes a state of the mirror that records them as copied.
    /// Returns whether the resync may continue.
    async fn record_progress(&mut self) -> bool {
        let Some(mirror) = self.goes_on() else { return false };
        let Some(writer) = &mirror.writer else { return true };
        let member = &mirror.members[self.index];
        if !seeded::on(Bug::ProgressEarly) {
            let flushed = member.lower.flush().await;
            if member.changes() != self.begun {
                return false;
            }
            if let Err(error) = flushed {
                self.fail("flush", &error);
                return false;
            }
        }
        member.has_got(&self.copied);
        self.copied.clear();
        self.unrecorded = 0;
        mirror.record_missing(writer).await;
        true
    }
}

/// The reason why a range was not copied to a member.
enum Uncopied {
    /// No member in sync could read the range.
    Unread(Error),
    /// The member did not take the write of the range.
    Unwritten(Error),
}

impl Inner {
    /// Begins the resync of the member called `name`; without a name, of all members that miss writes and can be
    /// resynced.
    ///
    /// # Errors
    /// `NotFound` for an unknown name; `InUse` if the member is in sync, has a running resync, is absent, or has late
    /// requests, or if a member in sync has late requests.
    pub fn resync(self: &Rc<Self>, name: Option<&str>) -> Result<()> {
        match name {
            Some(name) => {
                let index = self.find(name)?;
                self.may_resync(index)?;
                self.begin_resync(index);
            }
            None => {
                for index in 0..self.members.len() {
                    if self.may_resync(index).is_ok() {
                        self.begin_resync(index);
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn may_resync(&self, index: usize) -> Result<()> {
        let member = &self.members[index];
        let name = member.lower.name();
        let in_use = |words: String| Error::new(ErrorKind::InUse, words);
        Err(match member.state() {
            State::InSync => in_use(format!("member {name} is in sync already")),
            State::Copying => in_use(format!("a resync of member {name} is running already")),
            State::Stale | State::Failed | State::Spare if member.is_absent() => {
                in_use(format!("member {name} is absent")).next(self.back_again(name))
            }
            State::Stale | State::Failed | State::Spare if member.late() > 0 => {
                let late = member.late();
                let words = format!(
                    "member {name} has {late} unanswered requests; a late write would overwrite \
                     the resynced bytes"
                );
                in_use(words).next("wait until the disk answers, or restart the server")
            }
            State::Stale | State::Failed | State::Spare => return self.may_be_copied(),
        })
    }

    /// Checks that no member in sync has late requests. The last member in sync stays in sync when it does not reply,
    /// and its late writes may change a range after a resync has copied the range.
    fn may_be_copied(&self) -> Result<()> {
        let is_late = |n: &usize| self.members[*n].late() > 0;
        let Some(source) = self.in_sync().find(is_late) else { return Ok(()) };
        let source = &self.members[source];
        Err(error!(
            InUse,
            "member {} is in sync but has {} unanswered requests; a late write would make a copy \
             of that member differ",
            source.lower.name(),
            source.late()
        )
        .next("wait until the disk answers, or restart the server"))
    }

    /// Begins the resync of a spare after a member has failed, if the mirror has a spare.
    pub(super) fn take_spare(&self) {
        let ready = |n: &usize| self.members[*n].state() == State::Spare;
        let spare = (0..self.members.len()).filter(ready).find(|n| self.may_resync(*n).is_ok());
        let (Some(index), Some(mirror)) = (spare, self.me.upgrade()) else { return };
        self.emit(What::SpareTaken, Some(index), String::new());
        mirror.begin_resync(index);
    }

    /// Begins the resync of member `index`: the mirror sends new writes to the member from now on, and a task copies
    /// the regions that the member misses.
    pub fn begin_resync(self: &Rc<Self>, index: usize) {
        let member = &self.members[index];
        member.set(State::Copying, None, "");
        member.begin_verification();
        self.announce_pending();
        let (all, of) = (member.missing().bytes(&self.regions), self.regions.size());
        member.set_progress(Progress { done_bytes: 0, all_bytes: all, of_bytes: of });
        self.emit(What::ResyncBegun, Some(index), format!("copying {all} of {of} bytes"));
        let mut copy = Copy {
            mirror: self.me.clone(),
            index,
            // If the member is taken out during this resync and a new resync begins, the member may miss bytes that
            // this resync has copied.
            begun: member.changes(),
            copied: Bitmap::none(self.regions.count()),
            done: 0,
            unrecorded: 0,
            unrecorded_max: UNTOLD_BYTES_MAX.min(all / UNTOLD_SHARE),
        };
        let waits = !seeded::on(Bug::CopyUntold);
        let committed = self.writer.as_ref().filter(|_| waits).map(SuperblockWriter::committed);
        let me = self.me.clone();
        self.env.spawn("a mirror's resync", async move {
            if let Some(committed) = committed {
                committed.await;
            }
            let Some(mirror) = me.upgrade().filter(|mirror| !mirror.tasks.is_closing()) else {
                return;
            };
            let _one = mirror.tasks.enter();
            // The label of the member must record that the member is stale before the resync writes to it. By that
            // record, a later opening distinguishes the member from an older image.
            if waits && let Err(error) = mirror.remember().await {
                return copy.fail("the resync", &error);
            }
            if let Err(error) = mirror.make_replica_current(index).await {
                return copy.fail("the resync", &error);
            }
            drop(mirror);
            copy.run().await;
        });
    }

    /// Returns the most bytes that a resync or scrub handles in one step: a request of that size fits every member.
    pub(super) fn step_bytes(&self) -> u64 {
        let all = self.common();
        let most = STEP_BYTES_MAX.min(u64::from(all.max_transfer));
        most - most % u64::from(all.block_size)
    }

    /// Returns the facts that hold for every member: the largest block size, the smallest limits.
    pub(super) fn common(&self) -> Info {
        let all = Info::over(self.members.iter().map(|member| member.lower.info()));
        all.expect("a mirror has members")
    }

    /// Ends the resync of member `index`. Makes the copied bytes durable on the member before it comes in sync.
    async fn end_resync(&self, index: usize, begun: u64) {
        let member = &self.members[index];
        let flushed = member.lower.flush().await;
        if member.changes() != begun {
            return;
        }
        // The maps stay where they are until the member is in sync.
        let current = match flushed {
            Ok(()) => self.make_replica_current(index).await,
            Err(error) => Err(error),
        };
        if member.changes() != begun {
            return;
        }
        match current {
            Ok(_turn) => {
                member.has_got(&member.missing());
                member.set(State::InSync, None, "");
                self.emit(What::ResyncEnded, Some(index), String::new());
                self.remember_soon();
            }
            Err(error) => self.leave_out(
                index,
                State::Failed,
                Cause::Request,
                Member::words_of("flush", &error),
            ),
        }
    }

    /// Copies to member `to` a range that no member in sync could read as a whole. A block that no such member can read is
    /// rewritten on all members, if there are bytes for it. Beneath a verifier, a block that is bad on all copies is reported
    /// and left out: no reader takes its bytes.
    async fn copy_by_blocks(&self, to: usize, range: ByteRange) -> Result<(), Uncopied> {
        for block in self.blocks(range) {
            match self.copy(to, block, Way::Copy).await {
                Ok(()) => continue,
                Err(Uncopied::Unread(_)) => {}
                Err(unwritten) => return Err(unwritten),
            }
            let Err(error) = self.rewrite_block(block, None).await else { continue };
            if !self.is_verified() || error.kind() == ErrorKind::TimedOut {
                return Err(Uncopied::Unread(error));
            }
            self.emit(What::RangeUnreadable, None, block.to_string());
        }
        Ok(())
    }

    /// Copies one range to member `to` from a member in sync. With [`Way::Zero`] it zeroes the range, if a member in sync
    /// still reads as zeros there.
    async fn copy(&self, to: usize, range: ByteRange, way: Way) -> Result<(), Uncopied> {
        // Wait before the lock: requests that hold buffers may wait for the lock.
        let room = self.env.pool().wait_for(range.len() as usize).await;
        let room = room.map_err(Uncopied::Unread)?;
        let mut alone = Some(Alone::new(self.lock.lock(range, Mode::Exclusive).await));
        let change = if way == Way::Zero && self.is_zero(range).await {
            Op::WriteZeroes { range, unmap: true, fua: false }
        } else {
            let read = self.read_any(range, room, Copies::NONE.with(to)).await;
            Op::write(range, read.map_err(Uncopied::Unread)?)
        };
        self.put(to, change, &mut alone).await.map_err(Uncopied::Unwritten)
    }

    /// Carries out `change` on member `to`. The caller holds `alone`, the exclusive lock of its range.
    pub(super) async fn put(&self, to: usize, change: Op, alone: &mut Option<Alone>) -> Result<()> {
        let child = self.members[to].lower.start(change);
        let answer = self.answer(to, "write", self.deadline.guard(child), alone).await;
        answer.map_or_else(|| Err(self.no_answer(to)), |done| done.result)
    }

    /// Writes `data` to the copies in `restores` alone. The mirror marks no region as dirty: the write changes no content,
    /// so the members do not differ more than before, wherever it is interrupted.
    ///
    /// # Errors
    /// `Faulted` if a member with one of these copies takes no writes; the error of a member, which is marked as failed unless it
    /// is the last in sync.
    pub(super) async fn restore(
        &self,
        range: ByteRange,
        data: &Buf,
        fua: bool,
        restores: Copies,
    ) -> Result<()> {
        let mut alone = Some(Alone::new(self.lock.lock(range, Mode::Exclusive).await));
        let mut result = Ok(());
        for (index, member) in self.members.iter().enumerate() {
            let restores = match seeded::on(Bug::RestoresAllCopies) {
                true => Copies::first(1),
                false => member.numbers.below(restores),
            };
            if restores == Copies::NONE {
                continue;
            }
            let name = member.lower.name();
            let written = if member.takes_writes() {
                let write = Op::Write { range, data: data.clone(), fua, restores };
                self.put(index, write, &mut alone).await.inspect_err(|error| {
                    let words = Member::words_of("restoring a copy", error);
                    member.count_error();
                    self.retire(index, Cause::Request, words);
                })
            } else {
                Err(error!(Faulted, "the member takes no writes, so its copy is not restored")
                    .at(name))
            };
            result = result.and(written);
        }
        result
    }

    /// Counts and reports that a byte range of member `index` was rewritten, because the member could not read the
    /// range or had other bytes there.
    pub(super) fn rewritten(&self, index: usize, range: ByteRange) {
        self.repaired.set(self.repaired.get() + 1);
        self.emit(What::RangeRewritten, Some(index), range.to_string());
    }

    /// Reads a range from the first member in sync that can read the range and is not in `tried`.
    async fn read_any(&self, range: ByteRange, room: Buf, mut tried: Copies) -> Result<Buf> {
        let mut room = Some(room);
        let mut failed = error!(Faulted, "no other member is in sync").at(&self.name);
        while let Some(source) = self.next_in_sync(tried) {
            let buf = match room.take() {
                Some(room) => room,
                // A late read may still fill the last buffer.
                None => self.env.pool().wait_for(range.len() as usize).await?,
            };
            let begun = self.members[source].changes();
            let read = self.members[source].lower.start(Op::read(range, buf));
            let read = self.deadline.guard(read).await.map(block::Done::into_buf);
            tried = self.tried(tried, source, begun);
            match read {
                Ok(Ok(data)) if self.is_believed(source, begun) => return Ok(data),
                Ok(Ok(data)) => room = Some(data),
                Ok(Err(error)) => failed = error,
                Err(_late) => failed = self.no_answer(source),
            }
        }
        Err(failed)
    }

    /// Begins a background task that rewrites the byte range `range` on `members`, which could not read the range.
    pub fn begin_repair(self: &Rc<Self>, range: ByteRange, members: Copies) {
        if self.repairs.get() >= REPAIRS_MAX || self.tasks.is_closing() {
            return;
        }
        self.repairs.set(self.repairs.get() + 1);
        // A member cannot write a part of a block that it cannot read.
        let (mirror, range) = (self.clone(), self.whole_blocks(range));
        self.tasks.spawn("a mirror's repair", async move {
            for index in 0..mirror.members.len() {
                if members.has(index) && mirror.members[index].state() == State::InSync {
                    match mirror.copy(index, range, Way::Copy).await {
                        Ok(()) => mirror.rewritten(index, range),
                        Err(Uncopied::Unwritten(error)) => {
                            mirror.retire(
                                index,
                                Cause::Request,
                                Member::words_of("repair", &error),
                            );
                        }
                        // No source could be read. The next read of this range reports the error.
                        Err(Uncopied::Unread(_)) => {}
                    }
                }
            }
            mirror.repairs.set(mirror.repairs.get() - 1);
        });
    }

    /// Waits in the background for the reply to a request of member `index` that is past its deadline. Keeps the lock
    /// `kept` of the byte range until the reply, and then counts one late request of the member less.
    pub fn wait_for_late(&self, index: usize, child: Child, kept: Option<Alone>) {
        let back = self.members[index].late_counter();
        self.tasks.spawn("a mirror's late request", async move {
            let _ = child.await;
            drop(kept);
            back.set(back.get() - 1);
        });
    }
}
