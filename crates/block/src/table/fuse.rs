//! Substitution of tables into tables.
//!
//! The lower of a table may be a table itself. Fusing replaces the port of that lower with the ports of the lower
//! table, so that one lookup replaces two. Repeated from the bottom of the graph up, it turns a stack of any height
//! into one table.
//!
//! A port is fused completely or not at all, so that all requests of a device take the same path. A port is not fused
//! if a column of a stripe would lie in several segments or in a stripe, because a segment cannot describe that. Nor
//! is a port fused if the result could exceed a limit of [`Table`].

use std::collections::BTreeMap;

use super::{Origin, Place, Port, Row, Segment, Table, TableError};
use crate::ByteRange;

/// Origin of a port of a fused table: the one or two ports that it replaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortPath {
    /// Port of the upper table of the two fused tables.
    pub upper: Port,
    /// Port of the lower table; `None` if the port `upper` was not replaced.
    pub lower: Option<Port>,
}

/// A table that replaces a table and the tables directly below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fused {
    /// The fused table, with ports of its own.
    pub table: Table,
    /// Origin of each port of the fused table, by its number.
    pub ports: Vec<PortPath>,
}

impl Table {
    /// Returns this table with each port `p` replaced by the table `lowers[p]`, if that is a table.
    ///
    /// # Errors
    /// `BeyondLower` if this table maps to bytes past the end of one of `lowers`.
    pub fn fuse(&self, lowers: &[Option<&Table>]) -> Result<Fused, TableError> {
        let mut fuser = Fuser { lowers: choose(self, lowers)?, ports: Ports::default() };
        let mut rows = Vec::new();
        for segment in self.segments() {
            match segment.place {
                Place::Linear(origin) => fuser.linear(*origin, segment.range.len(), &mut rows),
                Place::Striped(_) => rows.push(fuser.striped(segment)),
            }
        }
        Ok(Fused { table: Table::from_rows(rows)?, ports: fuser.ports.list })
    }
}

/// Returns the lowers to fuse, by port: all that can be fused, in the order of their ports, until the result could
/// exceed a limit of [`Table`]. Segments are counted before neighbours are merged.
fn choose<'t>(
    upper: &Table,
    lowers: &[Option<&'t Table>],
) -> Result<Vec<Option<&'t Table>>, TableError> {
    let mut segments = upper.places.len();
    let mut ports = upper.port_count();
    let mut chosen = vec![None; upper.port_count()];
    for (port, more) in more_segments(upper, lowers)?.into_iter().enumerate() {
        let Some((lower, more)) = lowers.get(port).copied().flatten().zip(more) else {
            continue;
        };
        // The port itself is replaced.
        let more_ports = lower.port_count() - 1;
        if segments + more <= Table::MAX_SEGMENTS && ports + more_ports <= Table::MAX_PORTS {
            segments += more;
            ports += more_ports;
            chosen[port] = Some(lower);
        }
    }
    Ok(chosen)
}

/// Returns how many segments the fused table gets by the fusion of each port; `None` for a port that cannot be fused.
fn more_segments(
    upper: &Table,
    lowers: &[Option<&Table>],
) -> Result<Vec<Option<usize>>, TableError> {
    let mut more = vec![Some(0); upper.port_count()];
    for segment in upper.segments() {
        for (index, origin) in segment.place.origins().iter().enumerate() {
            let port = usize::from(origin.port.0);
            let Some(lower) = lowers.get(port).copied().flatten() else {
                continue;
            };
            let extent = segment.place.extent(index, segment.range.len());
            check_within(origin.port, extent, lower)?;
            let cost = match segment.place {
                Place::Linear(_) => extent.map(|extent| lower.segments_within(extent).count() - 1),
                Place::Striped(_) => lower.column(*origin, extent).map(|_| 0),
            };
            more[port] = more[port].zip(cost).map(|(sum, cost)| sum + cost);
        }
    }
    Ok(more)
}

fn check_within(port: Port, extent: Option<ByteRange>, lower: &Table) -> Result<(), TableError> {
    match extent {
        Some(extent) if extent.end() > lower.size() => {
            Err(TableError::BeyondLower { port, end: extent.end(), size: lower.size() })
        }
        _ => Ok(()),
    }
}

impl Table {
    /// Returns the number of each segment that holds bytes of `range`, with these bytes.
    fn segments_within(&self, range: ByteRange) -> impl Iterator<Item = (usize, ByteRange)> {
        let first = self.segment_at(range.start());
        (first..self.places.len())
            .map_while(move |index| Some((index, self.segment_range(index).intersect(range)?)))
    }

    /// Returns the start of a stripe's column in the lowers of this table. The column begins at `origin`, and
    /// `extent` is its used part. `None` if the used part lies in several segments or in a stripe, or if the column
    /// would begin before the first byte of a lower. `None` too if no byte is used, because then the segment is
    /// unknown.
    fn column(&self, origin: Origin, extent: Option<ByteRange>) -> Option<Origin> {
        let extent = extent?;
        let index = self.segment_at(extent.start());
        let segment = self.segment_range(index);
        match self.places[index] {
            Place::Linear(below) if segment.contains(extent) => {
                let start = below.start.checked_add(origin.start)?.checked_sub(segment.start())?;
                Some(Origin { port: below.port, start })
            }
            _ => None,
        }
    }
}

/// The state of the fusion of one table with its lowers.
struct Fuser<'t> {
    lowers: Vec<Option<&'t Table>>,
    ports: Ports,
}

impl Fuser<'_> {
    /// Replaces a linear segment with the segments of the lower table in its range.
    fn linear(&mut self, origin: Origin, len: u64, rows: &mut Vec<Row>) {
        let Some(lower) = self.lowers[usize::from(origin.port.0)] else {
            let place = Place::Linear(self.unfused(origin));
            rows.push(Row { len, place });
            return;
        };
        let range = ByteRange::new(origin.start, len).expect("a segment ends within u64");
        for (index, part) in lower.segments_within(range) {
            let skipped = part.start() - lower.bounds[index];
            let place = lower.places[index].advanced(skipped);
            let place = place.with_ports(|port| self.ports.number(origin.port, Some(port)));
            rows.push(Row { len: part.len(), place });
        }
    }

    /// Moves each column of a striped segment to its position in the lowers of the lower table.
    fn striped(&mut self, segment: Segment) -> Row {
        let len = segment.range.len();
        let mut index = 0;
        let place = segment.place.with_origins(|origin| {
            let extent = segment.place.extent(index, len);
            index += 1;
            let Some(lower) = self.lowers[usize::from(origin.port.0)] else {
                return self.unfused(origin);
            };
            let below = lower.column(origin, extent).expect("the column can be folded");
            Origin { port: self.ports.number(origin.port, Some(below.port)), ..below }
        });
        Row { len, place }
    }

    fn unfused(&mut self, origin: Origin) -> Origin {
        Origin { port: self.ports.number(origin.port, None), ..origin }
    }
}

/// Ports of the fused table, numbered in the order of first use.
#[derive(Default)]
struct Ports {
    list: Vec<PortPath>,
    numbers: BTreeMap<PortPath, Port>,
}

impl Ports {
    fn number(&mut self, upper: Port, lower: Option<Port>) -> Port {
        let path = PortPath { upper, lower };
        *self.numbers.entry(path).or_insert_with(|| {
            let number = u16::try_from(self.list.len()).expect("Table::MAX_PORTS fits 16 bits");
            self.list.push(path);
            Port(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::text_tests::table;
    use super::*;

    const P0: Port = Port(0);
    const P1: Port = Port(1);
    const KIB: u64 = 1024;

    fn path(upper: u16, lower: u16) -> PortPath {
        PortPath { upper: Port(upper), lower: Some(Port(lower)) }
    }

    #[test]
    fn fuse_of_linear_over_concat_shifts_and_clips_segments() {
        let upper = Table::linear(P0, 300, 50, 200).unwrap();
        let lower = Table::concat(&[(P0, 100), (P1, 200)]).unwrap();
        let fused = upper.fuse(&[Some(&lower)]).unwrap();
        assert_eq!(fused.table.to_string(), "0+50 linear p0 50\n50+150 linear p1 0");
        assert_eq!(fused.ports, [path(0, 0), path(0, 1)]);
    }

    #[test]
    fn fuse_keeps_port_of_lower_without_table() {
        let upper = Table::concat(&[(P0, 100), (P1, 100)]).unwrap();
        let lower = Table::linear(P0, 500, 7, 100).unwrap();
        let fused = upper.fuse(&[None, Some(&lower)]).unwrap();
        assert_eq!(fused.table.to_string(), "0+100 linear p0 0\n100+100 linear p1 7");
        assert_eq!(fused.ports, [PortPath { upper: P0, lower: None }, path(1, 0)]);
        assert_eq!(upper.fuse(&[]).unwrap().table, upper);
    }

    #[test]
    fn fuse_of_linear_over_stripe_offsets_first_chunk() {
        let upper = Table::linear(P0, 16384, 1536, 8192).unwrap();
        let lower = Table::stripe(&[(P0, 8192), (P1, 8192)], 1024).unwrap().table;
        let fused = upper.fuse(&[Some(&lower)]).unwrap();
        assert_eq!(fused.table.to_string(), "0+8192 striped 1024 skip 1536 p0:0 p1:0");
    }

    #[test]
    fn fuse_of_stripe_over_linears_adopts_column_offsets() {
        let upper = Table::stripe(&[(P0, 8192), (P1, 8192)], 1024).unwrap().table;
        let one = Table::linear(P0, 100_000, 4096, 8192).unwrap();
        let two = Table::concat(&[(P0, 8192), (P1, 4096)]).unwrap();
        let fused = upper.fuse(&[Some(&one), Some(&two)]).unwrap();
        assert_eq!(fused.table.to_string(), "0+16384 striped 1024 skip 0 p0:4096 p1:0");
        assert_eq!(fused.ports, [path(0, 0), path(1, 0)]);
    }

    #[test]
    fn fuse_keeps_stripe_column_over_two_segments_or_stripe() {
        let upper = Table::stripe(&[(P0, 8192), (P1, 8192)], 1024).unwrap().table;
        let joined = Table::concat(&[(P0, 4096), (P1, 4096)]).unwrap();
        let striped = Table::stripe(&[(P0, 4096), (P1, 4096)], 512).unwrap().table;
        let fused = upper.fuse(&[Some(&joined), Some(&striped)]).unwrap();
        assert_eq!(fused.table, upper);
        let unfused = |port| PortPath { upper: port, lower: None };
        assert_eq!(fused.ports, [unfused(P0), unfused(P1)]);
    }

    #[test]
    fn fuse_keeps_port_when_one_segment_cannot_be_fused() {
        // The linear segment of p0 could be fused; the column of p0 could not.
        let upper = table("0+2048 striped 512 skip 0 p0:0 p1:0\n2048+100 linear p0 1024");
        let lower = table("0+512 linear p0 0\n512+1000 linear p1 0");
        assert_eq!(upper.fuse(&[Some(&lower)]).unwrap().table, upper);
    }

    #[test]
    fn fuse_keeps_port_when_result_would_exceed_segment_limit() {
        let rows = (0..4096).map(|n| format!("{n}+1 linear p0 {}", (4096 - n) * 2));
        let full = table(&rows.collect::<Vec<_>>().join("\n"));
        let upper = Table::concat(&[(P0, 4096), (P1, 100)]).unwrap();
        let small = Table::linear(P0, 500, 7, 100).unwrap();
        let fused = upper.fuse(&[Some(&full), Some(&small)]).unwrap();
        assert_eq!(fused.table.to_string(), "0+4096 linear p0 0\n4096+100 linear p1 7");
        assert_eq!(fused.ports, [PortPath { upper: P0, lower: None }, path(1, 0)]);
    }

    #[test]
    fn fuse_keeps_port_when_result_would_exceed_port_limit() {
        let wide = |count| (0..count).map(|port| (Port(port), 1)).collect::<Vec<_>>();
        let full = Table::concat(&wide(1024)).unwrap();
        let upper = Table::linear(P0, 1024, 0, 1024).unwrap();
        assert_eq!(upper.fuse(&[Some(&full)]).unwrap().table, full);
        let upper = Table::concat(&[(P0, 1024), (P1, 1)]).unwrap();
        assert_eq!(upper.fuse(&[Some(&full)]).unwrap().table, upper);
        let nearly = Table::concat(&wide(1023)).unwrap();
        let upper = Table::concat(&[(P0, 1023), (P1, 1)]).unwrap();
        assert_eq!(upper.fuse(&[Some(&nearly)]).unwrap().table.port_count(), 1024);
    }

    #[test]
    fn fuse_rejects_lower_smaller_than_upper_segment() {
        let upper = Table::linear(P0, 300, 50, 200).unwrap();
        let lower = Table::linear(P0, 249, 0, 249).unwrap();
        let error = upper.fuse(&[Some(&lower)]).unwrap_err();
        assert_eq!(error.to_string(), "a segment ends at byte 250, past the end of p0 at byte 249");
    }

    #[test]
    fn fuse_keeps_stripe_column_without_mapped_bytes() {
        // Only the first chunk, in p0, is within the segment.
        let upper = table("0+512 striped 512 skip 0 p0:0 p1:0");
        let lower = Table::linear(P0, 4096, 1024, 1024).unwrap();
        let fused = upper.fuse(&[Some(&lower), Some(&lower)]).unwrap();
        assert_eq!(fused.table.to_string(), "0+512 striped 512 skip 0 p0:1024 p1:0");
        assert_eq!(fused.ports, [path(0, 0), PortPath { upper: P1, lower: None }]);
    }

    #[test]
    fn fuse_of_two_contiguous_halves_equals_whole() {
        let halves = [0, 512].map(|start| Table::linear(P0, 1024, start, 512).unwrap());
        let joined = Table::concat(&[(P0, 512), (P1, 512)]).unwrap();
        let fused = joined.fuse(&halves.each_ref().map(Some)).unwrap();
        assert_eq!(fused.ports, [path(0, 0), path(1, 0)]);
        let whole = fused.table.renumber(&[P0, P0]).unwrap();
        assert_eq!(whole, Table::linear(P0, 1024, 0, 1024).unwrap());
    }

    #[test]
    fn table_renumber_rejects_overlapping_segments() {
        let joined = Table::concat(&[(P0, 512), (P1, 512)]).unwrap();
        let error = joined.renumber(&[P0, P0]).unwrap_err();
        assert_eq!(error.to_string(), "bytes 0+512 and 0+512 of p0 overlap");
    }

    #[test]
    fn fuse_of_sixteen_linears_is_one_segment() {
        // Each leaves out the first (2 k + 1) * 4 KiB of the one below: 4 KiB * 16 * 16 in all.
        let mut size = 8192 * KIB;
        let mut stack = Table::linear(P0, size, 0, size).unwrap();
        for k in 0..16 {
            let shift = (2 * k + 1) * 4 * KIB;
            let upper = Table::linear(P0, size, shift, size - shift).unwrap();
            size -= shift;
            stack = upper.fuse(&[Some(&stack)]).unwrap().table;
        }
        assert_eq!(stack.to_string(), "0+7340032 linear p0 1048576");
    }

    /// Returns the table `below` of `size` bytes with its two parts swapped: the part from `cut` on comes first.
    fn swapped(below: &Table, size: u64, cut: u64) -> Table {
        let parts = [(cut, size - cut), (0, cut)];
        let parts = parts.map(|(start, len)| Table::linear(P0, size, start, len).unwrap());
        let joined = Table::concat(&[(P0, size - cut), (P1, cut)]).unwrap();
        let parts = parts.map(|part| part.fuse(&[Some(below)]).unwrap().table);
        let fused = joined.fuse(&parts.each_ref().map(Some)).unwrap();
        fused.table.renumber(&vec![P0; fused.ports.len()]).unwrap()
    }

    #[test]
    fn fuse_of_sixteen_rotations_has_two_segments() {
        // Swap k rotates by (2 k + 1) * 4 KiB: 4 KiB * 16 * 16 = 1 MiB of the 4 MiB in all.
        let size = 4096 * KIB;
        let mut stack = Table::linear(P0, size, 0, size).unwrap();
        for k in 0..16 {
            stack = swapped(&stack, size, (2 * k + 1) * 4 * KIB);
        }
        let expected = "0+3145728 linear p0 1048576\n3145728+1048576 linear p0 0";
        assert_eq!(stack.to_string(), expected);
    }
}
