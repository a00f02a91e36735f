//! Divided members. After an unclean stop one member in sync is the source, and the others are copied in the regions that had
//! writes in flight. They have all acknowledged writes, so one of them replaces a source that fails. Clients must not see other
//! bytes then: bytes that a client reads from the source are on the divided members before the client gets them.

use std::rc::Rc;

use block::control::Cause;
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Copies, Error, Extent, MemberState as State, Mode, Op, Result, What};

use super::device::{Alone, Inner};
use super::member::Member;
use super::record::Content;

impl Inner {
    /// Whether member `index` has all acknowledged writes, although it is not in sync.
    pub(super) fn is_divided(&self, index: usize) -> bool {
        let member = &self.members[index];
        member.state() == State::Copying
            && member.content() == Content::Divided
            && !seeded::on(Bug::DividedUnasked)
    }

    /// Returns the divided members.
    pub(super) fn divided(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|index| self.is_divided(*index))
    }

    /// Whether a divided member may have other bytes in `range` than the source, and no device above chooses between them.
    pub(super) fn is_divided_in(&self, range: ByteRange) -> bool {
        !self.is_verified()
            && !seeded::on(Bug::DividedUntold)
            && self.divided().any(|index| self.may_differ(index, range))
    }

    /// Whether member `index` misses a part of `range` that it has not got since.
    fn may_differ(&self, index: usize, range: ByteRange) -> bool {
        let (member, (first, last)) = (&self.members[index], self.regions.of(range));
        let mut missed = (first..=last).filter(|region| member.lacks(*region));
        missed.any(|region| {
            let part = self.regions.range(region).intersect(range);
            part.is_some_and(|part| member.alike(part) != [part])
        })
    }

    /// Reads `range` like [`Inner::read`], and writes the bytes to the divided members before it returns. A client must not read
    /// a write that was in flight at an unclean stop, and later, from a divided member, the bytes before that write.
    ///
    /// # Errors
    /// As [`Inner::read`]. A divided member that does not take the bytes is marked as failed.
    pub(super) async fn read_alike(
        &self,
        range: ByteRange,
        into: &mut Buf,
        avoid: &mut Copies,
        last_resort: bool,
    ) -> Result<Copies> {
        let blocks = self.whole_blocks(range);
        let mut alone = Some(Alone::new(self.lock.lock(blocks, Mode::Exclusive).await));
        let failed = self.read_members(range, into, avoid, last_resort, false).await?;
        for index in 0..self.members.len() {
            if self.is_divided(index) && self.may_differ(index, range) {
                self.give(index, range, into, &mut alone).await?;
            }
        }
        Ok(failed)
    }

    /// Writes the bytes `data` of the source to the divided member `index`. The member stays recorded as one that misses them.
    ///
    /// # Errors
    /// `Limit` if the pool has no buffer for a copy of the bytes.
    async fn give(
        &self,
        index: usize,
        range: ByteRange,
        data: &mut Buf,
        alone: &mut Option<Alone>,
    ) -> Result<()> {
        let (member, op) = (&self.members[index], Op::write(range, data.clone()));
        let begun = member.changes();
        let mut given = self.put_again(index, op.part(range), alone).await;
        if given.as_ref().is_err_and(|error| self.may_mend(&op, error)) {
            given = self.write_after_mend(index, &op, alone).await;
        }
        let Err(error) = given else {
            if member.changes() == begun {
                member.has_alike(range);
            }
            return Ok(());
        };
        if member.changes() == begun {
            member.count_error();
            self.retire(index, Cause::Request, Member::words_of("a copy", &error));
        }
        // A late write may still read the buffer, and a device above may change it, as one that decrypts does.
        let own = self.env.pool().scratch(data.len()).await?;
        own.write().copy_from_slice(&data.read());
        *data = own;
        Ok(())
    }

    /// Reports the range of a block status request as data, after no member in sync has answered the request. Reads get the bytes
    /// of a divided member then, which may have zeros where the source has other bytes.
    ///
    /// # Errors
    /// `error`, that of the source, if there is no divided member.
    pub(super) fn status_as_data(&self, op: &mut Op, error: Error) -> Result<()> {
        match op {
            Op::Status { range, extents }
                if self.divided().next().is_some() && !seeded::on(Bug::StatusOfSourceFails) =>
            {
                *extents = vec![Extent { len: range.len(), state: block::State::Data }];
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Puts a divided member in the place of the last member in sync, `source`, which is about to be marked as failed. Returns
    /// whether there is a divided member.
    pub(super) fn replace_source(&self, source: usize) -> bool {
        let Some(index) = self.divided().next() else { return false };
        self.replace_source_by(source, index);
        true
    }

    /// Puts the divided member `index` in the place of the last member in sync, `source`. The regions in which the two differ
    /// count as missed by all others. Their resyncs begin again.
    pub(super) fn replace_source_by(&self, source: usize, index: usize) {
        let (member, missing) = (&self.members[index], self.members[index].missing());
        let others = (0..self.members.len()).filter(|n| *n != index);
        let (copying, rest): (Vec<_>, Vec<_>) =
            others.partition(|n| self.members[*n].state() == State::Copying);
        for n in &copying {
            self.leave_out(*n, State::Stale, Cause::Source, "resync stopped: its source failed");
        }
        if !seeded::on(Bug::ReplacedUnmissed) {
            copying.iter().chain(&rest).for_each(|n| self.members[*n].misses(&missing));
        }
        if let Some(writer) = &self.writer {
            self.keep_maps_on(&writer.maps, index);
        }
        member.has_got(&missing);
        member.set(State::InSync, None, "");
        let words = format!("instead of {}", self.members[source].lower.name());
        self.emit(What::ResyncEnded, Some(index), words);
        self.remember_soon();
        let mirror: Option<Rc<Self>> = self.me.upgrade().filter(|it| !it.tasks.is_closing());
        for n in copying.into_iter().filter(|n| self.may_resync(*n).is_ok()) {
            mirror.iter().for_each(|mirror| mirror.begin_resync(n));
        }
    }
}
