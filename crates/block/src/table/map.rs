//! Lookup of the lower bytes to which bytes of a table map.

use super::{Origin, Place, Port, Table};
use crate::ByteRange;

/// Bytes of a table that are contiguous in one lower device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Port of the lower device in the table.
    pub port: Port,
    /// The bytes of the run in the lower device.
    pub range: ByteRange,
    /// Address of the run's first byte in the table's own address space.
    pub start: u64,
}

impl Run {
    /// Returns this run joined with `next`, which follows this run in the table; `None` if `next` does not follow it
    /// in the lower device too.
    fn joined(self, next: Self) -> Option<Self> {
        let goes_on = self.port == next.port && self.range.end() == next.range.start();
        let range = ByteRange::between(self.range.start(), next.range.end())?;
        goes_on.then_some(Self { range, ..self })
    }
}

impl Table {
    /// Returns the lower bytes to which `range` maps if they are one run of one segment, as for nearly every request.
    /// `None` means that the caller must use [`Table::map`], or that `range` passes the end of the table.
    #[inline]
    pub fn map_one(&self, range: ByteRange) -> Option<Run> {
        self.map_in(self.segment_at(range.start()), range)
    }

    /// Maps `range` as [`Table::map_one`] does, for a caller that has the number `segment` of the segment already
    /// from [`Table::segment_at`], because it counts requests for each segment.
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

    /// Returns the number of the segment that holds byte `start` of the table; of the last segment if `start` is past
    /// the end.
    #[inline]
    pub fn segment_at(&self, start: u64) -> usize {
        // Only the bounds between segments: with one segment there is nothing to search.
        self.bounds[1..self.places.len()].partition_point(|bound| *bound <= start)
    }

    /// Returns the runs of lower bytes to which `range` maps, in the order of the table's bytes. Neighbours that are
    /// contiguous in the same lower device are one run.
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
    /// Returns the position of byte `offset` of this place in a lower device, and the number of bytes that are
    /// contiguous there from this byte on.
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
    /// Number of the segment that holds byte `at` of the table.
    segment: usize,
    at: u64,
    end: u64,
    /// Run that was looked up early, and that is not contiguous with the run before it.
    ahead: Option<Run>,
}

impl Runs<'_> {
    /// Returns the next bytes that are contiguous in a lower device and lie in one segment.
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
