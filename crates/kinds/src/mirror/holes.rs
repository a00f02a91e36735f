//! Holes in a resync: ranges that read as zeros are not copied as data, so a sparse member stays sparse.

use block::{ByteRange, Extent, MemberState as State, Op};

use super::device::Inner;
use super::spans::Spans;

/// The way in which a resync makes a range of a member equal to a member in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Both members read as zeros there, or a verifier has found the right bytes on both. New writes go to both, so the
    /// resync leaves the range alone.
    Skip,
    /// The member in sync reads as zeros: the range is zeroed, and its space freed.
    Zero,
    /// The bytes are copied.
    Copy,
}

impl Inner {
    /// Returns the parts of `range`, in order, each with the way in which a resync brings it to member `to`.
    pub(super) async fn ways(&self, to: usize, range: ByteRange) -> Vec<(ByteRange, Way)> {
        let mut alike = Spans::default();
        self.members[to].alike(range).into_iter().for_each(|part| alike.add(part));
        // The source may have rotted since the verdict, and the other copy of these bytes is right.
        let mut ways: Vec<_> =
            alike.within(range).into_iter().map(|part| (part, Way::Skip)).collect();
        for part in alike.gaps(range) {
            ways.extend(self.ways_without_verdict(to, part).await);
        }
        ways.sort_unstable_by_key(|(part, _)| part.start());
        ways
    }

    async fn ways_without_verdict(&self, to: usize, range: ByteRange) -> Vec<(ByteRange, Way)> {
        let Some(source) = self.in_sync().next() else { return vec![(range, Way::Copy)] };
        // No write may come between the two answers.
        let _alone = self.lock.lock(range, block::Mode::Exclusive).await;
        let zero = self.zeros(source, range).await;
        if zero.is_empty() {
            return vec![(range, Way::Copy)];
        }
        divide(range, &zero, &self.zeros(to, range).await)
    }

    /// Whether a member in sync reads as zeros in the whole `range`. The caller holds the lock of the range.
    pub(super) async fn is_zero(&self, range: ByteRange) -> bool {
        match self.in_sync().next() {
            Some(source) => self.zeros(source, range).await == [range],
            None => false,
        }
    }

    /// Returns the whole blocks of `range` that member `index` reports to read as zeros; none if the member does not
    /// answer.
    async fn zeros(&self, index: usize, range: ByteRange) -> Vec<ByteRange> {
        let member = &self.members[index];
        let begun = member.changes();
        let child = member.lower.start(Op::Status { range, extents: Vec::new() });
        let answer = self.answer(index, "status", self.deadline.guard(child), &mut None).await;
        let is_used = matches!(member.state(), State::InSync | State::Copying);
        let Some(done) = answer.filter(|_| is_used && self.is_believed(index, begun)) else {
            return Vec::new();
        };
        let (Ok(()), Op::Status { extents, .. }) = (done.result, done.op) else {
            return Vec::new();
        };
        // Members may have blocks of different sizes.
        let block = u64::from(self.common().block_size);
        let (mut zeros, mut at): (Vec<ByteRange>, _) = (Vec::new(), range.start());
        for extent in merged(extents) {
            let end = range.end().min(at.saturating_add(extent.len));
            let whole = ByteRange::between(at.next_multiple_of(block), end - end % block);
            zeros.extend(whole.filter(|_| extent.state.is_zero()));
            at = end;
        }
        zeros
    }
}

/// Merges neighbours that both read as zeros, or both do not.
fn merged(extents: Vec<Extent>) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    for extent in extents {
        match all.last_mut().filter(|last| last.state.is_zero() == extent.state.is_zero()) {
            Some(last) => last.len = last.len.saturating_add(extent.len),
            None => all.push(extent),
        }
    }
    all
}

/// Divides `range` by the parts in which the source of a resync, and in which its target, reads as zeros.
fn divide(range: ByteRange, source: &[ByteRange], target: &[ByteRange]) -> Vec<(ByteRange, Way)> {
    let edges = source.iter().chain(target).flat_map(|zero| [zero.start(), zero.end()]);
    let mut edges: Vec<u64> = edges.chain([range.start(), range.end()]).collect();
    edges.sort_unstable();
    let is_in = |zeros: &[ByteRange], part: ByteRange| {
        zeros.iter().any(|zero| zero.start() <= part.start() && part.end() <= zero.end())
    };
    let mut parts: Vec<(ByteRange, Way)> = Vec::new();
    for pair in edges.windows(2) {
        let Some(part) = ByteRange::between(pair[0], pair[1]) else { continue };
        let way = match (is_in(source, part), is_in(target, part)) {
            (true, true) => Way::Skip,
            (true, false) => Way::Zero,
            (false, _) => Way::Copy,
        };
        match parts.last_mut().filter(|(_, before)| *before == way) {
            Some((last, _)) => {
                *last = ByteRange::between(last.start(), part.end()).unwrap_or(*last);
            }
            None => parts.push((part, way)),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::between(start, end).unwrap()
    }

    #[test]
    fn range_is_divided_into_parts_to_skip_zero_and_copy() {
        let parts = divide(range(10, 100), &[range(20, 60), range(80, 100)], &[range(10, 40)]);
        let expected = [
            (range(10, 20), Way::Copy),
            (range(20, 40), Way::Skip),
            (range(40, 60), Way::Zero),
            (range(60, 80), Way::Copy),
            (range(80, 100), Way::Zero),
        ];
        assert_eq!(parts, expected);
        assert_eq!(divide(range(0, 9), &[], &[range(0, 9)]), [(range(0, 9), Way::Copy)]);
    }
}
