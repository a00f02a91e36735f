//! The commands of a device above that verifies bytes: wrong copies, ranges in which copies may differ, and ranges that it
//! has verified. The mirror chooses no copy beneath it: a member that returns gets a region after the verifier has been
//! through the region and has restored wrong copies. Only the parts without a verdict of the verifier are copied.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::control::copies::{Changed, Numbers, Pending, Ranges, Verdict, Verified, Wrong};
use block::control::{Cause, Command, Nothing, Reply, Verb};
use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{ByteRange, Copies, ErrorKind, Lower, MemberState as State, Mono, Result, first};
use kind::Surroundings;

use super::device::Inner;
use super::record::Content;
use super::spans::Spans;

/// Time from the first question of a verifier until ranges that no verifier has asked about count as without one: metadata,
/// and the rest behind the last whole block.
pub const CLAIMS_WITHIN: Duration = Duration::from_secs(60);

/// The part of a mirror's state that concerns the devices that verify its bytes.
pub struct Verification {
    /// Whether all reads of the mirror are verified above it.
    is_verified: bool,
    /// Whether a redundant device is above the mirror.
    pub redundancy_above: bool,
    /// Ranges for which verifiers have asked for the pending ranges, since the opening.
    claims: RefCell<Spans>,
    /// Time of the first such question.
    claimed_at: Cell<Option<Mono>>,
    /// Ranges in which a scrub has found differences, and that no verifier has been through since.
    differing: RefCell<Spans>,
    /// Number of the times that more ranges became pending.
    news: Cell<u64>,
    /// Number of the times that a resync that waits for a verifier may have got a region to copy.
    passes: Cell<u64>,
}

impl Verification {
    /// Returns the state at the opening of a mirror with these devices around it.
    pub fn new(around: &Surroundings) -> Self {
        Self {
            is_verified: around.verified() == kind::Verified::Always,
            redundancy_above: around.redundancy_above,
            claims: RefCell::default(),
            claimed_at: Cell::new(None),
            differing: RefCell::default(),
            news: Cell::new(0),
            passes: Cell::new(0),
        }
    }
}

impl Inner {
    /// Whether all reads of the mirror are verified above it.
    pub(super) fn is_verified(&self) -> bool {
        self.verification.is_verified
    }

    /// Counts wrong bytes in `copies` of `range` as a read error of each member that has one of them. A member that has copies
    /// of its own finds out which of its members it was.
    pub(super) async fn count_wrong(&self, range: ByteRange, copies: Copies) -> Result<()> {
        for (index, member) in self.members.iter().enumerate() {
            let wrong = member.numbers.below(copies);
            if wrong == Copies::NONE || member.state() != State::InSync {
                continue;
            }
            let command = Command::new::<Wrong>(Numbers { copies: wrong.0 });
            if ask_redundant::<Wrong>(&member.lower, command.at(range)).await?.is_some() {
                continue;
            }
            if !seeded::on(Bug::WrongUncounted) && member.read_failed(self.env.now()) {
                let why = format!("too many reads returned wrong bytes; the last at {range}");
                self.retire(index, Cause::Reads, why);
            }
        }
        Ok(())
    }

    /// Returns the parts of `range` in which copies may differ: the regions that a resync still copies, after an unclean
    /// stop or to a member that returns; those that a scrub or a read has found; and those of members with copies of their
    /// own. Beneath a verifier, it must scan them.
    pub(super) async fn pending(&self, range: ByteRange) -> Result<Ranges> {
        self.claim(range);
        let mut ranges = self.verification.differing.borrow().within(range);
        let mut upto = None::<u64>;
        for (index, member) in self.members.iter().enumerate() {
            if member.state() == State::Copying && !seeded::on(Bug::PendingHidden) {
                ranges.extend(self.pending_of(index, range));
            }
            if !member.takes_writes() {
                continue;
            }
            ranges.extend(member.unread.borrow().within(range));
            let command = Command::new::<Pending>(Nothing {}).at(range);
            if let Some(below) = ask_redundant::<Pending>(&member.lower, command).await? {
                ranges.extend(below.iter().filter_map(|below| below.intersect(range)));
                upto = [upto, below.upto_bytes].into_iter().flatten().min();
            }
        }
        Ok(Ranges::of(ranges, upto))
    }

    /// Records that a verifier goes through the ranges of `range` that become pending.
    fn claim(&self, range: ByteRange) {
        if !self.is_verified() {
            return;
        }
        self.verification.claims.borrow_mut().add(range);
        if self.verification.claimed_at.get().is_none() {
            self.verification.claimed_at.set(Some(self.env.now()));
            self.end_wait();
        }
    }

    /// Returns the parts of `range` in which member `index`, which is being copied to, may differ from the others. If its
    /// resync waits for a verifier, they are those that no verifier has been through.
    fn pending_of(&self, index: usize, range: ByteRange) -> Vec<ByteRange> {
        let member = &self.members[index];
        let missing = member.missing();
        let regions = missing.iter().filter_map(|n| self.regions.range(n).intersect(range));
        if !self.is_verified() {
            return regions.collect();
        }
        if !self.waits(index) {
            return Vec::new();
        }
        let parts: Vec<_> = regions.flat_map(|region| member.unverified(region)).collect();
        parts.iter().for_each(|part| member.ask(*part));
        parts
    }

    /// Records that a verifier has read all copies of a range, and has restored the wrong ones.
    pub(super) async fn verified(
        self: &Rc<Self>,
        range: ByteRange,
        verdict: Verdict,
    ) -> Result<()> {
        self.verification.differing.borrow_mut().remove(range);
        for (index, member) in self.members.iter().enumerate() {
            member.note_verified(range);
            if verdict.alike && self.answers_verifier(index) && !seeded::on(Bug::AlikeCopied) {
                member.note_alike(range);
            }
            let unread = member.unread.borrow().within(range);
            member.unread.borrow_mut().remove(range);
            // A block that the member cannot read was not restored, and the other copies of it are right by now.
            unread.iter().for_each(|part| self.begin_repair(*part, Copies::NONE.with(index)));
        }
        let (first, last) = self.regions.of(range);
        let may_copy = |index| (first..=last).any(|n| self.may_copy(index, self.regions.range(n)));
        if (0..self.members.len()).any(|index| self.waits(index) && may_copy(index)) {
            self.end_wait();
        }
        for member in self.members.iter().filter(|member| member.takes_writes()) {
            let command = Command::new::<Verified>(verdict).at(range);
            ask_redundant::<Verified>(&member.lower, command).await?;
        }
        Ok(())
    }

    /// Waits until more ranges become pending in the mirror, or in a member with copies of its own. Ends if the mirror closes.
    pub(super) fn changed(&self) -> LocalFuture<Result<Reply>> {
        let (me, before) = (self.me.clone(), self.verification.news.get());
        let is_over =
            move || me.upgrade().is_none_or(|mirror| mirror.verification.news.get() != before);
        let mut waits: LocalFuture<()> = Box::pin(self.tasks.wait(is_over));
        for member in self.members.iter().filter(|member| member.lower.info().copies > 1) {
            let (own, lower) = (waits, member.lower.clone());
            waits = Box::pin(async move {
                let changed = async {
                    // A member without such copies never changes.
                    if !change(&lower).await {
                        std::future::pending::<()>().await;
                    }
                };
                let _ = first(own, changed).await;
            });
        }
        Box::pin(async move {
            waits.await;
            Ok(Reply::of::<Changed>(Nothing {}))
        })
    }

    /// Lets the resyncs that wait for a verifier look for a region again.
    fn end_wait(&self) {
        self.verification.passes.set(self.verification.passes.get() + 1);
        self.tasks.changed().wake();
    }

    /// Waits until a resync of member `index` may have got a region to copy, or must end.
    pub(super) fn pass(&self, index: usize) -> LocalFuture<()> {
        let (me, env, left) = (self.me.clone(), self.env.clone(), self.claims_left());
        let now = move || {
            let mirror = me.upgrade()?;
            Some((mirror.verification.passes.get(), mirror.members[index].changes()))
        };
        let before = now();
        let passed = self.tasks.wait(move || now() != before);
        match left.filter(|left| !left.is_zero()) {
            Some(left) => Box::pin(async move {
                let _ = env.within(left, passed).await;
            }),
            None => Box::pin(passed),
        }
    }

    /// Makes verifiers ask for the pending ranges again.
    pub(super) fn announce_pending(&self) {
        self.verification.news.set(self.verification.news.get() + 1);
        self.tasks.changed().wake();
    }

    /// Whether the resync of member `index` copies a region only after a verifier has been through it. A member without a copy
    /// has no bytes that a verifier could use.
    pub(super) fn waits(&self, index: usize) -> bool {
        let is_empty = self.members[index].content() == Content::Empty;
        self.is_verified() && (!is_empty || seeded::on(Bug::EmptyWaits))
    }

    /// Whether a resync may copy a range to member `index` now.
    pub(super) fn may_copy(&self, index: usize, range: ByteRange) -> bool {
        if !self.waits(index) || seeded::on(Bug::AlikeBeforeVerified) {
            return true;
        }
        let unverified = self.members[index].unverified(range);
        unverified.into_iter().all(|part| self.is_unclaimed(part))
    }

    /// Whether no verifier goes through any byte of a range.
    fn is_unclaimed(&self, range: ByteRange) -> bool {
        self.claims_left().is_some_and(|left| left.is_zero())
            && self.verification.claims.borrow().within(range).is_empty()
    }

    /// Returns the rest of [`CLAIMS_WITHIN`]; `None` if no verifier has asked yet.
    fn claims_left(&self) -> Option<Duration> {
        let since = self.env.now().since(self.verification.claimed_at.get()?);
        Some(CLAIMS_WITHIN.saturating_sub(since))
    }

    /// Whether member `index` has a copy for a reader that verifies its bytes and avoids the copies in sync.
    pub(super) fn answers_verifier(&self, index: usize) -> bool {
        let member = &self.members[index];
        let is_there = match member.state() {
            State::Copying => true,
            // The members of a read-only mirror stay stale.
            State::Stale => member.lower.info().read_only && !member.is_absent(),
            State::InSync | State::Failed | State::Spare => false,
        };
        is_there && self.waits(index) && !seeded::on(Bug::CopiesHidden)
    }

    /// Handles a range that `members` could not read, after another member has answered: begins to rewrite the range on these
    /// members, or reports it to the verifier above. A reader that avoids copies is a verifier, and in a pass already.
    pub(super) fn note_unread(self: &Rc<Self>, range: ByteRange, members: Copies, verifies: bool) {
        let has_verifier = self.is_verified() && !self.is_unclaimed(range);
        if !has_verifier || seeded::on(Bug::RepairedUnverified) {
            return self.begin_repair(range, members);
        }
        let failed = (0..self.members.len()).filter(|index| members.has(*index));
        for index in failed {
            self.members[index].unread.borrow_mut().add(range);
        }
        if !verifies {
            self.announce_pending();
        }
    }

    /// Reports a range to the verifier above, in which a scrub has found a difference.
    pub(super) fn note_differing(&self, range: ByteRange) {
        self.verification.differing.borrow_mut().add(range);
    }
}

/// Carries out a command on the redundant devices in a lower; `None` if the lower has none.
async fn ask_redundant<V: Verb>(lower: &Lower, command: Command) -> Result<Option<V::Answer>> {
    if lower.info().copies == 1 {
        return Ok(None);
    }
    match lower.control::<V>(command).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
        answer => answer.map(Some),
    }
}

/// Waits until more ranges become pending below a lower. Returns `false` if no device there reports that.
pub(super) async fn change(lower: &Lower) -> bool {
    lower.control::<Changed>(Command::new::<Changed>(Nothing {})).await.is_ok()
}
