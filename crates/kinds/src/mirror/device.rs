//! Carries out the requests of a mirror: reads from the member with the shortest expected latency, writes to all
//! members.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use std::borrow::Cow;

use block::control::copies::{Changed, Pending, Scrub, Verified, Wrong};
use block::control::member::{Fail, Resync};
use block::control::state::Check;
use block::control::{Cause, Command, Nothing, Reply, Resolved, VerbInfo};
use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{
    Below, Buf, ByteRange, Child, Copies, CopyNumbers, Deadline, Device, Done, Env, Error,
    ErrorKind, Event, Fan, FlushFault, Guard, Handover, Health, Info, Locked, Lower,
    MemberState as State, Mode, Op, RangeLock, Report, Request, Result, TaskGroup, Throttle, What,
    bail, error,
};

use meta::regions::Writing;

use super::MEMBERS_MAX;
use super::member::Member;
use super::reader::Reader;
use super::record::Content;
use super::regions::{Bitmap, Regions};
use super::scrub::Scrubbing;
use super::superblock_writer::SuperblockWriter;
use super::verifier::Verification;

/// A mirror device. Its inner state is shared with background tasks.
pub struct Mirror {
    info: Info,
    pub(super) inner: Rc<Inner>,
}

/// State of a mirror, shared by requests and background tasks.
pub struct Inner {
    pub(super) me: Weak<Inner>,
    pub name: String,
    pub env: Env,
    pub members: Vec<Member>,
    /// Lock of byte ranges. Writes hold their ranges exclusively: overlapping writes reach every member in the same
    /// order. Reads wait for earlier writes, so that no client reads a newer byte and then an older byte at the same
    /// address.
    pub lock: RangeLock,
    pub deadline: Deadline,
    /// Number of reads so far, which rotates the member to read among members of equal cost.
    turn: Cell<usize>,
    pub repairs: Cell<u32>,
    pub repaired: Cell<u64>,
    zero_to_discard: bool,
    flush_fault: FlushFault,
    pub(super) writer: Option<SuperblockWriter>,
    /// The store that the labels name, if the mirror is read-only.
    pub(super) stored: Option<Reader>,
    /// Division of the mirror into the regions of its bitmaps.
    pub(super) regions: Regions,
    /// Throttle for the bytes that resync and scrub copy or read.
    pub(super) pace: Throttle,
    pub(super) scrubbing: Scrubbing,
    pub(super) verification: Verification,
    /// Background tasks of the mirror, and tasks that wait for requests past their deadline.
    pub(super) tasks: TaskGroup,
}

/// A range of the mirror that one request changes alone.
pub struct Alone {
    _locked: Option<Locked>,
    /// The write to the regions of the range, if the request changes content: they stay dirty.
    _writing: Option<Writing>,
}

impl Alone {
    /// Returns the range with this lock, without a write that makes regions dirty.
    pub fn new(locked: Locked) -> Self {
        Self { _locked: Some(locked), _writing: None }
    }

    /// Returns the range with a write to its regions.
    pub fn writing(self, writing: Option<Writing>) -> Self {
        Self { _writing: writing, ..self }
    }
}

/// The parts from which [`Mirror::new`] makes a mirror.
pub struct Parts {
    pub name: String,
    pub env: Env,
    pub timeout: Duration,
    /// Division of the mirror into the regions of its bitmaps.
    pub regions: Regions,
    /// Most bytes per second that resync and scrub copy or read, if the spec sets a limit.
    pub speed: Option<u64>,
    /// State of the mirror's scrubs at the opening.
    pub scrubbing: Scrubbing,
    /// The devices above and below the mirror that verify bytes or have copies.
    pub verification: Verification,
    /// The members, each with its state at the opening, the regions that it misses, and its bytes.
    pub members: Vec<(Lower, (State, Bitmap, Content))>,
    /// The store that the labels name, if the mirror is read-only.
    pub stored: Option<Reader>,
    /// Writer of the mirror's state to labels; `None` on raw disks, and for a read-only mirror.
    pub writer: Option<SuperblockWriter>,
}

impl Mirror {
    pub fn new(info: Info, parts: Parts) -> Self {
        let Parts { name, env, timeout, regions, speed, scrubbing, .. } = parts;
        let Parts { verification, members, stored, writer, .. } = parts;
        let zeroes = |info: &Info| info.discard && info.discard_zeroes;
        let zero_to_discard = !members.iter().all(|(lower, ..)| zeroes(lower.info()));
        let numbers: Vec<_> =
            CopyNumbers::of(members.iter().map(|(lower, ..)| lower.info())).collect();
        let member = |((lower, kept), numbers)| Member::new(&env, lower, numbers, kept);
        let members = members.into_iter().zip(numbers).map(member).collect();
        let inner = Rc::new_cyclic(|me| Inner {
            me: me.clone(),
            name,
            members,
            lock: RangeLock::new(),
            deadline: Deadline::new(&env, timeout),
            pace: Throttle::new(&env, speed),
            scrubbing,
            verification,
            regions,
            tasks: TaskGroup::new(&env),
            env,
            turn: Cell::new(0),
            repairs: Cell::new(0),
            repaired: Cell::new(0),
            zero_to_discard,
            flush_fault: FlushFault::default(),
            writer,
            stored,
        });
        if let Some(writer) = &inner.writer {
            writer.maps.begin(&inner.env, inner.me.clone());
        }
        Self { info, inner }
    }
}

impl Inner {
    pub fn in_sync(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|n| self.members[*n].state() == State::InSync)
    }

    pub(super) fn is_last(&self, index: usize) -> bool {
        self.in_sync().eq([index])
    }

    /// Marks a member as failed after an error. The last member in sync stays in sync, and clients get its errors, unless a
    /// divided member replaces it.
    pub fn retire(&self, index: usize, cause: Cause, why: String) {
        let is_used = self.members[index].takes_writes();
        if is_used && (!self.is_last(index) || self.replace_source(index)) {
            self.leave_out(index, State::Failed, cause, why);
        }
    }

    /// Takes a member out of the mirror, so that it gets no later writes. The member may also miss the writes in
    /// flight, and the writes since its last flush.
    pub(super) fn leave_out(
        &self,
        index: usize,
        state: State,
        cause: Cause,
        why: impl Into<String>,
    ) {
        let member = &self.members[index];
        match &self.writer {
            Some(writer) => member.misses(&writer.maps.unsettled()),
            // Without the bitmap of dirty regions, the member may differ in any region.
            None => member.misses(&Bitmap::all(self.regions.count())),
        }
        let why = why.into();
        if state == State::Failed {
            self.emit(What::MemberFailed, Some(index), why.clone());
        }
        member.set(state, Some(cause), why);
        // A resync of the member may wait for a verifier.
        self.tasks.changed().wake();
        if state == State::Failed && !self.tasks.is_closing() {
            self.take_spare();
        }
        self.remember_soon();
    }

    /// Emits an event of the mirror, or of one of its members.
    pub(super) fn emit(&self, what: What, member: Option<usize>, words: String) {
        let member = member.map(|index| self.members[index].lower.name().to_owned());
        self.env.emit(Event { what, device: self.name.clone(), member, words });
    }

    /// Chooses the member to read: the member in sync with the least cost that is not in `tried`. Chooses a member that
    /// has only copies to avoid, or none with a number, only if there is no other; members in `useless` are such members.
    /// Returns whether it is one. If the reader `verifies`, a member with another copy that is not in sync comes before them.
    fn choose(
        &self,
        avoid: Copies,
        useless: Copies,
        tried: Copies,
        verifies: bool,
    ) -> Option<(usize, bool)> {
        let is_avoided =
            |n: usize| useless.has(n) || self.members[n].numbers.set().is_within(avoid);
        let turn = self.turn.replace(self.turn.get().wrapping_add(1));
        let count = self.members.len();
        let may_be_read = |n: usize| {
            self.may_be_read(n) || verifies && !is_avoided(n) && self.answers_verifier(n)
        };
        let rank = |n: usize| (is_avoided(n), !self.may_be_read(n), self.members[n].cost());
        let best = (0..count)
            .map(|n| (n + turn) % count)
            .filter(|n| may_be_read(*n) && !tried.has(*n))
            .min_by_key(|n| rank(*n))?;
        for (n, member) in self.members.iter().enumerate() {
            if n != best {
                member.passed_over();
            }
        }
        Some((best, is_avoided(best)))
    }

    fn may_be_read(&self, index: usize) -> bool {
        match self.members[index].state() {
            State::InSync => true,
            State::Copying => seeded::on(Bug::ResyncReadsTarget),
            State::Stale | State::Failed | State::Spare => false,
        }
    }

    /// Waits for the writes to `range` that began before this call.
    async fn after_writes(&self, range: ByteRange) {
        if !self.lock.is_empty() {
            drop(self.lock.lock(range, Mode::Shared).await);
        }
    }

    /// Reads `range` from one member after the other until a read succeeds. Returns the members whose read failed, and
    /// adds the copies that were read to `avoid`. `verifies`: the reader verifies the bytes, and has read other copies.
    pub(super) async fn read(
        &self,
        range: ByteRange,
        into: &mut Buf,
        avoid: &mut Copies,
        last_resort: bool,
        verifies: bool,
    ) -> Result<Copies> {
        self.after_writes(range).await;
        self.read_members(range, into, avoid, last_resort, verifies).await
    }

    /// Reads `range` like [`Inner::read`]. The caller has waited for earlier writes to it.
    pub(super) async fn read_members(
        &self,
        range: ByteRange,
        into: &mut Buf,
        avoid: &mut Copies,
        last_resort: bool,
        verifies: bool,
    ) -> Result<Copies> {
        let (mut tried, mut useless) = (Copies::NONE, Copies::NONE);
        let mut failed = None;
        while let Some((index, is_avoided)) = self.choose(*avoid, useless, tried, verifies) {
            let begun = self.members[index].changes();
            match self.read_from(index, range, into, *avoid, last_resort).await {
                // The member may have fewer copies of this range than of others.
                Ok(read) if read.is_within(*avoid) && !is_avoided => useless = useless.with(index),
                Ok(read) => {
                    *avoid = avoid.or(read);
                    return Ok(tried);
                }
                Err(error) => {
                    tried = self.tried(tried, index, begun);
                    // A copy that cannot be verified may still be a last resort.
                    failed =
                        failed.filter(|it: &Error| it.kind() == ErrorKind::Corrupt).or(Some(error));
                }
            }
        }
        // Make the error only now: it costs an allocation, and most reads need no error.
        Err(failed.unwrap_or_else(|| self.nobody()))
    }

    /// Requests the block status from one member in sync after the other, until a request succeeds.
    async fn status(&self, op: &mut Op) -> Result<()> {
        self.after_writes(op.range().expect("a status request has a range")).await;
        let (mut tried, mut failed) = (Copies::NONE, Err(self.nobody()));
        while let Some(index) = self.next_in_sync(tried) {
            let begun = self.members[index].changes();
            match self.members[index].lower.forward(op).await {
                Ok(()) if self.is_believed(index, begun) => return Ok(()),
                Ok(()) => {}
                Err(error) => {
                    tried = self.tried(tried, index, begun);
                    failed = Err(error);
                }
            }
        }
        failed.or_else(|error| self.status_as_data(op, error))
    }

    /// Returns the first member in sync that is not in `tried`. Members may come in sync or be taken out while the
    /// caller tries other members.
    pub(super) fn next_in_sync(&self, tried: Copies) -> Option<usize> {
        self.in_sync().find(|n| !tried.has(*n))
    }

    /// Returns the members that a request must not try again, after it has failed on member `index`. `begun` is the
    /// [`Member::changes`] of the member when the request was sent. If the state of the member has changed since, the
    /// member is not added: it may be in sync again, as the only member.
    pub(super) fn tried(&self, tried: Copies, index: usize, begun: u64) -> Copies {
        if self.members[index].changes() == begun { tried.with(index) } else { tried }
    }

    /// Whether the mirror may use a reply of member `index`. `begun` is the [`Member::changes`] of the member when the
    /// request was sent. A member that was taken out since may return older bytes, because a failed flush loses earlier
    /// writes.
    pub(super) fn is_believed(&self, index: usize, begun: u64) -> bool {
        self.members[index].changes() == begun || seeded::on(Bug::FailedBelieved)
    }

    /// Reads `range` from member `index`. Returns the copies that were read, as the mirror numbers them.
    async fn read_from(
        &self,
        index: usize,
        range: ByteRange,
        into: &mut Buf,
        avoid: Copies,
        last_resort: bool,
    ) -> Result<Copies> {
        let member = &self.members[index];
        let avoid = member.numbers.avoid(avoid);
        let (begun, changes) = (self.env.now(), member.changes());
        member.read_begins();
        let read = Op::Read { range, into: into.clone(), avoid, last_resort };
        let child = member.lower.start(read);
        let answer = self.answer(index, "read", self.deadline.guard(child), &mut None).await;
        member.read_ends(self.env.now().since(begun));
        let Some(done) = answer else {
            // The late read may still fill this buffer, so take another one.
            *into = self.env.pool().scratch(into.len()).await?;
            return Err(self.no_answer(index));
        };
        let copies = member.numbers.above(done.copies());
        match done.into_buf() {
            Ok(buf) if !self.is_believed(index, changes) => {
                *into = buf;
                Err(self.nobody())
            }
            Ok(buf) => {
                *into = buf;
                Ok(copies)
            }
            Err(error) => {
                if member.read_failed(self.env.now()) {
                    self.retire(
                        index,
                        Cause::Reads,
                        Member::words_of("too many reads failed; the last", &error),
                    );
                }
                Err(error)
            }
        }
    }

    /// Waits for the reply of member `index` to a child request. Returns `None` if the deadline passes first; the
    /// request then counts as late until the member replies. `what` names the operation. `alone` is the lock of the
    /// range that the request changes.
    pub(super) async fn answer(
        &self,
        index: usize,
        what: &str,
        guard: Guard<Child>,
        alone: &mut Option<Alone>,
    ) -> Option<Done> {
        let answer = guard.await;
        answer.map_err(|late| self.leave_late(index, what, late, alone)).ok()
    }

    /// Handles a request to member `index` that is past its deadline. If the member is the last in sync, it stays in
    /// sync, and this function keeps the lock of the range until the member replies: the late write must not overwrite
    /// newer bytes. Any other member is marked as failed at once, even if the caller no longer waits for the request. A
    /// restarted resync does not wait for its earlier requests, and a late write would overwrite bytes of the new
    /// resync.
    fn leave_late(&self, index: usize, what: &str, late: Child, alone: &mut Option<Alone>) {
        let error = self.no_answer(index);
        self.emit(What::DiskLate, Some(index), error.to_string());
        self.members[index].one_late();
        let stays = self.is_last(index) && self.divided().next().is_none();
        let kept = alone.take_if(|_| stays && !seeded::on(Bug::LateUnfenced));
        self.wait_for_late(index, late, kept);
        if !seeded::on(Bug::LateCopyStays) {
            self.retire(index, Cause::Request, Member::words_of(what, &error));
        }
    }

    /// Carries out `op`, which changes bytes, on every member that takes writes.
    async fn change(&self, op: &Op) -> Result<()> {
        let range = op.range().expect("a request that changes bytes has a range");
        let whole = match seeded::on(Bug::PartLockedAlone) {
            true => range,
            false => self.whole_blocks(range),
        };
        let locked = match seeded::on(Bug::OverlapUnordered) {
            true => None,
            false => Some(self.lock.lock(whole, Mode::Exclusive).await),
        };
        let mut alone = Some(Alone { _locked: locked, _writing: self.announce(range).await? });
        let done = self.to_all(op, &mut alone).await;
        self.remembered().await.and(done)
    }

    /// Makes the failure of a member durable in the labels of the other members, before the mirror acknowledges a
    /// request that the failed member missed.
    pub(super) async fn remembered(&self) -> Result<()> {
        if seeded::on(Bug::AnsweredEarly) { Ok(()) } else { self.remember().await }
    }

    /// Flushes all members that take writes. Once a flush of the mirror has failed, all later flushes of the mirror
    /// fail too, whatever the members reply.
    pub(super) async fn flush(&self) -> Result<()> {
        self.flush_fault.check()?;
        let used = self.writer.as_ref().map(|writer| writer.maps.used());
        let begun = used.map(|used| (used, used.before_flush()));
        let flushed = loop {
            let takes = |index: &usize| self.members[*index].takes_writes();
            let asked = (0..self.members.len()).filter(takes).fold(Copies::NONE, Copies::with);
            let flushed = self.to_all(&Op::Flush, &mut None).await;
            // A member that came in sync during the flush also has all writes, but was not flushed. The flushed members
            // may have been taken out meanwhile. So a failed flush is repeated if such a member exists.
            if flushed.is_ok()
                || self.in_sync().all(|index| asked.has(index))
                || seeded::on(Bug::FlushNotAskedAnew)
            {
                break flushed;
            }
        };
        let flushed = self.remembered().await.and(flushed);
        if let Some((used, begun)) = begun.filter(|_| flushed.is_ok()) {
            used.flushed(begun);
        }
        if let Err(error) = &flushed {
            self.flush_fault.note(error, &self.name);
            if let Some(writer) = &self.writer {
                writer.flush_failed();
                self.remember_soon();
            }
        }
        flushed
    }

    /// Sends `op` to every member that takes writes, waits for all replies, and marks each member that fails as failed.
    /// Succeeds if `op` succeeded on a member that stays in sync. `alone` is the lock of the blocks that `op` changes;
    /// `None` for a flush. A member that cannot read the rest of a block gets the block from another member first.
    pub(super) async fn to_all(&self, op: &Op, alone: &mut Option<Alone>) -> Result<()> {
        let mut room = [const { None }; MEMBERS_MAX];
        let mut fan = Fan::new(&mut room);
        for (index, member) in self.members.iter().enumerate() {
            let left_out =
                index > 0 && matches!(op, Op::Flush) && seeded::on(Bug::FlushFirstMember);
            if member.takes_writes() && !left_out {
                let child = member.lower.start(copy_of(op));
                fan.add(index, self.deadline.guard(child));
            }
        }
        let (mut worked, mut unread) = (Copies::NONE, Copies::NONE);
        let mut failures = Vec::new();
        while let Some((index, answer)) = fan.next().await {
            match answer.map(|done| done.result) {
                Ok(Ok(())) => worked = worked.with(index),
                Ok(Err(error)) if self.may_mend(op, &error) => unread = unread.with(index),
                Ok(Err(error)) => failures.push((index, self.failed(op, index, error))),
                Err(late) => {
                    self.leave_late(index, op.verb().name(), late, alone);
                    failures.push((index, self.failed(op, index, self.no_answer(index))));
                }
            }
        }
        for index in (0..self.members.len()).filter(|index| unread.has(*index)) {
            match self.write_after_mend(index, op, alone).await {
                Ok(()) => worked = worked.with(index),
                Err(error) => failures.push((index, self.failed(op, index, error))),
            }
        }
        self.judge(op, worked, failures)
    }

    /// Counts a failure of `op` on member `index`, and marks the member as failed before the other members have
    /// replied: a disk with a failed flush may return older bytes from then on. The last member in sync stays in sync after a
    /// failed change until it is known which divided members have the change. After a failed flush a divided member replaces it
    /// at once; if there is none, no member is copied from it.
    pub(super) fn failed(&self, op: &Op, index: usize, error: Error) -> Error {
        self.members[index].count_error();
        let is_flush = matches!(op, Op::Flush) && !seeded::on(Bug::CopiedAfterFailedFlush);
        if is_flush || !self.is_last(index) {
            self.retire(index, Cause::Request, Member::words_of(op.verb().name(), &error));
        }
        if is_flush && self.is_last(index) {
            self.stop_copies("resync stopped: a flush failed on the source member");
        }
        error
    }

    /// Leaves out the members that are copied, because their source has failed.
    fn stop_copies(&self, why: &str) {
        let copying = |n: &usize| self.members[*n].state() == State::Copying;
        for index in (0..self.members.len()).filter(copying) {
            self.leave_out(index, State::Stale, Cause::Source, why);
        }
    }

    fn judge(&self, op: &Op, worked: Copies, mut failures: Vec<(usize, Error)>) -> Result<()> {
        let is_on_source = self.in_sync().any(|index| worked.has(index));
        let divided = self.divided().find(|index| worked.has(*index));
        if let (false, Some(source), Some(index)) = (is_on_source, self.in_sync().next(), divided) {
            self.replace_source_by(source, index);
        }
        if self.in_sync().any(|index| worked.has(index)) {
            // A failed member that was the last in sync may not be the last any more, because a resync has ended.
            for (index, error) in failures {
                if self.members[index].state() == State::InSync {
                    self.retire(index, Cause::Request, Member::words_of(op.verb().name(), &error));
                }
            }
            return Ok(());
        }
        // No member in sync has the change for certain. A resync target that has the change would differ from its
        // source.
        self.stop_copies("resync stopped: a write failed on the source member");
        Err(failures.pop().map_or_else(|| self.nobody(), |(_, error)| error))
    }

    pub(super) fn nobody(&self) -> Error {
        error!(Faulted, "no member is in sync").at(&self.name)
    }

    pub fn no_answer(&self, index: usize) -> Error {
        error!(TimedOut, "the member did not answer within {:?}", self.deadline.limit())
            .at(self.members[index].lower.name())
    }

    fn report(&self) -> Report {
        let members: Vec<_> = self.members.iter().map(Member::report).collect();
        let is_out = |state| !matches!(state, State::InSync | State::Spare);
        let out = self.members.iter().find(|member| is_out(member.state()));
        let sticky = self.flush_fault.error();
        let health = match out {
            _ if sticky.is_some() => Health::Failed,
            None if self.scrubbing.differing() > 0 => Health::Degraded,
            None => Health::Ok,
            Some(_) if self.in_sync().next().is_none() => Health::Failed,
            Some(_) => Health::Degraded,
        };
        let summary = match health {
            Health::Ok | Health::Limited => String::new(),
            Health::Degraded => {
                let spares = self.members.iter().filter(|one| one.state() == State::Spare).count();
                let all = members.len() - spares;
                let in_sync = format!("{} of {all} members in sync", self.in_sync().count());
                match self.scrubbing.differing() {
                    0 => in_sync,
                    1 => format!("{in_sync}, but they differ in 1 block"),
                    blocks => format!("{in_sync}, but they differ in {blocks} blocks"),
                }
            }
            Health::Failed => {
                sticky.map_or_else(|| self.nobody().to_string(), |error| error.to_string())
            }
        };
        let next = out
            .filter(|member| matches!(member.state(), State::Failed | State::Stale))
            .map(|member| self.next_for(member))
            .or_else(|| self.next_for_differences());
        let states = self.writer.as_ref().map_or(0, SuperblockWriter::states);
        let counters = vec![("repaired", self.repaired.get()), ("label_writes", states)];
        let scrub = Some(self.scrubbing.report(self.regions.size(), self.block_bytes()));
        Report { health, summary, members, counters, scrub, next, ..Report::default() }
    }

    fn next_for(&self, member: &Member) -> String {
        let name = member.lower.name();
        if member.is_damaged() {
            return format!("cairn device replace {}/{name} PATH", self.name);
        }
        if member.is_absent() {
            return self.back_again(name);
        }
        format!("cairn device resync {}/{name}", self.name)
    }

    /// Returns the next step for the operator about the member `name`, which has been absent since the start of the
    /// mirror.
    pub(super) fn back_again(&self, name: &str) -> String {
        format!(
            "bring member {name} back, and cairn apply the spec; or cairn device replace {}/{name} PATH",
            self.name
        )
    }

    /// Returns the index of the member called `name`.
    ///
    /// # Errors
    /// `NotFound` if the mirror has no such member, with the names of all members.
    pub fn find(&self, name: &str) -> Result<usize> {
        self.members.iter().position(|member| member.lower.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.members.iter().map(|member| member.lower.name()).collect();
            error!(NotFound, "{} has no member {name:?}; members: {}", self.name, names.join(", "))
        })
    }

    fn fail(&self, name: &str) -> Result<()> {
        let index = self.find(name)?;
        if self.in_sync().all(|n| n == index) && !self.replace_source(index) {
            bail!(
                InUse,
                "{name} is the last member of mirror {} in sync, and cannot be failed. Next: \
                 resync another member first",
                self.name
            );
        }
        self.leave_out(index, State::Failed, Cause::Command, "failed by a command");
        Ok(())
    }
}

/// Returns a copy of `op` for one more member. The copy shares the payload with `op`.
fn copy_of(op: &Op) -> Op {
    match op {
        Op::Write { range, data, fua, .. } => {
            let (range, data, fua) = (*range, data.clone(), *fua);
            Op::Write { range, data, fua, restores: Copies::NONE }
        }
        Op::WriteZeroes { range, unmap, fua } => {
            Op::WriteZeroes { range: *range, unmap: *unmap, fua: *fua }
        }
        Op::Discard { range, fua } => Op::Discard { range: *range, fua: *fua },
        Op::Flush => Op::Flush,
        Op::Read { .. } | Op::Status { .. } => {
            unreachable!("a mirror sends reads and status requests to one member")
        }
    }
}

impl Device for Mirror {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let inner = &self.inner;
        let _asked = inner.pace.client();
        if let Some(range) = request.op.range() {
            inner.after_growth(range).await;
        }
        match &mut request.op {
            Op::Read { range, into, avoid, last_resort } => {
                let first = *last_resort && seeded::on(Bug::LastResortFirst);
                // The reader accepts the bytes of a last resort as they are, whatever copies it avoids.
                let verifies =
                    *avoid != Copies::NONE && !*last_resort || seeded::on(Bug::LastResortStale);
                let read = match inner.is_divided_in(*range) {
                    true => inner.read_alike(*range, into, avoid, first).await,
                    false => inner.read(*range, into, avoid, first, verifies).await,
                };
                let read = match read {
                    // All copies of the mirror have failed too.
                    Err(_) if *last_resort => inner.read(*range, into, avoid, true, verifies).await,
                    read => read,
                };
                let failed = match read {
                    Ok(failed) => failed,
                    Err(error) => return inner.reread(*range, into, error).await,
                };
                if failed != Copies::NONE {
                    inner.note_unread(*range, failed, verifies);
                }
                Ok(())
            }
            Op::Discard { range, fua } if inner.zero_to_discard => {
                let zero = Op::WriteZeroes { range: *range, unmap: true, fua: *fua };
                inner.change(&zero).await
            }
            Op::Write { range, data, fua, restores } if *restores != Copies::NONE => {
                inner.restore(*range, data, *fua, *restores).await
            }
            op @ (Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard { .. }) => {
                inner.change(op).await
            }
            Op::Flush => inner.flush().await,
            op @ Op::Status { .. } => inner.status(op).await,
        }
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        let how = Cow::from("mirrored");
        let place = |lower| Below { lower, above: range.start(), range, how: how.clone() };
        Ok(Resolved::places(range, self.inner.in_sync().map(place).collect()))
    }

    fn holders(&self) -> Vec<usize> {
        self.inner.in_sync().collect()
    }

    fn report(&self) -> Report {
        self.inner.report()
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        super::VERBS
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        let inner = &self.inner;
        let Some(range) = command.range.or(ByteRange::new(0, self.info.size)) else {
            return command.done(Err(command.unknown_to(&inner.name)));
        };
        if let Some(wrong) = command.args::<Wrong>() {
            let (inner, wrong) = (inner.clone(), Copies(wrong.copies));
            return Box::pin(async move {
                inner.count_wrong(range, wrong).await.map(|()| Reply::of::<Wrong>(Nothing {}))
            });
        }
        if command.is::<Pending>() {
            let inner = inner.clone();
            return Box::pin(async move { inner.pending(range).await.map(Reply::of::<Pending>) });
        }
        if command.is::<Changed>() {
            return inner.changed();
        }
        if command.is::<Check>() {
            let inner = inner.clone();
            return Box::pin(async move { inner.check().await.map(Reply::of::<Check>) });
        }
        if let Some(verdict) = command.args::<Verified>() {
            let (inner, verdict) = (inner.clone(), *verdict);
            return Box::pin(async move {
                inner.verified(range, verdict).await.map(|()| Reply::of::<Verified>(Nothing {}))
            });
        }
        let done = if let Some(name) = command.args::<Fail>() {
            inner.fail(&name.member)
        } else if let Some(stale) = command.args::<Resync>() {
            inner.resync(stale.member.as_deref())
        } else if let Some(action) = command.args::<Scrub>() {
            inner.command_scrub(action)
        } else {
            Err(command.unknown_to(&inner.name))
        };
        command.done(done)
    }

    fn close(&self) -> LocalFuture<Handover> {
        let inner = self.inner.clone();
        Box::pin(async move {
            // If the close is abandoned, restart the resyncs and scrubs that the close stopped.
            let closing = inner.tasks.close(|| {
                inner.resume_maps();
                let copying = |n: &usize| inner.members[*n].state() == State::Copying;
                (0..inner.members.len()).filter(copying).for_each(|n| inner.begin_resync(n));
                inner.go_on_scrubbing();
                inner.watch_members();
            });
            let closing = closing.await;
            inner.close_maps().await;
            closing.done();
            inner.writer.as_ref().map(SuperblockWriter::leave)
        })
    }
}
