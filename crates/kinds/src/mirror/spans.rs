//! A set of byte ranges.

use block::ByteRange;

/// Most ranges of a set. Further ranges are not added: for a mirror they are ranges that no verifier has been through.
pub const SPANS_MAX: usize = 1 << 16;

/// A set of bytes of a device, as ranges in order, without overlaps and with gaps between them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spans(Vec<ByteRange>);

impl Spans {
    /// Returns the number of the first range that ends behind `at`, or at it.
    fn behind(&self, at: u64) -> usize {
        self.0.partition_point(|span| span.end() < at)
    }

    /// Adds the bytes of a range, unless that would make more than [`SPANS_MAX`] ranges.
    pub fn add(&mut self, range: ByteRange) {
        let first = self.behind(range.start());
        let joined = self.0[first..].iter().take_while(|span| span.start() <= range.end()).count();
        if joined == 0 && self.0.len() >= SPANS_MAX {
            return;
        }
        let (mut start, mut end) = (range.start(), range.end());
        for span in &self.0[first..first + joined] {
            (start, end) = (start.min(span.start()), end.max(span.end()));
        }
        let whole = ByteRange::between(start, end).expect("the range has bytes");
        self.0.splice(first..first + joined, [whole]);
    }

    /// Removes the bytes of a range.
    pub fn remove(&mut self, range: ByteRange) {
        let first = self.0.partition_point(|span| span.end() <= range.start());
        let hit = self.0[first..].iter().take_while(|span| span.start() < range.end()).count();
        let left: Vec<_> =
            self.0[first..first + hit].iter().flat_map(|span| outside(*span, range)).collect();
        self.0.splice(first..first + hit, left);
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the parts of `range` that are in the set.
    pub fn within(&self, range: ByteRange) -> Vec<ByteRange> {
        let rest = &self.0[self.behind(range.start())..];
        let near = rest.iter().take_while(|span| span.start() < range.end());
        near.filter_map(|span| span.intersect(range)).collect()
    }

    /// Returns the parts of `range` that are not in the set.
    pub fn gaps(&self, range: ByteRange) -> Vec<ByteRange> {
        let (mut gaps, mut at) = (Vec::new(), range.start());
        for span in self.within(range) {
            gaps.extend(ByteRange::between(at, span.start()));
            at = span.end();
        }
        gaps.extend(ByteRange::between(at, range.end()));
        gaps
    }
}

/// Returns the parts of `span` before and behind `range`.
fn outside(span: ByteRange, range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let before = ByteRange::between(span.start(), span.end().min(range.start()));
    let behind = ByteRange::between(span.start().max(range.end()), span.end());
    before.into_iter().chain(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::between(start, end).unwrap()
    }

    #[test]
    fn spans_join_ranges_and_return_parts_and_gaps() {
        let mut spans = Spans::default();
        for (start, end) in [(10, 20), (40, 50), (20, 25), (60, 70), (45, 60)] {
            spans.add(range(start, end));
        }
        assert_eq!(spans.0, [range(10, 25), range(40, 70)]);
        assert_eq!(spans.within(range(0, 45)), [range(10, 25), range(40, 45)]);
        assert_eq!(spans.gaps(range(0, 45)), [range(0, 10), range(25, 40)]);
        assert_eq!(spans.gaps(range(12, 20)), []);
        assert_eq!(spans.within(range(25, 40)), []);
        spans.remove(range(20, 45));
        spans.remove(range(50, 55));
        assert_eq!(spans.0, [range(10, 20), range(45, 50), range(55, 70)]);
        spans.add(range(0, 100));
        assert_eq!(spans.0, [range(0, 100)]);
    }

    #[test]
    fn spans_agree_with_set_of_bytes() {
        let (mut spans, mut bytes, mut state) = (Spans::default(), [false; 64], 1_u64);
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (start, len) = (state >> 40 & 63, 1 + (state >> 50 & 15));
            let one = range(start, 64.min(start + len));
            let is_added = state >> 60 & 1 == 0;
            if is_added {
                spans.add(one)
            } else {
                spans.remove(one)
            }
            (one.start()..one.end()).for_each(|at| bytes[at as usize] = is_added);
            let has = |at: u64| !spans.within(range(at, at + 1)).is_empty();
            assert!((0..64).all(|at| has(at) == bytes[at as usize]));
            assert!(spans.0.windows(2).all(|pair| pair[0].end() < pair[1].start()), "{spans:?}");
        }
    }
}
