//! Lookup from above to below.

use super::{Origin, Place, Port, Table};
use crate::ByteRange;

/// Bytes of a table that are contiguous in one lower device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Port of the lower device in the table.
    pub port: Port,
    /// Bytes of the run in the lower device.
    pub range: ByteRange,
    /// Address of the first byte in the table's own address space.
    pub start: u64,
}

impl Run {
    /// Joins this run with `next`, which follows it above, if `next` follows it below too.
    fn joined(self, next: Self) -> Option<Self> {
        let goes_on = self.port == next.port && self.range.end() == next.range.start();
        let range = ByteRange::between(self.range.start(), next.range.end())?;
        goes_on.then_some(Self { range, ..self })
    }
}

impl Table {
    /// Maps a range of the table that is one run of one segment, as nearly every request is. `None` means that the
    /// caller must use [`Table::map`], or that the range passes the end of the table.
    #[inline]
    pub fn map_one(&self, range: ByteRange) -> Option<Run> {
        self.map_in(self.segment_at(range.start()), range)
    }

    /// Does the work of [`Table::map_one`] for a caller that already has the number of the segment from
    /// [`Table::segment_at`], because it counts requests by segment.
    ///
    /// # Panics
    /// If the table has no segment with this number.
    #[inline]
    pub fn map_in(&self, segment: usize, range: ByteRange) -> Option<Run> {
        let offset = range.start().checked_sub(self.bounds[segment])?;
        if range.end() > self.bounds[segment + 1] {
            return None;
        }
        let (Origin { port, start }, together) = self.places[segment].locate(offset);
        if range.len() > together {
            return None;
        }
        Some(Run { port, range: range.at(start), start: range.start() })
    }

    /// Returns the number of the table's segment that holds byte `start`; the last one if `start` is past the end.
    #[inline]
    pub fn segment_at(&self, start: u64) -> usize {
        // Only the bounds between segments: with one segment there is nothing to search.
        self.bounds[1..self.places.len()].partition_point(|bound| *bound <= start)
    }

    /// Returns the runs of lower bytes to which `range` of the table maps, in the order of the bytes above. Neighbours
    /// that are contiguous in the same lower are one run.
    ///
    /// # Panics
    /// If `range` passes the end of the table; requests are checked before they are mapped.
    pub fn map(&self, range: ByteRange) -> Runs<'_> {
        let size = self.size();
        assert!(range.end() <= size, "{range} ends past the end of a table of {size} bytes");
        let segment = self.segment_at(range.start());
        Runs { table: self, segment, at: range.start(), end: range.end(), ahead: None }
    }
}

impl Place {
    /// Returns the position of byte `offset`, and the number of contiguous bytes from there on.
    #[inline]
    fn locate(&self, offset: u64) -> (Origin, u64) {
        match self {
            Self::Linear(origin) => (Origin { start: origin.start + offset, ..*origin }, u64::MAX),
            Self::Striped(stripe) => stripe.locate(offset),
        }
    }
}

/// Iterator over the runs of lower bytes to which a range of a table maps ([`Table::map`]).
#[derive(Clone, Debug)]
pub struct Runs<'t> {
    table: &'t Table,
    /// Segment that holds `at`.
    segment: usize,
    at: u64,
    end: u64,
    /// Piece that was read ahead and did not join the run before it.
    ahead: Option<Run>,
}

impl Runs<'_> {
    /// Returns the next contiguous bytes within one segment.
    fn piece(&mut self) -> Option<Run> {
        let segment = self.table.segment_range(self.segment);
        let end = self.end.min(segment.end());
        let rest = ByteRange::between(self.at, end)?;
        let place = &self.table.places[self.segment];
        let (Origin { port, start }, together) = place.locate(self.at - segment.start());
        let run =
            Run { port, range: ByteRange::new(start, rest.len().min(together))?, start: self.at };
        self.at += run.range.len();
        if self.at == segment.end() && self.at < self.end {
            self.segment += 1;
        }
        Some(run)
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let mut run = self.ahead.take().or_else(|| self.piece())?;
        while let Some(piece) = self.piece() {
            match run.joined(piece) {
                Some(longer) => run = longer,
                None => {
                    self.ahead = Some(piece);
                    break;
                }
            }
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::super::text_tests::table;
    use super::*;

    const P0: Port = Port(0);
    const P1: Port = Port(1);

    fn range(start: u64, len: u64) -> ByteRange {
        ByteRange::new(start, len).unwrap()
    }

    fn run(port: Port, lower: u64, len: u64, start: u64) -> Run {
        Run { port, range: range(lower, len), start }
    }

    #[test]
    fn table_map_one_returns_range_only_within_one_segment() {
        let table = Table::concat(&[(P0, 100), (P1, 50)]).unwrap();
        assert_eq!(table.map_one(range(90, 10)), Some(run(P0, 90, 10, 90)));
        assert_eq!(table.map_one(range(100, 50)), Some(run(P1, 0, 50, 100)));
        assert_eq!(table.map_one(range(90, 11)), None, "two segments");
        assert_eq!(table.map_one(range(149, 2)), None, "past the end");
        assert_eq!(table.map_one(range(1000, 1)), None, "past the end");
        assert_eq!(table.map_in(1, range(90, 10)), None, "another segment");
    }

    #[test]
    fn table_map_one_returns_range_only_within_one_chunk() {
        let table = Table::stripe(&[(P0, 4096), (P1, 4096)], 1024).unwrap().table;
        assert_eq!(table.map_one(range(3072, 1024)), Some(run(P1, 1024, 1024, 3072)));
        assert_eq!(table.map_one(range(3072, 1025)), None);
    }

    #[test]
    fn table_map_splits_range_at_concat_boundary() {
        let table = Table::concat(&[(P0, 100), (P1, 50)]).unwrap();
        let runs: Vec<_> = table.map(range(90, 20)).collect();
        assert_eq!(runs, [run(P0, 90, 10, 90), run(P1, 0, 10, 100)]);
    }

    #[test]
    fn table_map_splits_range_at_stripe_chunks() {
        let table = Table::stripe(&[(P0, 4096), (P1, 4096)], 1024).unwrap().table;
        let runs: Vec<_> = table.map(range(512, 3000)).collect();
        let expected = [
            run(P0, 512, 512, 512),
            run(P1, 0, 1024, 1024),
            run(P0, 1024, 1024, 2048),
            run(P1, 1024, 440, 3072),
        ];
        assert_eq!(runs, expected);
    }

    #[test]
    fn table_map_joins_ranges_of_contiguous_segments() {
        // A stripe of one chunk, and what follows that chunk: two segments, but one run below.
        let table = table("0+512 striped 512 skip 0 p0:0 p1:0\n512+512 linear p0 512");
        assert_eq!(table.map(range(0, 1024)).collect::<Vec<_>>(), [run(P0, 0, 1024, 0)]);
        assert_eq!(table.map_one(range(256, 512)), None);
    }

    #[test]
    #[should_panic(expected = "100+51 ends past the end of a table of 150 bytes")]
    fn table_map_panics_when_range_ends_past_table() {
        Table::concat(&[(P0, 100), (P1, 50)]).unwrap().map(range(100, 51));
    }
}
