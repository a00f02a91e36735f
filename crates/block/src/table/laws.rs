//! Properties of every table, tested on random tables.

use proptest::collection::vec;
use proptest::prelude::*;

use super::text_tests::table;
use super::{Origin, Place, Port, Row, Run, Stripe, Table};
use crate::ByteRange;

const MAX_WIDTH: usize = 3;

/// Random parameters of one segment of a table. [`lay_out`] brings the numbers into the bounds of the lowers.
#[derive(Clone, Debug)]
struct Piece {
    port: usize,
    gap: u64,
    len: u64,
    chunk: Option<u32>,
    skip: u64,
}

fn piece() -> impl Strategy<Value = Piece> {
    let chunk = prop::option::of(prop::sample::select(vec![512, 1024, 1536, 2560]));
    let numbers = (0..MAX_WIDTH, prop_oneof![Just(0), 1..2000_u64], 1..9000_u64, 0..5000_u64);
    (numbers, chunk).prop_map(|((port, gap, len, skip), chunk)| Piece {
        port,
        gap,
        len,
        chunk,
        skip,
    })
}

/// Makes a table over lowers of `sizes` bytes. The segments map to consecutive bytes of each lower, so that no byte of
/// a lower is mapped twice. In the table the segments are in the order of `keys`.
fn lay_out(pieces: &[Piece], keys: &[u32], sizes: &[u64]) -> Table {
    let mut free = vec![0; sizes.len()];
    let rows = pieces.iter().filter_map(|piece| match piece.chunk {
        Some(chunk) => striped(piece, chunk, sizes, &mut free),
        None => linear(piece, sizes, &mut free),
    });
    let mut rows: Vec<_> = rows.zip(keys).collect();
    rows.sort_by_key(|(_, key)| **key);
    let table = Table::from_rows(rows.into_iter().map(|(row, _)| row));
    table.unwrap_or_else(|_| Table::linear(Port(0), sizes[0], 0, sizes[0]).unwrap())
}

fn linear(piece: &Piece, sizes: &[u64], free: &mut [u64]) -> Option<Row> {
    let port = piece.port % sizes.len();
    let start = free[port] + piece.gap;
    let len = piece.len.min(sizes[port].checked_sub(start)?);
    free[port] = start + len;
    let place = Place::Linear(Origin { port: Port(port as u16), start });
    (len > 0).then_some(Row { len, place })
}

/// Makes a striped segment over all lowers. If there are three or more lowers, the lower `piece.port` is left out.
fn striped(piece: &Piece, chunk: u32, sizes: &[u64], free: &mut [u64]) -> Option<Row> {
    let ports = (0..sizes.len()).filter(|port| sizes.len() < 3 || *port != piece.port);
    let columns: Vec<_> = ports
        .map(|port| Origin { port: Port(port as u16), start: free[port] + piece.gap })
        .collect();
    let stripe = Stripe::new(chunk, piece.skip, columns).ok()?;
    let place = Place::Striped(Box::new(stripe));
    let ends: Vec<_> = place.extents(piece.len).collect();
    if ends.iter().any(|(port, extent)| extent.end() > sizes[usize::from(port.0)]) {
        return None;
    }
    for (port, extent) in ends {
        free[usize::from(port.0)] = extent.end();
    }
    Some(Row { len: piece.len, place })
}

/// A device of a random graph: a disk without content, or a table over other devices.
#[derive(Clone, Debug)]
enum Node {
    Leaf { number: usize, size: u64 },
    Table { table: Table, lowers: Vec<Node> },
}

impl Node {
    fn size(&self) -> u64 {
        match self {
            Self::Leaf { size, .. } => *size,
            Self::Table { table, .. } => table.size(),
        }
    }

    fn table(&self) -> Option<&Table> {
        match self {
            Self::Leaf { .. } => None,
            Self::Table { table, .. } => Some(table),
        }
    }

    fn lower(&self, port: Port) -> &Node {
        match self {
            Self::Leaf { .. } => panic!("a leaf has no lowers"),
            Self::Table { lowers, .. } => &lowers[usize::from(port.0)],
        }
    }

    /// Gives every disk of the graph (`Leaf`) a different number.
    fn number(&mut self, next: &mut usize) {
        *next += 1;
        match self {
            Self::Leaf { number, .. } => *number = *next,
            Self::Table { lowers, .. } => lowers.iter_mut().for_each(|lower| lower.number(next)),
        }
    }

    /// Returns a copy of the device with all its tables fused into one table, from the bottom up.
    fn fused(&self) -> Node {
        let Self::Table { table, lowers } = self else {
            return self.clone();
        };
        let below: Vec<_> = lowers.iter().map(Node::fused).collect();
        let tables: Vec<_> = below.iter().map(Node::table).collect();
        let fused = table.fuse(&tables).unwrap();
        let reached = fused.ports.iter().map(|path| {
            let node = &below[usize::from(path.upper.0)];
            path.lower.map_or(node, |port| node.lower(port)).clone()
        });
        Node::Table { table: fused.table, lowers: reached.collect() }
    }

    /// Maps `range` of the device to byte ranges of the disks (`Leaf`). The port of each returned run is the number of
    /// its disk. `start` is the address of `range` in the topmost device, in bytes.
    fn resolve(&self, range: ByteRange, start: u64) -> Vec<Run> {
        match self {
            Self::Leaf { number, .. } => vec![Run { port: Port(*number as u16), range, start }],
            Self::Table { table, lowers } => table
                .map(range)
                .flat_map(|run| {
                    let lower = &lowers[usize::from(run.port.0)];
                    lower.resolve(run.range, start + run.start - range.start())
                })
                .collect(),
        }
    }
}

fn table_over(lowers: Vec<Node>) -> impl Strategy<Value = Node> {
    (vec(piece(), 1..12), vec(any::<u32>(), 12)).prop_map(move |(pieces, keys)| {
        let sizes: Vec<_> = lowers.iter().map(Node::size).collect();
        Node::Table { table: lay_out(&pieces, &keys, &sizes), lowers: lowers.clone() }
    })
}

/// Generates a table over random disks and tables, which are nested a few levels deep.
fn stack() -> impl Strategy<Value = Node> {
    let leaf = (1..30_000_u64).prop_map(|size| Node::Leaf { number: 0, size });
    let levels = leaf.prop_recursive(3, 24, MAX_WIDTH as u32, |lower| {
        vec(lower, 1..=MAX_WIDTH).prop_flat_map(table_over)
    });
    vec(levels, 1..=MAX_WIDTH).prop_flat_map(table_over).prop_map(|mut node| {
        node.number(&mut 0);
        node
    })
}

/// Generates a random table, and the sizes of its lowers in bytes.
fn any_table() -> impl Strategy<Value = (Table, Vec<u64>)> {
    stack().prop_map(|node| match node {
        Node::Table { table, lowers } => (table, lowers.iter().map(Node::size).collect()),
        Node::Leaf { .. } => panic!("a stack begins with a table"),
    })
}

/// Turns two numbers of any size into a valid byte range within the first `size` bytes.
fn within(size: u64, (start, len): (u64, u64)) -> ByteRange {
    let start = start % size;
    ByteRange::new(start, 1 + len % (size - start)).unwrap()
}

fn whole(table: &Table) -> ByteRange {
    ByteRange::new(0, table.size()).unwrap()
}

/// Merges neighbouring runs of a mapping that are adjacent both in the table's addresses and in the lower.
fn normal(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last)
                if last.port == run.port
                    && last.range.end() == run.range.start()
                    && last.start + last.range.len() == run.start =>
            {
                last.range = ByteRange::between(last.range.start(), run.range.end()).unwrap();
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// Returns the table's address that maps to the address `lower_byte` of the lower `port`; `None` if there is none.
fn upper_of(table: &Table, port: Port, lower_byte: u64) -> Option<u64> {
    let place = Origin { port, start: lower_byte };
    table.segments().find_map(|segment| {
        let offset = offset_of(segment.place, place, segment.range.len())?;
        Some(segment.range.start() + offset)
    })
}

/// Returns the offset in a segment of `len` bytes that maps to `at`, an address in a lower; `place` is its mapping.
fn offset_of(place: &Place, at: Origin, len: u64) -> Option<u64> {
    match place {
        Place::Linear(origin) if origin.port == at.port => {
            at.start.checked_sub(origin.start).filter(|offset| *offset < len)
        }
        Place::Linear(_) => None,
        Place::Striped(stripe) => offset_in_stripe(stripe, at, len),
    }
}

/// Returns the offset in a striped segment of `len` bytes that maps to `at`, an address in a lower.
fn offset_in_stripe(stripe: &Stripe, at: Origin, len: u64) -> Option<u64> {
    let byte = ByteRange::new(at.start, 1)?;
    let columns = stripe.columns();
    let reaches = |index: &usize| {
        let extent = stripe.extent(*index, len);
        columns[*index].port == at.port && extent.is_some_and(|e| e.contains(byte))
    };
    let column = (0..columns.len()).find(reaches)?;
    let chunk = u64::from(stripe.chunk());
    let below = at.start - columns[column].start;
    let number = below / chunk * columns.len() as u64 + column as u64;
    Some(number * chunk + below % chunk - stripe.skip())
}

#[test]
fn stripe_column_byte_maps_back_to_stripe_offset() {
    // 1024-byte chunks, seen from byte 1536: half of chunk 1 is skipped.
    let column = |port, start| Origin { port: Port(port), start };
    let columns = vec![column(0, 0), column(1, 4096), column(2, 8192)];
    let window = Stripe::new(1024, 1536, columns).unwrap();
    assert_eq!(offset_in_stripe(&window, column(0, 1025), 4096), Some(1537));
    assert_eq!(offset_in_stripe(&window, column(0, 1023), 4096), None, "skipped");
    assert_eq!(offset_in_stripe(&window, column(1, 4096 + 511), 4096), None, "skipped");
    assert_eq!(offset_in_stripe(&window, column(0, 1025), 1537), None, "behind the window");
}

/// Makes tables of one striped segment, with lengths and addresses up to `u64::MAX`. `None` for a rejected table.
fn extreme_table() -> impl Strategy<Value = Option<Table>> {
    let number = || prop_oneof![0..10_000_u64, any::<u64>(), u64::MAX - 10_000..=u64::MAX];
    let chunk = prop_oneof![Just(512_u32), Just(1536), Just(1 << 30)];
    (number(), number(), number(), number(), chunk).prop_map(|(len, skip, one, two, chunk)| {
        let columns = [one, two].into_iter().enumerate();
        let columns = columns.map(|(port, start)| Origin { port: Port(port as u16), start });
        let stripe = Stripe::new(chunk, skip, columns.collect()).unwrap();
        Table::from_rows([Row { len, place: Place::Striped(Box::new(stripe)) }]).ok()
    })
}

proptest! {
    #[test]
    fn table_map_covers_range_in_order_without_gaps((table, _) in any_table(), numbers: (u64, u64)) {
        let range = within(table.size(), numbers);
        let runs: Vec<_> = table.map(range).collect();
        let mut at = range.start();
        for run in &runs {
            prop_assert_eq!(run.start, at);
            at += run.range.len();
        }
        prop_assert_eq!(at, range.end());
        prop_assert_eq!(normal(runs.clone()), runs, "neighbours that go on are one run");
    }

    #[test]
    fn table_map_stays_within_lowers_without_overlap((table, sizes) in any_table()) {
        let mut runs: Vec<_> = table.map(whole(&table)).map(|run| (run.port, run.range)).collect();
        runs.sort_unstable();
        for (port, range) in &runs {
            prop_assert!(range.end() <= sizes[usize::from(port.0)]);
        }
        for pair in runs.windows(2) {
            prop_assert!(pair[0].0 != pair[1].0 || !pair[0].1.overlaps(pair[1].1));
        }
    }

    #[test]
    fn table_maps_part_of_range_like_whole_range((table, _) in any_table(), numbers: (u64, u64)) {
        let range = within(table.size(), numbers);
        let clipped = table.map(whole(&table)).filter_map(|run| {
            let above = ByteRange::new(run.start, run.range.len()).unwrap().intersect(range)?;
            let start = run.range.start() + (above.start() - run.start);
            Some(Run { range: above.at(start), start: above.start(), ..run })
        });
        prop_assert_eq!(table.map(range).collect::<Vec<_>>(), clipped.collect::<Vec<_>>());
    }

    #[test]
    fn table_map_one_agrees_with_map((table, _) in any_table(), start: u64, len in 0..600_u64) {
        let range = within(table.size(), (start, len));
        let runs: Vec<_> = table.map(range).collect();
        let one_segment = table.segment_at(range.start()) == table.segment_at(range.end() - 1);
        let expected = (runs.len() == 1 && one_segment).then(|| runs[0]);
        prop_assert_eq!(table.map_one(range), expected);
    }

    #[test]
    fn table_reverse_lookup_returns_mapped_byte((table, _) in any_table(), byte: u64) {
        let byte = byte % table.size();
        let run = table.map_one(ByteRange::new(byte, 1).unwrap()).unwrap();
        prop_assert_eq!(upper_of(&table, run.port, run.range.start()), Some(byte));
    }

    #[test]
    fn table_reverse_lookup_finds_only_mapped_bytes((table, sizes) in any_table(), byte: u64) {
        let port = Port((byte % sizes.len() as u64) as u16);
        let byte = ByteRange::new(byte % sizes[usize::from(port.0)], 1).unwrap();
        let run = table.map(whole(&table)).find(|run| run.port == port && run.range.contains(byte));
        let above = run.map(|run| run.start + byte.start() - run.range.start());
        prop_assert_eq!(upper_of(&table, port, byte.start()), above);
    }

    #[test]
    fn fused_table_maps_like_unfused_stack(node in stack(), numbers in vec(any::<(u64, u64)>(), 8)) {
        let fused = node.fused();
        prop_assert_eq!(fused.size(), node.size());
        for range in numbers.into_iter().map(|numbers| within(node.size(), numbers)) {
            let [above, below] = [&node, &fused].map(|node| normal(node.resolve(range, range.start())));
            prop_assert_eq!(above, below);
        }
    }

    #[test]
    fn table_parses_from_printed_text(node in stack()) {
        let fused = node.fused();
        let fused = fused.table().unwrap();
        prop_assert_eq!(&table(&fused.to_string()), fused);
    }

    #[test]
    fn fused_concat_of_halves_equals_whole_device(size in 2..u64::MAX, cut: u64) {
        let cut = 1 + cut % (size - 1);
        let halves = [(0, cut), (cut, size - cut)];
        let lowers = halves.map(|(start, len)| Table::linear(Port(0), size, start, len).unwrap());
        let joined = Table::concat(&[(Port(0), cut), (Port(1), size - cut)]).unwrap();
        let fused = joined.fuse(&lowers.each_ref().map(Some)).unwrap().table;
        let whole = Table::linear(Port(0), size, 0, size).unwrap();
        prop_assert_eq!(fused.renumber(&[Port(0), Port(0)]).unwrap(), whole);
    }

    #[test]
    fn table_with_extreme_numbers_is_valid_or_rejected(table in extreme_table()) {
        if let Some(table) = table {
            let last = ByteRange::new(table.size() - 1, 1).unwrap();
            let run = table.map_one(last).unwrap();
            let last_byte = upper_of(&table, run.port, run.range.start());
            prop_assert_eq!(last_byte, Some(table.size() - 1));
        }
    }
}
