//! The block status of a range of a table, merged from the block status of the lowers.

use super::{Place, Port, Table};
use crate::{ByteRange, EXTENTS_MAX, Extent, State, push_extent};

/// Most status requests to lowers for one status request to a table. Beyond it the reply covers only the beginning of
/// the range.
const ASKED_MAX: usize = 4096;

/// Collects the block status of a range of a table from the block status of its lowers. Each column of a stripe is
/// asked once for all of its bytes, and rows in which all columns have one state are merged in one step. So the effort
/// depends on the number of extents and not on the length of the range.
///
/// The caller sends a status request to a lower for each range that [`StatusMerge::next`] returns, and passes its
/// reply to [`StatusMerge::add`]. The result may cover only the beginning of the range, as that of any device.
pub struct StatusMerge<'t> {
    table: &'t Table,
    range: ByteRange,
    /// First byte of the table without a status in `merged`.
    at: u64,
    /// The segment's place from byte `at` on.
    place: Place,
    /// Number of bytes from `at` on with a status from every lower that was asked.
    known: u64,
    /// The replies of the lowers, for each origin of `place` that was asked.
    columns: Vec<Vec<Extent>>,
    asked: usize,
    /// Whether a reply was too short or had too many extents, so that the result ends with this segment.
    is_cut: bool,
    merged: Vec<Extent>,
}

impl<'t> StatusMerge<'t> {
    /// Creates the state of a status request on `range` of `table`.
    ///
    /// # Panics
    /// If `range` passes the end of the table.
    pub fn new(table: &'t Table, range: ByteRange) -> Self {
        assert!(range.end() <= table.size(), "{range} ends past the end of the table");
        let (place, known) = table.place_of(range);
        Self {
            table,
            range,
            at: range.start(),
            place,
            known,
            columns: Vec::new(),
            asked: 0,
            is_cut: false,
            merged: Vec::new(),
        }
    }

    /// Returns the next lower to ask, and the bytes of the lower to ask for; `None` if no lower needs to be asked any
    /// more.
    #[allow(clippy::should_implement_trait, reason = "each range needs a reply before the next")]
    pub fn next(&mut self) -> Option<(Port, ByteRange)> {
        loop {
            while self.columns.len() < self.place.origins().len() {
                if let Some(range) = self.place.extent(self.columns.len(), self.known) {
                    return Some((self.place.origins()[self.columns.len()].port, range));
                }
                self.columns.push(Vec::new());
            }
            self.merge();
            let rest = ByteRange::between(self.at, self.range.end())?;
            let is_full = self.merged.len() >= EXTENTS_MAX || self.asked >= ASKED_MAX;
            if self.is_cut || is_full {
                return None;
            }
            (self.place, self.known) = self.table.place_of(rest);
            self.columns.clear();
        }
    }

    /// Adds the reply of a lower to a status request for the range that [`StatusMerge::next`] returned last.
    ///
    /// # Panics
    /// If [`StatusMerge::next`] returned no range.
    pub fn add(&mut self, extents: Vec<Extent>) {
        let index = self.columns.len();
        let range = self.place.extent(index, self.known).expect("the lower was asked for bytes");
        // Each column may use its share of the extents. The columns after it are asked for fewer bytes.
        let share = EXTENTS_MAX / self.place.origins().len();
        let shared = extents.iter().take(share);
        let known = shared.fold(0, |known: u64, extent| known.saturating_add(extent.len));
        if known < range.len() {
            self.known = self.place.offset_of(index, range.start() + known);
            self.is_cut = true;
        }
        self.columns.push(extents);
        self.asked += 1;
    }

    /// Returns the block status: at least one extent, from the first byte of the range on.
    pub fn into_extents(mut self) -> Vec<Extent> {
        if self.merged.is_empty() {
            push_extent(&mut self.merged, self.range.len(), State::Data);
        }
        self.merged
    }

    /// Merges the replies of the columns for the bytes that are known in all of them.
    fn merge(&mut self) {
        let mut columns: Vec<Cursor> =
            self.columns.iter().map(|known| Cursor::new(known)).collect();
        let mut offset = 0;
        while offset < self.known && self.merged.len() < EXTENTS_MAX {
            let left = self.known - offset;
            let row = self.place.row_at(offset);
            if let Some((chunk, row)) = row.filter(|(_, row)| *row <= left)
                && let Some((rows, state)) = rows_alike(&columns, chunk)
            {
                let rows = rows.min(left / row);
                push_extent(&mut self.merged, rows * row, state);
                columns.iter_mut().for_each(|column| column.advance(rows * chunk));
                offset += rows * row;
                continue;
            }
            let (index, together) = self.place.column_at(offset);
            let Some((len, state)) = columns[index].now() else { break };
            let len = len.min(together).min(left);
            push_extent(&mut self.merged, len, state);
            columns[index].advance(len);
            offset += len;
        }
        self.at += offset;
    }
}

impl Table {
    /// Returns the place of the bytes of `range` from its first byte on, and the number of those bytes in the first
    /// segment of `range`.
    fn place_of(&self, range: ByteRange) -> (Place, u64) {
        let index = self.segment_at(range.start());
        let place = self.places[index].advanced(range.start() - self.bounds[index]);
        (place, range.end().min(self.bounds[index + 1]) - range.start())
    }
}

/// A position in the known extents of a column.
struct Cursor<'e> {
    extents: &'e [Extent],
    /// Number of bytes of the first extent that lie before the position.
    used: u64,
}

impl<'e> Cursor<'e> {
    fn new(extents: &'e [Extent]) -> Self {
        let mut cursor = Self { extents, used: 0 };
        cursor.advance(0);
        cursor
    }

    /// Returns the number of bytes in one state from the position on, and the state; `None` if no more is known.
    fn now(&self) -> Option<(u64, State)> {
        self.extents.first().map(|extent| (extent.len - self.used, extent.state))
    }

    fn advance(&mut self, len: u64) {
        self.used += len;
        while let Some(extent) = self.extents.first().filter(|extent| extent.len <= self.used) {
            self.used -= extent.len;
            self.extents = &self.extents[1..];
        }
    }
}

/// Returns the number of complete rows, from the positions of all columns on, in which all columns have one state, and
/// the state; `None` if the next row has several states.
fn rows_alike(columns: &[Cursor], chunk: u64) -> Option<(u64, State)> {
    let (mut least, state) = columns.first()?.now()?;
    for column in &columns[1..] {
        let (len, other) = column.now()?;
        if other != state {
            return None;
        }
        least = least.min(len);
    }
    (least >= chunk).then_some((least / chunk, state))
}

#[cfg(test)]
mod tests {
    use super::super::text_tests::table;
    use super::*;

    /// Lowers of 4096-byte blocks: the state of block `b` of port `p` is drawn from both.
    fn state_of(port: Port, block: u64, spread: u64) -> State {
        match (block / spread + 7 * u64::from(port.0)) * 0x9e37_79b9 % 11 {
            0..=3 => State::Data,
            4..=7 => State::Hole,
            _ => State::Zero,
        }
    }

    /// Returns the status that a lower reports, with at most `most` extents.
    fn reply(port: Port, range: ByteRange, spread: u64, most: usize) -> Vec<Extent> {
        let mut all = Vec::new();
        let mut at = range.start();
        while at < range.end() && all.len() <= most {
            let len = (4096 - at % 4096).min(range.end() - at);
            push_extent(&mut all, len, state_of(port, at / 4096, spread));
            at += len;
        }
        all.truncate(most);
        all
    }

    fn merged(table: &Table, range: ByteRange, spread: u64, most: usize) -> (Vec<Extent>, usize) {
        let mut merge = StatusMerge::new(table, range);
        let mut asked = 0;
        while let Some((port, below)) = merge.next() {
            merge.add(reply(port, below, spread, most));
            asked += 1;
        }
        (merge.into_extents(), asked)
    }

    const TEXT: &str = "0+40960 linear p0 8192\n40960+524288 striped 4096 skip 4096 p1:0 p2:4096 p0:65536\n\
                        565248+8192 linear p2 1048576\n573440+393216 striped 8192 skip 0 p3:0 p4:0";

    #[test]
    fn merged_status_equals_status_of_each_byte() {
        let table = table(TEXT);
        for spread in [1, 2, 3, 16, 1000] {
            for most in [1, 2, 5, EXTENTS_MAX] {
                for (start, len) in [(0, 966_656), (4096, 40960), (45_056, 520_192), (512, 900_000)]
                {
                    let range = ByteRange::new(start, len).unwrap();
                    let (extents, _) = merged(&table, range, spread, most);
                    let mut expected = Vec::new();
                    for run in table.map(range) {
                        for extent in reply(run.port, run.range, spread, usize::MAX - 1) {
                            push_extent(&mut expected, extent.len, extent.state);
                        }
                    }
                    let known: u64 = extents.iter().map(|extent| extent.len).sum();
                    assert!(known > 0 && known <= len, "{known} of {len} bytes");
                    assert!(most < EXTENTS_MAX || known == len, "{known} of {len} bytes");
                    assert_eq!(extents, crate::clip_extents(&expected, 0, known));
                }
            }
        }
    }

    #[test]
    fn status_of_large_stripe_asks_each_column_once() {
        let columns: Vec<_> = (0..64).map(|port| (Port(port), 1 << 41)).collect();
        let table = Table::stripe(&columns, 4096).unwrap().table;
        let range = ByteRange::new(0, table.size()).unwrap();
        let mut merge = StatusMerge::new(&table, range);
        let mut asked = Vec::new();
        while let Some((port, below)) = merge.next() {
            asked.push((port, below.len()));
            merge.add(vec![Extent { len: below.len(), state: State::Hole }]);
        }
        assert_eq!(asked, columns);
        let hole = Extent { len: 1 << 47, state: State::Hole };
        assert_eq!(merge.into_extents(), [hole]);
    }

    #[test]
    fn status_of_fragmented_stripe_ends_at_limit_of_extents() {
        let columns: Vec<_> = (0..64).map(|port| (Port(port), 1 << 41)).collect();
        let table = Table::stripe(&columns, 4096).unwrap().table;
        let range = ByteRange::new(0, table.size()).unwrap();
        let mut merge = StatusMerge::new(&table, range);
        while let Some((port, below)) = merge.next() {
            // One column has data, the others have holes: each row has two extents.
            let state = if port == Port(9) { State::Data } else { State::Hole };
            merge.add(vec![Extent { len: below.len(), state }]);
        }
        assert_eq!(merge.into_extents().len(), EXTENTS_MAX);
    }

    #[test]
    fn status_that_no_lower_knows_is_data() {
        let table = table(TEXT);
        let range = ByteRange::new(45_056, 100_000).unwrap();
        let mut merge = StatusMerge::new(&table, range);
        while merge.next().is_some() {
            merge.add(Vec::new());
        }
        assert_eq!(merge.into_extents(), [Extent { len: 100_000, state: State::Data }]);
    }
}
